"""Text that is fit for a terminal, whoever wrote it."""

from __future__ import annotations

import typer

from scoreshield._loading import make_printable

__all__ = ["make_printable", "say"]


def say(text: str) -> None:
    """Print lines to standard output without control characters, which names of files and records may hold."""
    typer.echo("\n".join(map(make_printable, text.split("\n"))))
