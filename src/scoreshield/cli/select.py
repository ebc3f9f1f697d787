"""`scoreshield release matches | top-k | histogram | index`: releases that name, count or replace records."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

import scoreshield as ss
from scoreshield import _files
from scoreshield.cli.options import Epsilon, Force, Json, ScoreRange, progress_bar
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
    finish,
    ledger_of,
    one_or_many,
)
from scoreshield.cli.release import app as app
from scoreshield.releases.histogram import HistogramMechanism
from scoreshield.releases.matches import Selection

IndexMechanism = Literal["privunit", "gaussian"]
Reduction = Literal["random", "pca"]
Query = Annotated[Path, typer.Option(help="The public query, a vector.")]


@app.command(
    "matches", epilog="scoreshield release matches docs.npy --query q.npy --threshold 0.45 --epsilon 5 --output m.npz"
)
def release_matches(
    embeddings: Embeddings,
    query: Query,
    threshold: Annotated[float, typer.Option(help="Public; records that score above it are matches.")],
    epsilon: Epsilon,
    output: Output,
    refine: Annotated[
        float, typer.Option(help="Share of the budget that scores the records named; 0 names them.")
    ] = 0.0,
    array: Array = None,
    labels: Labels = None,
    centroids: Centroids = False,
    score_range: ScoreRange = (-1.0, 1.0),
    ledger: LedgerUrl = None,
    dataset: Dataset = None,
    seed: Seed = None,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Release which records pass a public threshold, by randomised response."""
    check_output(output, force, embeddings, query, labels, ledger=ledger)
    release = ss.release_matches(
        _files.read_array(embeddings, name=array, mapped=True),
        one_or_many(_files.read_array(query)),
        threshold,
        epsilon=epsilon,
        refine=refine,
        adjacency=adjacency_of(labels, centroids),
        score_range=score_range,
        rng=seed,
        ledger=ledger_of(ledger, dataset),
    )
    low, high = release.count_interval()
    facts = {
        "released": len(release.indices),
        "expected_false": release.expected_false,
        "count": release.count,
        "count_95_percent": [low, high],
    }
    finish(release, output, as_json, facts)


@app.command("top-k", epilog="scoreshield release top-k docs.npy --query q.npy --k 5 --epsilon 20 --output t.npz")
def release_top_k(
    embeddings: Embeddings,
    query: Query,
    k: Annotated[int, typer.Option("--k", help="How many; the budget is split over them.")],
    epsilon: Epsilon,
    output: Output,
    mechanism: Annotated[Selection, typer.Option(help="How the best are chosen.")] = "permute-and-flip",
    array: Array = None,
    labels: Labels = None,
    centroids: Centroids = False,
    score_range: ScoreRange = (-1.0, 1.0),
    ledger: LedgerUrl = None,
    dataset: Dataset = None,
    seed: Seed = None,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Release the indices of the k best records, without their scores."""
    check_output(output, force, embeddings, query, labels, ledger=ledger)
    release = ss.release_top_k(
        _files.read_array(embeddings, name=array, mapped=True),
        one_or_many(_files.read_array(query)),
        k,
        epsilon=epsilon,
        mechanism=mechanism,
        adjacency=adjacency_of(labels, centroids),
        score_range=score_range,
        rng=seed,
        ledger=ledger_of(ledger, dataset),
    )
    finish(release, output, as_json, {"top_k": release.indices.tolist()})


@app.command("histogram", epilog="scoreshield release histogram docs.npy --query q.npy --epsilon 1 --output h.npz")
def release_histogram(
    embeddings: Embeddings,
    epsilon: Epsilon,
    output: Output,
    query: Annotated[Path | None, typer.Option(help="The public query; without one, all pairs are counted.")] = None,
    bins: Annotated[int, typer.Option(help="How many equal bins over the score range.")] = 64,
    delta: Annotated[float, typer.Option(help="For Gaussian noise; the geometric one takes none.")] = 0.0,
    mechanism: Annotated[HistogramMechanism, typer.Option(help="The noise on counts.")] = "geometric",
    target_fmr: Annotated[float | None, typer.Option(help="Also print the threshold with this share above.")] = None,
    array: Array = None,
    labels: Labels = None,
    centroids: Centroids = False,
    score_range: ScoreRange = (-1.0, 1.0),
    ledger: LedgerUrl = None,
    dataset: Dataset = None,
    seed: Seed = None,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Release how many scores lie in each bin, and the operating point they give."""
    check_output(output, force, embeddings, query, labels, ledger=ledger)
    if target_fmr is not None and not 0 < target_fmr < 1:
        raise ss.InvalidInput(f"--target-fmr must lie strictly between 0 and 1. Got {target_fmr:g}.")
    release = ss.release_histogram(
        _files.read_array(embeddings, name=array, mapped=True),
        None if query is None else one_or_many(_files.read_array(query)),
        bins=bins,
        epsilon=epsilon,
        delta=delta,
        mechanism=mechanism,
        adjacency=adjacency_of(labels, centroids),
        score_range=score_range,
        rng=seed,
        ledger=ledger_of(ledger, dataset),
    )
    facts = {"rate_error_95_percent": release.error(0.95)}
    if target_fmr is not None:
        facts["threshold"] = release.threshold(target_fmr)
    finish(release, output, as_json, facts)


@app.command("index", epilog="scoreshield release index docs.npy --epsilon 20 --output index.npz")
def release_index(
    embeddings: Embeddings,
    epsilon: Epsilon,
    output: Output,
    delta: Annotated[float, typer.Option(help="For Gaussian noise or a private PCA; PrivUnit takes none.")] = 0.0,
    mechanism: Annotated[IndexMechanism, typer.Option(help="How each vector is made private.")] = "privunit",
    components: Annotated[int | None, typer.Option(help="Reduce to so many dimensions first.")] = None,
    reduction: Annotated[Reduction, typer.Option(help="random is free; pca costs a share of the budget.")] = "random",
    pca_share: Annotated[float, typer.Option(help="With --reduction pca: its share.")] = 0.1,
    array: Array = None,
    labels: Labels = None,
    centroids: Centroids = False,
    ledger: LedgerUrl = None,
    dataset: Dataset = None,
    seed: Seed = None,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Release vectors that answer every later query."""
    check_output(output, force, embeddings, labels, ledger=ledger)
    with progress_bar(as_json) as progress:
        release = ss.release_index(
            _files.read_array(embeddings, name=array, mapped=True),
            epsilon=epsilon,
            delta=delta,
            mechanism=mechanism,
            components=components,
            reduction=reduction,
            pca_share=pca_share,
            adjacency=adjacency_of(labels, centroids),
            rng=seed,
            ledger=ledger_of(ledger, dataset),
            progress=progress,
        )
    finish(release, output, as_json, {"score_std": release.score_std})
