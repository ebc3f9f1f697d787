"""What ``scoreshield --help`` and ``scoreshield --version`` print, without Typer, which takes longer to load than both.

The help has the look of Typer's, which the help of each command has.
"""

from __future__ import annotations

import os
import sys

from scoreshield._version import VERSION
from scoreshield.cli.commands import GROUPS, START, SUMMARY

_OPTIONS = {
    "--version": "Print the version and stop.",
    "--install-completion": "Install completion for the current shell.",
    "--show-completion": "Print completion for the current shell, to copy it.",
    "--help, -h": "Show this message and stop.",
}
_LEAST, _MOST = 50, 100
_USUAL = 80


def format_version() -> str:
    """Format the name and the version."""
    return f"scoreshield {VERSION}"


def format_root_help(width: int | None = None, *, is_colored: bool | None = None) -> str:
    """Format the help of the whole command line.

    Args:
        width: Characters of a line; that of the terminal by default.
        is_colored: Whether names have colours; by default on a terminal, unless NO_COLOR is set.
    """
    width = _find_width() if width is None else width
    colored = _is_colored() if is_colored is None else is_colored
    longest = max(len(name) for group in GROUPS.values() for name in group)
    panels = [("Options", list(_OPTIONS.items()))]
    panels += [(title, [(name, entry[2]) for name, entry in group.items()]) for title, group in GROUPS.items()]
    lines = ["", " Usage: scoreshield [OPTIONS] COMMAND [ARGS]...", "", *_wrap(SUMMARY, width - 2, " "), ""]
    for title, rows in panels:
        lines += _draw_panel(title, rows, max(longest, *(len(name) for name, _ in rows)), width, colored)
    lines += ["", f" {START}", " Each command shows its options and an example: scoreshield COMMAND --help", ""]
    text = "\n".join(lines)
    return text if _can_print(text) else text.translate(str.maketrans("╭╮╰╯─│", "++++-|"))


def _draw_panel(title: str, rows: list[tuple[str, str]], column: int, width: int, colored: bool) -> list[str]:
    inner = width - 4
    lines = [f"╭─ {title} {'─' * (width - len(title) - 5)}╮"]
    for name, text in rows:
        for place, part in enumerate(_wrap(text, inner - column - 2)):
            shown = f"{name if place == 0 else '':<{column}}"
            head = f"\x1b[1;36m{shown}\x1b[0m" if colored and place == 0 else shown
            lines.append(f"│ {head}  {part:<{inner - column - 2}} │")
    return [*lines, f"╰{'─' * (width - 2)}╯"]


def _wrap(text: str, width: int, indent: str = "") -> list[str]:
    """Break a text at spaces; `textwrap` would import regular expressions."""
    lines, line = [], ""
    for word in text.split():
        if line and len(line) + 1 + len(word) > width:
            lines.append(indent + line)
            line = word
        else:
            line = f"{line} {word}" if line else word
    return [*lines, indent + line]


def _find_width() -> int:
    columns = os.environ.get("COLUMNS", "")
    try:
        width = int(columns) if columns.isdecimal() else os.get_terminal_size(sys.stdout.fileno()).columns
    except (OSError, ValueError, AttributeError):
        width = _USUAL
    return min(max(width or _USUAL, _LEAST), _MOST)


def _is_colored() -> bool:
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return False
    return sys.stdout is not None and sys.stdout.isatty()


def _can_print(text: str) -> bool:
    try:
        text.encode(getattr(sys.stdout, "encoding", None) or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True
