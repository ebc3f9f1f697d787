"""Release files that earlier versions wrote load with the same meaning."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest

import scoreshield as ss
from scoreshield.search import PrivateSearch

GOLDEN = Path(__file__).parents[1] / "golden"
CONTENTS = json.loads((GOLDEN / "releases" / "contents.json").read_text())


def _content(release: ss.Release) -> dict[str, str]:
    spec = importlib.util.spec_from_file_location("make_releases", GOLDEN / "make_releases.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.content(release)


def test_every_kind_of_release_has_a_golden_file() -> None:
    from scoreshield.releases.results import _kinds

    assert {content["kind"] for content in CONTENTS.values()} == set(_kinds())
    assert {path.stem for path in (GOLDEN / "releases").glob("*.npz")} == set(CONTENTS)


@pytest.mark.parametrize("name", sorted(CONTENTS))
def test_golden_release_loads_same_arrays_same(name: str) -> None:
    """A golden release loads with the same arrays and the same certificate."""
    assert _content(ss.load(GOLDEN / "releases" / f"{name}.npz")) == CONTENTS[name]


def test_the_content_of_another_release_differs() -> None:
    first, second = (ss.load(GOLDEN / "releases" / f"{name}.npz") for name in ("scores-laplace", "scores-gaussian"))
    assert _content(first) != _content(second)


def test_a_golden_index_answers_as_it_did() -> None:
    facts = json.loads((GOLDEN / "index" / "contents.json").read_text())
    search = PrivateSearch.load(GOLDEN / "index" / "index.npz")
    assert str(search.guarantee) == facts["certificate"]
    assert list(search.search(np.array(facts["query"]), 4).ids) == facts["ids"]
    assert "c" not in list(search.search(np.array(facts["query"]), 6).ids)  # it was hidden
