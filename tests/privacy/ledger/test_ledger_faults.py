"""Faults: killed at every statement and at random moments, no disk left, locked, corrupt, raced.

Two rules must stand whatever happens: the limit is never passed, and a charge that was acknowledged is never lost. A
charge may be recorded without having been acknowledged: that costs budget, and releases nothing.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ledger_support import pure

from scoreshield.errors import LedgerError
from scoreshield.privacy.ledger import Ledger, database, sqlite
from scoreshield.privacy.ledger.entries import Entry

pytestmark = pytest.mark.skipif(
    sys.platform == "win32", reason="forks, signals and file-size limits are POSIX facilities"
)

TESTS = Path(__file__).resolve().parents[2]


def drive(*arguments: str, before: tuple[str, ...] = ()) -> dict[str, Any]:
    """Run a driver in a process of its own."""
    done = subprocess.run(
        [*before, sys.executable, str(TESTS / "ledger_drivers.py"), *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS), *sys.path]), "OMP_NUM_THREADS": "1"},
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'ledger.db'}"


@pytest.fixture
def fast(tmp_path: Path) -> Iterator[str]:
    """On a disk in memory where there is one: what is tested is locks, and a disk waits for platters."""
    if not os.access("/dev/shm", os.W_OK):
        yield f"sqlite:///{tmp_path / 'ledger.db'}"
        return
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        yield f"sqlite:///{folder}/ledger.db"


def test_killed_at_every_statement(url: str) -> None:
    """A process that is killed before or after any statement of a charge leaves a sound ledger."""
    found = drive("kill_at_every_statement", url)
    print(f"\n{len(found['results'])} kills over the statements {' '.join(found['steps'])}")
    assert {"BEGIN", "INSERT", "UPDATE", "COMMIT"} <= set(found["steps"])
    assert len(found["results"]) == 2 * len(found["steps"]) >= 20
    for statement, before, killed, added, whole in found["results"]:
        assert killed
        assert whole
        # Before the commit returns there is no entry; once it has, there is one, though nobody was told.
        assert added == (1 if statement == "COMMIT" and not before else 0), (statement, before)
    assert found["spent"] == pytest.approx(found["sum"])


def test_killed_at_random_moments(url: str) -> None:
    found = drive("kill_at_random", url, "80")
    print(f"\n{found}")
    assert found["whole"]
    assert found["in_order"]
    assert found["lost"] == 0
    assert found["acknowledged"] >= 80
    assert 0 <= found["entries"] - found["acknowledged"] <= found["rounds"], "at most one unacknowledged a kill"


def test_racing_processes(url: str) -> None:
    """Of 2,000 racing charges from eight processes, exactly as many pass as the limit covers."""
    Ledger.create(url, epsilon=10.0, delta=0.0)
    found = drive("race", url, "8", "250")
    print(f"\n{found}")
    assert found["asked"] == 2000
    assert found["charged"] == found["entries"] == 1000, "exactly as many as the limit covers"
    assert found["refused"] == 1000
    assert (found["failed"], found["lost"], found["twice"]) == (0, 0, 0)
    assert found["spent"] <= found["limit"]
    assert found["whole"]


def test_racing_makers_and_chargers(fast: str) -> None:
    """Closing a descriptor of the file would drop the locks of this process, and with them a charge."""
    found = drive("race_creation", fast, "12")
    print(f"\n{found}")
    assert found["errors"] == []
    assert found["lost"] == 0
    assert found["acknowledged"] == 12 * 4 * 4 * 3
    assert found["whole"] == found["rounds"] == 12


def test_children_forked_during_charge_charge(fast: str) -> None:
    """A fork copies what SQLite believes about its locks, and not the locks; it hung every child."""
    found = drive("fork_while_charging", fast, "25")
    print(f"\n{found}")
    assert (found["charged"], found["stuck"], found["failed"]) == (25, 0, 0)
    assert found["lost"] == 0
    assert found["told"] >= 50
    assert found["whole"]


def test_fork_inside_charge_leaves_charge_parent(fast: str) -> None:
    """A fork inside a charge leaves the charge to the parent."""
    found = drive("fork_inside_a_charge", fast)
    print(f"\n{found}")
    assert (
        found["child"]
        == "LedgerError: This process was forked in the middle of a charge. Only its parent can finish the charge."
    )
    assert found["entries"] == 1
    assert found["whole"]


def test_process_forked_inside_charge_says_once(fast: str) -> None:
    """SQLite believes that the child holds its parent's locks: each charge waited for a minute, and failed."""
    found = drive("charge_after_a_fork_inside_a_charge", fast)
    print(f"\n{found}")
    assert found["child"].startswith("LedgerError: This process was forked while its own thread was using a ledger")
    assert found["grandchild"] == found["child"]
    assert found["seconds"] < 30
    assert found["entries"] == 2
    assert found["whole"]


def test_a_file_that_cannot_grow(url: str) -> None:
    found = drive("full_disk", url, "65536")
    print(f"\n{found}")
    assert found["error"].startswith("The ledger ")
    assert "it costs budget and released nothing" in found["error"]
    assert found["acknowledged"] == found["entries"] > 0
    assert found["kept"]
    assert found["whole"]
    assert found["after"], "with room again, it goes on"


def test_a_disk_that_is_full(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ("unshare", "--mount", "sh", "-c", f'mount -t tmpfs -o size=128k tmpfs "{disk}" && exec "$@"', "sh")
    if shutil.which("unshare") is None or subprocess.run([*mount, "true"], capture_output=True, check=False).returncode:
        pytest.skip("a small disk of one's own needs the right to mount one")
    found = drive("full_disk", f"sqlite:///{disk / 'ledger.db'}", "0", before=mount)
    print(f"\n{found}")
    assert "full" in found["error"] or "I/O" in found["error"]
    assert found["acknowledged"] == found["entries"] > 0
    assert found["kept"]
    assert found["whole"]


def test_a_locked_database(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = Ledger.create(url, epsilon=10.0, delta=0.0)
    monkeypatch.setattr(database, "BUSY_SECONDS", 0.1)
    other = sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    for use in (lambda: ledger.spend(pure(1.0)), lambda: ledger.spent, ledger.verify, lambda: Ledger.open(url)):
        with pytest.raises(LedgerError, match=r"has been locked by another process for 0\.1 s; nothing was charged"):
            use()
    other.execute("ROLLBACK")
    other.close()
    ledger.spend(pure(1.0))
    assert ledger.spent == 1.0


@pytest.mark.parametrize(
    "content", [b"", b"not a database at all, but long enough to be read as one" * 20, b"\0" * 5000]
)
def test_a_file_that_is_no_ledger(url: str, content: bytes) -> None:
    path = Path(url.removeprefix("sqlite:///"))
    path.write_bytes(content)
    with pytest.raises(LedgerError) as caught:
        Ledger.open(url)
    assert str(caught.value).count("\n") == 0
    assert path.read_bytes() == content


def test_a_database_of_something_else(url: str) -> None:
    connection = sqlite3.connect(url.removeprefix("sqlite:///"))
    connection.execute("CREATE TABLE recipes (name TEXT)")
    connection.commit()
    connection.close()
    for limit in ({}, {"epsilon": 1.0, "delta": 0.0}):
        with pytest.raises(LedgerError, match="is a database without a ledger"):
            Ledger(url, **limit)


def outcome(url: str, entries: list[Entry]) -> str:
    """How a damaged ledger shows: an error, a failed check, or not at all because nothing it says was hit."""
    try:
        ledger = Ledger.open(url)
        if not ledger.verify():
            return "verify"
        return "harmless" if ledger.entries() == entries else "silent"
    except LedgerError as error:
        return "error" if "\n" not in str(error) else "several lines"


def test_damage_anywhere_is_noticed_or_harmless(url: str) -> None:
    ledger = Ledger.create(url, epsilon=1000.0, delta=0.0)
    for place in range(40):
        ledger.spend(pure(1.0), why=f"{place} " + "x" * 300)
    path = Path(url.removeprefix("sqlite:///"))
    whole, entries = path.read_bytes(), ledger.entries()
    outcomes = {"harmless": 0, "verify": 0, "error": 0}
    for start in range(0, len(whole) - 64, 811):
        for flip in (1, 255):  # other letters, and what is no text at all
            damaged = bytearray(whole)
            damaged[start : start + 64] = bytes(byte ^ flip for byte in damaged[start : start + 64])
            path.write_bytes(damaged)
            outcomes[outcome(url, entries)] += 1
    print(f"\n{outcomes}")
    assert outcomes["verify"] > 0
    assert outcomes["error"] > 0
    for length in (len(whole) // 2, 4096, 100):
        path.write_bytes(whole[:length])
        with pytest.raises(LedgerError):
            Ledger.open(url).spend(pure(1.0))
    path.write_bytes(whole)
    assert Ledger.open(url).verify()


def test_a_ledger_that_vanishes(url: str) -> None:
    ledger = Ledger.create(url, epsilon=10.0, delta=0.0)
    Path(url.removeprefix("sqlite:///")).unlink()
    with pytest.raises(LedgerError, match="cannot be opened"):
        ledger.spend(pure(1.0))


def test_second_name_file_stops_every_use(url: str, tmp_path: Path) -> None:
    """SQLite's journal is beside the name that was opened: through another name, charges could be lost."""
    ledger = Ledger.create(url, epsilon=10.0, delta=0.0)
    ledger.spend(pure(1.0))
    other = tmp_path / "other.db"
    other.hardlink_to(tmp_path / "ledger.db")
    for use in (lambda: ledger.spend(pure(1.0)), lambda: ledger.spent, lambda: Ledger.open(f"sqlite:///{other}")):
        with pytest.raises(LedgerError, match="has a second name"):
            use()
    other.unlink()
    ledger.spend(pure(1.0))
    assert ledger.spent == 2.0


@pytest.mark.parametrize("name", ["ledger.db", "my ledger\\\t.db"])
def test_file_mounted_itself_rejected(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As with a hard link, its journal is where no other name of the file has it: a charge was lost."""
    url = f"sqlite:///{tmp_path / name}"
    Ledger.create(url, epsilon=10.0, delta=0.0)
    shown = str(tmp_path / name).replace("\\", "\\134").replace(" ", "\\040").replace("\t", "\\011")
    mounts = tmp_path / "mountinfo"
    line = "36 35 98:0 /somewhere/ledger.db {} rw,noatime master:1 - ext4 /dev/root rw\n"
    monkeypatch.setattr(sqlite, "_MOUNTS", mounts)
    mounts.write_text(line.format(shown.rpartition("/")[0]))
    assert Ledger.open(url).spent == 0.0, "a folder may be mounted"
    mounts.write_text(line.format("/") + line.format(shown))
    (tmp_path / "link.db").symlink_to(tmp_path / name)
    for address in (url, f"sqlite:///{tmp_path / 'link.db'}"):
        with pytest.raises(LedgerError, match="is mounted as a single file"):
            Ledger.open(address)


def test_second_name_killed_creation_leaves(url: str, tmp_path: Path) -> None:
    """The second name that a killed creation leaves is removed."""
    ledger = Ledger.create(url, epsilon=10.0, delta=0.0)
    left = tmp_path / ".ledger.db.0123456789abcdef.part"
    left.hardlink_to(tmp_path / "ledger.db")
    unrelated = tmp_path / ".ledger.db.fedcba9876543210.part"
    unrelated.write_text("somebody is making another one")
    ledger.spend(pure(1.0))
    assert not left.exists()
    assert unrelated.exists()


def test_a_write_ahead_log_stops_every_use(url: str, tmp_path: Path) -> None:
    """A ledger has a rollback journal, so a log is not its own, and SQLite would write it into the ledger."""
    ledger = Ledger.create(url, epsilon=10.0, delta=0.0)
    ledger.spend(pure(1.0))
    path = tmp_path / "ledger.db"
    connection = sqlite3.connect(path)
    assert connection.execute("PRAGMA journal_mode = WAL").fetchone() == ("wal",)
    connection.close()
    uses = (lambda: ledger.spend(pure(1.0)), lambda: ledger.spent, lambda: Ledger.open(url), ledger.verify)
    for use in uses:
        with pytest.raises(LedgerError, match=r"has a write-ahead log, .* switches it back"):
            use()
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA journal_mode = DELETE")
    connection.close()
    ledger.spend(pure(1.0))

    old = tmp_path / "old.db"  # a log that holds the whole ledger as it is now
    shutil.copy(path, old)
    connection = sqlite3.connect(old)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("VACUUM")
    log = old.with_name("old.db-wal").read_bytes()
    connection.close()
    for _ in range(8):
        ledger.spend(pure(1.0))
    beside = tmp_path / "ledger.db-wal"
    beside.write_bytes(log)
    (tmp_path / "link.db").symlink_to(path)
    for use in (*uses, lambda: Ledger.open(f"sqlite:///{tmp_path / 'link.db'}")):
        with pytest.raises(LedgerError, match="has a write-ahead log"):
            use()
    beside.unlink()
    assert ledger.spent == 10.0
    assert ledger.verify()


@pytest.mark.parametrize("ending", ["-journal", "-wal", "-shm"])
def test_ledger_not_made_beside_another_left(url: str, tmp_path: Path, ending: str) -> None:
    """SQLite would write a journal that is left over into the new ledger, the old limit with it."""
    left = tmp_path / f"ledger.db{ending}"
    left.write_bytes(b"x")
    for make in (lambda: Ledger.create(url, epsilon=10.0, delta=0.0), lambda: Ledger(url, epsilon=10.0, delta=0.0)):
        with pytest.raises(LedgerError, match=r"cannot be made beside .*An earlier database of that name left"):
            make()
    assert list(tmp_path.iterdir()) == [left]


@pytest.mark.parametrize("what", ["spend", "spent"])
def test_interrupt_any_line_leaves_neither_gate(fast: str, what: str) -> None:
    """The exception is kept, as a notebook keeps it; a fork and another thread's charge must still be possible."""
    ledger = Ledger.create(fast, epsilon=1e6, delta=0.0)
    watched = (sqlite.__file__, contextlib.__file__)
    kept: list[BaseException] = []

    def interrupted_at(number: int) -> bool:
        """Whether there was such a line."""
        left = number

        def trace(frame: Any, event: str, _: Any) -> Any:
            nonlocal left
            if event == "line" and frame.f_code.co_filename in watched:
                left -= 1
                if left == 0:
                    raise KeyboardInterrupt
            return trace

        before = sys.gettrace()
        sys.settrace(trace)
        try:
            if what == "spend":
                ledger.spend(pure(0.001))
            else:
                assert ledger.spent >= 0
        except KeyboardInterrupt as error:
            kept.append(error)
        finally:
            sys.settrace(before)
        return left <= 0

    def pass_the_gate() -> None:
        with sqlite._gate.enter():
            pass

    number = 1
    while interrupted_at(number):
        assert not list(sqlite._gate._inside), number
        other = threading.Thread(target=pass_the_gate, daemon=True)
        other.start()
        other.join(10)
        assert not other.is_alive(), number
        with contextlib.closing(sqlite3.connect(fast.removeprefix("sqlite:///"), timeout=0)) as connection:
            connection.execute("BEGIN IMMEDIATE")  # raises if the lock is still held
        number += 1
    assert number > 50
    assert len(kept) > 50
    assert ledger.verify()
