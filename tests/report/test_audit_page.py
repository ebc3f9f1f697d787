"""The page of an audit: whole, self-contained, safe, the verdict first, and every figure that of the result."""

from __future__ import annotations

import dataclasses
import json
import math
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from html_document import Document

from scoreshield.audit import bounds
from scoreshield.audit.claims import Claim
from scoreshield.audit.result import AuditCheck, AuditResult
from scoreshield.errors import FileError, InvalidInput
from scoreshield.privacy.profiles import GaussianProfile
from scoreshield.report import audit_charts, audit_page

NOW = datetime(2026, 3, 4, 5, 6, tzinfo=UTC)
RANDOM = AuditCheck("outputs are random", True, "400 different outputs of 400")
FIXED = AuditCheck("two fresh calls differ", False, "both gave <the same> output")


def result(epsilon: float = 1.0, mu: float = 0.3, releases: int = 400, **changes: Any) -> AuditResult:
    """A result on Gaussian statistics, from the same functions that an audit uses."""
    rng = np.random.default_rng(7)
    inside, outside = rng.standard_normal(releases) + mu, rng.standard_normal(releases)
    fpr, tpr = bounds.tradeoff(inside, outside, points=512)
    edges = np.linspace(-4, 4 + mu, 25)
    steps = [(k, _bound(inside[:k], outside[:k])) for k in (25, 50, 100, 200, releases)]
    given: dict[str, Any] = {
        "name": "service:release",
        "claim": Claim(epsilon, 1e-6),
        "releases": releases,
        "confidence": 0.95,
        "epsilon_lower": steps[-1][1],
        "checks": (RANDOM,),
        "auc": bounds.auc(inside, outside, 0.95),
        "tpr_at_1_percent": bounds.tpr_at(inside, outside, 0.01, 0.95),
        "fpr": fpr,
        "tpr": tpr,
        "edges": edges,
        "counts_in": np.histogram(inside, edges)[0].astype(float),
        "counts_out": np.histogram(outside, edges)[0].astype(float),
        "trajectory": tuple(steps),
        "detectable": 1.2344,
        "statistic": "likelihood ratio",
        "neighbours": "a record against its opposite",
        "seconds": 3.0,
    }
    return AuditResult(**(given | changes))


def _bound(inside: np.ndarray, outside: np.ndarray) -> float:
    hits = [int((side > 1.5).sum()) for side in (inside, outside)]
    return float(bounds.epsilon_lower(hits[0], len(inside), hits[1], len(outside), 1e-6, 0.95))


RESULTS = {
    "pass": lambda: result(),
    "nothing seen": lambda: result(mu=0.0),
    "broken": lambda: result(mu=3.0),
    "failed check": lambda: result(checks=(RANDOM, FIXED)),
    "too few": lambda: result(epsilon=12.0, mu=2.0, detectable=math.inf),
    "huge claim": lambda: result(epsilon=30.0, mu=8.0, detectable=math.inf),
    "no privacy claimed to be lost": lambda: result(epsilon=0.0, mu=0.0),
    "profile": lambda: result(claim=Claim(1.0, 0.2, profile=GaussianProfile(0.5))),
    "one run": lambda: result(releases=400).__class__(
        **{
            **{field.name: getattr(result(), field.name) for field in dataclasses.fields(AuditResult)},
            "releases": 1,
            "canaries": 400,
            "trajectory": ((1, 0.1),),
        }
    ),
    "no noise at all": lambda: result(
        epsilon_lower=4.0,
        fpr=[0, 0, 1],
        tpr=[0, 1, 1],
        edges=[2.0, 2.0],
        counts_in=[400.0],
        counts_out=[400.0],
        auc=(1, 0.9, 1),
        tpr_at_1_percent=(1, 0.9, 1),
        trajectory=(),
    ),
}
STATUS = {
    "pass": "No violation found",
    "nothing seen": "No violation found",
    "broken": "Claim broken",
    "failed check": "Claim broken",
    "too few": "Too few releases for a verdict",
    "huge claim": "Too few releases for a verdict",
    "no noise at all": "Claim broken",
}


class Page(Document):
    UNREAD = frozenset({"style", "title", "desc"})


@pytest.mark.parametrize("name", RESULTS)
def test_a_whole_document_that_needs_nothing_else(name: str) -> None:
    found = RESULTS[name]()
    text = audit_page.render_audit_page(found, now=NOW)
    document = Page(text)
    assert text.startswith("<!DOCTYPE html>")
    assert not re.search(r"https?:|\bsrc=|\bhref=|@import|<script|<link|url\((?!#)", text)
    assert not re.search(r"\bnan\b|\binf\b|\bNone\b|\bNaN\b|\bInfinity\b|out of reach", text)
    ids = [attrs["id"] for _, attrs in document.tags if "id" in attrs]
    assert len(ids) == len(set(ids))
    referred = re.findall(r'url\(#([^)]+)\)|aria-(?:labelledby|describedby)="([^"]+)"', text)
    assert {one or other for one, other in referred} <= set(ids)
    assert text.count('<svg class="chart"') == 3
    assert "4 March 2026, 05:06 UTC" in document.text


@pytest.mark.parametrize("name", STATUS)
def test_verdict_comes_first_plain_words(name: str) -> None:
    """The verdict comes first and in plain words."""
    found = RESULTS[name]()
    said = Page(audit_page.render_audit_page(found)).text
    places = [
        said.index(words) for words in (STATUS[name], found.verdict, "In plain words:", "Key figures", "pictures")
    ]
    assert places == sorted(places)
    assert ("Do not rely on the promise" in said) == (found.epsilon_lower > found.claim.epsilon)
    assert ("no result contradicts the promise" in said) == (not found.broken)


def test_figures_result_bounds_rounded() -> None:
    """The figures are those of the result and bounds are rounded to the safe side."""
    found = result(epsilon_lower=0.98765, detectable=1.23410)
    said = Page(audit_page.render_audit_page(found)).text
    assert "ε ≥ 0.987" in said  # a lower bound is never rounded up
    assert "0.988" not in said
    assert "ε ≥ 1.235" in said  # nor what would have been found rounded down
    assert re.search(r"Releases\s*400\s*on each side, in 3 seconds", said)
    area, low, high = found.auc
    assert f"{float(f'{area:.3g}'):g}{float(f'{low:.3g}'):g} to {float(f'{high:.3g}'):g}; 0.5 is guessing" in said
    right = f"{math.ceil(500 * (1 + found.claim.advantage)) / 10} %"
    assert f"The claim in words{found.claim.verdict}if it is true, an attacker who must choose" in said
    assert f"between two candidates is right at most {right} of the time" in said
    assert f"the claim allows {100 * found.claim.tpr_at(0.01):.3g} %" in said


def test_checks_listed_their_outcome_bound() -> None:
    """Checks are listed with their outcome the bound first."""
    said = Page(audit_page.render_audit_page(RESULTS["failed check"]())).text
    assert re.search(r"The bound stays within the claim\s*✓ passed", said)
    assert re.search(r"Outputs are random\s*✓ passed\s*400 different outputs of 400", said)
    assert re.search(r"Two fresh calls differ\s*✗ failed\s*both gave <the same> output", said)
    broken = Page(audit_page.render_audit_page(RESULTS["broken"]())).text
    assert re.search(r"The bound stays within the claim\s*✗ failed", broken)


def test_control_named_version_number() -> None:
    """The control is named with version and number and what it leaves open."""
    said = Page(audit_page.render_audit_page(result())).text
    assert "v1.0-C11.2.5" in said
    assert "does no better than guessing" in said
    assert "The requirement speaks of training data" in said


def test_audit_release_speaks_canaries() -> None:
    """An audit of one release speaks of canaries."""
    said = Page(audit_page.render_audit_page(RESULTS["one run"]())).text
    assert "one release with 400 canaries" in said
    assert "Steinke, Nasr & Jagielski 2023" in said
    assert "on each side" not in said.replace("releases on each side 0", "").split("Key figures")[0]


def test_names_and_facts_are_text_not_markup() -> None:
    text = audit_page.render_audit_page(result(name="<b>x</b>"), facts={"Target <i>": "<script>alert(1)</script>"})
    assert "<script>" not in text
    assert "<b>" not in text
    said = Page(text).text
    assert "Privacy audit: <b>x</b>" in said
    assert "<script>alert(1)</script>" in said


# ---- Charts.


def test_measured_curve_forbidden_region() -> None:
    """The measured curve and the forbidden region are the ones of result and claim."""
    found = result()
    chart = audit_charts.build_tradeoff_chart(found)
    claimed, measured, guessing = chart.lines
    forbidden = chart.areas[0]
    np.testing.assert_allclose(claimed.y, found.claim.tpr_at(claimed.x))
    assert np.array_equal(forbidden.low, claimed.y)
    assert forbidden.high is not None
    assert np.all(forbidden.high == 1)
    assert set(zip(measured.x.tolist(), measured.y.tolist(), strict=True)) == set(
        zip(found.fpr.tolist(), found.tpr.tolist(), strict=True)
    )
    assert np.array_equal(guessing.x, guessing.y)
    assert chart.marks[0].y == found.tpr_at_1_percent[0]


def test_large_claim_drawn_down_where() -> None:
    """A large claim is drawn down to where it forbids something and measured only where it was."""
    found = RESULTS["too few"]()
    chart = audit_charts.build_tradeoff_chart(found)
    assert chart.x.log
    assert float(found.claim.tpr_at(chart.x.low)) < 0.5
    assert chart.lines[1].x.min() == found.fpr[found.fpr > 0].min() > 1 / 500  # below one in 400 nothing is known
    assert np.all(np.diff(chart.lines[1].x) >= 0)


def test_histograms_shares_their_overlap() -> None:
    """Histograms are shares and their overlap is told."""
    found = result(edges=[0.0, 1.0, 2.0], counts_in=[100, 300], counts_out=[300, 100])
    chart = audit_charts.build_histogram_chart(found)
    assert chart.lines[0].x.tolist() == [0, 1, 1, 2]
    assert chart.lines[0].y.tolist() == [0.25, 0.25, 0.75, 0.75]
    assert chart.lines[1].y.tolist() == [0.75, 0.75, 0.25, 0.25]
    assert [line.label for line in chart.lines] == ["with the record", "without it"]
    assert "share 50\N{NO-BREAK SPACE}% of their area" in chart.caption


def test_bound_drawn_against_claimed() -> None:
    """The bound is drawn against the claimed epsilon."""
    found = result(epsilon=2.0, trajectory=((50, 0.0), (100, 0.5), (400, 1.25)), epsilon_lower=1.25)
    chart = audit_charts.build_bound_chart(found)
    assert chart.lines[0].x.tolist() == [50, 100, 400]
    assert chart.lines[0].y.tolist() == [0.0, 0.5, 1.25]
    assert chart.marks[0].y == 2.0
    assert chart.marks[0].label == "claimed ε = 2"
    assert chart.areas[0].low.tolist() == [2.0, 2.0]
    assert chart.y.high > 2.0
    assert [area.label for area in chart.areas] == ["would break the claim"]


def test_releases_taught_test_marked_such() -> None:
    """The releases that taught the test are marked as such."""
    chart = audit_charts.build_bound_chart(result(trajectory=((210, 0.0), (400, 0.5)), epsilon_lower=0.5))
    taught = chart.areas[1]
    assert taught.label == "taught the test"
    assert taught.x.tolist() == [0, 210]


def test_statistics_are_told_in_words() -> None:
    found = result(statistic="table")
    assert audit_charts.build_histogram_chart(found).x.label == "test statistic: log ratio of histograms"
    assert (
        "Log ratio of histograms; chosen on one part of the releases" in Page(audit_page.render_audit_page(found)).text
    )
    assert "My own; chosen on one part" in Page(audit_page.render_audit_page(result(statistic="my own"))).text


# ---- Files.


def test_both_files_written_result_comes(tmp_path: Path) -> None:
    """Both files are written and the result comes back."""
    found = RESULTS["broken"]()
    page, data = audit_page.save_audit_page(found, tmp_path, facts={"Target": "service:release"}, now=NOW)
    assert page.read_text("utf-8") == audit_page.render_audit_page(found, facts={"Target": "service:release"}, now=NOW)
    told = json.loads(data.read_text())
    assert told["broken"] is True
    assert told["verdict"] == found.verdict
    assert told["control"]["identifier"].startswith("v1.0-C11.2.5")
    assert told["facts"] == {"Target": "service:release"}
    assert told["time"] == "2026-03-04T05:06:00+00:00"
    assert AuditResult.from_dict(told["result"]) == found
    assert sorted(path.name for path in tmp_path.iterdir()) == ["report.html", "report.json"]


def test_bad_input_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(
        InvalidInput, match=r"The 'result' parameter of render_audit_page must be the result of an audit\. Got 3"
    ):
        audit_page.render_audit_page(3)  # type: ignore[arg-type]
    with pytest.raises(FileError, match="Cannot write"):
        audit_page.save_audit_page(result(), tmp_path / "nowhere")


def test_a_resumed_audit_says_so_in_its_verdict(tmp_path: Path) -> None:
    outcome = result()
    told = "7 releases were there before; the audit was begun at 2026-11-12 09:00 UTC, 3 days ago"
    assert audit_page.write_verdict(outcome) == audit_page.write_verdict(outcome, {"Target": "x"}) == outcome.verdict
    assert audit_page.write_verdict(outcome, {"Resumed": told}) == f"{outcome.verdict} Resumed: {told}."
    page, data = audit_page.save_audit_page(outcome, tmp_path, facts={"Resumed": told})
    answer = re.search(r'<div class="answer.*?</div>', page.read_text(), re.DOTALL)
    assert answer is not None
    assert f"Resumed: {told}." in answer.group()
    assert json.loads(data.read_text())["verdict"].endswith(f"Resumed: {told}.")
    assert "Resumed" not in audit_page.render_audit_page(outcome)
