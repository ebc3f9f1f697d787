"""What the demo's private searches find, over many runs: the figures under its picture in the README.

python benchmarks/demo.py [--runs 20]

Each run draws all noise again. The table shows the mean over runs of the mean over queries, and its spread.
"""

from __future__ import annotations

import argparse

import numpy as np

from scoreshield import demo


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=20)
    runs = parser.parse_args().runs
    data = demo.Digits.load()
    chance = demo.BEST * data.is_same.mean()
    print(f"Images of the right digit among {demo.BEST}, {demo.QUERIES} queries, {runs} runs\n")
    print(f"{'without privacy':<24}{data.count_same(data.rank()).mean():.2f}")
    for release in (demo.release_levels, demo.release_index, demo.release_gaussian):
        lines = [release(data) for _ in range(runs)]
        means = [line.counts.mean() for line in lines]
        print(f"{lines[0].name:<24}{np.mean(means):.2f} ± {np.std(means, ddof=1):.2f}  ({lines[0].promise})")
    print(f"{'chance':<24}{chance:.2f}")


if __name__ == "__main__":
    main()
