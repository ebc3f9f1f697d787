"""Indexes that an earlier version saved: they load with the same meaning."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scoreshield.errors import BudgetExceeded, InvalidInput
from scoreshield.privacy.ledger import Ledger
from scoreshield.search import PrivateSearch
from scoreshield.stores import ArrayStore

GOLDEN = Path(__file__).parent / "golden"
CONTENTS: dict[str, dict[str, Any]] = json.loads((GOLDEN / "contents.json").read_text())
for content in CONTENTS.values():
    # Scores are float32 products, which processors round differently in their last bit.
    content["noisy"] = None if content["noisy"] is None else pytest.approx(content["noisy"], rel=3e-7, abs=0)
ROWS = np.random.default_rng(40).standard_normal((6, 5)).astype(np.float32)
IDS = CONTENTS["counted"]["ids"]
PERSONS = dict(zip(IDS, "xxyyzz", strict=True))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of the golden files, which a test may write to."""
    copy = Path(shutil.copytree(GOLDEN, tmp_path / "golden"))
    (copy / "charged" / "ledger.db").chmod(0o600)
    return copy


def describe(search: PrivateSearch) -> dict[str, Any]:
    """Say what a search answers."""
    hits = search.search(ROWS[0], 6)
    return {
        "ids": list(search.ids),
        "hits": list(hits.ids),
        "noisy": None if hits.noisy is None else hits.noisy.tolist(),
        "version": search.version,
        "spent": search.spent,
        "guarantee": json.loads(json.dumps(search.guarantee.to_dict())),
        "facts": {name: value for name, value in search.facts(hits).items() if name != "worth"},
    }


@pytest.mark.parametrize("name", sorted(CONTENTS))
def test_load(name: str) -> None:
    """A saved index answers with the same ids, scores, version, total and guarantee."""
    assert describe(PrivateSearch.load(GOLDEN / name / "index.npz")) == CONTENTS[name]


def test_counted(folder: Path) -> None:
    """A store opens its index from the file, and the two indexes that were counted there leave no room for a third."""
    search = PrivateSearch(ArrayStore(ROWS, IDS), epsilon=5, max_epsilon=10, file=folder / "counted" / "index.npz")
    assert describe(search) == CONTENTS["counted"]
    with pytest.raises(BudgetExceeded):
        search.refresh()
    more = PrivateSearch(ArrayStore(ROWS, IDS), epsilon=5, max_epsilon=15, file=folder / "counted" / "index.npz")
    more.refresh()
    assert (more.spent, more.version) == (15, 3)
    assert 3 not in more.search(ROWS[0], 6).ids  # it was hidden


def test_charged(folder: Path) -> None:
    """The ledger of a saved index holds its charge, under the name that was charged."""
    ledger = Ledger.open(f"sqlite:///{folder / 'charged' / 'ledger.db'}")
    options: dict[str, Any] = {"epsilon": 5, "delta": 1e-6, "mechanism": "gaussian"}
    options["file"] = folder / "charged" / "index.npz"
    search = PrivateSearch(ArrayStore(ROWS, IDS), ledger=ledger.account("people"), **options)
    assert describe(search) == CONTENTS["charged"]
    assert len(ledger.entries()) == 1
    with pytest.raises(InvalidInput):
        PrivateSearch(ArrayStore(ROWS, IDS), ledger=ledger.account("others"), **options)


@pytest.mark.parametrize(
    ("name", "options"),
    [("research", {"components": 3}), ("persons", {"identity_of": PERSONS, "centroids": True})],
)
def test_research(name: str, options: dict[str, Any], folder: Path) -> None:
    """An index of a research seed is made again with the same vectors."""
    search = PrivateSearch(ArrayStore(ROWS, IDS), epsilon=8, rng=31, **options)
    assert describe(search) == CONTENTS[name]
    saved = PrivateSearch(ArrayStore(ROWS, IDS), epsilon=8, rng=31, file=folder / name / "index.npz", **options)
    assert describe(saved) == CONTENTS[name]
