"""Results as a page, in Markdown and as one HTML file: what was found, how to find it again, and what did not work.

Nothing is fetched and nothing is run: styles and pictures are inside the HTML. What fell short stands near the top, a
section shows its pictures before its tables, and each of these says which command made it. Texts may hold **bold**,
`code`, [links](page.md) and paragraphs split by blank lines; all else in them is shown as it is written.
"""

from __future__ import annotations

import base64
import os
import re
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from html import escape
from importlib.resources import files
from pathlib import Path, PurePosixPath
from typing import Any, Literal, NamedTuple
from urllib.parse import quote

from scoreshield import _files, _validation
from scoreshield._formatting import NO_BREAK_SPACE, typeset_text
from scoreshield._validation import validate
from scoreshield.errors import FileError, InvalidInput

Best = Literal["max", "min"] | None

NEGATIVES, ENVIRONMENT = "What did not work", "Where this was run"
_WIDE = 900  # pixels; a wider picture scrolls on a phone instead of shrinking to nothing


@dataclass(frozen=True)
class Picture:
    """A PNG file, what it shows to those who cannot see it, the command that made it and how to read it."""

    path: Path
    alt: str
    command: str
    reading: str

    def __post_init__(self) -> None:
        _texts(self, "alt", "command", "reading")
        if not isinstance(self.path, Path) or not self.alt.strip():
            raise InvalidInput(
                f"A Picture must have a Path and an alt text. Got {self.path!r} and {self.alt!r} instead."
            )


@dataclass(frozen=True)
class ResultTable:
    """A table of texts and the command that made it.

    Attributes
    ----------
    best : for each column whether its largest or its smallest number is bold; None for none. With it goes every
        number that is no farther from it than the spread (±) of either.
    reference : the places of rows that do not compete, such as the non-private one or one whose promise is false.
    unclear : the places (row, column) of numbers that may not be bold, because they beat no reference clearly.
    folded : whether only the caption is shown until a reader asks for the rest.
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
        _texts(self, "caption", "command")
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
            if not all(one in ("max", "min", None) for one in self.best):
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
        _texts(self, "title", "intro")
        _parts(self, "pictures", Picture)
        _parts(self, "tables", ResultTable)
        _parts(self, "notes", str)


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
        _texts(self, "title", "lead", "made_by")
        _parts(self, "sections", Section)
        _parts(self, "negatives", tuple)
        if not all(len(pair) == 2 and all(isinstance(text, str) for text in pair) for pair in self.negatives):
            _validation.reject("negatives", "pairs of a title and a text", self.negatives)
        if not isinstance(self.environment, Mapping):
            _validation.reject("environment", "a dict of names and values", self.environment)


@validate()
def write(page: ResultsPage, *, markdown: Path, html: Path, images: Path) -> None:
    """Write the page in both forms and its pictures into a folder: everything, or nothing is changed."""
    _known(page)
    contents: dict[str, bytes] = {}
    for picture in (picture for section in page.sections for picture in section.pictures):
        content = _png(picture)
        if contents.setdefault(picture.path.name, content) != content:
            raise InvalidInput(f"Pictures of a page must have different names. Got two called {picture.path.name}.")
    folder = PurePosixPath(Path(os.path.relpath(images, markdown.parent)).as_posix())
    made = {images / name: content for name, content in contents.items()}
    made |= {markdown: to_markdown(page, image_folder=folder).encode(), html: to_html(page).encode()}
    try:
        for path in made:
            path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FileError(f"Cannot make the folder {path.parent}: {error.strerror}.") from None
    _files.write_whole({path: partial(_put, content) for path, content in made.items()})


@validate()
def to_markdown(page: ResultsPage, *, image_folder: str | PurePosixPath) -> str:
    """The page as Markdown, with links to pictures in a folder relative to it."""
    _known(page)
    anchors, said = _anchors(page), partial(_inline, writer=_MARKDOWN)
    parts = [f"# {_verbatim(page.title)}", said(page.lead.strip())]
    if page.negatives:
        parts += [
            f"## {NEGATIVES}",
            "\n".join(f"- **{said(title.rstrip('.'))}.** {said(_flat(text))}" for title, text in page.negatives),
        ]
    parts += ["**Contents**", "\n".join(f"- [{_verbatim(title)}](#{anchor})" for title, anchor in anchors)]
    for section in page.sections:
        parts += [f"## {_verbatim(section.title)}", said(section.intro.strip())]
        for picture in section.pictures:
            source = quote(str(PurePosixPath(image_folder) / picture.path.name))
            parts += [f"![{_verbatim(_flat(picture.alt))}]({source})", said(picture.reading.strip())]
            parts += [_fenced(picture.command)]
        for table in section.tables:
            title = said(_flat(table.caption))
            inside = [_markdown_table(table), _fenced(table.command)]
            # GitHub and MkDocs fold what stands between these, blank lines around it.
            folded = [f"<details><summary>{_inline(_flat(table.caption))}</summary>", *inside, "</details>"]
            parts += folded if table.folded else [f"**{title}**", *inside]
        parts += ["\n".join(f"- {said(_flat(note))}" for note in section.notes)]
    if page.environment:
        facts = (f"- {_verbatim(str(name))}: {said(_flat(str(value)))}" for name, value in page.environment.items())
        parts += [f"## {ENVIRONMENT}", "\n".join(facts)]
    parts += [said(page.made_by.strip())]
    return "\n\n".join(part for part in parts if part) + "\n"


@validate()
def to_html(page: ResultsPage) -> str:
    """The page as one HTML document that needs nothing else."""
    _known(page)
    anchors = _anchors(page)
    links = "".join(f'<li><a href="#{escape(anchor)}">{escape(title)}</a></li>' for title, anchor in anchors)
    ids = iter(anchor for _, anchor in anchors)
    parts = [
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        '<meta name="color-scheme" content="light dark">',
        f"<title>{escape(page.title)}</title>\n<style>\n{_css()}</style>\n</head>\n<body>",
        f'<header><p class="brand">ScoreShield</p><h1>{escape(page.title)}</h1>\n'
        f'<div class="lead">{_paragraphs(page.lead)}</div></header>',
        "<main>",
        _html_negatives(page.negatives, next(ids)) if page.negatives else "",
        f'<nav aria-label="Contents"><p>Contents</p><ol>{links}</ol></nav>',
        *(_html_section(section, next(ids)) for section in page.sections),
        _html_environment(page.environment, next(ids)) if page.environment else "",
        f"</main>\n<footer>{_paragraphs(page.made_by)}</footer>\n</body>\n</html>\n",
    ]
    return "\n".join(part for part in parts if part)


# ---- Parts of the HTML.


def _css() -> str:
    """The colours of the plan's page, which stand first in its style, and this page's own rules."""
    folder = files("scoreshield.report")
    colours = folder.joinpath("templates", "colours.css").read_text("utf-8")
    return colours + "\n" + folder.joinpath("results.css").read_text("utf-8")


def _heading(title: str, anchor: str) -> str:
    return f'<h2 id="{escape(anchor)}">{escape(title)}</h2>'


def _html_negatives(negatives: Sequence[tuple[str, str]], anchor: str) -> str:
    items = "".join(f"<li><h3>{_inline(title)}</h3>{_paragraphs(text)}</li>\n" for title, text in negatives)
    return f'<section class="negatives">{_heading(NEGATIVES, anchor)}\n<ul>{items}</ul></section>'


def _html_section(section: Section, anchor: str) -> str:
    notes = "".join(f"<li>{_inline(_flat(note))}</li>" for note in section.notes)
    return "\n".join(
        (
            f'<section>{_heading(section.title, anchor)}\n<div class="intro">{_paragraphs(section.intro)}</div>',
            *map(_html_picture, section.pictures),
            *map(_html_table, section.tables),
            (f'<ul class="notes">{notes}</ul>' if notes else "") + "</section>",
        )
    )


def _html_picture(picture: Picture) -> str:
    content = _png(picture)
    width, height = struct.unpack(">II", content[16:24])
    data = base64.b64encode(content).decode()
    kind = ' class="wide"' if width > _WIDE else ""
    return (
        f'<figure><div class="frame" tabindex="0" role="group" aria-label="Picture">'
        f'<img{kind} src="data:image/png;base64,{data}" alt="{escape(_flat(picture.alt))}" width="{width}" '
        f'height="{height}"></div>\n<figcaption>{_paragraphs(picture.reading)}{_command(picture.command)}</figcaption>'
        "</figure>"
    )


def _html_table(table: ResultTable) -> str:
    right, bold = _numeric(table), _bold(table)
    align = [' class="number"' if one else "" for one in right]
    head = "".join(
        f'<th scope="col"{kind}>{_inline(name)}</th>' for name, kind in zip(table.header, align, strict=True)
    )
    body = ""
    for place, row in enumerate(table.rows):
        first, *rest = (
            f"<strong>{_inline(text)}</strong>" if (place, column) in bold else _inline(text)
            for column, text in enumerate(row)
        )
        kind = ' class="reference"' if place in table.reference else ""
        cells = "".join(f"<td{side}>{text}</td>" for text, side in zip(rest, align[1:], strict=True))
        body += f'<tr{kind}><th scope="row">{first}</th>{cells}</tr>\n'
    inside = (
        f'<div class="scroll" tabindex="0" role="group" aria-label="Table"><table><thead><tr>{head}</tr></thead>\n'
        f"<tbody>\n{body}</tbody></table></div>{_command(table.command)}"
    )
    if table.folded:
        return f'<details class="table"><summary>{_inline(_flat(table.caption))}</summary>\n{inside}</details>'
    return f'<figure class="table"><figcaption>{_paragraphs(table.caption)}</figcaption>\n{inside}</figure>'


def _html_environment(environment: Mapping[str, object], anchor: str) -> str:
    facts = "".join(
        f"<div><dt>{escape(str(name))}</dt><dd>{_inline(str(value))}</dd></div>\n"
        for name, value in environment.items()
    )
    return f'<section>{_heading(ENVIRONMENT, anchor)}\n<dl class="environment">{facts}</dl></section>'


def _command(command: str) -> str:
    """A command by itself, so that one click takes all of it."""
    return f"<pre><code>{escape(command.strip())}</code></pre>" if command.strip() else ""


# ---- Texts.

_SPAN = re.compile(r"`(?P<code>[^`]+)`|\[(?P<label>[^\[\]]+)\]\((?P<url>[^()\s]+)\)|\*\*(?P<bold>.+?)\*\*", re.DOTALL)
_SAFE = re.compile(r"(?:https?://|mailto:)[^\x00-\x20]+|[\w./#-][^:\x00-\x20]*")  # no scheme that a browser would run


@dataclass(frozen=True)
class _Writer:
    """How one form of the page writes plain text and the three kinds of marks."""

    plain: Callable[[str], str]
    code: Callable[[str], str]
    link: Callable[[str, str], str]
    bold: Callable[[str], str]


_HTML = _Writer(
    plain=lambda text: re.sub(
        r" ([=≤≥]) ", rf"{NO_BREAK_SPACE}\1{NO_BREAK_SPACE}", typeset_text(escape(text))
    ),  # a formula stays on its line
    code=lambda text: f"<code>{escape(text)}</code>",
    link=lambda label, url: f'<a href="{escape(url)}">{label}</a>',
    bold=lambda text: f"<strong>{text}</strong>",
)
_MARKDOWN = _Writer(
    plain=lambda text: re.sub(r"&(?=#?\w+;)", "&amp;", text).replace("<", "&lt;").replace("](", "]\\("),
    code=lambda text: f"`{text}`",
    link=lambda label, url: f"[{label}]({url})",
    bold=lambda text: f"**{text}**",
)


def _inline(text: str, writer: _Writer = _HTML) -> str:
    """Text with its marks written; each mark is closed inside the one that it stands in."""
    out, at = [], 0
    for found in _SPAN.finditer(text):
        out.append(writer.plain(text[at : found.start()]))
        code, label, url, bold = found.group("code", "label", "url", "bold")
        if code is not None:
            out.append(writer.code(code))
        elif bold is not None:
            out.append(writer.bold(_inline(bold, writer)))
        elif _SAFE.fullmatch(url):
            out.append(writer.link(_inline(label, writer), url))
        else:
            out.append(writer.plain(found.group()))
        at = found.end()
    return "".join((*out, writer.plain(text[at:])))


def _verbatim(text: str) -> str:
    """Text that stands in Markdown without marks of its own, inside brackets too."""
    return _MARKDOWN.plain(re.sub(r"([][\\`*])", r"\\\1", text))


def _paragraphs(text: str) -> str:
    return "".join(f"<p>{_inline(part)}</p>" for part in re.split(r"\n\s*\n", text.strip()) if part)


def _flat(text: str) -> str:
    return " ".join(text.split())


def _fenced(command: str) -> str:
    """A block of code whose fence is longer than any in it."""
    fence = "`" * max(3, *(len(run) + 1 for run in re.findall(r"`+", command) or [""]))
    return f"{fence}sh\n{command.strip()}\n{fence}" if command.strip() else ""


def _anchors(page: ResultsPage) -> list[tuple[str, str]]:
    """Each heading with an anchor of its own, the one that Markdown hosts make of it."""
    titles = [NEGATIVES] * bool(page.negatives) + [section.title for section in page.sections]
    seen: dict[str, int] = {}
    anchors = []
    for title in titles + [ENVIRONMENT] * bool(page.environment):
        slug = re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") or "section"
        seen[slug] = seen.get(slug, -1) + 1
        anchors.append((title, f"{slug}-{seen[slug]}" if seen[slug] else slug))
    return anchors


# ---- Tables.

_SUPERSCRIPTS = str.maketrans("⁻⁰¹²³⁴⁵⁶⁷⁸⁹", "-0123456789")
_NUMBER = re.compile(
    r"(?P<digits>[+\-−]?\d[\d,]*\.?\d*(?:[eE][+\-]?\d+)?)(?:\s*×\s*10(?P<power>[⁻⁰¹²³⁴⁵⁶⁷⁸⁹]+))?"
    r"(?:\s*±\s*(?P<spread>[\d.,]+(?:[eE][+\-]?\d+)?))?\s*(?P<unit>%|[a-zµ]{0,3})"
)


class _Number(NamedTuple):
    value: float
    spread: float
    unit: str


def _parsed(cell: str) -> _Number | None:
    """The number of a cell, what stands behind its ± (0 without one) and its unit; None where the cell is words."""
    found = _NUMBER.fullmatch(re.sub(r"[*`]", "", cell).strip())
    if found is None:
        return None
    digits = found["digits"].replace(",", "").replace("−", "-")
    value = float(f"{digits}e{found['power'].translate(_SUPERSCRIPTS)}" if found["power"] else digits)
    return _Number(value, float((found["spread"] or "0").replace(",", "")), found["unit"])


def _numeric(table: ResultTable) -> list[bool]:
    """Which columns hold numbers, mostly; the first names the rows."""
    columns = [[_parsed(row[column]) for row in table.rows] for column in range(len(table.header))]
    return [
        bool(place) and 2 * sum(one is not None for one in cells) > len(cells) for place, cells in enumerate(columns)
    ]


def _bold(table: ResultTable) -> set[tuple[int, int]]:
    """The places (row, column) of the best numbers, of what lies within the spread of them, and of no unclear one."""
    places: set[tuple[int, int]] = set()
    for column, best in enumerate(table.best or ()):
        cells = {place: _parsed(row[column]) for place, row in enumerate(table.rows) if place not in table.reference}
        known = {place: cell for place, cell in cells.items() if cell is not None}
        if best is None or not known:
            continue
        if len({cell.unit for cell in known.values()}) > 1:
            raise InvalidInput(
                f"The column '{table.header[column]}' of a ResultTable must have one unit for its best to be found. "
                f"Got {', '.join(sorted({repr(cell.unit) for cell in known.values()}))} instead."
            )
        top = (max if best == "max" else min)(known.values(), key=lambda cell: cell.value)
        near = (place for place, cell in known.items() if abs(cell.value - top.value) <= max(cell.spread, top.spread))
        places |= {(place, column) for place in near}
    return places - set(table.unclear)


def _markdown_table(table: ResultTable) -> str:
    bold = _bold(table)
    lines = [[_cell(name) for name in table.header]]
    lines += [["---:" if right else ":---" for right in _numeric(table)]]
    for place, row in enumerate(table.rows):
        lines += [[f"**{_cell(text)}**" if (place, c) in bold else _cell(text) for c, text in enumerate(row)]]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _cell(text: str) -> str:
    return _inline(_flat(text), _MARKDOWN).replace("|", "\\|")


# ---- Files and checks.


def _png(picture: Picture) -> bytes:
    try:
        content = picture.path.read_bytes()
    except OSError as error:
        raise FileError(f"Cannot read the picture {picture.path}: {error.strerror}.") from None
    if len(content) < 24 or not content.startswith(b"\x89PNG\r\n\x1a\n"):
        raise InvalidInput(f"{picture.path} must be a PNG picture. Got another kind of file instead.")
    return content


def _known(page: object) -> None:
    if not isinstance(page, ResultsPage):
        _validation.reject("page", "a ResultsPage", page)


def _put(content: bytes, file: Any) -> None:
    file.write(content)


def _parts(item: object, name: str, kind: type) -> None:
    parts = getattr(item, name)
    if isinstance(parts, str) or not isinstance(parts, Sequence) or not all(isinstance(part, kind) for part in parts):
        _validation.reject(name, f"a list of {kind.__name__}", parts)


def _texts(item: object, *names: str) -> None:
    for name in names:
        if not isinstance(getattr(item, name), str):
            _validation.reject(name, "a text", getattr(item, name))
