"""An object as one piece of HTML for a notebook.

It works with the core install, so it is built of elements and not of a template. Elements escape every text. A notebook
that removes styles still shows readable tables. Colours follow the notebook, light or dark.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from numbers import Integral, Real
from typing import Any
from xml.etree import ElementTree as ET

from scoreshield._formatting import format_number, typeset_text
from scoreshield._views import ObjectSummary

_BOX = "max-width: 48em; font-size: 0.95em; line-height: 1.4"
_TABLE = "border-collapse: collapse; margin: 0.5em 0"
_CELL = "padding: 0.15em 0.9em 0.15em 0; vertical-align: top"
_WARNING = "border-left: 3px solid #b3372f; padding-left: 0.6em; margin: 0.4em 0"
#: Longer texts are cut, because a cell of a notebook is no place for them.
_LONGEST_TEXT = 400


def render_summary(summary: ObjectSummary) -> str:
    """Write a summary as one element of HTML."""
    box = ET.Element("div", {"class": "scoreshield", "style": _BOX})
    ET.SubElement(ET.SubElement(box, "p", {"style": "margin: 0.2em 0"}), "strong").text = _shorten(summary.title)
    for warning in summary.warnings:
        note = ET.SubElement(box, "p", {"style": _WARNING})
        sign = ET.SubElement(note, "strong")
        sign.text, sign.tail = "Warning:", f" {_shorten(warning)}"
    if summary.sentence:
        ET.SubElement(box, "p", {"style": "margin: 0.4em 0"}).text = _shorten(summary.sentence, 2 * _LONGEST_TEXT)
    if summary.facts:
        _add_facts(box, summary.facts)
    if summary.columns:
        _add_table(box, summary.columns, summary.caption)
    return ET.tostring(box, encoding="unicode", method="html")


def _add_facts(box: ET.Element, facts: Mapping[str, str]) -> None:
    body = ET.SubElement(ET.SubElement(box, "table", {"style": _TABLE}), "tbody")
    for name, value in facts.items():
        row = ET.SubElement(body, "tr")
        ET.SubElement(row, "th", {"scope": "row", "style": f"{_CELL}; text-align: left"}).text = name
        ET.SubElement(row, "td", {"style": f"{_CELL}; text-align: left"}).text = _shorten(value)


def _add_table(box: ET.Element, columns: Mapping[str, Sequence[Any]], caption: str) -> None:
    if caption:  # a caption element would wrap at the width of the table, which may be one narrow column
        ET.SubElement(box, "p", {"style": "margin: 0.6em 0 0"}).text = _shorten(caption)
    table = ET.SubElement(box, "table", {"style": _TABLE})
    sides = {name: _choose_side(values) for name, values in columns.items()}
    head = ET.SubElement(ET.SubElement(table, "thead"), "tr")
    for name in columns:
        ET.SubElement(head, "th", {"scope": "col", "style": f"{_CELL}; text-align: {sides[name]}"}).text = name
    body = ET.SubElement(table, "tbody")
    for values in zip(*columns.values(), strict=True):
        row = ET.SubElement(body, "tr")
        for name, value in zip(columns, values, strict=True):
            ET.SubElement(row, "td", {"style": f"{_CELL}; text-align: {sides[name]}"}).text = _write(value)


def _choose_side(values: Sequence[Any]) -> str:
    """Choose the side of a column: numbers end at the right."""
    return "right" if all(isinstance(value, Real) and not isinstance(value, bool) for value in values) else "left"


def _write(value: Any) -> str:
    if value is None or (isinstance(value, Real) and math.isnan(float(value))):
        return "—"
    if isinstance(value, bool) or not isinstance(value, Real):
        return _shorten(str(value))
    return f"{int(value)}" if isinstance(value, Integral) else format_number(float(value))


def _shorten(text: str, most: int = _LONGEST_TEXT) -> str:
    """Write a text on one line, without control characters, which a hostile id may hold."""
    plain = "".join(letter if letter.isprintable() else " " for letter in text)
    return typeset_text(plain if len(plain) <= most else f"{plain[: most - 1]}…")
