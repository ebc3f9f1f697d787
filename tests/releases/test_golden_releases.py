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

#: Sentences of certificates when the files were written, and the sentences that state the same facts now.
REWRITTEN = {
    "no event gets more likely than a factor of e^epsilon, plus delta, by one change": (
        "one change multiplies the probability of an event by at most e^epsilon, and adds at most delta"
    ),
    "no event gets more likely than a factor of e^epsilon by one change": (
        "one change multiplies the probability of an event by at most e^epsilon"
    ),
    "Nobody who sees the release can tell, beyond the odds below, whether": (
        "An attacker who sees the release cannot find out, with better odds than those below, whether"
    ),
    "That holds even for an attacker who knows everything else.": (
        "This holds even if the attacker knows everything else."
    ),
    "Those that were scored: to": "Those behind released scores: to",
    "a seeded generator, which anyone who knows the seed can undo.": (
        "a seeded generator. Anyone who knows the seed can remove the noise."
    ),
    "selection on scores of which one record moves one.": "selection on scores: one record moves one score.",
    "Gumbel noise on scores of which one record moves one; the best are named, their scores are not.": (
        "Gumbel noise on scores: one record moves one score. The release names the best records, without scores."
    ),
    "a random direction that leans towards it.": ("a random direction; directions near the vector are more likely."),
}


def _rewrite(certificate: str) -> str:
    """Replace the former sentences of a golden certificate. Everything else in it, such as numbers, stays."""
    text = " ".join(certificate.split())
    for former, present in REWRITTEN.items():
        text = text.replace(former, present)
    return text


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
    """A golden release loads with the same arrays and the same certificate, up to rewritten sentences."""
    content = _content(ss.load(GOLDEN / "releases" / f"{name}.npz"))
    golden = CONTENTS[name]
    assert max(map(len, content["certificate"].splitlines())) <= 79
    assert content | {"certificate": " ".join(content["certificate"].split())} == golden | {
        "certificate": _rewrite(golden["certificate"])
    }


def test_the_content_of_another_release_differs() -> None:
    first, second = (ss.load(GOLDEN / "releases" / f"{name}.npz") for name in ("scores-laplace", "scores-gaussian"))
    assert _content(first) != _content(second)


def test_a_golden_index_answers_as_it_did() -> None:
    facts = json.loads((GOLDEN / "index" / "contents.json").read_text())
    search = PrivateSearch.load(GOLDEN / "index" / "index.npz")
    assert " ".join(str(search.guarantee).split()) == _rewrite(facts["certificate"])
    assert list(search.search(np.array(facts["query"]), 4).ids) == facts["ids"]
    assert "c" not in list(search.search(np.array(facts["query"]), 6).ids)  # it was hidden


def test_rewritten_sentences_occur() -> None:
    """Each former sentence occurs in a golden certificate, so that the list holds nothing else."""
    certificates = " ".join(" ".join(content["certificate"].split()) for content in CONTENTS.values())
    assert [former for former in REWRITTEN if former not in certificates] == []
