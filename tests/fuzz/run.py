"""The fuzz suite: `make fuzz`, or `python tests/fuzz/run.py --cases 100000 --seed 1 --target releases`.

First every input in `corpus/` is replayed: those that once failed. Then damaged inputs are made from a seed, which is
printed; the same seed makes the same cases. A case fails if it ends in anything but an error of ScoreShield in one line
or a sound result, if it takes more than ten seconds of processor time, or half a gigabyte of memory. Its input is then
kept in `corpus/`, and the run goes on; at the end it exits with 1.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import os
import random
import resource
import secrets
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from fuzz.targets import TARGETS, Target

from scoreshield.errors import ScoreShieldError

CORPUS = Path(__file__).parent / "corpus"
PROCESSOR_SECONDS, SECONDS, MEMORY = 10.0, 120.0, 2**29


class TooSlow(BaseException):
    """A case that took longer than it may."""


def limit_memory() -> None:
    """Half a gigabyte more than the process has now; what asks for more gets a MemoryError."""
    with contextlib.suppress(OSError, ValueError):
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        size = pages * resource.getpagesize() + MEMORY
        resource.setrlimit(resource.RLIMIT_AS, (size, resource.getrlimit(resource.RLIMIT_AS)[1]))


@contextlib.contextmanager
def limited_time() -> Iterator[None]:
    def stop(*_: Any) -> None:
        raise TooSlow

    for number in (signal.SIGPROF, signal.SIGALRM):
        signal.signal(number, stop)
    signal.setitimer(signal.ITIMER_PROF, PROCESSOR_SECONDS)
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)


def failure(target: Target, data: bytes) -> str | None:
    """What is wrong with how this input is read; None if nothing is."""
    try:
        with limited_time(), warnings.catch_warnings(action="ignore"):
            target.run(data)
    except (KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException as error:
        where = traceback.extract_tb(error.__traceback__)
        ours = [frame for frame in where if "scoreshield" in frame.filename and "fuzz" not in frame.filename] or where
        return f"{type(error).__name__} at {Path(ours[-1].filename).name}:{ours[-1].lineno}: {str(error)[:200]}"
    return None


def replay(targets: Sequence[Target]) -> list[str]:
    """Read every kept input of these targets, and say which still fail."""
    found = []
    for target in targets:
        for path in sorted((CORPUS / target.name).glob("*.bin")):
            problem = failure(target, path.read_bytes())
            if problem is not None:
                found.append(f"{target.name}, {path.name}: {problem}")
    return found


def run(targets: Sequence[Target], cases: int, seed: int, keep: bool) -> list[str]:
    """Make and read so many damaged inputs, and say which fail; the first of each kind is kept."""
    found: list[str] = []
    seen: Counter[str] = Counter()
    whole = sum(target.weight for target in targets)
    for target in targets:
        count, start = max(1, round(cases * target.weight / whole)), time.monotonic()
        for number in range(count):
            data = target.case(random.Random(f"{seed}:{target.name}:{number}"))
            problem = failure(target, data)
            if problem is None:
                continue
            kind = f"{target.name}: {problem.partition(': ')[0]}"
            seen[kind] += 1
            if seen[kind] == 1:
                found.append(f"{target.name}, seed {seed}, case {number}: {problem}")
                if keep:
                    name = hashlib.sha256(data).hexdigest()[:16] + ".bin"
                    (CORPUS / target.name).mkdir(parents=True, exist_ok=True)
                    (CORPUS / target.name / name).write_bytes(data)
        print(f"{target.name:10} {count:7,} cases in {time.monotonic() - start:6.1f} s", flush=True)
    return found + [f"{kind} ({count} times)" for kind, count in seen.items() if count > 1]


def main() -> int:
    parser = argparse.ArgumentParser(description="Fuzz the loaders, ledger files and the command line.")
    parser.add_argument("--cases", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=None, help="a fresh one unless given; it is printed")
    parser.add_argument("--target", choices=[target.name for target in TARGETS], action="append")
    parser.add_argument("--no-keep", action="store_true", help="do not keep failing inputs in corpus/")
    given = parser.parse_args()
    os.environ["SCORESHIELD_LARGEST_BYTES"] = str(64 * 2**20)
    seed = secrets.randbelow(2**32) if given.seed is None else given.seed
    print(f"seed {seed}", flush=True)
    with tempfile.TemporaryDirectory() as name:
        targets = []
        for kind in TARGETS:
            if given.target is None or kind.name in given.target:
                folder = Path(name) / kind.name
                folder.mkdir()
                try:
                    targets.append(kind(folder))
                except ScoreShieldError as error:
                    print(f"{kind.name}: a valid input is rejected: {error}")
                    return 1
        limit_memory()
        problems = replay(targets) + run(targets, given.cases, seed, not given.no_keep)
    for problem in problems:
        print(problem)
    print(f"{len(problems)} problems")
    return int(bool(problems))


if __name__ == "__main__":
    sys.exit(main())
