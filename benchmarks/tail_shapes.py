"""Print the tail shapes that ship in `scoreshield.privacy.tail_tables`, from public scores of FRAMES.

python benchmarks/tail_shapes.py --data-dir DIR

DIR holds the compact data sets. FRAMES has 824 questions and 2,519 titles of Wikipedia pages, embedded with
all-MiniLM-L6-v2. The computation takes about a minute and gives the same numbers every time.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np
from useful_parts import Retrieval

import scoreshield as ss

BEST = (3, 10, 30, 100)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path, required=True)
    frames = Retrieval.frames(parser.parse_args().data_dir)
    unit = [rows / np.linalg.norm(rows, axis=1, keepdims=True) for rows in (frames.queries, frames.records)]
    scores = unit[0].astype(np.float64) @ unit[1].astype(np.float64).T
    for k in BEST:
        start = time.process_time()
        shape = ss.TailShape.fit(scores, k)
        seconds = time.process_time() - start
        print(f"    # rank {shape.rank}, slope {shape.slope:.4f}, {seconds:.0f} s of one core\n    {k}: (")
        for setting in shape.settings:
            values = ", ".join(f"{value:.4g}" for value in setting)
            print(f"        ({values}),")
        print("    ),", flush=True)


if __name__ == "__main__":
    main()
