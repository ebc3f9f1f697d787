"""Options and arguments that commands share, each declared once with its help text, and the progress bar."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from scoreshield._types import Calibration
from scoreshield.geometry.arrays import Progress as ProgressCallback
from scoreshield.releases.scores import ScoreMechanism

# The privacy contract.
Epsilon = Annotated[float, typer.Option(help="The privacy budget, > 0: smaller is more private. No default.")]
Delta = Annotated[
    float, typer.Option(help="Slack added to every probability, in (0, 1); well below 1/records. No default.")
]
PureDelta = Annotated[
    float, typer.Option(help="Slack added to every probability; Gaussian noise needs it, pure noise takes none.")
]
CalibrationOption = Annotated[
    Calibration,
    typer.Option(help="The rule that sets the noise; a textbook rule raises an error where it is not private."),
]
MechanismOption = Annotated[
    ScoreMechanism, typer.Option(help="The noise; laplace and staircase are for one query and need no delta.")
]
ScoreRange = Annotated[
    tuple[float, float],
    typer.Option(help="Public range that clean scores are clamped to; narrower means less noise."),
]
Unsafe = Annotated[
    bool,
    typer.Option(
        "--unsafe-reproduce-paper",
        help="Use a textbook rule where it is not private; the certificate states its true privacy.",
    ),
]
Seed = Annotated[int | None, typer.Option(help="Research mode: repeatable noise, NOT PRIVATE, for public data only.")]

# The records and the queries.
Embeddings = Annotated[
    Path,
    typer.Argument(help="The private collection, one record per row: .npy, .npz or .parquet.", metavar="EMBEDDINGS"),
]
Array = Annotated[str | None, typer.Option(help="Which array of the .npz, or column of the .parquet, to read.")]
Labels = Annotated[
    Path | None,
    typer.Option(help="Public labels, one per record (.npy): protect whole identities, not single records."),
]
Centroids = Annotated[bool, typer.Option("--centroids", help="With --labels: release one centroid per identity.")]
Query = Annotated[Path, typer.Option(help="The public query, a vector.")]
TopK = Annotated[int | None, typer.Option(help="Also print the indices of the best K noisy scores.")]
Threshold = Annotated[float | None, typer.Option(help="With --top-k: only scores at or above this.")]

# The ledger.
LedgerUrl = Annotated[
    str | None,
    typer.Option("--ledger", help="Charge this ledger before the noise: sqlite:///FILE or postgresql://..."),
]
Dataset = Annotated[str | None, typer.Option(help="With --ledger: the name of the collection that is charged.")]
LedgerArgument = Annotated[
    str,
    typer.Argument(help="Where the ledger is: sqlite:///FILE, or postgresql://USER@HOST/DATABASE.", metavar="LEDGER"),
]
ListedDataset = Annotated[str | None, typer.Option(help="One dataset, by its name; all of them without this.")]

# The output.
Output = Annotated[Path, typer.Option(help="Where to write the release; ends in .npz.")]
Force = Annotated[bool, typer.Option("--force", help="Overwrite an earlier release of that name.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object, for machines.")]


@contextlib.contextmanager
def progress_bar(quiet: bool, doing: str = "working") -> Iterator[ProgressCallback | None]:
    """Show a progress bar on standard error, if that is a terminal.

    Args:
        quiet: Show none.
        doing: The text beside the bar.

    Yields:
        The function that moves the bar, or None where there is no bar.
    """
    console = Console(stderr=True)
    if quiet or not console.is_terminal:
        yield None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(doing, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
