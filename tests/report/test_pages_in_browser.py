"""Pages of plans and certificates in a real browser: nothing fetched, complained about, cut off or hard to read."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from browser_scripts import CONTRAST
from browser_support import Visit, needs_chromium, open_browser

import scoreshield as ss
from scoreshield.report import plan_page, save_certificate_page

pytest.importorskip("playwright.sync_api", reason="the browser test needs the Python package playwright")
pytestmark = needs_chromium

RNG = np.random.default_rng(5)
IMPOSTOR, GENUINE = np.clip(RNG.normal(0.03, 0.1, 3000), -1, 1), np.clip(RNG.normal(0.55, 0.14, 1500), -1, 1)
MATCH = {"target_fmr": 1e-2, "delta": 1e-6, "source": "public"}
SEARCH = {"records": 5183, "k": 10, "delta": 1e-4, "source": "public"}
PLANS: dict[str, Callable[[], ss.plan.Plan]] = {
    "missed": lambda: ss.plan.verification(IMPOSTOR, GENUINE, epsilon=40, target_tar=0.9, **MATCH),
    "met": lambda: ss.plan.verification(IMPOSTOR, GENUINE, target_tar=0.9, score_range=(0, 0.8), **MATCH),
    "infeasible": lambda: ss.plan.verification(IMPOSTOR, GENUINE, epsilon=5, target_tar=0.9, clipped=True, **MATCH),
    "no-genuine": lambda: ss.plan.verification(IMPOSTOR, epsilon=1, **{**MATCH, "source": "private"}),
    "search": lambda: ss.plan.retrieval(IMPOSTOR, GENUINE, epsilon=50, target_recall=0.6, **SEARCH),
}

CHOICES: dict[str, Callable[[], ss.plan.Choice]] = {
    "ranking-verification": lambda: ss.plan.choose("verification", IMPOSTOR, GENUINE, epsilon=5, **MATCH),
    "ranking-retrieval": lambda: ss.plan.choose("retrieval", IMPOSTOR, GENUINE, epsilon=8, **SEARCH),
    "ranking-scores": lambda: ss.plan.choose("scores", epsilon=5, delta=1e-6),
}

ROWS = RNG.standard_normal((60, 8))
CERTIFICATES: dict[str, Callable[[], ss.Release]] = {
    "scores": lambda: ss.release_scores(ROWS, ROWS[0], epsilon=5, delta=1e-6).annotate(
        dataset="patient letters", who="ada", why="a pilot of the search " * 20
    ),
    "index": lambda: ss.release_index(ROWS, epsilon=20),
}

# Texts of one chart that overlap, or that stick out of it.
COLLISIONS = """() => {
  const found = [];
  for (const chart of document.querySelectorAll('svg.chart')) {
    const frame = chart.getBoundingClientRect();
    const texts = [...chart.querySelectorAll('text')].map(item => [item.textContent, item.getBoundingClientRect()]);
    texts.forEach(([name, box], place) => {
      if (box.left < frame.left - 1 || box.right > frame.right + 1 || box.bottom > frame.bottom + 1) found.push(name);
      for (const [other, rest] of texts.slice(place + 1)) {
        const wide = Math.min(box.right, rest.right) - Math.max(box.left, rest.left);
        const high = Math.min(box.bottom, rest.bottom) - Math.max(box.top, rest.top);
        if (wide > 1 && high > 3) found.push(name + ' / ' + other);
      }
    });
  }
  return found;
}"""


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[ss.plan.Plan, Path]]:
    folder = tmp_path_factory.mktemp("pages")
    plans = {name: (make(), folder / f"{name}.html") for name, make in PLANS.items()}
    for plan, path in plans.values():
        plan_page.save_plan_page(plan, path)
    return plans


@pytest.fixture(scope="module")
def rankings(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[ss.plan.Choice, Path]]:
    folder = tmp_path_factory.mktemp("rankings")
    made = {name: (make(), folder / f"{name}.html") for name, make in CHOICES.items()}
    for choice, path in made.values():
        plan_page.save_choice_page(choice, path)
    return made


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with open_browser() as opened:
        yield opened


def visit_page(browser: Any, path: Path, width: int, scheme: str) -> Visit:
    """Open the page of a file."""
    visit = Visit(browser, width, scheme)
    visit.page.goto(path.as_uri())
    return visit


def squeezed(text: str) -> str:
    return re.sub(r"\s+", " ", text).strip()


def sentences(text: str) -> list[str]:
    return re.split(r"(?<=\.) (?=[A-Z])", squeezed(text))


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 390, 768, 1280])
@pytest.mark.parametrize("name", PLANS)
def test_it_reads_well(
    name: str, width: int, scheme: str, browser: Any, files: dict[str, tuple[ss.plan.Plan, Path]]
) -> None:
    plan, path = files[name]
    with visit_page(browser, path, width, scheme) as visit:
        assert sorted(sentences(visit.page.inner_text(".says"))) == sorted(sentences(plan.answer))
        assert visit.page.locator(".says").is_visible()
        charts = visit.page.locator("svg.chart")
        assert charts.count() == (4 if name in ("missed", "met", "infeasible") else 3) + (plan.choice is not None)
        for place in range(charts.count()):
            box = charts.nth(place).bounding_box()
            assert box["width"] >= 280
            assert box["height"] >= 180
        assert visit.page.evaluate("document.documentElement.scrollWidth") <= width, "the page scrolls sideways"
        assert visit.page.evaluate("document.querySelector('.scroll').scrollWidth") <= width
        assert visit.page.evaluate(COLLISIONS) == []
        contrasts = visit.page.evaluate(CONTRAST)
        assert len(contrasts) > 100
        assert [(text, ratio) for text, ratio in contrasts if ratio < 4.5] == []
        sizes = visit.page.evaluate(
            "[...document.querySelectorAll('svg.chart text')].map(item => item.getBoundingClientRect().height)"
        )
        assert min(sizes) >= 9, "text in a chart is too small to read"
        assert visit.requests == [path.as_uri()]
        assert visit.complaints == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 768, 1280])
@pytest.mark.parametrize("name", CHOICES)
def test_a_ranking_reads_well(
    name: str, width: int, scheme: str, browser: Any, rankings: dict[str, tuple[ss.plan.Choice, Path]]
) -> None:
    choice, path = rankings[name]
    with visit_page(browser, path, width, scheme) as visit:
        assert choice.chosen.mechanism in squeezed(visit.page.inner_text(".says"))
        assert visit.page.inner_text(".call code") == choice.chosen.call
        assert visit.page.locator("svg.chart").count() == 1
        assert visit.page.locator("tbody tr").count() == len(choice.candidates)
        assert visit.page.evaluate("document.documentElement.scrollWidth") <= width, "the page scrolls sideways"
        assert visit.page.evaluate(COLLISIONS) == []
        assert [(text, ratio) for text, ratio in visit.page.evaluate(CONTRAST) if ratio < 4.5] == []
        assert visit.requests == [path.as_uri()]
        assert visit.complaints == []
        visit.page.emulate_media(media="print", color_scheme="dark")
        assert visit.page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"


def test_light_and_dark_differ(browser: Any, files: dict[str, tuple[ss.plan.Plan, Path]]) -> None:
    colours = []
    for scheme in ("light", "dark"):
        with visit_page(browser, files["missed"][1], 1280, scheme) as visit:
            colours.append(visit.page.evaluate("getComputedStyle(document.body).backgroundColor"))
    assert colours[0] != colours[1]


def test_wide_screens_set_charts_side_by_side(browser: Any, files: dict[str, tuple[ss.plan.Plan, Path]]) -> None:
    for width, columns in ((1280, 2), (390, 1)):
        with visit_page(browser, files["missed"][1], width, "light") as visit:
            figures = visit.page.locator(".pictures figure")
            lefts = {round(figures.nth(place).bounding_box()["x"]) for place in range(figures.count())}
            assert len(lefts) == columns


@pytest.mark.parametrize("name", PLANS)
def test_it_prints_on_white(name: str, browser: Any, files: dict[str, tuple[ss.plan.Plan, Path]]) -> None:
    # A4 less its margins is 695 pixels wide.
    with visit_page(browser, files[name][1], 695, "dark") as visit:
        printed = visit.page.pdf(prefer_css_page_size=True)
        assert printed.startswith(b"%PDF")
        assert 2 <= len(re.findall(rb"/Type\s*/Page\b", printed)) <= 7
        visit.page.emulate_media(media="print", color_scheme="dark")
        assert visit.page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
        assert visit.page.evaluate("document.documentElement.scrollWidth") <= 695, "something is cut off on paper"
        assert visit.page.evaluate(COLLISIONS) == []
        assert min(ratio for _, ratio in visit.page.evaluate(CONTRAST)) >= 4.5
        assert visit.complaints == []


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[ss.Release, Path]]:
    folder = tmp_path_factory.mktemp("certificates")
    made = {name: (make(), folder / f"{name}.html") for name, make in CERTIFICATES.items()}
    for release, path in made.values():
        save_certificate_page(release, path, facts={"SHA-256": "ab" * 32})
    return made


@pytest.mark.parametrize(("width", "scheme"), [(360, "dark"), (768, "light"), (1280, "dark"), (1280, "light")])
@pytest.mark.parametrize("name", CERTIFICATES)
def test_a_certificate_reads_well(
    name: str, width: int, scheme: str, browser: Any, certificates: dict[str, tuple[ss.Release, Path]]
) -> None:
    """The verdict is seen at once, nothing is cut off or hard to read, and nothing is fetched."""
    release, path = certificates[name]
    with visit_page(browser, path, width, scheme) as visit:
        assert release.guarantee.verdict.capitalize() in visit.page.inner_text(".status")
        assert visit.page.locator("svg.chart").count() == 1
        assert visit.page.evaluate("document.documentElement.scrollWidth") <= width, "the page scrolls sideways"
        assert visit.page.evaluate(COLLISIONS) == []
        assert [(text, ratio) for text, ratio in visit.page.evaluate(CONTRAST) if ratio < 4.5] == []
        assert visit.requests == [path.as_uri()]
        assert visit.complaints == []


@pytest.mark.parametrize("name", CERTIFICATES)
def test_a_certificate_prints(name: str, browser: Any, certificates: dict[str, tuple[ss.Release, Path]]) -> None:
    """It becomes a PDF of two or three pages, on white, with nothing cut off."""
    with visit_page(browser, certificates[name][1], 695, "dark") as visit:
        printed = visit.page.pdf(prefer_css_page_size=True)
        assert printed.startswith(b"%PDF")
        assert 1 <= len(re.findall(rb"/Type\s*/Page\b", printed)) <= 3
        visit.page.emulate_media(media="print", color_scheme="dark")
        assert visit.page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
        assert visit.page.evaluate("document.documentElement.scrollWidth") <= 695, "something is cut off on paper"
        assert visit.page.evaluate(COLLISIONS) == []
