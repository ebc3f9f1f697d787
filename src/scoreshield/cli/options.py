"""Options and arguments that commands share, each declared once with its help text, and the progress bar.

Options that always go together are fields of a group. A command takes the group as one parameter, and `expand_groups`
replaces that parameter by the options.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar, cast, get_type_hints

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

import scoreshield as ss
from scoreshield import _files
from scoreshield._types import AccountLike, Calibration
from scoreshield._validation import check_text, optional
from scoreshield.cli.output import open_account, read_ledger_address
from scoreshield.cli.score_files import read_matrix, read_relevant_pairs, split_array_name
from scoreshield.decisions.queries import QueryScores
from scoreshield.decisions.worth import predict_worth
from scoreshield.geometry.arrays import Progress as ProgressCallback
from scoreshield.releases.scores import ScoreMechanism, ScoreUse

#: The least time between two lines of progress, where there is no terminal.
_LINE_SECONDS = 10.0

#: What has a certificate.
Certified = TypeVar("Certified", ss.Release, ss.Guarantee)

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
    ScoreMechanism,
    typer.Option(help="The noise; laplace, staircase and anchored are for one query and need no delta."),
]
ScoreMechanismOption = Annotated[
    ScoreMechanism | None,
    typer.Option(
        help="The noise; laplace, staircase and anchored are for one query and need no delta. By default gaussian, or "
        "what --for chooses."
    ),
]
Best = Annotated[
    int | None, typer.Option(help="With --mechanism anchored: how many best records to keep, 10 without this.")
]
Tail = Annotated[
    Path | None,
    typer.Option(help="With --mechanism anchored: a file of `public fit-tail`, for other models than the default one."),
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
    typer.Argument(
        help="The private collection, one record per row: .npy, .npz, .parquet or .csv; with --engine also a folder, "
        "a table or an address.",
        metavar="EMBEDDINGS",
    ),
]
Array = Annotated[str | None, typer.Option(help="Which array of the .npz, or column of the .parquet, to read.")]
Labels = Annotated[
    Path | None,
    typer.Option(help="Public labels, one per record (.npy): protect whole identities, not single records."),
]
Centroids = Annotated[bool, typer.Option("--centroids", help="With --labels: release one centroid per identity.")]
Ids = Annotated[Path | None, typer.Option(help="The ids of the records: a text of lines or .npy; by default numbers.")]
Query = Annotated[
    Path, typer.Option("--query", "--queries", help="The public query, a vector: .npy, .npz, .parquet or .csv.")
]
Queries = Annotated[
    Path, typer.Option("--query", "--queries", help="The public query, a vector, or a matrix of several, one per row.")
]
QueryArray = Annotated[
    str | None, typer.Option("--query-array", "--queries-array", help="Which array of the query file to read.")
]
Levels = Annotated[
    Path | None, typer.Option(help="A file of `public fit-levels`, for other models than the default one.")
]
CodeSize = Annotated[int | None, typer.Option(help="How many codewords a record's code has; chosen by default.")]
TopK = Annotated[int | None, typer.Option(help="Also print the indices of the best K noisy scores.")]
Threshold = Annotated[
    float | None,
    typer.Option(help="With --top-k: only scores at or above this. With --for threshold: the public one that decides."),
]
ScoreUseOption = Annotated[
    ScoreUse,
    typer.Option("--for", help="What the scores are for, which chooses the mechanism."),
]
RequireRecall = Annotated[
    float | None,
    typer.Option(help="Stop before anything is charged unless the predicted recall of a search is at least this."),
]
PublicScores = Annotated[
    str | None,
    typer.Option(
        help="Predict from these public scores of the same model: a matrix in FILE or FILE:NAME, one row per public "
        "query and one column per public record.",
    ),
]
PublicRelevant = Annotated[
    str | None,
    typer.Option(help="With --public-scores: the pairs (query, record) that answer, counted from 0: two columns."),
]

# The ledger.
LedgerUrl = Annotated[
    str | None,
    typer.Option(
        "--ledger",
        callback=read_ledger_address,
        help="Charge this ledger before the noise: a file, sqlite:///FILE or postgresql://...",
    ),
]
Dataset = Annotated[str | None, typer.Option(help="With --ledger: the name of the collection that is charged.")]
NamedDataset = Annotated[
    str | None,
    typer.Option(help="The name of the collection, on the certificate; with --ledger, the account that is charged."),
]
Who = Annotated[str | None, typer.Option(help="Who makes the release, on the certificate and in the ledger.")]
Why = Annotated[str | None, typer.Option(help="The purpose, on the certificate and in the ledger.")]
LedgerArgument = Annotated[
    str,
    typer.Argument(
        callback=read_ledger_address,
        help="Where the ledger is: a file, sqlite:///FILE, or postgresql://USER@HOST/DATABASE.",
        metavar="LEDGER",
    ),
]
ListedDataset = Annotated[str | None, typer.Option(help="One dataset, by its name; all of them without this.")]

# The output.
Output = Annotated[Path, typer.Option(help="Where to write the release; ends in .npz. With --engine, a new folder.")]
Force = Annotated[bool, typer.Option("--force", help="Overwrite earlier files of that name.")]
Page = Annotated[bool, typer.Option("--html", help="Also write the certificate as a page that prints, FILE.html.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object, for machines.")]


@dataclass(frozen=True)
class IdentityOptions:
    """Who is protected: single records, or whole identities where there are labels."""

    labels: Labels = None
    centroids: Centroids = False

    def choose_adjacency(self) -> ss.Adjacency:
        """Choose the adjacency that the options state."""
        if self.labels is not None:
            return ss.Identity(_files.read_array(self.labels), centroids=self.centroids)
        if self.centroids:
            raise ss.InvalidInput("--centroids needs --labels, which state the identity of each record.")
        return ss.Replacement()

    def map_ids(self, ids: Sequence[Any]) -> dict[Any, Any] | None:
        """Map the ids of records to their identities; None without labels."""
        if self.labels is None:
            self.choose_adjacency()  # rejects --centroids alone
            return None
        labels = _files.read_array(self.labels)
        if labels.shape != (len(ids),):
            raise ss.InvalidInput(f"--labels must hold one label per record, {len(ids):,} of them. Got {labels.shape}.")
        return dict(zip(ids, labels.tolist(), strict=True))


@dataclass(frozen=True)
class WindowOptions:
    """The options of anchored windows."""

    best: Best = None
    tail: Tail = None

    def choose_mechanism(self, mechanism: ScoreMechanism | None) -> ScoreMechanism | ss.AnchoredWindows | None:
        """Choose the windows that the options state; another mechanism takes none of them."""
        if mechanism == "anchored":
            return ss.AnchoredWindows(self.best, None if self.tail is None else ss.TailShape.load(self.tail))
        if self.best is not None or self.tail is not None:
            raise ss.InvalidInput("--best and --tail are for --mechanism anchored.")
        return mechanism


@dataclass(frozen=True)
class ChargeOptions:
    """The account that a release charges, what its certificate says about it, and the seed of research mode."""

    ledger: LedgerUrl = None
    dataset: NamedDataset = None
    who: Who = None
    why: Why = None
    seed: Seed = None

    def open_account(self) -> AccountLike | None:
        """Open the account that is charged; None where nothing is charged. Both check the texts of the certificate."""
        for name in ("dataset", "who", "why"):
            optional(check_text)(getattr(self, name), f"--{name}")
        if self.ledger is None:
            return None
        return open_account(self.ledger, self.dataset, who=self.who, why=self.why or "")

    def annotate(self, release: Certified) -> Certified:
        """Put the texts on the certificate. A release that charges a ledger has them from its account."""
        if self.ledger is not None:
            return release
        if self.dataset:
            note = f"No ledger was charged for {self.dataset!r}: --ledger says where its budget is kept."
            typer.echo(f"scoreshield: {note}", err=True)
        return release.annotate(dataset=self.dataset, who=self.who, why=self.why)


@dataclass(frozen=True)
class RankingOptions:
    """The best records that are printed beside a release."""

    top_k: TopK = None
    threshold: Threshold = None

    def check(self, use: ScoreUse = "values") -> None:
        """Check the options before anything is charged or drawn."""
        if self.top_k is None and self.threshold is not None and use != "threshold":
            raise ss.InvalidInput("--threshold needs --top-k, which says how many to print.")
        if self.top_k is not None and self.top_k < 1:
            raise ss.InvalidInput(f"--top-k must be at least 1. Got {self.top_k}.")

    def list_best_records(self, release: ss.ScoreRelease) -> dict[str, Any]:
        """Rank the best records for the printed facts; empty without --top-k."""
        return {} if self.top_k is None else {"top_k": release.top_k(self.top_k, self.threshold).tolist()}


@dataclass(frozen=True)
class WorthOptions:
    """What a search by the release must be worth before it is charged, and the public scores of the prediction."""

    require_recall: RequireRecall = None
    public_scores: PublicScores = None
    public_relevant: PublicRelevant = None

    def describe(
        self, guarantee: ss.Guarantee, k: int, dimension: int, public_scores: QueryScores | None = None
    ) -> dict[str, str]:
        """Say for the printed facts what a search by scores, matches or the best records is worth."""
        return {"worth": predict_worth(guarantee, k=k, dimension=dimension, public_scores=public_scores).sentence}

    def read_scores(self) -> QueryScores | None:
        """Read the public scores; None where those that ship are taken."""
        if self.public_scores is None and self.public_relevant is None:
            return None
        if self.public_scores is None or self.public_relevant is None:
            raise ss.InvalidInput("Give --public-scores with --public-relevant, which says which pairs are relevant.")
        origin = split_array_name(self.public_scores)[0].name
        return QueryScores(read_matrix(self.public_scores), read_relevant_pairs(self.public_relevant), origin=origin)


@dataclass(frozen=True)
class OutputOptions:
    """How a release is written and printed."""

    force: Force = False
    html: Page = False
    as_json: Json = False


def expand_groups(command: Callable[..., None]) -> Callable[..., None]:
    """Replace each parameter of a command that is a group by the options of the group, in the same place.

    Args:
        command: A command with keyword-only parameters.

    Returns:
        The command with one parameter per option, as Typer reads them.
    """
    hints = get_type_hints(command, include_extras=True)
    groups = {name: kind for name, kind in hints.items() if dataclasses.is_dataclass(kind)}
    parameters = []
    for parameter in inspect.signature(command).parameters.values():
        if parameter.name not in groups:
            parameters.append(parameter.replace(annotation=hints[parameter.name]))
            continue
        group = groups[parameter.name]
        annotations = get_type_hints(group, include_extras=True)
        parameters += [
            parameter.replace(name=option.name, default=option.default, annotation=annotations[option.name])
            for option in dataclasses.fields(group)
        ]

    @functools.wraps(command)
    def run(**values: Any) -> None:
        for name, group in groups.items():
            options = {option.name: values.pop(option.name) for option in dataclasses.fields(group)}
            values[name] = cast("Callable[..., Any]", group)(**options)
        command(**values)

    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run


@contextlib.contextmanager
def progress_bar(quiet: bool, doing: str = "working") -> Iterator[ProgressCallback | None]:
    """Show progress on standard error: a bar on a terminal, and elsewhere a line every ten seconds.

    Args:
        quiet: Show nothing.
        doing: The text beside the bar, or at the beginning of a line.

    Yields:
        The function that is called with what is done and what there is in all, or None to show nothing.
    """
    console = Console(stderr=True)
    if quiet:
        yield None
        return
    if not console.is_terminal:
        yield make_line_printer(doing)
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(doing, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def make_line_printer(doing: str) -> ProgressCallback:
    """Make a function that prints progress to standard error, at most one line in ten seconds and none before."""
    printed = time.monotonic()

    def show(done: int, total: int) -> None:
        nonlocal printed
        if time.monotonic() - printed >= _LINE_SECONDS:
            printed = time.monotonic()
            typer.echo(f"{doing}: {done:,} of {total:,}", err=True)

    return show
