"""Recall and accuracy of every mechanism that keeps the promise under record replacement, beside what it replaces.

python benchmarks/useful.py --data-dir DIR [--seeds 10] [--only batch anchored ...]

DIR holds the compact data sets. Each line is a mean over the seeds with its standard deviation, the goal that
was set before, and the best of what was offered before. A part is a module of `useful_parts` with a function
`measure(folder, seeds)` that yields `Figure`s.
"""

from __future__ import annotations

import argparse
import importlib
import pkgutil
import time
from pathlib import Path

import useful_parts


def main() -> None:
    names = [module.name for module in pkgutil.iter_modules(useful_parts.__path__)]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--only", nargs="+", choices=names, default=names)
    arguments = parser.parse_args()
    missed = 0
    for name in arguments.only:
        part = importlib.import_module(f"useful_parts.{name}")
        print(f"\n{part.__doc__.splitlines()[0]}", flush=True)
        start = time.perf_counter()
        for figure in part.measure(arguments.data_dir, arguments.seeds):
            missed += not figure.is_reached
            print(figure, flush=True)
        print(f"({time.perf_counter() - start:.0f} s)")
    print(f"\n{missed} goals missed by more than the spread of their mean")


if __name__ == "__main__":
    main()
