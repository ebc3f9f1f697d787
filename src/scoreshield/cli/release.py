"""`scoreshield release scores | row | gram`: a private object from a file, with its certificate beside it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import scoreshield as ss
from scoreshield import _files
from scoreshield._types import Norm
from scoreshield.cli.options import CalibrationOption, Delta, Epsilon, Force, Json, ScoreRange, progress_bar
from scoreshield.cli.output import (
    Array,
    Centroids,
    Dataset,
    Embeddings,
    Labels,
    LedgerUrl,
    Output,
    Seed,
    adjacency_of,
    check_output,
    check_ranking,
    finish,
    ledger_of,
    one_or_many,
    ranking,
)
from scoreshield.geometry.denoise import Denoiser
from scoreshield.releases.gram import GramProjection
from scoreshield.releases.scores import Mechanism

app = typer.Typer(
    help="Release scores, matches, the best records, a histogram, a row or a Gram matrix: FILE.npz with the guarantee "
    "inside, FILE.json and FILE.txt beside it."
)

MechanismOption = Annotated[
    Mechanism, typer.Option(help="The noise; laplace and staircase are for one query and need no delta.")
]
PureDelta = Annotated[
    float, typer.Option(help="Slack added to every probability; Gaussian noise needs it, pure noise takes none.")
]
Unsafe = Annotated[
    bool,
    typer.Option(
        "--unsafe-reproduce-paper",
        help="Use a textbook rule where it is false; the certificate says what it is worth.",
    ),
]
TopK = Annotated[int | None, typer.Option(help="Also print the indices of the best K noisy scores.")]
Threshold = Annotated[float | None, typer.Option(help="With --top-k: only scores at or above this.")]


@app.command(
    "scores",
    epilog="scoreshield release scores docs.npy --query q.npy --epsilon 5 --delta 1e-6 --output r.npz",
)
def release_scores(
    embeddings: Embeddings,
    query: Annotated[Path, typer.Option(help="The public query, a vector, or a matrix of several, one a row.")],
    epsilon: Epsilon,
    output: Output,
    delta: PureDelta = 0.0,
    array: Array = None,
    query_array: Annotated[str | None, typer.Option(help="Which array of the query file to read.")] = None,
    mechanism: MechanismOption = "gaussian",
    calibration: CalibrationOption = "analytic",
    labels: Labels = None,
    centroids: Centroids = False,
    score_range: ScoreRange = (-1.0, 1.0),
    norm: Annotated[Norm, typer.Option(help="unit: normalise rows; ball: only shorten rows longer than one.")] = "unit",
    top_k: TopK = None,
    threshold: Threshold = None,
    ledger: LedgerUrl = None,
    dataset: Dataset = None,
    seed: Seed = None,
    unsafe_reproduce_paper: Unsafe = False,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Release the similarity of a public query with every record."""
    check_output(output, force, embeddings, query, labels, ledger=ledger)
    check_ranking(top_k, threshold)
    release = ss.release_scores(
        _files.read_array(embeddings, name=array, mapped=True),
        one_or_many(_files.read_array(query, name=query_array)),
        epsilon=epsilon,
        delta=delta,
        mechanism=mechanism,
        calibration=calibration,
        adjacency=adjacency_of(labels, centroids),
        score_range=score_range,
        norm=norm,
        rng=seed,
        ledger=ledger_of(ledger, dataset),
        unsafe_reproduce_paper=unsafe_reproduce_paper,
    )
    finish(release, output, as_json, ranking(release, top_k, threshold))


@app.command("row", epilog="scoreshield release row faces.npy --index 17 --epsilon 5 --delta 1e-6 --output r.npz")
def release_row(
    embeddings: Embeddings,
    index: Annotated[int, typer.Option(help="Which record, counted from 0; public.")],
    epsilon: Epsilon,
    delta: Delta,
    output: Output,
    array: Array = None,
    mechanism: MechanismOption = "gaussian",
    calibration: CalibrationOption = "analytic",
    labels: Labels = None,
    centroids: Centroids = False,
    score_range: ScoreRange = (-1.0, 1.0),
    top_k: TopK = None,
    threshold: Threshold = None,
    ledger: LedgerUrl = None,
    dataset: Dataset = None,
    seed: Seed = None,
    unsafe_reproduce_paper: Unsafe = False,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Release the similarity of one record with every record."""
    check_output(output, force, embeddings, labels, ledger=ledger)
    check_ranking(top_k, threshold)
    release = ss.release_row(
        _files.read_array(embeddings, name=array, mapped=True),
        index,
        epsilon=epsilon,
        delta=delta,
        mechanism=mechanism,
        calibration=calibration,
        adjacency=adjacency_of(labels, centroids),
        score_range=score_range,
        rng=seed,
        ledger=ledger_of(ledger, dataset),
        unsafe_reproduce_paper=unsafe_reproduce_paper,
    )
    finish(release, output, as_json, ranking(release, top_k, threshold))


@app.command("gram", epilog="scoreshield release gram emb.npy --epsilon 20 --delta 1e-6 --output r.npz")
def release_gram(
    embeddings: Embeddings,
    epsilon: Epsilon,
    delta: Delta,
    output: Output,
    array: Array = None,
    mechanism: MechanismOption = "gaussian",
    calibration: CalibrationOption = "analytic",
    labels: Labels = None,
    centroids: Centroids = False,
    gram_radius: Annotated[
        float | None,
        typer.Option(help="Promise only this much movement of the matrix: weaker than a whole record."),
    ] = None,
    score_range: ScoreRange = (-1.0, 1.0),
    projection: Annotated[
        GramProjection, typer.Option(help="How the noisy matrix is made a valid cosine matrix.")
    ] = "exact",
    denoise: Annotated[
        Denoiser, typer.Option(help="What is made of the noisy matrix; sure picks by estimated risk.")
    ] = "projection",
    device: Annotated[str, typer.Option(help="Where the projection runs: cpu or cuda.")] = "cpu",
    max_iterations: Annotated[int | None, typer.Option(help="Stop the projection after so many steps.")] = None,
    ledger: LedgerUrl = None,
    dataset: Dataset = None,
    seed: Seed = None,
    unsafe_reproduce_paper: Unsafe = False,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Release all pairwise similarities."""
    check_output(output, force, embeddings, labels, ledger=ledger)
    adjacency = adjacency_of(labels, centroids)
    if gram_radius is not None:
        if labels is not None:
            raise ss.InvalidInput("Give --labels or --gram-radius, not both: each names who is protected.")
        adjacency = ss.GramRadius(gram_radius)
    with progress_bar(as_json) as progress:
        release = ss.release_gram(
            _files.read_array(embeddings, name=array),
            epsilon=epsilon,
            delta=delta,
            mechanism=mechanism,
            calibration=calibration,
            adjacency=adjacency,
            score_range=score_range,
            projection=projection,
            denoise=denoise,
            device=device,
            max_iterations=max_iterations,
            rng=seed,
            ledger=ledger_of(ledger, dataset),
            unsafe_reproduce_paper=unsafe_reproduce_paper,
            progress=progress,
        )
    finish(
        release,
        output,
        as_json,
        {
            "projection": release.projection,
            "denoise": release.denoise,
            "iterations": release.iterations,
            "residual": release.residual,
            "converged": release.converged,
        },
    )
