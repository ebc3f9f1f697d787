"""Writes docs/reference/cli.md from the command line itself: python docs/reference/_command_line.py

`tests/test_docs.py` holds the page against this, so that no command and no option is missing from it, or gone.
"""

from __future__ import annotations

import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from scoreshield.cli import app

PAGE = Path(__file__).with_name("cli.md")
OPENING = """# Command line

Every command and option, as `--help` says them. A bad input is one line on standard error and exit code 2; a broken
claim found by `audit`, or a file that `verify` finds not in order, is exit code 1. [The command line](../commands.md)
shows the commands that look at files.
<!-- Written by docs/reference/_command_line.py: change the help texts, not this page. -->
"""


def text() -> str:
    """The whole page."""
    pages = [
        _section(names, command)
        for names, command in commands(typer.main.get_command(app), "scoreshield")
    ]
    return "\n".join([OPENING, *pages])


def commands(command: Any, names: str) -> Iterator[tuple[str, Any]]:
    """Every command with its full name, groups before what is in them."""
    yield names, command
    for name, below in sorted(getattr(command, "commands", {}).items()):
        if not below.hidden:
            yield from commands(below, f"{names} {name}")


def options(command: Any) -> list[Any]:
    """What a command takes, completion apart, which Typer adds to the root."""
    return [
        option
        for option in command.params
        if not option.hidden
        and not {"--install-completion", "--show-completion"} & set(option.opts)
    ]


def _section(names: str, command: Any) -> str:
    parts = [f"{'###' if names.count(' ') > 1 else '##'} `{names}`", "", _plain(command.help), ""]
    hints = typing.get_type_hints(command.callback) if command.callback else {}
    rows = [_row(option, hints.get(option.name)) for option in options(command)]
    if rows:
        parts += ["| option | |", "|---|---|", *rows, ""]
    if command.epilog and command.epilog.startswith("scoreshield "):
        parts += ["```sh", command.epilog, "```", ""]
    return "\n".join(parts)


def _row(option: Any, hint: Any) -> str:
    names = (
        option.metavar or option.name
        if option.param_type_name == "argument"
        else ", ".join(_names(option))
    )
    facts = ["required"] if option.required else []
    values = list(_choices(hint))
    if values:
        facts.append("one of " + ", ".join(f"`{value}`" for value in values))
    if not option.required and option.default not in (None, False, (), [], ""):
        facts.append(f"default `{_shown(option.default)}`")
    help_text = " ".join(_plain(option.help).split()).replace("|", "\\|")
    text = "; ".join(facts)
    return f"| `{names}` | {help_text}{f' *{text[0].upper()}{text[1:]}.*' if text else ''} |"


def _names(option: Any) -> list[str]:
    return [*option.opts, *option.secondary_opts]


def _choices(hint: Any) -> Iterator[str]:
    """The names that an annotation allows, also where it allows None or is a list."""
    if typing.get_origin(hint) is typing.Literal:
        yield from (str(value) for value in typing.get_args(hint))
    else:
        for inner in typing.get_args(hint):
            yield from _choices(inner)


def _shown(value: Any) -> str:
    return " ".join(str(part) for part in value) if isinstance(value, tuple | list) else str(value)


def _plain(help_text: str | None) -> str:
    """A help text as Markdown: its angle brackets are no tags."""
    return (help_text or "").strip().replace("<", "&lt;")


if __name__ == "__main__":
    PAGE.write_text(text(), encoding="utf-8")
