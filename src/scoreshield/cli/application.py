"""The whole command line as one Typer application."""

from __future__ import annotations

from typing import Annotated

import typer

from scoreshield.cli.commands import START, SUMMARY
from scoreshield.cli.help import CommandApp, RootGroup
from scoreshield.cli.root_help import format_version

app = CommandApp(cls=RootGroup, help=SUMMARY, epilog=START, add_completion=True)


@app.callback(invoke_without_command=True)
def _root(
    version: Annotated[bool, typer.Option("--version", help="Print the version and stop.")] = False,
) -> None:
    if version:
        typer.echo(format_version())
        raise typer.Exit
