"""Options that several commands share, and the progress bar."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from scoreshield.geometry.arrays import Progress as ProgressCallback
from scoreshield.privacy import calibration as gaussian

Epsilon = Annotated[float, typer.Option(help="The privacy budget, > 0: smaller is more private. No default.")]
Delta = Annotated[
    float, typer.Option(help="Slack added to every probability, in (0, 1); well below 1/records. No default.")
]
CalibrationOption = Annotated[
    gaussian.Method,
    typer.Option(help="The rule that sets the noise; textbook rules are refused where they are false."),
]
ScoreRange = Annotated[
    tuple[float, float],
    typer.Option(help="Public range that clean scores are clamped to; narrower means less noise."),
]
Force = Annotated[bool, typer.Option("--force", help="Overwrite an earlier release of that name.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object, for machines.")]


@contextlib.contextmanager
def progress_bar(quiet: bool, doing: str = "working") -> Iterator[ProgressCallback | None]:
    """A bar on standard error, if a person is there to see it."""
    console = Console(stderr=True)
    if quiet or not console.is_terminal:
        yield None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(doing, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
