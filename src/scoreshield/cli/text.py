"""Text that is fit for a terminal, whoever wrote it."""

from __future__ import annotations

import typer

from scoreshield._loading import printable

__all__ = ["printable", "say"]


def say(text: str) -> None:
    """Print lines to standard output without control characters, which names of files and records may hold."""
    typer.echo("\n".join(map(printable, text.split("\n"))))
