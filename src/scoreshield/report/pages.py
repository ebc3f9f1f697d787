"""What all pages share: their templates, and the parts that a template takes."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import cache
from importlib.metadata import version
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from scoreshield._formatting import typeset_text
from scoreshield.errors import InvalidInput

if TYPE_CHECKING:
    from jinja2 import Environment


class Verdict(NamedTuple):
    """The verdict of a page: a class of the style sheet, a sign and words, so that a reader needs no colour."""

    kind: Literal["met", "missed", "unreachable", "open"]
    sign: str
    words: str


class KeyFigure(NamedTuple):
    """One key figure: its name, its value, a line of text under it, and its value before noise."""

    name: str
    value: str
    detail: str
    role: Literal["", "clean", "private"] = ""
    before: str = ""


class Cell(NamedTuple):
    """One cell of a table: a mark in bold, a text, a smaller detail, and a bar for a share from 0 to 1."""

    text: str
    detail: str = ""
    mark: str = ""
    is_good: bool = True
    share: float | None = None


class TableRow(NamedTuple):
    """One row of a table; ``kind`` is a class of the style sheet, such as "plan" or "rejected"."""

    kind: str
    cells: list[Cell]


def check_report_extra() -> None:
    """Raise one sentence that names the extra where pages cannot be made."""
    if find_spec("jinja2") is None or find_spec("matplotlib") is None:
        raise InvalidInput("A page needs the 'report' extra: pip install 'scoreshield[report]'.")


def render_template(name: str, /, *, package: str = "scoreshield.report", **values: Any) -> str:
    """Render a template.

    Args:
        name: the template's file, in the folder ``templates`` of the package or of ``scoreshield.report``.
        package: where the template is looked for first.
        values: what the template takes; in HTML, text is escaped.

    Raises:
        InvalidInput: the 'report' extra is not installed.
    """
    check_report_extra()
    return _make_environment(package).get_template(name).render(version=version("scoreshield"), **values)


@cache
def _make_environment(package: str) -> Environment:
    from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=ChoiceLoader([PackageLoader(name) for name in dict.fromkeys((package, "scoreshield.report"))]),
        autoescape=lambda name: name is None or not name.endswith(".md"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["typeset"] = typeset_text
    return environment


def get_moment(now: datetime | None) -> datetime:
    """Return the time that a page shows, in UTC. The default is the present."""
    return (now or datetime.now(UTC)).astimezone(UTC)
