"""`scoreshield release scores | row | gram`: a private object from a file, with its certificate beside it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

import scoreshield as ss
from scoreshield import io
from scoreshield.cli.options import CalibrationOption, Delta, Epsilon, Force, Json, ScoreRange, progress_bar
from scoreshield.embeddings import Norm
from scoreshield.geometry.denoise import Denoiser
from scoreshield.releases import GramProjection, Mechanism
from scoreshield.report.certificate import beside, write_with_certificate

app = typer.Typer(
    help="Release scores, a row or a Gram matrix: FILE.npz with the guarantee inside, FILE.json and FILE.txt beside it."
)

Embeddings = Annotated[
    Path,
    typer.Argument(help="The private collection, one record a row: .npy, .npz or .parquet.", metavar="EMBEDDINGS"),
]
Array = Annotated[str | None, typer.Option(help="Which array of the .npz, or column of the .parquet, to read.")]
MechanismOption = Annotated[Mechanism, typer.Option(help="The noise.")]
Labels = Annotated[
    Path | None,
    typer.Option(help="Public labels, one a record (.npy): protect whole identities, not single records."),
]
Centroids = Annotated[bool, typer.Option("--centroids", help="With --labels: release one centroid per identity.")]
Output = Annotated[Path, typer.Option(help="Where to write the release; ends in .npz.")]
Seed = Annotated[int | None, typer.Option(help="Research mode: repeatable noise, NOT PRIVATE, for public data only.")]
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
    delta: Delta,
    output: Output,
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
    seed: Seed = None,
    unsafe_reproduce_paper: Unsafe = False,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Release the similarity of a public query with every record."""
    _check_output(output, force)
    release = ss.release_scores(
        io.read_array(embeddings, name=array, mapped=True),
        _one_or_many(io.read_array(query, name=query_array)),
        epsilon=epsilon,
        delta=delta,
        mechanism=mechanism,
        calibration=calibration,
        adjacency=_adjacency(labels, centroids),
        score_range=score_range,
        norm=norm,
        rng=seed,
        unsafe_reproduce_paper=unsafe_reproduce_paper,
    )
    _finish(release, output, as_json, _ranking(release, top_k, threshold))


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
    seed: Seed = None,
    unsafe_reproduce_paper: Unsafe = False,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Release the similarity of one record with every record."""
    _check_output(output, force)
    release = ss.release_row(
        io.read_array(embeddings, name=array, mapped=True),
        index,
        epsilon=epsilon,
        delta=delta,
        mechanism=mechanism,
        calibration=calibration,
        adjacency=_adjacency(labels, centroids),
        score_range=score_range,
        rng=seed,
        unsafe_reproduce_paper=unsafe_reproduce_paper,
    )
    _finish(release, output, as_json, _ranking(release, top_k, threshold))


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
    seed: Seed = None,
    unsafe_reproduce_paper: Unsafe = False,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Release all pairwise similarities."""
    _check_output(output, force)
    adjacency = _adjacency(labels, centroids)
    if gram_radius is not None:
        if labels is not None:
            raise ss.InvalidInput("Give --labels or --gram-radius, not both: each names who is protected.")
        adjacency = ss.GramRadius(gram_radius)
    with progress_bar(as_json) as progress:
        release = ss.release_gram(
            io.read_array(embeddings, name=array),
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
            unsafe_reproduce_paper=unsafe_reproduce_paper,
            progress=progress,
        )
    _finish(
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


def _adjacency(labels: Path | None, centroids: bool) -> ss.Adjacency:
    if labels is None:
        if centroids:
            raise ss.InvalidInput("--centroids needs --labels, which say who belongs to whom.")
        return ss.Replacement()
    return ss.Identity(io.read_array(labels), centroids=centroids)


def _one_or_many(query: Any) -> Any:
    """A query file may hold a vector or a matrix; a matrix of one row (all that .parquet can hold) is one query."""
    return query[0] if query.ndim == 2 and len(query) == 1 else query


def _check_output(output: Path, force: bool) -> None:
    """Refuse a wrong ending, a missing folder or a taken name before any noise is drawn."""
    if output.suffix != ".npz":
        raise ss.InvalidInput(f"The output must end in .npz; got {output}.")
    if not output.parent.is_dir():
        raise ss.InvalidInput(f"There is no folder {output.parent} to write to.")
    taken = [path for path in beside(output) if path.exists()]
    if taken and not force:
        raise ss.InvalidInput(f"{taken[0]} exists already; choose another name or pass --force to overwrite it.")


def _ranking(release: ss.ScoreRelease, top_k: int | None, threshold: float | None) -> dict[str, Any]:
    if top_k is None:
        if threshold is not None:
            raise ss.InvalidInput("--threshold needs --top-k, which says how many to print.")
        return {}
    return {"top_k": release.top_k(top_k, threshold).tolist()}


def _finish(release: ss.Release, output: Path, as_json: bool, facts: dict[str, Any]) -> None:
    """Write the release and its certificate, all three files or none, and say so."""
    write_with_certificate(release, output)
    if as_json:
        files = [str(path) for path in beside(output)]
        typer.echo(json.dumps({"files": files, **facts, "guarantee": release.guarantee.to_dict()}))
        return
    typer.echo(str(release.guarantee))
    for name, value in facts.items():
        typer.echo(f"{name:<15}{value}")
    typer.echo("Written        " + ", ".join(str(path) for path in beside(output)))
