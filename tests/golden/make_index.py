"""Write the files of a small index: `python tests/golden/make_index.py FOLDER`; those in `index/` stay as they are."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np

from scoreshield.search import PrivateSearch
from scoreshield.stores import ArrayStore


def main(folder: Path) -> None:
    rows = np.random.default_rng(30).standard_normal((6, 5)).astype(np.float32)
    made = PrivateSearch(ArrayStore(rows, ["a", "b", "c", "d", "é", "f"]), epsilon=8.0, rng=31)
    made.hide(["c"])
    made.save(folder / "index.npz")
    hits = made.search(rows[0], 4)
    facts = {"query": rows[0].tolist(), "ids": list(hits.ids), "certificate": str(made.guarantee)}
    (folder / "contents.json").write_text(json.dumps(facts, indent=1) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
