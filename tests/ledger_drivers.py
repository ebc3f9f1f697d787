"""What the tests of faults run in processes of their own: they fork, charge, and are killed.

Each driver prints one JSON object. They are run as scripts, so that a fork never copies a test runner.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import resource
import signal
import sqlite3
import sys
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ledger_support import gaussian, pure

from scoreshield.errors import BudgetExceeded, LedgerError
from scoreshield.privacy.ledger import Ledger, database


def forked(work: Callable[[], object]) -> int:
    """Run the work in a fork; the wait status."""
    child = os.fork()
    if child == 0:
        try:
            work()
            os._exit(0)
        except BaseException as error:
            print(f"{type(error).__name__}: {error}", file=sys.stderr)
            os._exit(1)
    return os.waitpid(child, 0)[1]


class Fatal(sqlite3.Connection):
    """A connection whose process is killed before or after its nth statement."""

    left = -1
    before = False
    seen: list[str] = []  # noqa: RUF012

    def execute(self, statement: str, *values: Any) -> sqlite3.Cursor:
        cls = type(self)
        cls.left -= 1
        cls.seen.append(statement.split()[0])
        if cls.left == 0 and cls.before:
            os.kill(os.getpid(), signal.SIGKILL)
        answer = super().execute(statement, *values)
        if cls.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return answer


def kill_at_every_statement(url: str) -> dict[str, Any]:
    ledger = Ledger.create(url, epsilon=1000.0, delta=0.0)
    connect = sqlite3.connect

    def arm(step: int, before: bool) -> None:
        Fatal.left, Fatal.before = step, before
        sqlite3.connect = lambda *a, **k: connect(*a, **k, factory=Fatal)  # type: ignore[assignment]

    ledger.spend(pure(0.5))  # the first one finds no sums yet
    arm(-1, False)
    ledger.spend(pure(0.5))
    sqlite3.connect = connect  # type: ignore[assignment]
    steps = list(Fatal.seen)
    results = []
    for step in range(1, len(steps) + 1):
        for before in (True, False):
            count = len(ledger.entries())

            def charge(step: int = step, before: bool = before) -> None:
                arm(step, before)
                ledger.spend(pure(0.5))

            status = forked(charge)
            killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
            added = len(ledger.entries()) - count
            whole = bool(ledger.verify())
            ledger.spend(pure(0.25))  # the next charge goes through at once
            results.append([steps[step - 1], before, killed, added, whole])
    total = sum(json.loads(entry.profile)["epsilon"] for entry in ledger.entries())
    return {"steps": steps, "results": results, "spent": ledger.spent, "sum": total}


def kill_at_random(url: str, rounds: int) -> dict[str, Any]:
    """A process charges without pause and says what it was told; it is killed at a random moment.

    Every second time not before it was told twice, so that a busy machine sees kills between charges as well.
    """
    ledger = Ledger.create(url, epsilon=1e6, delta=0.0)
    chance = random.Random(5)
    acknowledged, kills_with_journal = [], 0
    for round_number in range(rounds):
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            while True:
                os.write(writer, f"{ledger.spend(pure(0.5)).hash}\n".encode())
        os.close(writer)
        with os.fdopen(reader) as pipe:
            told = [pipe.readline() for _ in range(2 * (round_number % 2))]
            time.sleep(chance.uniform(0.002, 0.03))
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            kills_with_journal += Path(url.removeprefix("sqlite:///") + "-journal").exists()
            acknowledged += [line.strip() for line in [*told, *pipe] if line.endswith("\n")]
    hashes = [entry.hash for entry in ledger.entries()]
    return {
        "rounds": rounds,
        "acknowledged": len(acknowledged),
        "entries": len(hashes),
        "lost": len(set(acknowledged) - set(hashes)),
        "in_order": acknowledged == [value for value in hashes if value in set(acknowledged)],
        "journals": kills_with_journal,
        "whole": bool(ledger.verify()),
    }


def race(url: str, processes: int, charges: int) -> dict[str, Any]:
    """So many processes charge so often, all at once."""
    ledger = Ledger.open(url)
    pipes, start = [], time.monotonic() + 0.2
    for number in range(processes):
        reader, writer = os.pipe()
        if os.fork() == 0:
            counts = {"charged": [], "refused": 0, "failed": 0}
            time.sleep(max(0.0, start - time.monotonic()))
            for place in range(charges):
                try:
                    counts["charged"].append(ledger.spend(pure(0.01), who=f"p{number}", why=str(place)).id)
                except BudgetExceeded:
                    counts["refused"] += 1
                except LedgerError as error:
                    print(error, file=sys.stderr)
                    counts["failed"] += 1
            with os.fdopen(writer, "w") as pipe:
                json.dump(counts, pipe)
            os._exit(0)
        os.close(writer)
        pipes.append(reader)
    counts = []
    for reader in pipes:
        with os.fdopen(reader) as pipe:
            counts.append(json.load(pipe))
    ids = sorted(number for count in counts for number in count["charged"])
    entries = ledger.entries()
    return {
        "asked": processes * charges,
        "charged": len(ids),
        "refused": sum(count["refused"] for count in counts),
        "failed": sum(count["failed"] for count in counts),
        "entries": len(entries),
        "lost": len(set(ids) - {entry.id for entry in entries}),
        "twice": len(ids) - len(set(ids)),
        "by_process": [len(count["charged"]) for count in counts],
        "spent": ledger.spent,
        "limit": ledger.epsilon,
        "whole": bool(ledger.verify()),
    }


def race_creation(url: str, rounds: int) -> dict[str, Any]:
    """In each round four processes with four threads each make a ledger that is not there, and charge it at once."""
    warnings.simplefilter("ignore")
    found = {"rounds": rounds, "acknowledged": 0, "lost": 0, "whole": 0, "errors": []}
    for place in range(rounds):
        here = f"{url}.{place}"
        readers, start = [], time.monotonic() + 0.02
        for _ in range(4):
            reader, writer = os.pipe()
            if os.fork() == 0:
                told: list[str] = []

                def charge(told: list[str] = told, start: float = start, here: str = here) -> None:
                    time.sleep(max(0.0, start - time.monotonic()))
                    try:
                        ledger = Ledger(here, epsilon=1e6, delta=0.0)
                        for _ in range(3):
                            told.append(ledger.spend(pure(0.5), dataset="d").hash)
                    except Exception as error:
                        told.append(f"{type(error).__name__}: {error}")

                threads = [threading.Thread(target=charge) for _ in range(4)]
                for thread in threads:
                    thread.start()
                for thread in threads:
                    thread.join()
                os.write(writer, json.dumps(told).encode())
                os._exit(0)
            os.close(writer)
            readers.append(reader)
        told = []
        for reader in readers:
            with os.fdopen(reader) as pipe:
                told += json.load(pipe)
            os.wait()
        hashes = [one for one in told if ":" not in one]
        ledger = Ledger.open(here)
        found["errors"] += sorted(set(told) - set(hashes))
        found["acknowledged"] += len(hashes)
        found["lost"] += len(set(hashes) - {entry.hash for entry in ledger.entries()})
        found["whole"] += bool(ledger.verify())
        Path(here.removeprefix("sqlite:///")).unlink(missing_ok=True)
    return found


def fork_while_charging(url: str, children: int) -> dict[str, Any]:
    """Three threads charge without pause while the process forks; each child charges too, alone."""
    warnings.simplefilter("ignore")
    ledger = Ledger(url, epsilon=1e6, delta=0.0)
    told: list[str] = []
    stop = threading.Event()

    def charge() -> None:
        while not stop.is_set():
            told.append(ledger.spend(pure(0.5), dataset="d").hash)

    threads = [threading.Thread(target=charge) for _ in range(3)]
    for thread in threads:
        thread.start()
    endings: dict[str, int] = {"charged": 0, "stuck": 0, "failed": 0}
    for _ in range(children):
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(10)
            try:
                for _ in range(2):
                    os.write(writer, f"{ledger.spend(pure(0.25), dataset='d').hash}\n".encode())
                os._exit(0)
            except BaseException as error:
                print(f"{type(error).__name__}: {error}", file=sys.stderr)
                os._exit(1)
        os.close(writer)
        with os.fdopen(reader) as pipe:
            told += [line.strip() for line in pipe]
        status = os.waitpid(child, 0)[1]
        endings["stuck" if os.WIFSIGNALED(status) else "failed" if status else "charged"] += 1
    stop.set()
    for thread in threads:
        thread.join()
    hashes = {entry.hash for entry in ledger.entries()}
    return {**endings, "told": len(told), "lost": len(set(told) - hashes), "whole": bool(ledger.verify())}


def fork_inside_a_charge(url: str) -> dict[str, Any]:
    """A signal handler, say, forks in the thread that charges, after the entry is written and before the commit."""
    ledger = Ledger.create(url, epsilon=10.0, delta=0.0)
    append, home = database.Session.append, os.getpid()
    reader, writer = os.pipe()

    def fork(session: Any, entry: Any) -> None:
        append(session, entry)
        if os.getpid() == home and os.fork() != 0:
            os.wait()  # until the child has come to its end

    database.Session.append = fork  # type: ignore[method-assign]
    try:
        ledger.spend(pure(1.0))
    except LedgerError as error:
        os.write(writer, f"{type(error).__name__}: {error}".encode())
        sys.exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        return {"child": pipe.read(), "entries": len(ledger.entries()), "whole": bool(ledger.verify())}


def charge_after_a_fork_inside_a_charge(url: str) -> dict[str, Any]:
    """The child, and a child of it, charge by themselves after the charge that their parent continues."""
    ledger = Ledger.create(url, epsilon=10.0, delta=0.0)
    append, home = database.Session.append, os.getpid()
    children: list[int] = []
    pipes = [os.pipe() for _ in range(2)]

    def fork(session: Any, entry: Any) -> None:
        append(session, entry)
        if os.getpid() == home and not children:
            children.append(os.fork())

    def charge(pipe: int) -> None:
        try:
            ledger.spend(pure(1.0))
        except LedgerError as error:
            os.write(pipe, f"{type(error).__name__}: {error}".encode())

    database.Session.append = fork  # type: ignore[method-assign]
    started = time.monotonic()
    with contextlib.suppress(LedgerError):
        ledger.spend(pure(1.0))
    if os.getpid() != home:
        charge(pipes[0][1])
        if os.fork() == 0:
            charge(pipes[1][1])
        else:
            os.wait()
        os._exit(0)
    os.wait()
    seconds = time.monotonic() - started
    ledger.spend(pure(1.0))
    said = []
    for reader, writer in pipes:
        os.close(writer)
        with os.fdopen(reader) as pipe:
            said.append(pipe.read())
    facts = {"child": said[0], "grandchild": said[1], "seconds": seconds}
    return {**facts, "entries": len(ledger.entries()), "whole": bool(ledger.verify())}


def full_disk(url: str, limit: int) -> dict[str, Any]:
    """Charge until the disk is full: a limit on the size of any file, or a small disk that really is."""
    ledger = Ledger.create(url, epsilon=1e6, delta=1e-6)
    if limit:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
    acknowledged, error = [], ""
    for _ in range(3000):
        try:
            acknowledged.append(ledger.spend(gaussian(0.001), why="x" * 500).hash)
        except LedgerError as caught:
            error = str(caught)
            break
    if limit:
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    hashes = [entry.hash for entry in ledger.entries()]
    after = "" if not limit else ledger.spend(gaussian(0.001)).hash
    return {
        "acknowledged": len(acknowledged),
        "kept": hashes[: len(acknowledged)] == acknowledged,
        "entries": len(hashes),
        "error": error,
        "whole": bool(ledger.verify()),
        "after": bool(after),
    }


DRIVERS = {work.__name__: work for work in (kill_at_every_statement, kill_at_random, race, race_creation, full_disk)}

DRIVERS |= {
    work.__name__: work for work in (fork_while_charging, fork_inside_a_charge, charge_after_a_fork_inside_a_charge)
}

if __name__ == "__main__":
    print(json.dumps(DRIVERS[sys.argv[1]](sys.argv[2], *map(int, sys.argv[3:]))))
