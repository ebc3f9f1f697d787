"""The results page: whole, self-contained, safe, the same every time, and honest about what did not work."""

from __future__ import annotations

import base64
import dataclasses
import re
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from browser_support import needs_chromium, open_browser
from html_document import Document
from matplotlib.figure import Figure

import scoreshield as ss
from scoreshield.bench.report import results_page
from scoreshield.bench.report.results_page import (
    Picture,
    ResultsPage,
    ResultTable,
    Section,
    find_best_cells,
    parse_number,
    render_html,
    render_markdown,
    save_results_page,
)
from scoreshield.report.plots import save_picture

EVIL = "<script>alert('x')</script><img onerror=\"y\">&lt;"


class Page(Document):
    VOID = frozenset({"meta", "img"})

    def attributes(self, tag: str) -> list[dict[str, str | None]]:
        return [attrs for name, attrs in self.tags if name == tag]


@pytest.fixture
def pictures(tmp_path: Path) -> list[Picture]:
    made = []
    for name, width in (("wide one.png", 10.0), ("narrow.png", 4.0)):
        path = tmp_path / "drawn" / name
        path.parent.mkdir(exist_ok=True)
        save_picture(Figure(figsize=(width, 2.0)), path)
        made.append(
            Picture(path, f"Alt [of] {name}", f"scoreshield bench --out '{name}' && echo <done>", "**Read** it so.")
        )
    return made


@pytest.fixture
def page(pictures: list[Picture]) -> ResultsPage:
    table = ResultTable(
        caption="Recall at ten",
        header=["Method", "ε = 1", "seconds", "remark"],
        rows=[
            ["non-private", "0.89", "0.1", "the limit | of all"],
            ["laplace", "0.10 ± 0.02", "2.5 × 10⁻²", "pure"],
            ["`staircase`", "0.30 ± 0.01", "0.5", "pure, see [the page](mechanisms.md)"],
            ["sdp", "out of reach", "1,200", ""],
        ],
        command="scoreshield bench --table",
        best=[None, "max", "min", None],
        reference=[0],
    )
    return ResultsPage(
        title="Results, 2 of them",
        lead="First **paragraph** with `code <b>`.\n\nSecond, by [Balle & Wang](https://example.org/a?b=1&c=2).",
        sections=[
            Section("Retrieval (SciFact)", "What `release_scores` keeps.", pictures[:1], [table], ["A **note**."]),
            Section("Runtime", "One core.", pictures[1:]),
            Section("Runtime", "Another by that name."),
        ],
        environment={"Python": "3.11", "threads": 1},
        negatives=[("Gram noise", "Below ε = 20 nothing is left."), ("PCA", "Dominated.")],
        made_by="Made by `scoreshield bench`.",
    )


def render_all(page: ResultsPage) -> str:
    """All pages of the Markdown form, one after the other."""
    return "\n".join(render_markdown(page, image_folder="images", name="results.md").values())


def test_a_whole_document_that_needs_nothing_else(page: ResultsPage) -> None:
    text = render_html(page)
    document = Page(text)
    assert text.startswith("<!DOCTYPE html>")
    assert not {"script", "link", "iframe", "object", "base"} & {tag for tag, _ in document.tags}
    assert not re.search(r"@import|url\(|\bon\w+=", text)
    bare = re.sub(r'<a href="[^"]*"', "", text)
    assert "http" not in bare
    assert "//" not in re.sub(r"base64,[^\"]*", "", bare).replace("<!DOCTYPE html>", "")
    ids = [attrs["id"] for _, attrs in document.tags if "id" in attrs]
    assert len(ids) == len(set(ids))
    inside = [str(attrs["href"])[1:] for attrs in document.attributes("a") if str(attrs["href"]).startswith("#")]
    assert inside == ids, "the contents lead to every heading, in order"
    assert ids == ["what-did-not-work", "retrieval-scifact", "runtime", "runtime-1", "where-this-was-run"]


def test_pictures_are_inside_with_their_words(page: ResultsPage, pictures: list[Picture]) -> None:
    document = Page(render_html(page))
    images = document.attributes("img")
    assert len(images) == len(document.attributes("figure")) - 1 == 2
    for image, picture in zip(images, pictures, strict=True):
        kind, data = str(image["src"]).split(",")
        assert kind == "data:image/png;base64"
        assert base64.b64decode(data) == picture.path.read_bytes()
        assert image["alt"] == picture.alt
        assert picture.command in document.text
    assert [(image["width"], image["height"], image.get("class")) for image in images] == [
        ("1100", "220", "wide"),
        ("440", "220", None),
    ]


def test_failures_stand_before_results(page: ResultsPage) -> None:
    """Failures stand before results and pictures before tables."""
    short = dataclasses.replace(page, sections=page.sections[:1])
    for text in (render_html(short), render_all(short)):
        body = text.split("</style>")[-1]
        places = [body.index(words) for words in ("paragraph", "Gram noise", "release_scores")]
        places += [body.rindex(words) for words in ("Read", "Recall at ten", "note")]
        assert places == sorted(places)


def test_markdown_has_one_page_per_finding(page: ResultsPage) -> None:
    """The first page has every heading; pictures, tables and notes are in the parts, whose links find their way."""
    texts = {str(path): text for path, text in render_markdown(page, image_folder="images", name="r.md").items()}
    assert list(texts) == ["r.md", "r/retrieval-scifact.md", "r/runtime.md"]
    first, part = texts["r.md"], texts["r/retrieval-scifact.md"]
    assert re.findall(r"^## (.*)$", first, re.MULTILINE)[1:] == [
        "Retrieval (SciFact)", "Runtime", "Runtime", "Where this was run",
    ]  # fmt: skip
    assert "![" not in first
    assert "| Method |" not in first
    assert "**Read** it so." in first, "the first reading is the message of a finding"
    assert "](r/retrieval-scifact.md)" in first
    assert part.startswith("# Retrieval (SciFact)\n\nA part of [Results, 2 of them](../r.md), ")
    assert "](../images/wide%20one.png)" in part
    assert "[the page](../mechanisms.md)" in part
    assert "- A **note**." in part


def test_links_of_a_part_go_one_folder_up(page: ResultsPage) -> None:
    intro = "[a](b.md#c) **[d](e.md)** [f](https://g.org) `[h](i.md)` [j](#k) [l](javascript:m)"
    section = dataclasses.replace(page.sections[0], intro=intro)
    part = render_markdown(dataclasses.replace(page, sections=[section]), image_folder="images", name="r.md").popitem()
    moved = "[a](../b.md#c) **[d](../e.md)** [f](https://g.org) `[h](i.md)` [j](#k) [l]\\(javascript:m)"
    assert part[1].splitlines()[4] == moved


def test_without_failures_there_is_no_empty_box(page: ResultsPage) -> None:
    bare = dataclasses.replace(page, negatives=[], environment={})
    assert results_page.NEGATIVES not in render_html(bare)
    assert results_page.ENVIRONMENT not in render_all(bare)
    Page(render_html(bare))


class TestTexts:
    @pytest.mark.parametrize(
        ("text", "html"),
        [
            ("**a** b", "<strong>a</strong> b"),
            ("`a **b** <c>`", "<code>a **b** &lt;c&gt;</code>"),
            ("[a `b`](c.md#d)", '<a href="c.md#d">a <code>b</code></a>'),
            ("**[a](https://b.org/?c&d)**", '<strong><a href="https://b.org/?c&amp;d">a</a></strong>'),
            ("**a [b**](c)", "<strong>a [b</strong>](c)"),
            ("a * b ** c", "a * b ** c"),
            ("<i>a</i> & b", "&lt;i&gt;a&lt;/i&gt; &amp; b"),
            ('[a](x"onclick="y)', '<a href="x&#34;onclick=&#34;y">a</a>'),
            ("[a](javascript:b)", "[a](javascript:b)"),
            ("[a](JavaScript:b)", "[a](JavaScript:b)"),
            ("[a](data:text/html,b)", "[a](data:text/html,b)"),
            ("[a](\x01javascript:b)", "[a](\x01javascript:b)"),
            ("ε = 1", "ε\N{NO-BREAK SPACE}=\N{NO-BREAK SPACE}1"),
        ],
    )
    def test_marks(self, text: str, html: str, page: ResultsPage) -> None:
        """Marks become elements, and all else is escaped."""
        found = re.search(r'<div class="lead"><p>(.*?)</p></div>', render_html(dataclasses.replace(page, lead=text)))
        assert found is not None
        assert found.group(1) == html

    @pytest.mark.parametrize(
        ("text", "markdown"),
        [
            ("**a** `<b>` [c](d.md)", "**a** `<b>` [c](d.md)"),
            ("a < b & c", "a &lt; b & c"),
            ("&lt;b&gt;", "&amp;lt;b&amp;gt;"),
            ("[a](javascript:b)", "[a]\\(javascript:b)"),
        ],
    )
    def test_marks_in_markdown(self, text: str, markdown: str, page: ResultsPage) -> None:
        """Marks stay in Markdown, and nothing else becomes one."""
        found = render_all(dataclasses.replace(page, lead=text)).splitlines()[2]
        assert found == markdown

    def test_hostile_text_stays_text(self, pictures: list[Picture]) -> None:
        picture = dataclasses.replace(pictures[0], alt=EVIL, command=EVIL, reading=EVIL)
        table = ResultTable(EVIL, [EVIL, "b"], [[EVIL, f"**{EVIL}**"]], EVIL)
        hostile = ResultsPage(
            EVIL, EVIL, [Section(EVIL, EVIL, [picture], [table], [EVIL])], {EVIL: EVIL}, [(EVIL, EVIL)], EVIL
        )
        document = Page(render_html(hostile))
        assert "script" not in {tag for tag, _ in document.tags}
        assert not any("onerror" in attrs for _, attrs in document.tags)
        (image,) = document.attributes("img")
        assert image["alt"] == EVIL
        assert document.text.count(EVIL) == 19, "every field is shown, titles also in the head and the contents"
        outside_code = re.sub(r"```.*?```", "", render_all(hostile), flags=re.DOTALL)
        assert "<script" not in outside_code
        assert "<img" not in outside_code

    def test_fence_command_does_end_block(self, pictures: list[Picture], page: ResultsPage) -> None:
        """A fence in a command does not end the block."""
        picture = dataclasses.replace(pictures[0], command="echo ````")
        section = Section("Title", "", [picture])
        text = render_all(dataclasses.replace(page, sections=[section]))
        assert "`````sh\necho ````\n`````" in text


class TestTables:
    def test_html(self, page: ResultsPage) -> None:
        text = render_html(page)
        bold = re.findall(r"<td[^>]*><strong>(.*?)</strong>", text)
        assert bold == ["2.5 × 10⁻²", "0.30 ± 0.01"]
        assert '<tr class="reference"><th scope="row">non-private</th><td class="number">0.89</td>' in text
        assert "<td>the limit | of all</td>" in text
        assert '<th scope="row"><code>staircase</code></th>' in text

    def test_markdown(self, page: ResultsPage) -> None:
        lines = [line for line in render_all(page).splitlines() if line.startswith("|")]
        assert lines == [
            "| Method | ε = 1 | seconds | remark |",
            "| :--- | ---: | ---: | :--- |",
            r"| non-private | 0.89 | 0.1 | the limit \| of all |",
            "| laplace | 0.10 ± 0.02 | **2.5 × 10⁻²** | pure |",
            "| `staircase` | **0.30 ± 0.01** | 0.5 | pure, see [the page](../mechanisms.md) |",
            "| sdp | out of reach | 1,200 |  |",
        ]

    @pytest.mark.parametrize(
        ("cell", "parsed"),
        [
            ("0.83", (0.83, 0.0, "")),
            ("−1,234.5 ± 2 %", (-1234.5, 2.0, "%")),
            ("1.5e-3 s", (0.0015, 0.0, "s")),
            ("1.21e+08 ± 1.9e+07", (1.21e8, 1.9e7, "")),
            ("2.5 × 10⁻⁷", (2.5e-7, 0.0, "")),
            ("**12** ms", (12.0, 0.0, "ms")),
            ("1 in 1,000", None),
            ("out of reach", None),
            ("", None),
            ("0.5 (worst)", None),
        ],
    )
    def test_numbers_in_cells(self, cell: str, parsed: Any) -> None:
        assert parse_number(cell) == parsed

    def test_ties_all_best_units_may_differ(self) -> None:
        """Ties are all best and units may not differ."""
        tied = ResultTable("", ["m", "v"], [["a", "1 s"], ["b", "1.0 s"], ["c", "2 s"]], "", best=[None, "min"])
        assert find_best_cells(tied) == {(0, 1), (1, 1)}
        mixed = dataclasses.replace(tied, rows=[["a", "3 ms"], ["b", "2 s"]])
        with pytest.raises(ss.InvalidInput, match="one unit"):
            find_best_cells(mixed)

    @pytest.mark.parametrize(
        ("changes", "said"),
        [
            ({"header": []}, "as long as its header"),
            ({"rows": [["a"]]}, "as long as its header"),
            ({"rows": [["a", 1.0]]}, "must be texts"),
            ({"best": ["max"]}, "of length 2"),
            ({"best": [None, "most"]}, "'max', 'min' and None"),
            ({"reference": [1]}, "row numbers below 1"),
            ({"caption": None}, "'caption'"),
        ],
    )
    def test_bad_tables(self, changes: dict[str, Any], said: str) -> None:
        usual = {"caption": "", "header": ["m", "v"], "rows": [["a", "1"]], "command": ""}
        with pytest.raises(ss.InvalidInput, match=said):
            ResultTable(**{**usual, **changes})


class TestFiles:
    @staticmethod
    def paths(folder: Path) -> dict[str, Path]:
        return {
            "markdown": folder / "docs" / "results.md",
            "html": folder / "r.html",
            "images": folder / "docs" / "images",
        }

    @staticmethod
    def snapshot(folder: Path) -> dict[Path, bytes]:
        return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}

    def test_everything_written_markdown_finds(self, page: ResultsPage, tmp_path: Path) -> None:
        """Everything is written and markdown finds its pictures."""
        paths = self.paths(tmp_path / "new")
        save_results_page(page, **paths)
        assert paths["html"].read_text("utf-8") == render_html(page)
        text = paths["markdown"].read_text("utf-8")
        folder = paths["markdown"].parent / "results"
        parts = [(folder / name).read_text("utf-8") for name in ("retrieval-scifact.md", "runtime.md")]
        links = re.findall(r"!\[.*\]\((.*)\)", "\n".join(parts))
        assert links == ["../images/wide%20one.png", "../images/narrow.png"]
        for link, picture in zip(links, (p for s in page.sections for p in s.pictures), strict=True):
            copied = folder / link.replace("%20", " ")
            assert copied.read_bytes() == picture.path.read_bytes()
        for anchor in re.findall(r"\]\(#(.*)\)", text):
            assert f'id="{escape(anchor)}"' in paths["html"].read_text("utf-8")
        assert len(self.snapshot(tmp_path / "new")) == 6
        with pytest.raises(ss.InvalidInput, match="such as results"):
            save_results_page(page, **{**paths, "markdown": tmp_path / "new" / "results"})

    def test_twice_same_pictures_may_place(self, page: ResultsPage, tmp_path: Path) -> None:
        """Twice is the same and pictures may be in place already."""
        paths = self.paths(tmp_path / "new")
        save_results_page(page, **paths)
        before = self.snapshot(tmp_path / "new")
        there = [
            dataclasses.replace(
                s, pictures=[dataclasses.replace(p, path=paths["images"] / p.path.name) for p in s.pictures]
            )
            for s in page.sections
        ]
        save_results_page(dataclasses.replace(page, sections=there), **paths)
        assert self.snapshot(tmp_path / "new") == before

    def test_failing_write_leaves_everything(self, page: ResultsPage, tmp_path: Path) -> None:
        """A failing write leaves everything as it was."""
        paths = self.paths(tmp_path / "new")
        save_results_page(page, **paths)
        before = self.snapshot(tmp_path / "new")
        (tmp_path / "taken").mkdir()
        changed = dataclasses.replace(page, lead="Changed.")
        with pytest.raises(ss.FileError):
            save_results_page(changed, **{**paths, "html": tmp_path / "taken"})
        assert self.snapshot(tmp_path / "new") == before
        with pytest.raises(ss.FileError, match="Cannot make the folder"):
            save_results_page(changed, **{**paths, "images": paths["html"] / "images"})
        assert self.snapshot(tmp_path / "new") == before

    def test_bad_pictures(self, page: ResultsPage, pictures: list[Picture], tmp_path: Path) -> None:
        def of(*some: Picture) -> ResultsPage:
            return dataclasses.replace(page, sections=[Section("a", "b", some)])

        other = tmp_path / "narrow.png"
        other.write_bytes(pictures[0].path.read_bytes())
        with pytest.raises(ss.InvalidInput, match="different names"):
            save_results_page(
                of(pictures[1], dataclasses.replace(pictures[1], path=other)), **self.paths(tmp_path / "new")
            )
        assert not (tmp_path / "new").exists()
        with pytest.raises(ss.FileError, match="Cannot read the picture"):
            render_html(of(dataclasses.replace(pictures[0], path=tmp_path / "none.png")))
        other.write_text("no picture, though long enough to be one by its size")
        with pytest.raises(ss.InvalidInput, match="must be a PNG"):
            render_html(of(dataclasses.replace(pictures[0], path=other)))


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Picture("a.png", "alt", "", ""), "Path and an alt text"),
        (lambda: Picture(Path("a.png"), " ", "", ""), "Path and an alt text"),
        (lambda: Picture(Path("a.png"), "alt", None, ""), "'command'"),
        (lambda: Section("a", 1), "'intro'"),
        (lambda: Section("a", "b", notes="one text"), "'notes'"),
        (lambda: Section("a", "b", pictures=["a.png"]), "list of Picture"),
        (lambda: ResultsPage("a", "b", ["c"], {}, [], ""), "list of Section"),
        (lambda: ResultsPage("a", "b", [], {}, [("one",)], ""), "pairs"),
        (lambda: ResultsPage("a", "b", [], [], [], ""), "'environment'"),
        (lambda: render_html("page"), "a ResultsPage"),
        (lambda: render_markdown(None, image_folder="images", name="r.md"), "a ResultsPage"),
    ],
)
def test_bad_input(make: Any, said: str) -> None:
    with pytest.raises(ss.InvalidInput, match=said):
        make()


def test_colours(page: ResultsPage) -> None:
    """The colours are those of the other pages, and every one that is used has a value."""
    css = render_html(page).partition("<style>")[2].partition("</style>")[0]
    named = set(re.findall(r"(--[\w-]+):", css))
    assert set(re.findall(r"var\((--[\w-]+)\)", css)) <= named
    assert css.count(":root {") == 3
    own = files("scoreshield.bench.report").joinpath("templates", "results.css").read_text("utf-8")
    assert not re.search(r"--[\w-]+:", own), "colours have one place, colours.css"


@needs_chromium
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_browser_nothing_fetched_nothing(page: ResultsPage, tmp_path: Path, scheme: str) -> None:
    """In a browser nothing is fetched and nothing sticks out."""
    pytest.importorskip("playwright.sync_api")
    path = tmp_path / "page.html"
    path.write_text(render_html(page), "utf-8")
    asked: list[str] = []
    with open_browser() as browser:
        for width in (390, 768, 1200, 1440):
            visit = browser.new_context(viewport={"width": width, "height": 844}, color_scheme=scheme).new_page()
            visit.on("request", lambda request: asked.append(request.url))
            visit.goto(path.as_uri())
            assert visit.evaluate("document.documentElement.scrollWidth") <= width
            assert visit.evaluate("[...document.images].every(image => image.naturalWidth > 0)")
            sides = [visit.locator(each).bounding_box() for each in ("nav", ".negatives")]
            assert (sides[0]["x"] > sides[1]["x"] + sides[1]["width"]) == (width == 1440)
        visit.emulate_media(media="print")
        visit.set_viewport_size({"width": 695, "height": 900})
        assert visit.evaluate("document.documentElement.scrollWidth") <= 695
        assert visit.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert {url for url in asked if not url.startswith("data:")} == {path.as_uri()}


def test_bold_minds_spread_unclear() -> None:
    """Bold minds the spread and what is unclear."""
    rows = [["a", "0.500 ± 0.010"], ["b", "0.495 ± 0.001"], ["c", "0.400 ± 0.120"], ["d", "0.480 ± 0.001"]]
    table = ResultTable("c", ["", "x"], rows, "", best=[None, "max"])
    assert find_best_cells(table) == {(0, 1), (1, 1), (2, 1)}  # c cannot be told from a, d can
    assert find_best_cells(dataclasses.replace(table, unclear=[(0, 1), (2, 1)])) == {(1, 1)}
    assert find_best_cells(dataclasses.replace(table, best=[None, "min"])) == {(2, 1), (0, 1), (1, 1), (3, 1)}
