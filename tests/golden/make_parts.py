"""Write small releases in parts and their ledger: `python tests/golden/make_parts.py FOLDER`. Those in `parts/` stay.

They were written by version 0.1.0 in format 1. `tests/distributed/test_golden_parts.py` reads them.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

import scoreshield as ss
from scoreshield import distributed

QUERY = np.array([1.0, -2.0, 0.5, 3.0])


def main() -> None:
    folder = Path(sys.argv[1])
    source = folder / "vectors.npy"
    np.save(source, np.random.default_rng(0).standard_normal((12, 4)).astype(np.float32))
    ledger = ss.Ledger.create(f"sqlite:///{folder / 'ledger.db'}", epsilon=10.0, delta=0.0)
    account = ledger.account("people", who="an officer")
    options = {"epsilon": 2.0, "ledger": account}
    distributed.release_scores(source, QUERY, to=folder / "scores", mechanism="staircase", **options)
    distributed.release_histogram(source, QUERY, to=folder / "histogram", bins=4, **options)


if __name__ == "__main__":
    main()
