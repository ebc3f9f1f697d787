"""Compare the start-up of the command line with that of Python: `python benchmarks/startup.py`.

Each round starts `python -c pass`, `scoreshield --version` and `scoreshield --help` in turn, so that a busy machine
slows all of them. The figures are the wall time of the fastest start of each and the mean time of a processor, with
their ratios to those of Python. The exit code is 1 where a ratio of wall times is too large.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

#: The most that a start-up may take, in start-ups of Python.
LIMIT = 2.5


class Start(NamedTuple):
    """Seconds of one start: by the clock, and of a processor."""

    wall: float
    processor: float


def time_command(command: list[str]) -> Start:
    """Measure one run."""
    before, start = os.times(), time.perf_counter()
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
    wall, after = time.perf_counter() - start, os.times()
    used = after.children_user + after.children_system - before.children_user - before.children_system
    return Start(wall, used)


def find_command() -> list[str]:
    """Find the installed command, or start the same function by Python."""
    script = Path(sys.executable).with_name("scoreshield")
    return [str(script)] if script.exists() else [sys.executable, "-c", "from scoreshield.cli import main; main()"]


def measure(commands: dict[str, list[str]], rounds: int) -> dict[str, Start]:
    """Measure the fastest of several runs of each command, by the clock; and the mean use of the processor."""
    found: dict[str, list[Start]] = {name: [] for name in commands}
    for _ in range(rounds):
        for name, command in commands.items():
            found[name].append(time_command(command))
    return {
        name: Start(min(one.wall for one in starts), sum(one.processor for one in starts) / rounds)
        for name, starts in found.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=30, help="how often each command is started")
    rounds = parser.parse_args().rounds
    scoreshield = find_command()
    commands = {
        "python -c pass": [sys.executable, "-c", "pass"],
        "scoreshield --version": [*scoreshield, "--version"],
        "scoreshield --help": [*scoreshield, "--help"],
    }
    times = measure(commands, rounds)
    base = times["python -c pass"]
    print(f"{'command':24} {'wall':>9} {'ratio':>6} {'processor':>11} {'ratio':>6}   (at most {LIMIT})")
    for name, found in times.items():
        wall = f"{1000 * found.wall:6.1f} ms {found.wall / base.wall:6.2f}"
        print(f"{name:24} {wall} {1000 * found.processor:8.1f} ms {found.processor / base.processor:6.2f}")
    sys.exit(0 if max(found.wall for found in times.values()) <= LIMIT * base.wall else 1)


if __name__ == "__main__":
    main()
