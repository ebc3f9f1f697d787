"""The page of a plan: whole, self-contained, safe, in words where there is no number, and true to the plan."""

from __future__ import annotations

import dataclasses
import re
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest
from html_document import Document
from scipy.special import ndtr
from scipy.stats import norm

import scoreshield as ss
from scoreshield.decisions.scores import Sample
from scoreshield.plan.sentences import answer_need, name_mechanism
from scoreshield.privacy import calibration
from scoreshield.report import plan_charts, plan_page

RNG = np.random.default_rng(11)
IMPOSTOR, GENUINE = np.clip(RNG.normal(0.0, 0.1, 4000), -1, 1), np.clip(RNG.normal(0.55, 0.12, 2000), -1, 1)
MATCH = {"target_fmr": 1e-2, "delta": 1e-6, "source": "public"}
SEARCH = {"records": 5183, "k": 10, "delta": 1e-4, "source": "public"}

PLANS = {
    "missed": lambda: ss.plan.verification(IMPOSTOR, GENUINE, epsilon=40, target_tar=0.9, **MATCH),
    "met": lambda: ss.plan.verification(IMPOSTOR, GENUINE, target_tar=0.9, score_range=(0, 0.8), **MATCH),
    "infeasible": lambda: ss.plan.verification(IMPOSTOR, GENUINE, epsilon=5, target_tar=0.9, clipped=True, **MATCH),
    "infeasible at all": lambda: ss.plan.verification(
        IMPOSTOR, GENUINE, epsilon=2, target_tar=0.9, clipped=True, **MATCH
    ),
    "no genuine": lambda: ss.plan.verification(IMPOSTOR, epsilon=1, **{**MATCH, "source": "private"}),
    "never": lambda: ss.plan.verification(IMPOSTOR, GENUINE, epsilon=400, target_tar=0.99999, **MATCH),
    "attack": lambda: ss.plan.verification(IMPOSTOR, GENUINE, max_advantage=0.3, target_tar=0.5, **MATCH),
    "nonstrict": lambda: ss.plan.verification(
        IMPOSTOR, GENUINE, epsilon=300, clipped=True, endpoint="nonstrict", **MATCH
    ),
    "textbook": lambda: ss.plan.verification(
        IMPOSTOR, GENUINE, epsilon=2, calibration="classical", target_tar=0.9, **MATCH
    ),
    "lenient": lambda: ss.plan.verification(IMPOSTOR, GENUINE, epsilon=2, **{**MATCH, "target_fmr": 0.7}),
    "parameters": lambda: ss.plan.verification(
        ss.decisions.Distribution(norm(0, 0.1)), epsilon=30, **{**MATCH, "source": "parameters", "target_fmr": 1e-6}
    ),
    "little noise": lambda: ss.plan.verification(IMPOSTOR, GENUINE, epsilon=1e5, target_tar=0.9, **MATCH),
    "much noise": lambda: ss.plan.verification(IMPOSTOR, epsilon=1e-3, **{**MATCH, "delta": 0.1}),
    "search": lambda: ss.plan.retrieval(IMPOSTOR, GENUINE, epsilon=50, target_recall=0.6, **SEARCH),
    "search met": lambda: ss.plan.retrieval(IMPOSTOR, GENUINE, target_recall=0.6, score_range=(0, 0.8), **SEARCH),
    "search below the floor": lambda: ss.plan.retrieval(IMPOSTOR, GENUINE, epsilon=3, target_recall=0.6, **SEARCH),
    "search without a target": lambda: ss.plan.retrieval(IMPOSTOR, GENUINE, epsilon=50, **SEARCH),
    "search in vain": lambda: ss.plan.retrieval(IMPOSTOR, IMPOSTOR, epsilon=50, target_recall=0.6, **SEARCH),
}
STATUS = {
    "missed": "Need met by {}",
    "met": "Need met by {}",
    "infeasible": "Need met by {}",
    "infeasible at all": "Not reachable on clipped scores",
    "no genuine": "Need met",
    "never": "Not reachable at any ε",
    "attack": "Need not met at this ε",
    "search": "Need met by {}",
    "search met": "Need met by {}",
    "search below the floor": "Not reachable at this ε by any mechanism",
    "search without a target": "No target stated",
    "search in vain": "Not reachable at any ε",
}


@pytest.fixture(scope="module")
def pages() -> dict[str, tuple[ss.plan.Plan, str]]:
    plans = {name: make() for name, make in PLANS.items()}
    return {name: (plan, plan_page.render_plan_page(plan)) for name, plan in plans.items()}


@pytest.mark.parametrize("name", PLANS)
def test_a_whole_document_that_needs_nothing_else(name: str, pages: dict[str, tuple[ss.plan.Plan, str]]) -> None:
    plan, text = pages[name]
    document = Document(text)
    assert text.startswith("<!DOCTYPE html>")
    assert not re.search(r"https?:|\bsrc=|\bhref=|@import|<script|<link|url\((?!#)", text)
    assert not re.search(r"\bnan\b|\binf\b|\bNone\b|\bNaN\b|\bInfinity\b", text)
    ids = [attrs["id"] for _, attrs in document.tags if "id" in attrs]
    assert len(ids) == len(set(ids))
    referred = re.findall(r'url\(#([^)]+)\)|aria-(?:labelledby|describedby)="([^"]+)"', text)
    assert {one or other for one, other in referred} <= set(ids)
    assert all(part in document.text for part in re.split(r"(?<=\.) (?=[A-Z])", plan.answer))
    for warning in plan.warnings:
        assert warning in document.text


@pytest.mark.parametrize(("name", "words"), STATUS.items())
def test_the_status_is_in_words(name: str, words: str, pages: dict[str, tuple[ss.plan.Plan, str]]) -> None:
    choice = pages[name][0].choice
    best = "" if choice is None else choice.chosen.mechanism
    assert re.findall(r'<p class="status">.*?</span>(.*?)</p>', pages[name][1]) == [words.format(name_mechanism(best))]


@pytest.mark.parametrize("name", PLANS)
def test_every_picture_and_every_row_is_there(name: str, pages: dict[str, tuple[ss.plan.Plan, str]]) -> None:
    plan, text = pages[name]
    document = Document(text)
    verification = isinstance(plan, ss.plan.VerificationPlan)
    ranked = plan.choice is not None
    assert document.count("svg", "chart") == (3 if plan.genuine is None or not verification else 4) + ranked
    assert document.count("div", "figure") == (8 if verification else 6) + 4 * ranked
    assert document.count("tr", "plan") == 1 + ranked
    rows = [attrs for tag, attrs in document.tags if tag == "tr"]
    assert len(rows) == len(plan.alternatives) + 1 + (len(plan.choice.candidates) + 1 if plan.choice else 0)
    if verification:
        rejected = [outcome for outcome in plan.alternatives if not outcome.private]
        assert document.count("tr", "rejected") == len(rejected)
        for outcome in rejected:
            assert outcome.note[1:] in document.text


def make_search(**changes: object) -> ss.plan.Choice:
    given = {"records": 5000, "k": 10, "epsilon": 8, "delta": 1e-6, "source": "public", **changes}
    return ss.plan.choose("retrieval", IMPOSTOR, GENUINE, **given)


CHOICES = {
    "verification": lambda: ss.plan.choose(
        "verification", IMPOSTOR, GENUINE, target_fmr=0.01, epsilon=5, delta=1e-6, source="public"
    ),
    "pure": lambda: ss.plan.choose("verification", IMPOSTOR, GENUINE, target_fmr=0.01, epsilon=5),
    "retrieval": make_search,
    "attack": lambda: make_search(epsilon=None, max_advantage=0.5, delta=0.0),
    "scores": lambda: ss.plan.choose("scores", epsilon=5, delta=1e-6),
    "gram": lambda: ss.plan.choose("gram", epsilon=5, delta=1e-6, records=100, dimension=64),
}


@pytest.mark.parametrize("name", CHOICES)
def test_the_page_of_a_ranking(name: str, tmp_path: Path) -> None:
    """A ranking is a whole page: the answer, the call of the best mechanism, the chart, every row, the caution last."""
    choice = CHOICES[name]()
    text = plan_page.render_choice_page(choice)
    document = Document(text)
    assert not re.search(r"https?:|\bsrc=|\bhref=|@import|<script|<link|url\((?!#)", text)
    assert not re.search(r"\bnan\b|\binf\b|\bNone\b|\bNaN\b|\bInfinity\b", text)
    ids = [attrs["id"] for _, attrs in document.tags if "id" in attrs]
    assert len(ids) == len(set(ids))
    answer = answer_need(choice, None, is_searched=False)
    assert all(part in document.text for part in re.split(r"(?<=\.) (?=[A-Z])", answer))
    assert text.index(choice.chosen.mechanism) < text.index("<code>") < text.index("<svg") < text.index("<table")
    assert document.count("tr", "plan") == 1
    for row in choice.candidates:
        assert row.call in document.text
        assert row.mechanism in document.text
    named = re.search(r"As in the paper|The paper.s mechanism", document.text) is not None
    assert named == any("gaussian" in row.mechanism for row in choice.candidates)
    if choice.caution:
        assert text.index("How to read this") < text.index("If your data differ")
    plan_page.save_choice_page(choice, tmp_path / "choice.html")
    assert (tmp_path / "choice.html").stat().st_mode & 0o077 == 0


def test_the_chart_of_a_ranking() -> None:
    """The chart has the best mechanisms and Gaussian noise at their utilities, with their intervals."""
    rows = [
        ss.plan.Candidate(f"mechanism {place}", "call()", 0.9 - 0.05 * place, 5.0, 0.0, 0.9, (-1.0, 1.0))
        for place in range(14)
    ]
    rows[12] = dataclasses.replace(rows[12], mechanism="gaussian", error=0.02)
    rows[0] = dataclasses.replace(rows[0], error=0.2)
    choice = dataclasses.replace(make_search(), candidates=tuple(rows))
    chart = plan_charts.build_ranking_chart(choice, 0.5)
    dots = [mark for mark in chart.marks if mark.y is not None]
    assert [mark.x for mark in dots] == [row.utility for row in (*rows[:8], rows[12])]
    assert [chart.y.format_tick(mark.y) for mark in dots] == [*map(str, range(1, 9)), "13"]
    assert [(line.x.tolist(), line.y.tolist()) for line in chart.lines] == [
        ([pytest.approx(0.7), 1.0], [-1.0, -1.0]),
        ([pytest.approx(0.28), pytest.approx(0.32)], [-9.0, -9.0]),
    ]
    assert [item.label for item in chart.legend] == ["90 % interval of the prediction"]
    assert [mark.x for mark in chart.marks if mark.y is None] == [0.5]
    for row in (rows[0], rows[12]):
        assert f"{row.mechanism} {100 * row.utility:.3g}" in chart.description


def test_hostile_names_in_a_ranking_stay_text() -> None:
    evil = "<script>alert('x')</script>"
    choice = make_search()
    row = dataclasses.replace(choice.chosen, mechanism=evil, call=evil, note=evil)
    text = plan_page.render_choice_page(
        dataclasses.replace(choice, candidates=(row,), metric=evil, need=evil, source=evil, warnings=(evil,))
    )
    assert "script" not in {tag for tag, _ in Document(text).tags}


def test_only_rankings_are_such_pages() -> None:
    with pytest.raises(ss.InvalidInput, match="'choice' parameter of render_choice_page"):
        plan_page.render_choice_page("a ranking")


def test_missing_numbers_are_words(pages: dict[str, tuple[ss.plan.Plan, str]]) -> None:
    texts = {name: Document(text).text for name, (_, text) in pages.items()}
    assert "out of reach" in texts["infeasible"]
    assert "a threshold just below 1 still passes" in texts["infeasible"]
    assert "needs scores of genuine pairs" in texts["no genuine"]
    assert "not even scores without noise meet the need" in texts["never"]
    assert "any" in texts["no genuine"]
    assert "not computed" in texts["search without a target"]
    assert "assumed distributions" in texts["parameters"]
    assert pages["little noise"][0].contract.attack_advantage == 1.0
    assert "advantage over 99.9 %" in texts["little noise"], "no attack is ever certain, though a double says so"
    assert "From private scores" in texts["no genuine"]


def line(chart: object, label: str) -> tuple[np.ndarray, np.ndarray]:
    (found,) = [item for item in chart.lines if item.label == label]
    return found.x, found.y


def test_the_false_match_curves_are_the_rates(pages: dict[str, tuple[ss.plan.Plan, str]]) -> None:
    plan, text = pages["missed"]
    chart = plan_charts.build_fmr_chart(plan)
    assert chart.render_svg("chart-1") in text
    x, clean = line(chart, "clean")
    noisy = line(chart, "private")[1]
    for place in (0, 80, 200, 320):
        assert clean[place] == np.mean(x[place] < IMPOSTOR)
        assert noisy[place] == pytest.approx(norm.sf((x[place] - IMPOSTOR) / plan.scale).mean(), abs=1e-11)
    marks = {mark.label.split()[0]: mark for mark in chart.marks}
    assert marks["clean"].x == plan.recalibration.clean_threshold
    assert marks["private"].x == plan.recalibration.threshold
    assert marks["target"].y == plan.target_fmr
    assert marks["if"].y == plan.recalibration.rate_before
    assert chart.areas[0].x[0] == plan.score_range[1]


def test_clipped_rule_no_solid_curve(pages: dict[str, tuple[ss.plan.Plan, str]]) -> None:
    """A clipped rule has no solid curve beyond the range."""
    plan, text = pages["infeasible"]
    chart = plan_charts.build_fmr_chart(plan)
    x, rates = line(chart, "private")
    assert np.array_equal(np.isnan(rates), x > 1)
    assert any(mark.x == plan.recalibration.unclipped_threshold for mark in chart.marks)
    assert "noisy scores only" in text


def test_the_shift_curve_and_its_epsilons(pages: dict[str, tuple[ss.plan.Plan, str]]) -> None:
    plan, text = pages["missed"]
    chart = plan_charts.build_shift_chart(plan)
    assert chart.render_svg("chart-2") in text
    x, shifts = line(chart, "exact")
    for place in (0, 30, 59):
        moved = ss.decisions.recalibrate(IMPOSTOR, 1e-2, float(x[place]), clipped=False)
        assert shifts[place] == pytest.approx(moved.shift, abs=1e-9)
    label, ticks = chart.top
    assert "ε" in label
    assert len(ticks) >= 4
    for scale, epsilon in ticks:
        expected = float(epsilon.replace(",", ""))
        assert calibration.find_epsilon(plan.contract.delta, plan.sensitivity / scale) == pytest.approx(expected)
    assert chart.areas[0].x[0] == plan.critical_scale
    assert any(mark.x == plan.scale and mark.y == plan.recalibration.shift for mark in chart.marks)


def test_the_operating_curves(pages: dict[str, tuple[ss.plan.Plan, str]]) -> None:
    plan, text = pages["missed"]
    chart = plan_charts.build_roc_chart(plan)
    assert chart.render_svg("chart-3") in text
    for name, noise in (("clean", 0), ("private", plan.noise)):
        fpr, tpr = line(chart, name)
        assert np.all(fpr > 0)
        for rate in (1e-2, 0.1, 0.5):
            expected = plan.roc(noise).tpr_at(rate)
            assert np.interp(rate, fpr, tpr) == pytest.approx(expected, abs=4e-3)
    places = {(mark.x, mark.y) for mark in chart.marks}
    assert (plan.target_fmr, plan.clean_tar) in places
    assert any(x == plan.target_fmr and y == pytest.approx(plan.tar) for x, y in places if y is not None)


@pytest.mark.parametrize("epsilon", [0.1, 5.0, 40.0])
def test_the_attack_curve(epsilon: float) -> None:
    promise = ss.plan.make_contract(epsilon=epsilon, delta=1e-6)
    chart = plan_charts.build_attack_chart(promise)
    fpr, tpr = line(chart, "best membership test")
    np.testing.assert_allclose(tpr[1:-1], ndtr(norm.ppf(fpr[1:-1]) + promise.mu))
    assert (fpr[0], tpr[0], fpr[-1], tpr[-1]) == (0, 0, 1, 1)
    (point,) = [mark for mark in chart.marks if mark.x is not None and mark.y is not None]
    assert point.y - point.x == pytest.approx(promise.attack_advantage)
    assert promise.tpr_at(point.x) == pytest.approx(point.y)
    assert np.max(tpr - fpr) <= promise.attack_advantage + 1e-12


def test_the_recall_curve_and_what_is_impossible(pages: dict[str, tuple[ss.plan.Plan, str]]) -> None:
    plan, text = pages["search"]
    chart = plan_charts.build_recall_chart(plan)
    assert chart.render_svg("chart-1") in text
    epsilons, recalls = line(chart, "Gaussian noise")
    for place in (5, 20, 39):
        scale = ss.calibrate(float(epsilons[place]), 1e-4, 2.0)
        expected = ss.decisions.recall_at_k(GENUINE, IMPOSTOR, scale, records=5183, k=10)
        assert recalls[place] == pytest.approx(expected, abs=1e-9)
    (area,) = chart.areas
    assert np.interp(plan.floor, area.x, area.low) == pytest.approx(plan.target_recall, abs=5e-3)
    assert np.all(np.interp(epsilons, area.x, area.low) >= recalls), "no mechanism passes the bound, ours included"
    assert any(mark.x == plan.floor for mark in chart.marks)
    assert any((mark.x, mark.y) == (plan.contract.epsilon, plan.recall) for mark in chart.marks)


@pytest.mark.parametrize("name", ["infeasible", "search"])
def test_hostile_text_stays_text(name: str) -> None:
    evil = "<script>alert('x')</script><img onerror=\"y\">&amp;"
    plan = PLANS[name]()
    promise = dataclasses.replace(plan.contract, stated=evil, calibration="attack")
    changes = {"answer": f"{evil}. {evil}", "warnings": (evil,), "source": evil, "contract": promise}
    if isinstance(plan, ss.plan.VerificationPlan):
        changes["alternatives"] = tuple(
            dataclasses.replace(outcome, note=evil, calibration=evil) for outcome in plan.alternatives
        )
    text = plan_page.render_plan_page(dataclasses.replace(plan, **changes))
    document = Document(text)
    assert not {"script", "img"} & {tag for tag, _ in document.tags}
    assert not any("onerror" in attrs for _, attrs in document.tags)
    assert document.text.count(evil) >= 5


def test_the_footer_says_when_and_what(pages: dict[str, tuple[ss.plan.Plan, str]]) -> None:
    text = plan_page.render_plan_page(pages["met"][0], now=datetime(2031, 2, 3, 4, 5, tzinfo=UTC))
    assert f"ScoreShield {ss.__version__}" in Document(text).text
    assert "3 February 2031, 04:05 UTC" in Document(text).text
    for name in set(re.findall(r"docs/\w+\.md", text)):
        assert (Path(__file__).resolve().parents[2] / name).is_file()


def test_it_says_what_the_plan_rests_on(pages: dict[str, tuple[ss.plan.Plan, str]]) -> None:
    plan, text = pages["met"]
    assert isinstance(plan.impostor, Sample)
    words = Document(text).text
    assert "4,000 impostor scores and 2,000 genuine scores" in words
    assert f"{100 * plan.rate_error:.2g} percentage points" in words
    assert "Several releases of the same records add up" in words


def test_saving_is_whole_or_not_at_all(tmp_path: Path, pages: dict[str, tuple[ss.plan.Plan, str]]) -> None:
    plan, text = pages["search"]
    plan_page.save_plan_page(plan, tmp_path / "plan.html")
    saved = (tmp_path / "plan.html").read_text("utf-8")
    assert re.sub("<footer>.*", "", saved, flags=re.S) == re.sub("<footer>.*", "", text, flags=re.S)
    with pytest.raises(ss.FileError, match="nothing was changed"):
        plan_page.save_plan_page(plan, tmp_path / "missing" / "plan.html")
    assert [item.name for item in tmp_path.iterdir()] == ["plan.html"]


def test_only_plans_are_pages() -> None:
    with pytest.raises(ss.InvalidInput, match="'plan' parameter of render_plan_page"):
        plan_page.render_plan_page("a plan")
