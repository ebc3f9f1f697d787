"""The page of an audit: whole, self-contained, safe, the verdict first, and every figure that of the result."""

from __future__ import annotations

import dataclasses
import json
import math
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
from html_document import Document

from scoreshield.audit import bounds
from scoreshield.audit.claims import Claim
from scoreshield.audit.result import ROWS_CHECK, AuditCheck, AuditResult, CheckName
from scoreshield.errors import FileError, InvalidInput
from scoreshield.privacy.profiles import GaussianProfile
from scoreshield.report import audit_charts, audit_page

NOW = datetime(2026, 3, 4, 5, 6, tzinfo=UTC)
RANDOM = AuditCheck("outputs are random", True, "400 different outputs of 400")
FIXED = AuditCheck("two fresh calls differ", False, "both gave <the same> output")
NOISE = AuditCheck("amount of noise", True, "Laplace noise 1.06 times too small would be found")
LONG = AuditCheck(ROWS_CHECK, False, "a record three times too long moves the outputs further than a unit row can")
UNTESTED = AuditCheck("low bits", None, "not tested: the outputs are whole numbers")
#: What an audit by bets adds to a result.
BETS: dict[str, Any] = {"calls": 212_996, "pairs": 118, "checks": (NOISE, UNTESTED), "statistic": "linear"}


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


def make_one_run() -> AuditResult:
    """A result of one release with canaries."""
    return dataclasses.replace(result(), releases=1, canaries=400, trajectory=((1, 0.1),), checks=())


def failing(name: str) -> AuditCheck:
    return AuditCheck(name, False, f"this fault of kind '{name}' was found")


def read_page(name: str) -> str:
    return Page(audit_page.render_audit_page(RESULTS[name]())).text


def read_section(said: str, title: str, following: str) -> str:
    """Cut a section of a page out of its text, up to the title of the next."""
    return said.split(f" {title} ")[1].split(f" {following} ")[0].strip()


def _bound(inside: np.ndarray, outside: np.ndarray) -> float:
    hits = [int((side > 1.5).sum()) for side in (inside, outside)]
    return float(bounds.epsilon_lower(hits[0], len(inside), hits[1], len(outside), 1e-6, 0.95))


RESULTS = {
    "pass": lambda: result(**BETS),
    "pass of one pair": lambda: result(**BETS | {"pairs": 1}),
    "pass of an earlier version": lambda: result(),
    "nothing seen": lambda: result(mu=0.0),
    "broken": lambda: result(mu=3.0),
    "broken by bets": lambda: result(mu=3.0, **BETS | {"checks": (failing("amount of noise"), UNTESTED)}),
    "failed check": lambda: result(checks=(RANDOM, FIXED)),
    "failed check of bets": lambda: result(**BETS | {"checks": (NOISE, failing("fresh noise"))}),
    "rows only": lambda: result(**BETS | {"checks": (NOISE, UNTESTED, LONG)}),
    "rows only, too few": lambda: result(epsilon=12.0, detectable=math.inf, **BETS | {"checks": (LONG,)}),
    "too few by bets": lambda: result(epsilon=12.0, mu=2.0, detectable=math.inf, **BETS),
    "too few": lambda: result(epsilon=12.0, mu=2.0, detectable=math.inf),
    "huge claim": lambda: result(epsilon=30.0, mu=8.0, detectable=math.inf),
    "no privacy claimed to be lost": lambda: result(epsilon=0.0, mu=0.0),
    "profile": lambda: result(claim=Claim(1.0, 0.2, profile=GaussianProfile(0.5))),
    "one run": lambda: make_one_run(),
    "one run, too few": lambda: dataclasses.replace(make_one_run(), detectable=math.inf),
    "no test": lambda: result(
        **BETS
        | {
            "statistic": "none: no entry differs between the two collections",
            "epsilon_lower": 0.0,
            "fpr": [0, 1],
            "tpr": [0, 1],
            "edges": [-0.5, 0.5],
            "counts_in": [16.0],
            "counts_out": [16.0],
            "trajectory": ((16, 0.0),),
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
    "pass of one pair": "No violation found",
    "pass of an earlier version": "No violation found",
    "nothing seen": "No violation found",
    "no test": "No violation found",
    "broken": "Claim broken",
    "broken by bets": "Claim broken",
    "failed check": "Claim broken",
    "failed check of bets": "Claim broken",
    "rows only": "Claim broken only for rows that are not unit vectors",
    "rows only, too few": "Claim broken only for rows that are not unit vectors",
    "too few": "Too few outputs for a verdict",
    "too few by bets": "Too few outputs for a verdict",
    "huge claim": "Too few outputs for a verdict",
    "one run, too few": "Too few canaries for a verdict",
    "no noise at all": "Claim broken",
}
#: What the page says in plain words for each sign of a verdict.
PLAIN = {
    "✗": "The promise is false:",
    "!": "For unit rows no result contradicts the promise. For other rows the promise is false:",
    "–": "This audit says nothing for or against the promise",
    "✓": "but no result contradicts the promise.",
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
    """The verdict comes first, in plain words; then its exact sentence, and what to do."""
    found = RESULTS[name]()
    said = read_page(name)
    verdict = audit_page.judge_claim(found)
    assert verdict.words == STATUS[name]
    titles = [f" {title} " for title in ("What to do", "Key figures", "What was tried", "The evidence in pictures")]
    places = [said.index(words) for words in (STATUS[name], PLAIN[verdict.sign], found.verdict, *titles)]
    assert places == sorted(places)
    assert [words in said for words in PLAIN.values()] == [sign == verdict.sign for sign in PLAIN]
    assert ("Do not rely on the promise" in said) == found.broken


def test_rows_only_is_a_finding_of_its_own() -> None:
    """A claim that only other rows break has a sign, a colour and a finding of its own."""
    found = RESULTS["rows only"]()
    text = audit_page.render_audit_page(found)
    assert audit_page.judge_claim(found).sign == "!"
    assert '<div class="limited"><div class="answer open">' in text
    assert 'class="limited"' not in audit_page.render_audit_page(RESULTS["broken"]())
    said = Page(text).text
    assert "such a row moves the outputs further than the noise hides" in said
    assert "Normalise or clamp rows, or promise privacy for unit rows only." in said
    todo = read_section(said, "What to do", "Key figures")
    assert todo.startswith("Rows of other lengths")
    assert "may find other faults" not in todo  # such an audit goes on with unit rows
    assert "Normalise rows to length 1, or clamp them to a length of at most 1" in todo
    assert "limit the claim to unit rows" in todo
    assert "What the best test finds on unit rows, against what the claim allows" in said
    assert re.search(
        r"Rows of other lengths\s*rows that are not unit vectors: .*?✗ failed\s*a record three times", said
    )


def test_a_broken_claim_is_broken_whatever_rows_show() -> None:
    found = result(mu=3.0, **BETS | {"checks": (failing("low bits"), LONG)})
    assert audit_page.judge_claim(found).words == "Claim broken"
    todo = read_section(Page(audit_page.render_audit_page(found)).text, "What to do", "Key figures")
    assert "public grid" in todo
    assert "Normalise rows" in todo


def test_figures_result_bounds_rounded() -> None:
    """The figures are those of the result and bounds are rounded to the safe side."""
    found = result(epsilon_lower=0.98765, detectable=1.23410)
    said = Page(audit_page.render_audit_page(found)).text
    assert "ε ≥ 0.987" in said  # a lower bound is never rounded up
    assert "0.988" not in said
    assert re.search(r"Releases\s*400\s*on each side, in 3 seconds", said)
    area, low, high = found.auc
    assert f"{float(f'{area:.3g}'):g}{float(f'{low:.3g}'):g} to {float(f'{high:.3g}'):g}; 0.5 is guessing" in said
    right = f"{math.ceil(500 * (1 + found.claim.advantage)) / 10} %"
    assert f"The claim, if it is true{found.claim.verdict}then an attacker who must choose" in said
    assert f"between two candidates is right at most {right} of the time" in said
    assert f"the claim allows {100 * found.claim.tpr_at(0.01):.3g} %" in said


@pytest.mark.parametrize("name", RESULTS)
def test_no_single_number_sounds_like_safety(name: str) -> None:
    """Only an audit with canaries says what true epsilon would have been found, rounded to the safe side."""
    found = dataclasses.replace(RESULTS[name](), detectable=1.23410)
    said = Page(audit_page.render_audit_page(found)).text
    assert ("Would have been found" in said) == bool(found.canaries)
    assert ("a true ε of 1.235 or more would have been found" in said) == bool(found.canaries)
    assert ("ε ≥ 1.235" in said) == bool(found.canaries)
    assert "1.234 or more" not in said


def test_effort_is_counted_in_outputs_and_pairs() -> None:
    """The effort is that of the result: outputs and pairs, or releases for results of earlier versions."""
    said = read_page("pass")
    assert said.count("212,996 outputs of 118 pairs of collections") >= 2
    assert re.search(r"Outputs\s*212,996\s*of 118 pairs of collections, in 3 seconds", said)
    assert "118 pairs of collections were tried" in said
    assert said.count(", on the last 800 outputs; ") == 2  # the area and the share found are of these alone
    assert "releases on each side" not in said
    alone = read_page("pass of one pair")
    assert "212,996 outputs of 1 pair of collections" in alone
    assert "The two collections of the pair were: a record against its opposite" in alone
    earlier = read_page("pass of an earlier version")
    assert "400 releases on each side" in earlier
    assert "Two collections were compared: a record against its opposite" in earlier


def test_checks_listed_their_outcome_bound() -> None:
    """Checks are listed with their outcome, the bound first."""
    said = read_page("failed check")
    assert re.search(r"Kind of fault\s*Outcome\s*What was seen, or what would be found in 9 of 10 such audits", said)
    assert re.search(r"Bound on ε\s*✓ nothing found", said)
    assert re.search(r"Outputs are random\s*✓ nothing found\s*400 different outputs of 400", said)
    assert re.search(r"Two fresh calls differ\s*✗ failed\s*both gave <the same> output", said)
    assert re.search(r"Bound on ε\s*✗ failed", read_page("broken"))
    bets = read_page("pass")
    assert re.search(r"All tests together\s*the bound on ε\s*✓ nothing found", bets)
    assert re.search(
        r"Amount of noise\s*less noise than the claim needs\s*✓ nothing found\s*Laplace noise 1.06 times too small",
        bets,
    )
    assert re.search(r"All tests together.*?✗ failed\s*ε is at least", read_page("broken by bets"))


def test_not_tested_is_never_passed() -> None:
    """A check that was not made has a neutral mark, and the reader is told to review it."""
    text = audit_page.render_audit_page(RESULTS["pass"]())
    said = Page(text).text
    assert re.search(r"Low bits\s*last bits of numbers[^✓✗]*?– not tested\s*the outputs are whole numbers", said)
    row = re.search(r'<tr role="row" class="([^"]*)"><th[^>]*>Low bits.*?</tr>', text, re.DOTALL)
    assert row is not None
    assert row.group(1) == ""
    assert "– not tested" in row.group()
    assert not re.search(r"good|<strong>|✓|✗", row.group())
    todo = read_section(said, "What to do", "Key figures")
    assert "Not tested: low bits." in todo
    complete = Page(audit_page.render_audit_page(result(**BETS | {"checks": (NOISE,)}))).text
    assert "not tested" not in read_section(complete, "What to do", "The published control")


def test_not_tested_in_a_file_of_an_earlier_version() -> None:
    """Earlier versions saved a check that was not tested as passed, with the words before its detail."""
    data = result(checks=(AuditCheck("low bits", True, "not tested: 40 releases are needed"),)).to_dict()
    del data["calls"], data["pairs"], data["assuming"]
    said = Page(audit_page.render_audit_page(AuditResult.from_dict(data))).text
    assert re.search(r"Low bits[^✓✗]*?– not tested\s*40 releases are needed", said)


def test_too_few_outputs_do_not_pass_the_bound() -> None:
    said = read_page("too few by bets")
    assert re.search(r"All tests together[^✓✗]*?– not tested\s*ε is at least [\d.]+, the claim is 12, which", said)
    assert "too small to contradict an ε of 12, even if everything leaks" in said
    todo = read_section(said, "What to do", "Key figures")
    assert "more time or more releases" in todo
    assert "Use more canaries" in read_section(read_page("one run, too few"), "What to do", "Key figures")


#: What the advice for each kind of fault must mention.
ADVICE = {
    "amount of noise": ("Calibrate the noise to the sensitivity", "scale", "composition"),
    "low bits": ("public grid after the noise", "exact sampler"),
    "noise in every direction": ("Draw noise of its own for every number",),
    "fresh noise": ("Seed the generator from the system", "in each call", "no cache"),
    "form of the output": ("same type, the same length and the same order", "no error that depends on the data"),
    "several calls": ("independent noise for each call",),
    "noise scale": ("Calibrate the noise to the sensitivity", "scale", "composition"),
    "rows of other lengths": ("Normalise rows", "clamp"),
    "trade-off curve": ("Calibrate the noise to the sensitivity",),
    "a check of my own": ("Find the cause in the code",),
}


@pytest.mark.parametrize("name", [*get_args(CheckName), "trade-off curve", "a check of my own"])
def test_every_failed_check_says_what_to_do(name: str) -> None:
    said = Page(audit_page.render_audit_page(result(**BETS | {"checks": (NOISE, failing(name))}))).text
    todo = read_section(said, "What to do", "Key figures")
    assert todo.startswith(name[0].upper() + name[1:])
    for words in ADVICE[name]:
        assert words in todo
    assert "Run the same audit on the corrected mechanism" in todo
    others = {words for other, all_words in ADVICE.items() if other != name for words in all_words}
    assert not [words for words in others - set(ADVICE[name]) if words in todo and len(words) > 12]


def test_a_bound_above_the_claim_alone_is_about_the_noise() -> None:
    """Results of earlier versions and of one release may have a bound above the claim, and no failed check."""
    todo = read_section(read_page("broken"), "What to do", "Key figures")
    assert todo.startswith("Amount of noise")
    assert "Calibrate the noise to the sensitivity" in todo


def test_method_is_the_one_that_was_used() -> None:
    """Bets for new results, one release with canaries, and intervals of counts for results of earlier versions."""
    bets = read_page("pass").split("How it was made")[1]
    for words in (
        "Ville's inequality",
        "Shafer 2021",
        "Ramdas, Grünwald, Vovk & Shafer 2023",
        "The verdict does not use",
    ):
        assert words in bets
    assert "once the capital reaches 20 " in bets  # at confidence 95 %
    assert "with probability at most 5 %" in bets
    assert "Clopper" not in bets
    earlier = read_page("pass of an earlier version").split("How it was made")[1]
    assert "Clopper–Pearson intervals" in earlier
    assert "the method of an earlier version" in earlier
    assert "Ville" not in earlier
    one_run = read_page("one run").split("How it was made")[1]
    assert "Steinke, Nasr & Jagielski 2023" in one_run
    assert not re.search("Ville|Clopper|one part of the releases", one_run)


def test_limits_are_those_of_the_outcome() -> None:
    """A broken claim may hide other faults; a pass refers to the table; a small audit says that it is small."""
    broken, passed, few = (read_page(name) for name in ("broken by bets", "pass", "too few by bets"))
    assert "There may be other faults, and a larger ε." in broken
    assert "says what size of each fault is found with 212,996 outputs of 118 pairs of collections" in passed
    assert "cannot contradict an ε as large as the claimed one" in few
    assert "The pictures are of this pair: a record against its opposite" in passed
    silent = result(epsilon=12.0, detectable=math.inf, **BETS | {"checks": (failing("fresh noise"),)})
    assert "cannot contradict" not in Page(audit_page.render_audit_page(silent)).text


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
    """Histograms are shares, and the caption says how much they share."""
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


def test_charts_say_which_outputs_they_show() -> None:
    """The charts of an audit by bets are of the best test on its last outputs."""
    found = RESULTS["pass"]()
    count = f"{int(found.counts_in.sum() + found.counts_out.sum()):,}"
    tradeoff, histogram = audit_charts.build_tradeoff_chart(found), audit_charts.build_histogram_chart(found)
    for chart in (tradeoff, histogram):
        assert chart.caption.startswith(
            f"The best test on the last {count} outputs of its pair, which did not teach it."
        )
        assert "say little" not in chart.caption
    assert tradeoff.title == "What the best test finds, against what the claim allows"
    assert tradeoff.caption.endswith("The verdict comes from bets on all outputs, and not from this curve alone.")
    few = dataclasses.replace(found, counts_in=np.eye(1, 24)[0], counts_out=np.eye(1, 24)[0])
    assert "the last 2 outputs" in audit_charts.build_tradeoff_chart(few).caption
    assert "So few outputs say little by themselves." in audit_charts.build_histogram_chart(few).caption
    earlier = audit_charts.build_tradeoff_chart(RESULTS["pass of an earlier version"]())
    assert earlier.caption.startswith("At 1 % false alarms the test recognised")
    assert "bets" not in earlier.caption


def test_bound_chart_counts_outputs_of_the_largest_pair() -> None:
    steps = ((16, 0.0), (32, 0.5))
    chart = audit_charts.build_bound_chart(result(trajectory=steps, epsilon_lower=0.5, **BETS))
    assert chart.x.label == "outputs on each side of the pair with most"
    assert "The bound is of the bets on all pairs" in chart.caption
    assert [area.label for area in chart.areas] == ["would break the claim"]  # no part only taught the test
    assert audit_charts.build_bound_chart(result()).x.label == "releases on each side"
    assert audit_charts.build_bound_chart(make_one_run()).x.label == "releases"


STATISTICS = {
    "linear": "linear discriminant",
    "likelihood": "log-likelihood ratio",
    "table": "log ratio of histograms",
    "summaries": "log ratio of histograms of sums and extremes",
    "classifier": "a trained classifier",
    "low bits": "the last bits of the outputs",
    "form": "the form of the outputs: type, length, order, errors",
    "noiseless": "a combination without noise",
    "noiseless ratio": "a ratio without noise",
    "outputs that came before": "whether an output came before on one collection only",
    "membership": "the record's own entry",
    "my own": "my own",
    "none: no entry differs": "no test, because no entry differs",
}


@pytest.mark.parametrize("statistic", STATISTICS)
def test_statistics_are_described_in_words(statistic: str) -> None:
    found, words = result(**BETS | {"statistic": statistic}), STATISTICS[statistic]
    assert audit_charts.describe_statistic(found) == words
    assert audit_charts.build_histogram_chart(found).x.label == f"test statistic: {words}"
    said = Page(audit_page.render_audit_page(found)).text
    assert f"Test statistic{words[:1].upper()}{words[1:]}" in said
    assert ("the test that showed most. It was fitted on earlier outputs" in said) == (not statistic.startswith("none"))


def test_statistic_of_an_earlier_version() -> None:
    said = Page(audit_page.render_audit_page(result(statistic="table"))).text
    assert "Log ratio of histograms; chosen on one part of the releases and evaluated on the other." in said


# ---- Files.


def test_both_files_written_result_comes(tmp_path: Path) -> None:
    """Both files are written and the result comes back."""
    found = RESULTS["broken"]()
    page, data = audit_page.save_audit_page(found, tmp_path, facts={"Target": "service:release"}, now=NOW)
    assert page.read_text("utf-8") == audit_page.render_audit_page(found, facts={"Target": "service:release"}, now=NOW)
    told = json.loads(data.read_text())
    assert told["broken"] is True
    assert told["broken_by_rows"] is False
    assert told["verdict"] == found.verdict
    assert told["control"]["identifier"].startswith("v1.0-C11.2.5")
    assert told["facts"] == {"Target": "service:release"}
    assert told["time"] == "2026-03-04T05:06:00+00:00"
    assert AuditResult.from_dict(told["result"]) == found
    assert sorted(path.name for path in tmp_path.iterdir()) == ["report.html", "report.json"]


@pytest.mark.parametrize("name", RESULTS)
def test_a_saved_result_gives_the_same_page(name: str, tmp_path: Path) -> None:
    found = RESULTS[name]()
    page, data = audit_page.save_audit_page(found, tmp_path, now=NOW)
    told = json.loads(data.read_text())
    assert told["broken_by_rows"] is found.broken_by_rows
    assert page.read_text("utf-8") == audit_page.render_audit_page(AuditResult.from_dict(told["result"]), now=NOW)


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
