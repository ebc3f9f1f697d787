"""`scoreshield public`: what public data say before a release, free of charge."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from numpy.typing import NDArray

import scoreshield as ss
from scoreshield import _files
from scoreshield.cli.help import CommandApp
from scoreshield.cli.options import Array, CodeSize, Force, Json, progress_bar
from scoreshield.cli.output import check_new_file, read_codebook, read_query, say
from scoreshield.geometry.embeddings import as_queries, as_rows, normalise_public_rows

app = CommandApp(
    help="Prepare a release with public data: fit its settings to public scores, or try a codebook. This costs no "
    "budget. Never give private scores or records.",
    epilog='scoreshield public fit-levels scores.npy --source "our help pages, e5-small" --output levels.json',
)

Public = Annotated[
    Path,
    typer.Argument(
        help="Public scores, one query per row and one record per column: .npy, .npz or .parquet. With --queries, "
        "public records, one per row.",
        metavar="PUBLIC",
    ),
]
PublicQueries = Annotated[
    Path | None, typer.Option(help="Public queries, one per row: their cosines with the records are the scores.")
]
Settings = Annotated[Path, typer.Option(help="Where to write the settings, as JSON.")]
Source = Annotated[str, typer.Option(help="The model and the public data, in one line; it is on each certificate.")]


@app.command(
    "fit-tail", epilog='scoreshield public fit-tail scores.npy --source "our help pages, e5-small" --output tail.json'
)
def fit_tail_command(
    public: Public,
    source: Source,
    output: Settings,
    queries: PublicQueries = None,
    k: Annotated[int, typer.Option("--k", help="How many best records shall be kept.")] = 10,
    dimension: Annotated[
        int | None, typer.Option(help="Of the embeddings, for a warning about others; --queries states it.")
    ] = None,
    array: Array = None,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Fit the windows of `release scores --mechanism anchored --tail` to public scores. It may take a minute."""
    check_new_file(output, force, public, queries)
    scores, known = _read_scores(public, queries, array)
    if known is not None and dimension not in (None, known):
        raise ss.InvalidInput(f"--dimension is {dimension:,}, and the public records have {known:,} dimensions.")
    with progress_bar(as_json, "fitting") as progress:
        shape = ss.TailShape.fit(scores, k, origin=source, dimension=known or dimension, progress=progress)
    shape.save(output)
    if as_json:
        typer.echo(json.dumps({"file": str(output), **shape.to_dict()}))
        return
    records = scores.shape[1]
    typer.echo(f"predicted share of the {shape.k:,} best that is kept, for {records:,} records:")
    typer.echo("epsilon  share")
    for setting in reversed(shape.settings):
        epsilon = math.log(records / shape.k) - setting.excess
        typer.echo(f"{epsilon:7.2f}  {setting.recall:.3f}")
    say(f"Written {output}: for release scores --mechanism anchored --tail {output}")


@app.command(
    "fit-levels",
    epilog='scoreshield public fit-levels scores.npy --source "our help pages, e5-small" --output levels.json',
)
def fit_levels_command(
    public: Public,
    source: Source,
    output: Settings,
    queries: PublicQueries = None,
    array: Array = None,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Fit the levels of `release batch --levels` and of `hits --levels` to public scores."""
    check_new_file(output, force, public, queries)
    levels = ss.PublicLevels.fit(_read_scores(public, queries, array)[0], source=source)
    levels.save(output)
    if as_json:
        typer.echo(json.dumps({"file": str(output), **asdict(levels)}))
        return
    typer.echo(f"10th best score of a query, mean   {levels.tenth:.4f}")
    typer.echo(f"50th best score of a query, mean   {levels.fiftieth:.4f}")
    say(f"Written {output}: for release batch --levels {output}, and hits --levels {output}")


@app.command(
    "try-codebook",
    epilog="scoreshield public try-codebook codebook.npy --queries past.npy --epsilon 10 --epsilon 20",
)
def try_codebook_command(
    codebook: Annotated[
        Path, typer.Argument(help="Public vectors, one per row, or a file of PublicCodebook.save.", metavar="CODEBOOK")
    ],
    queries: Annotated[Path, typer.Option(help="Public queries, one per row, such as past ones.")],
    epsilon: Annotated[list[float], typer.Option(help="The epsilon of an index; give it once per index to try.")],
    records: Annotated[
        Path | None,
        typer.Option(help="Public records like the private ones, not in the codebook; without them its own vectors."),
    ] = None,
    k: Annotated[int, typer.Option("--k", help="How many best records of each query are compared.")] = 10,
    code_size: CodeSize = None,
    repeats: Annotated[int, typer.Option(help="How many indexes are made for each epsilon.")] = 3,
    seed: Annotated[int, typer.Option(help="Of the trial, which repeats.")] = 0,
    array: Array = None,
    as_json: Json = False,
) -> None:
    """Measure on public data what `release index --codebook` keeps of a search."""
    book = read_codebook(codebook, None, code_size, array)
    asked = read_query(queries)
    known = None if records is None else _files.read_array(records)
    trials = []
    with progress_bar(as_json, "trying") as progress:
        for number, budget in enumerate(epsilon, start=1):
            trials.append(book.try_on(asked, known, epsilon=budget, k=k, repeats=repeats, seed=seed))
            if progress is not None:
                progress(number, len(epsilon))
    if as_json:
        typer.echo(json.dumps([{**asdict(trial), "is_useful": trial.is_useful} for trial in trials]))
        return
    first = trials[0]
    typer.echo(
        f"share of the clean best {first.k:,} of {first.records:,} public records that an index keeps, over "
        f"{first.queries:,} public queries; chance keeps {first.chance:.3f}"
    )
    typer.echo("epsilon  code size  codebook       PrivUnit")
    for trial in trials:
        recall = f"{trial.recall:.3f} ± {trial.error:.3f}"
        typer.echo(f"{trial.epsilon:7g}  {trial.code_size:9}  {recall}  {trial.without_codebook:.3f}")
    for trial in trials:
        typer.echo(f"At epsilon {trial.epsilon:g}: {trial.verdict}")


def _read_scores(public: Path, queries: Path | None, array: str | None) -> tuple[NDArray[Any], int | None]:
    """Read public scores, or compute those of public queries; also return the dimension, if it is known."""
    given = _files.read_array(public, name=array)
    if queries is None:
        return given, None
    records = normalise_public_rows(as_rows(given, "public"), "public")
    asked, _ = as_queries(_files.read_array(queries), records.shape[1], "queries")
    return asked @ records.T, records.shape[1]
