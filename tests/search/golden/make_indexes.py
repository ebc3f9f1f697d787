"""Write the files of small indexes: `python tests/search/golden/make_indexes.py FOLDER`.

The files beside this script were written before the search classes were split. They stay as they are.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from scoreshield.privacy.ledger import Ledger
from scoreshield.search import PrivateSearch
from scoreshield.stores import ArrayStore

IDS: list[Any] = ["a", "b", 3, "d", "é", 6]
PERSONS = {"a": "x", "b": "x", 3: "y", "d": "y", "é": "z", 6: "z"}
ROWS = np.random.default_rng(40).standard_normal((6, 5)).astype(np.float32)


def describe(search: PrivateSearch) -> dict[str, Any]:
    """Say what a search answers: this must not change when the files are loaded by a later version."""
    hits = search.search(ROWS[0], 6)
    return {
        "ids": list(search.ids),
        "hits": list(hits.ids),
        "noisy": None if hits.noisy is None else hits.noisy.tolist(),
        "version": search.version,
        "spent": search.spent,
        "guarantee": search.guarantee.to_dict(),
        "facts": search.facts(hits),
    }


def main(folder: Path) -> None:
    store = ArrayStore(ROWS, IDS)
    made: dict[str, PrivateSearch] = {}
    for name in ("counted", "charged", "research", "persons"):
        (folder / name).mkdir(parents=True)
    counted = made["counted"] = PrivateSearch(store, epsilon=5, max_epsilon=10, file=folder / "counted" / "index.npz")
    counted.refresh()
    counted.hide([3])
    ledger = Ledger.create(f"sqlite:///{folder / 'charged' / 'ledger.db'}", epsilon=20, delta=1e-6)
    made["charged"] = PrivateSearch(
        store,
        epsilon=5,
        delta=1e-6,
        mechanism="gaussian",
        ledger=ledger.account("people"),
        file=folder / "charged" / "index.npz",
    )
    made["research"] = PrivateSearch(store, epsilon=8, rng=31, components=3, file=folder / "research" / "index.npz")
    made["persons"] = PrivateSearch(
        store, epsilon=8, rng=31, identity_of=PERSONS, centroids=True, file=folder / "persons" / "index.npz"
    )
    contents = {name: describe(search) for name, search in made.items()}
    (folder / "contents.json").write_text(json.dumps(contents, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
