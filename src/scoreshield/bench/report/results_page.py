"""Results as pages in Markdown, and as one HTML file.

In Markdown a first page has the message, what did not work and a paragraph per finding; each finding with pictures or
tables has a page of its own, in a folder beside the first page. The HTML fetches nothing and runs nothing: styles and
pictures are inside. What did not work stands near the top. A section shows its pictures before its tables, and each of
these says which command made it. Texts may hold **bold**, `code`, [links](page.md) and paragraphs split by blank lines;
all else in them is shown as it is written.
"""

from __future__ import annotations

import base64
import dataclasses
import os
import re
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any, Literal, NamedTuple
from urllib.parse import quote

from scoreshield import _files, _validation
from scoreshield._formatting import NO_BREAK_SPACE, typeset_text
from scoreshield._validation import validate
from scoreshield.errors import FileError, InvalidInput
from scoreshield.report.pages import render_template

Best = Literal["max", "min"] | None

NEGATIVES, ENVIRONMENT = "What did not work", "Where this was run"
_WIDE = 900  # on the page; a wider picture scrolls on a phone instead of shrinking to nothing
_DENSITY = 2  # pixels of a picture per pixel of the page, so that it is sharp on a dense screen


@dataclass(frozen=True)
class Picture:
    """A PNG file, what it shows in words, the command that made it and how to read it."""

    path: Path
    alt: str
    command: str
    reading: str

    def __post_init__(self) -> None:
        _check_texts(self, "alt", "command", "reading")
        if not isinstance(self.path, Path) or not self.alt.strip():
            raise InvalidInput(
                f"A Picture must have a Path and an alt text. Got {self.path!r} and {self.alt!r} instead."
            )


@dataclass(frozen=True)
class ResultTable:
    """A table of texts and the command that made it.

    Attributes:
        caption: the title of the table.
        header: the names of the columns.
        rows: the texts of the cells, row by row.
        command: what makes the table again.
        best: for each column, whether its largest or its smallest number is bold; None for neither. A number that is
            no farther from the best one than the spread (±) of either is bold too.
        reference: the places of rows that do not compete, such as the non-private one or one whose promise is false.
        unclear: the places (row, column) of numbers that are never bold, because they beat no reference clearly.
        folded: whether only the caption is shown until a reader opens the table.
    """

    caption: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    command: str
    best: Sequence[Best] | None = None
    reference: Sequence[int] = ()
    unclear: Sequence[tuple[int, int]] = ()
    folded: bool = False

    @validate()
    def __post_init__(self) -> None:
        _check_texts(self, "caption", "command")
        if not self.header or any(len(row) != len(self.header) for row in self.rows):
            lengths = sorted({len(row) for row in self.rows})
            raise InvalidInput(
                f"Rows of a ResultTable must be as long as its header. Got {lengths} and {len(self.header)}."
            )
        if not all(isinstance(cell, str) for row in (self.header, *self.rows) for cell in row):
            raise InvalidInput(
                "Cells of a ResultTable must be texts. Got something else instead: format numbers first."
            )
        if self.best is not None:
            if len(self.best) != len(self.header):
                _validation.reject("best", f"of length {len(self.header)}, as the header", list(self.best))
            if not all(side in ("max", "min", None) for side in self.best):
                _validation.reject("best", "made of 'max', 'min' and None", str(self.best))
        if not all(place in range(len(self.rows)) for place in self.reference):
            _validation.reject("reference", f"row numbers below {len(self.rows)}", str(self.reference))


@dataclass(frozen=True)
class Section:
    """A finding: some words, its pictures, its tables, and notes."""

    title: str
    intro: str
    pictures: Sequence[Picture] = ()
    tables: Sequence[ResultTable] = ()
    notes: Sequence[str] = ()

    def __post_init__(self) -> None:
        _check_texts(self, "title", "intro")
        _check_parts(self, "pictures", Picture)
        _check_parts(self, "tables", ResultTable)
        _check_parts(self, "notes", str)


@dataclass(frozen=True)
class ResultsPage:
    """The whole page; ``negatives`` are pairs of a title and a text."""

    title: str
    lead: str
    sections: Sequence[Section]
    environment: Mapping[str, object]
    negatives: Sequence[tuple[str, str]]
    made_by: str

    @validate()
    def __post_init__(self) -> None:
        _check_texts(self, "title", "lead", "made_by")
        _check_parts(self, "sections", Section)
        _check_parts(self, "negatives", tuple)
        if not all(len(pair) == 2 and all(isinstance(text, str) for text in pair) for pair in self.negatives):
            _validation.reject("negatives", "pairs of a title and a text", self.negatives)
        if not isinstance(self.environment, Mapping):
            _validation.reject("environment", "a dict of names and values", self.environment)


@validate()
def save_results_page(page: ResultsPage, *, markdown: Path, html: Path, images: Path) -> None:
    """Write the page in both forms and its pictures into a folder: all files, or nothing is changed.

    The parts of the Markdown form go into a folder beside it: those of ``results.md`` into ``results``.
    """
    _check_page(page)
    if not markdown.suffix:
        _validation.reject("markdown", "a file name with an ending, such as results.md", str(markdown))
    contents: dict[str, bytes] = {}
    for picture in (picture for section in page.sections for picture in section.pictures):
        content = _read_png(picture)
        if contents.setdefault(picture.path.name, content) != content:
            raise InvalidInput(f"Pictures of a page must have different names. Got two called {picture.path.name}.")
    folder = PurePosixPath(Path(os.path.relpath(images, markdown.parent)).as_posix())
    outputs = {images / name: content for name, content in contents.items()}
    texts = render_markdown(page, image_folder=folder, name=markdown.name)
    outputs |= {markdown.parent / name: text.encode() for name, text in texts.items()}
    outputs[html] = render_html(page).encode()
    try:
        for path in outputs:
            path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FileError(f"Cannot make the folder {path.parent}: {error.strerror}.") from None
    _files.write_whole({path: partial(_write_bytes, content) for path, content in outputs.items()})


@validate()
def render_markdown(page: ResultsPage, *, image_folder: str | PurePosixPath, name: str) -> dict[PurePosixPath, str]:
    """Render the page as Markdown: the first page, and one part per section with pictures or tables.

    Args:
        page: what to render.
        image_folder: the folder of the pictures, relative to the first page.
        name: the file name of the first page.

    Returns:
        The texts by their paths, relative to the folder of the first page; the first page comes first.
    """
    _check_page(page)
    first, images = PurePosixPath(name), PurePosixPath(image_folder)
    parts = {
        anchor: PurePosixPath(first.stem, f"{anchor}.md")
        for anchor, section in _pair_sections(page)
        if section.pictures or section.tables
    }
    texts = {first: _render("results.md", page, parts=parts, sections=_pair_sections(page))}
    up = PurePosixPath("..")
    for anchor, section in _pair_sections(page):
        if anchor in parts:
            moved = _move_section(section)
            texts[parts[anchor]] = _render("part.md", page, section=moved, image_folder=up / images, first=up / first)
    return {path: text.rstrip("\n") + "\n" for path, text in texts.items()}


def _pair_sections(page: ResultsPage) -> list[tuple[str, Section]]:
    """Pair each section with its anchor."""
    anchors = [anchor for _, anchor in _list_anchors(page)][bool(page.negatives) :]
    return list(zip(anchors, page.sections, strict=False))  # the environment has an anchor too


def _move_section(section: Section) -> Section:
    """Change the links of a section, for a page that is one folder deeper."""
    tables = [
        dataclasses.replace(
            table,
            caption=_move_links(table.caption),
            header=[_move_links(cell) for cell in table.header],
            rows=[[_move_links(cell) for cell in row] for row in table.rows],
        )
        for table in section.tables
    ]
    return dataclasses.replace(
        section,
        intro=_move_links(section.intro),
        pictures=[dataclasses.replace(one, reading=_move_links(one.reading)) for one in section.pictures],
        tables=tables,
        notes=[_move_links(note) for note in section.notes],
    )


@validate()
def render_html(page: ResultsPage) -> str:
    """Render the page as one HTML document that needs nothing else."""
    _check_page(page)
    return _render("results.html", page)


def _render(template: str, page: ResultsPage, **values: Any) -> str:
    return render_template(
        template,
        package="scoreshield.bench.report",
        page=page,
        anchors=_list_anchors(page),
        negatives_title=NEGATIVES,
        environment_title=ENVIRONMENT,
        wide=_WIDE,
        embed_picture=_embed_picture,
        encode_url=quote,
        escape_markdown=_escape_markdown,
        fence_command=_fence_command,
        find_best_cells=find_best_cells,
        find_numeric_columns=find_numeric_columns,
        join_lines=_join_lines,
        mark_table=_mark_table,
        mark_text=_mark_text,
        parse_spans=parse_spans,
        split_paragraphs=_split_paragraphs,
        typeset_formulas=_typeset_formulas,
        **values,
    )


class EmbeddedPicture(NamedTuple):
    """A picture inside an HTML page: its content in base 64, and its size on the page."""

    content: str
    width: int
    height: int


def _embed_picture(picture: Picture) -> EmbeddedPicture:
    content = _read_png(picture)
    width, height = struct.unpack(">II", content[16:24])
    return EmbeddedPicture(base64.b64encode(content).decode(), width // _DENSITY, height // _DENSITY)


# ---- Texts.

_SPAN = re.compile(r"`(?P<code>[^`]+)`|\[(?P<label>[^\[\]]+)\]\((?P<url>[^()\s]+)\)|\*\*(?P<bold>.+?)\*\*", re.DOTALL)
_SAFE = re.compile(r"(?:https?://|mailto:)[^\x00-\x20]+|[\w./#-][^:\x00-\x20]*")  # no scheme that a browser would run


class Span(NamedTuple):
    """A part of a text: plain text, code, a link or bold text; the last two hold spans themselves."""

    kind: Literal["plain", "code", "link", "bold"]
    text: str
    url: str = ""
    children: tuple[Span, ...] = ()


def parse_spans(text: str) -> list[Span]:
    """Split a text into its spans; a mark is closed inside the one that holds it."""
    spans, at = [], 0
    for match in _SPAN.finditer(text):
        spans.append(Span("plain", text[at : match.start()]))
        code, label, url, bold = match.group("code", "label", "url", "bold")
        if code is not None:
            spans.append(Span("code", code))
        elif bold is not None:
            spans.append(Span("bold", bold, children=tuple(parse_spans(bold))))
        elif _SAFE.fullmatch(url):
            spans.append(Span("link", label, url, tuple(parse_spans(label))))
        else:
            spans.append(Span("plain", match.group()))
        at = match.end()
    return [span for span in (*spans, Span("plain", text[at:])) if span.text]


def _move_links(text: str) -> str:
    """Change the links to other pages of a text, for a page that is one folder deeper."""

    def move(match: re.Match[str]) -> str:
        label, url, bold = match.group("label", "url", "bold")
        if bold is not None:
            return f"**{_move_links(bold)}**"
        is_page = url is not None and _SAFE.fullmatch(url) and not re.match(r"\w+:|[#/]", url)
        return f"[{label}](../{url})" if is_page else match.group()

    return _SPAN.sub(move, text)


def _mark_text(text: str) -> str:
    """Write a text in Markdown: its marks stay, all else is shown as it is written."""
    return "".join(map(_mark_span, parse_spans(text)))


def _mark_span(span: Span) -> str:
    inside = "".join(map(_mark_span, span.children))
    if span.kind == "code":
        return f"`{span.text}`"
    if span.kind == "link":
        return f"[{inside}]({span.url})"
    if span.kind == "bold":
        return f"**{inside}**"
    return re.sub(r"&(?=#?\w+;)", "&amp;", span.text).replace("<", "&lt;").replace("](", "]\\(")


def _escape_markdown(text: str) -> str:
    """Write a text that has no marks of its own in Markdown, inside brackets too."""
    return _mark_span(Span("plain", re.sub(r"([][\\`*])", r"\\\1", text)))


def _mark_cell(text: str) -> str:
    """Write the text of a table's cell in Markdown."""
    return _mark_text(_join_lines(text)).replace("|", "\\|")


def _typeset_formulas(text: str) -> str:
    """Keep formulas and percent signs on their line."""
    return re.sub(r" ([=≤≥]) ", rf"{NO_BREAK_SPACE}\1{NO_BREAK_SPACE}", typeset_text(text))


def _split_paragraphs(text: str) -> list[str]:
    return [part for part in re.split(r"\n\s*\n", text.strip()) if part]


def _join_lines(text: str) -> str:
    return " ".join(text.split())


def _fence_command(command: str) -> str:
    """Write a command as a block of code in Markdown, whose fence is longer than any in it."""
    fence = "`" * max(3, *(len(run) + 1 for run in re.findall(r"`+", command) or [""]))
    return f"{fence}sh\n{command.strip()}\n{fence}" if command.strip() else ""


def _list_anchors(page: ResultsPage) -> list[tuple[str, str]]:
    """List each heading with an anchor of its own, the one that Markdown hosts make of it."""
    titles = [NEGATIVES] * bool(page.negatives) + [section.title for section in page.sections]
    counts: dict[str, int] = {}
    anchors = []
    for title in titles + [ENVIRONMENT] * bool(page.environment):
        slug = re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") or "section"
        counts[slug] = counts.get(slug, -1) + 1
        anchors.append((title, f"{slug}-{counts[slug]}" if counts[slug] else slug))
    return anchors


# ---- Tables.

_SUPERSCRIPTS = str.maketrans("⁻⁰¹²³⁴⁵⁶⁷⁸⁹", "-0123456789")
_NUMBER = re.compile(
    r"(?P<digits>[+\-−]?\d[\d,]*\.?\d*(?:[eE][+\-]?\d+)?)(?:\s*×\s*10(?P<power>[⁻⁰¹²³⁴⁵⁶⁷⁸⁹]+))?"
    r"(?:\s*±\s*(?P<spread>[\d.,]+(?:[eE][+\-]?\d+)?))?\s*(?P<unit>%|[a-zµ]{0,3})"
)


class CellNumber(NamedTuple):
    """The number of a cell."""

    value: float
    spread: float
    unit: str


def parse_number(cell: str) -> CellNumber | None:
    """Parse the number of a cell, its spread after the ± (0 without one) and its unit; None where the cell is words."""
    match = _NUMBER.fullmatch(re.sub(r"[*`]", "", cell).strip())
    if match is None:
        return None
    digits = match["digits"].replace(",", "").replace("−", "-")
    value = float(f"{digits}e{match['power'].translate(_SUPERSCRIPTS)}" if match["power"] else digits)
    return CellNumber(value, float((match["spread"] or "0").replace(",", "")), match["unit"])


def find_numeric_columns(table: ResultTable) -> list[bool]:
    """Say of each column whether it mostly holds numbers; the first column names the rows."""
    columns = [[parse_number(row[column]) for row in table.rows] for column in range(len(table.header))]
    return [
        bool(place) and 2 * sum(number is not None for number in cells) > len(cells)
        for place, cells in enumerate(columns)
    ]


def find_best_cells(table: ResultTable) -> set[tuple[int, int]]:
    """Find the places (row, column) of the best numbers and of those within their spread, without the unclear ones."""
    places: set[tuple[int, int]] = set()
    for column, best in enumerate(table.best or ()):
        cells = {
            place: parse_number(row[column]) for place, row in enumerate(table.rows) if place not in table.reference
        }
        known = {place: cell for place, cell in cells.items() if cell is not None}
        if best is None or not known:
            continue
        if len({cell.unit for cell in known.values()}) > 1:
            raise InvalidInput(
                f"The column '{table.header[column]}' of a ResultTable must have one unit for its best to be found. "
                f"Got {', '.join(sorted({repr(cell.unit) for cell in known.values()}))} instead."
            )
        top = (max if best == "max" else min)(known.values(), key=lambda cell: cell.value)
        near = (row for row, cell in known.items() if abs(cell.value - top.value) <= max(cell.spread, top.spread))
        places |= {(row, column) for row in near}
    return places - set(table.unclear)


def _mark_table(table: ResultTable) -> str:
    """Write a table in Markdown, its best numbers bold."""
    best = find_best_cells(table)
    lines = [[_mark_cell(name) for name in table.header]]
    lines += [["---:" if is_number else ":---" for is_number in find_numeric_columns(table)]]
    for row, texts in enumerate(table.rows):
        cells = ((_mark_cell(text), (row, column) in best) for column, text in enumerate(texts))
        lines += [[f"**{text}**" if is_best else text for text, is_best in cells]]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


# ---- Files and checks.


def _read_png(picture: Picture) -> bytes:
    try:
        content = picture.path.read_bytes()
    except OSError as error:
        raise FileError(f"Cannot read the picture {picture.path}: {error.strerror}.") from None
    if len(content) < 24 or not content.startswith(b"\x89PNG\r\n\x1a\n"):
        raise InvalidInput(f"{picture.path} must be a PNG picture. Got another kind of file instead.")
    return content


def _check_page(page: object) -> None:
    if not isinstance(page, ResultsPage):
        _validation.reject("page", "a ResultsPage", page)


def _write_bytes(content: bytes, file: Any) -> None:
    file.write(content)


def _check_parts(item: object, name: str, kind: type) -> None:
    parts = getattr(item, name)
    if isinstance(parts, str) or not isinstance(parts, Sequence) or not all(isinstance(part, kind) for part in parts):
        _validation.reject(name, f"a list of {kind.__name__}", parts)


def _check_texts(item: object, *names: str) -> None:
    for name in names:
        if not isinstance(getattr(item, name), str):
            _validation.reject(name, "a text", getattr(item, name))
