"""Release files that earlier versions wrote load with the same meaning."""

from __future__ import annotations

import importlib.util
import json
import re
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
    "has an AUC of 0": "has an AUC of at most 0",
    "and an advantage of 0": "and an advantage of at most 0",
    "Every released number is a multiple of 1 (2^0).": "Every released number is a whole number.",
    " Score std: ": " Standard deviation of the noise on a score: ",
    " Center share: ": " Share of the budget for the center: ",
    " Center sensitivity: ": " Sensitivity of the sum of the unit records, for the center: ",
    " Center std: ": " Standard deviation of the noise on that sum: ",
    " Center fingerprint: ": " SHA-256 of the center: ",
    " Pca share: ": " Share of the budget for the covariance: ",
    " Covariance sensitivity: ": " Sensitivity of the covariance: ",
    " Covariance std: ": " Standard deviation of the noise on the covariance: ",
    " Cap probability: ": " Probability of a direction in the cap around the vector: ",
    " Cap height: ": " Least cosine of the cap's directions with the vector: ",
    " Shrinkage: ": " Mean cosine of the drawn direction with the vector: ",
    " Epsilon per draw: ": " Epsilon of one draw of a record: ",
    " Largest draws: ": " Draws of the record that was drawn most often: ",
    " Source: ": " Source of the codebook: ",
    " Fingerprint: ": " SHA-256 of the codebook: ",
    " Codewords: ": " Codewords in the codebook: ",
    " Code size: ": " Codewords in a code: ",
    " True code probability: ": " Probability that a record's code is its true one: ",
    " Queries: ": " Queries in the batch: ",
    " Names per record: ": " Queries that a record names: ",
    " Levels: ": " Score levels: ",
    " Cuts: ": " Lower edges of the levels: ",
    " Cuts from: ": " Source of these edges: ",
    " Has bottom: True.": " A record whose best score is below the lowest edge names no query.",
    " Has bottom: False.": " The lowest level also holds all scores below its edge.",
    " Symbols: ": " Possible symbols: ",
    " Truth: ": " Probability that a record sends its true symbol: ",
    " False names: ": " Expected records that name a given query by chance, at most: ",
    " Epsilon for each: ": " Epsilon of each selection: ",
    " Screening epsilon: ": " Epsilon of the screening: ",
    " Refining epsilon: ": " Epsilon of the released scores: ",
}


def _rewrite(certificate: str) -> str:
    """Replace the former sentences of a golden certificate. Everything else in it, such as numbers, stays."""
    text = " ".join(certificate.split())
    for former, present in REWRITTEN.items():
        text = text.replace(former, present)
    if "Epsilon of one draw" in text:  # the promise is about all draws, and this detail was about one
        text = re.sub(r"Epsilon per record: [0-9.]+\. ", "", text)
    return _remove_spaces(text)


def _remove_spaces(text: str) -> str:
    """Remove what wrapping adds: a fingerprint was broken in two."""
    return "".join(text.split())


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
    assert max(map(len, content["certificate"].splitlines())) <= 80  # a fingerprint and its full stop
    assert content | {"certificate": _remove_spaces(content["certificate"])} == golden | {
        "certificate": _rewrite(golden["certificate"])
    }


def test_the_content_of_another_release_differs() -> None:
    first, second = (ss.load(GOLDEN / "releases" / f"{name}.npz") for name in ("scores-laplace", "scores-gaussian"))
    assert _content(first) != _content(second)


def test_a_golden_index_answers_as_it_did() -> None:
    facts = json.loads((GOLDEN / "index" / "contents.json").read_text())
    search = PrivateSearch.load(GOLDEN / "index" / "index.npz")
    assert _remove_spaces(str(search.guarantee)) == _rewrite(facts["certificate"])
    assert list(search.search(np.array(facts["query"]), 4).ids) == facts["ids"]
    assert "c" not in list(search.search(np.array(facts["query"]), 6).ids)  # it was hidden


def test_rewritten_sentences_occur() -> None:
    """Each former sentence occurs in a golden certificate, so that the list holds nothing else."""
    certificates = " ".join(" ".join(content["certificate"].split()) for content in CONTENTS.values())
    assert [former for former in REWRITTEN if former not in certificates] == []


def test_certificate_of_an_update_states_the_cost_of_a_draw_only_as_such() -> None:
    text = " ".join(str(ss.load(GOLDEN / "releases" / "index-version.npz").guarantee).split())
    assert "Epsilon of one draw of a record: 4." in text
    assert "Epsilon per record" not in text
    assert "Draws of the record that was drawn most often: 2." in text


def test_certificates_have_no_bare_names_of_details() -> None:
    for name in CONTENTS:
        guarantee = ss.load(GOLDEN / "releases" / f"{name}.npz").guarantee
        text = " ".join(str(guarantee).split())
        for bare in ("Has bottom", "Truth:", "Cells:", "Window:", "Offset:", "K:", "Center std", "multiple of 1 "):
            assert bare not in text, (name, bare)
