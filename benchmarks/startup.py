"""Compare the start-up of the command line with that of Python: `python benchmarks/startup.py`.

Each round starts `python -c pass`, `scoreshield --version` and `scoreshield --help` in turn, so that a busy machine
slows all of them. The figure is the wall time of the fastest start of each, and its ratio to that of Python.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path

#: The most that a start-up may take, in start-ups of Python.
LIMIT = 2.5


def time_command(command: list[str]) -> float:
    """Measure the seconds of one run."""
    start = time.perf_counter()
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - start


def find_command() -> list[str]:
    """Find the installed command, or start the same function by Python."""
    script = Path(sys.executable).with_name("scoreshield")
    return [str(script)] if script.exists() else [sys.executable, "-c", "from scoreshield.cli import main; main()"]


def measure(commands: dict[str, list[str]], rounds: int) -> dict[str, float]:
    """Measure the fastest of several runs of each command, in seconds."""
    times: dict[str, list[float]] = {name: [] for name in commands}
    for _ in range(rounds):
        for name, command in commands.items():
            times[name].append(time_command(command))
    return {name: min(found) for name, found in times.items()}


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
    print(f"{'command':24} milliseconds  times Python (at most {LIMIT})")
    for name, seconds in times.items():
        print(f"{name:24} {1000 * seconds:12.1f}  {seconds / base:.2f}")
    sys.exit(0 if max(times.values()) <= LIMIT * base else 1)


if __name__ == "__main__":
    main()
