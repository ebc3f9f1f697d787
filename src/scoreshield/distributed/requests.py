"""The public functions: one call charges, runs the blocks on an engine, and opens the whole release."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from scoreshield import _validation
from scoreshield._frames import clear_frames_on_error
from scoreshield._types import AccountLike, Calibration, Norm
from scoreshield._validation import Check, check_count, check_epsilon, check_flag, one_of, optional, validate
from scoreshield.decisions.queries import QueryScores
from scoreshield.decisions.worth import WORTH_CHECKS
from scoreshield.distributed.driver import Driver, StepProgress, begin_manifest, check_cluster_account
from scoreshield.distributed.engines.opening import choose_engine
from scoreshield.distributed.manifest import TILE_ROWS, Manifest
from scoreshield.distributed.parts import decode_matrix, encode_matrix
from scoreshield.distributed.readers import DistributedBatch, DistributedGram, DistributedHistogram, DistributedIndex
from scoreshield.distributed.results import DistributedRelease, open_release
from scoreshield.distributed.sources.facts import SourceFacts
from scoreshield.distributed.sources.opening import describe_source, open_source
from scoreshield.distributed.storage import FINAL, MANIFEST, open_folder
from scoreshield.errors import InvalidInput
from scoreshield.geometry import embeddings as _embeddings
from scoreshield.geometry.arrays import check_device_name
from scoreshield.geometry.embeddings import Rows
from scoreshield.privacy.adjacency import FULL_RANGE, Replacement
from scoreshield.privacy.guarantee import Guarantee
from scoreshield.privacy.levels.tables import LevelChannel
from scoreshield.privacy.noise import CustomNoise
from scoreshield.privacy.sampling.stream import ResearchStream, name_sampler
from scoreshield.privacy.tails import AnchoredWindows
from scoreshield.releases.advice import make_public_rows
from scoreshield.releases.batch import PublicLevels, check_batch_worth, prepare_batch
from scoreshield.releases.gram import calibrate_gram
from scoreshield.releases.histogram import HISTOGRAM_CHECKS, HistogramMechanism, find_edges, prepare_histogram
from scoreshield.releases.index import check_index_worth, plan_index
from scoreshield.releases.index_plan import INDEX_CHECKS, IndexMechanism, IndexPlan, IndexUse
from scoreshield.releases.matches import MATCH_CHECKS, prepare_matches
from scoreshield.releases.pipeline import PRIVACY_CHECKS, PrivacyRequest, PrivateCollection
from scoreshield.releases.scores import SCORE_CHECKS, ScoreMechanism, ScoreUse, check_score_worth, prepare_scores

#: The most tiles of a block, where the caller does not say how many records it has.
_MOST_TILES = 16
#: The entries of a block of vectors, where a tile has fewer.
_INDEX_ENTRIES = 2**25
#: The records of one tile of pairs. Noise is keyed by two tiles.
PAIR_ROWS = 2_048
_ABSENT = ("k", "unsafe_reproduce_paper", "adjacency")


def _check_seed(value: Any, name: str) -> Any:
    return check_count(value, name, least=0)


_CHECKS: dict[str, Check] = {
    "check_rows": check_flag,
    "block_rows": optional(check_count),
    "seed": optional(_check_seed),
}


def _choose(checks: Mapping[str, Check]) -> dict[str, Check]:
    """Leave out the checks of arguments that a cluster does not take."""
    return {name: check for name, check in checks.items() if name not in _ABSENT}


@clear_frames_on_error
@validate(**_choose(SCORE_CHECKS), **_CHECKS, best=optional(check_count))
def release_scores(
    source: str | Path,
    query: ArrayLike,
    *,
    to: str | Path,
    epsilon: float,
    delta: float = 0.0,
    mechanism: ScoreMechanism | LevelChannel | CustomNoise | None = None,
    for_: ScoreUse = "values",
    threshold: float | None = None,
    best: int | None = None,
    public_scores: QueryScores | None = None,
    calibration: Calibration = "analytic",
    score_range: tuple[float, float] = FULL_RANGE,
    norm: Norm = "unit",
    column: str = "",
    ids: str = "",
    engine: Any = None,
    scheduler: str | None = None,
    key_folder: str | Path | None = None,
    block_rows: int | None = None,
    check_rows: bool = True,
    ledger: AccountLike | None = None,
    seed: int | None = None,
    progress: StepProgress | None = None,
) -> DistributedRelease:
    """Release the scores of a public query, or of a batch, with every record of a partitioned collection.

    The same call again goes on with a release that was interrupted, without a second charge and with the same noise.

    Args:
        source: The collection: a folder of Parquet files, one file, or a memory-mapped .npy file; an address of fsspec
            such as ``s3://bucket/folder``; or a table, ``lance://PATH``, ``delta://PATH``, ``iceberg://PATH`` of a
            metadata file or ``iceberg://CATALOG/NAMESPACE.TABLE``, at its newest version or at ``...@VERSION``.
        query: As in `scoreshield.release_scores`.
        to: The folder of the release, on storage that the driver and all workers share. It must be new, or hold this
            release.
        epsilon: As in `scoreshield.release_scores`.
        delta: As in `scoreshield.release_scores`.
        mechanism: As in `scoreshield.release_scores`. Anchored windows need a quantile of all scores, and are not
            available.
        for_: As in `scoreshield.release_scores`. For ``"ranking"``, noise and level tables are compared, and tables
            take part if public scores are given.
        threshold: As in `scoreshield.release_scores`.
        best: Keep so many records of each block for each query, those of the best noisy scores. None keeps all scores.
        public_scores: As in `scoreshield.release_scores`.
        calibration: As in `scoreshield.release_scores`.
        score_range: As in `scoreshield.release_scores`.
        norm: As in `scoreshield.release_scores`.
        column: The column of the vectors, where a file has several.
        ids: A column of public ids, texts or integers. They are released as they are, beside the numbers of the
            records. Two records of one id raise an error before the charge.
        engine: What runs the tasks: None or ``"local"`` for this process; ``"dask"``, ``"spark"`` or ``"ray"``; a Dask
            client; a Spark session.
        scheduler: The address of a cluster. None starts one on this machine.
        key_folder: A folder that the driver and all workers can read, and no one else, for the key of the release
            while it runs. Dask needs none.
        block_rows: How many records a task takes, a multiple of 65,536. It changes no released value.
        check_rows: Read all rows before the charge, and raise an error if one is missing, of another length or not
            finite. What is computed of them meanwhile stays encrypted in the folder until the charge. With False such
            a row counts as a zero row.
        ledger: ``ledger.account(name)``. It keeps the key until the release is whole. Without a ledger, a release that
            is interrupted cannot go on in another process.
        seed: None for secret noise. A seed is research mode, which repeats and is not private.
        progress: Called with the name of the step, the blocks done and all blocks.

    Returns:
        The whole release, opened in its folder.

    Warns:
        UselessRelease: The scores are ranked (by ``for_`` or ``best``), and the ranking is predicted to be mostly
            noise. It is given before anything is charged.
    """
    if isinstance(mechanism, AnchoredWindows) or mechanism == "anchored":
        raise InvalidInput(
            "A cluster cannot release anchored windows, which need a quantile of all scores: give for_='ranking' "
            "without a mechanism, or mechanism='staircase'."
        )
    facts, rows = _open_collection(source, column, ids, to)
    prepare = _prepare_with(
        prepare_scores,
        query=query,
        delta=delta,
        mechanism=mechanism,
        for_=for_,
        k=best or 10,
        threshold=threshold,
        calibration=calibration,
        score_range=score_range,
        norm=norm,
        public_scores=public_scores,
        may_anchor=False,
    )
    guarantee = prepare(rows, epsilon, seed)
    queries, _ = _embeddings.as_queries(query, facts.dimension)
    if (best is not None or for_ == "ranking") and seed is None:
        check_score_worth(
            guarantee,
            facts.dimension,
            best or 10,
            public_scores,
            None,
            lambda other: prepare(make_public_rows(facts.rows, facts.dimension), other, 0),
            is_automatic=for_ == "ranking",
            is_ranked=True,
        )
    options = {"norm": norm, "checked": check_rows} | ({} if best is None else {"best": best})
    run = _ClusterRun(to, engine, scheduler, key_folder, block_rows, ledger, seed, progress)
    return run.make(guarantee, "scores", facts, queries, options)


@clear_frames_on_error
@validate(**_choose(MATCH_CHECKS), **_CHECKS)
def release_matches(
    source: str | Path,
    query: ArrayLike,
    threshold: float,
    *,
    to: str | Path,
    epsilon: float,
    refine: float = 0.0,
    score_range: tuple[float, float] = FULL_RANGE,
    norm: Norm = "unit",
    column: str = "",
    ids: str = "",
    engine: Any = None,
    scheduler: str | None = None,
    key_folder: str | Path | None = None,
    block_rows: int | None = None,
    check_rows: bool = True,
    ledger: AccountLike | None = None,
    seed: int | None = None,
    progress: StepProgress | None = None,
) -> DistributedRelease:
    """Release which records of a partitioned collection score above a public threshold, under pure epsilon.

    ``threshold``, ``epsilon`` and ``refine`` are as in `scoreshield.release_matches`, and the other arguments as in
    `release_scores`.
    """
    facts, rows = _open_collection(source, column, ids, to)
    prepare = _prepare_with(
        prepare_matches, query=query, threshold=threshold, refine=refine, score_range=score_range, norm=norm
    )
    guarantee = prepare(rows, epsilon, seed)
    queries, _ = _embeddings.as_queries(query, facts.dimension)
    run = _ClusterRun(to, engine, scheduler, key_folder, block_rows, ledger, seed, progress)
    return run.make(guarantee, "matches", facts, queries, {"norm": norm, "checked": check_rows})


@clear_frames_on_error
@validate(**{name: INDEX_CHECKS[name] for name in ("epsilon", "delta", "mechanism", "use")}, **_CHECKS, k=check_count)
def release_index(
    source: str | Path,
    *,
    to: str | Path,
    epsilon: float,
    delta: float = 0.0,
    mechanism: IndexMechanism = "privunit",
    use: IndexUse = "search",
    components: int | None = None,
    reduction: str | ArrayLike = "random",
    center: str | ArrayLike = "none",
    k: int = 10,
    column: str = "",
    engine: Any = None,
    scheduler: str | None = None,
    key_folder: str | Path | None = None,
    block_rows: int | None = None,
    check_rows: bool = True,
    ledger: AccountLike | None = None,
    seed: int | None = None,
    progress: StepProgress | None = None,
) -> DistributedIndex:
    """Release private vectors of a partitioned collection, which answer every later query at no further cost.

    ``epsilon``, ``delta``, ``mechanism``, ``use``, ``components``, ``reduction``, ``center`` and ``k`` are as in
    `scoreshield.release_index`, and the other arguments as in `release_scores`. A private PCA and a private center need
    all records before the first vector, and are not available. The random subspace depends on the numbers of records,
    dimensions and components only. The default of `block_rows` follows from the number of components.
    """
    for name, value in {"reduction": (reduction, "pca"), "center": (center, "private")}.items():
        if isinstance(value[0], str) and value[0] == value[1]:
            raise InvalidInput(
                f"A cluster cannot make {name}={value[1]!r}, which reads all records before the first vector: give a "
                "public one, fitted on public data of the same model, or leave it out."
            )
    facts, rows = _open_collection(source, column, "", to)

    def plan(rows: Any, other: float) -> IndexPlan:
        collection = PrivateCollection.check(rows, Replacement())
        return plan_index(
            collection,
            epsilon=other,
            delta=delta,
            mechanism=mechanism,
            use=use,
            components=components,
            reduction=reduction,
            center=center,
        )

    def state(planned: IndexPlan, rng: int | None) -> Guarantee:
        return planned.state_guarantee(planned.maker(), (planned.records, planned.components), name_sampler(rng))

    planned = plan(rows, epsilon)
    guarantee = state(planned, seed)
    if use == "search":
        public = make_public_rows(facts.rows, facts.dimension)
        check_index_worth(guarantee, facts.dimension, k, None, None, None, lambda other: state(plan(public, other), 0))
    # From public numbers, so that the same call again finds the same subspace.
    words = [facts.rows, facts.dimension, planned.components]
    projection = _keep_projection(planned.projection(rows, ResearchStream(np.random.default_rng(words))), to)
    public_center = None if isinstance(planned.center, str) else planned.center
    options = {"checked": check_rows, "projection": encode_matrix(projection), "center": encode_matrix(public_center)}
    tiles = min(_MOST_TILES, max(1, _INDEX_ENTRIES // (TILE_ROWS * planned.components)))
    run = _ClusterRun(to, engine, scheduler, key_folder, block_rows, ledger, seed, progress)
    no_queries = np.empty((0, facts.dimension))
    return cast("DistributedIndex", run.make(guarantee, "index", facts, no_queries, options, most_tiles=tiles))


@clear_frames_on_error
@validate(
    epsilon=check_epsilon,
    names=optional(check_count),
    norm=one_of(_embeddings.NORMS),
    k=WORTH_CHECKS["k"],
    public_scores=WORTH_CHECKS["public_scores"],
    **_CHECKS,
)
def release_batch(
    source: str | Path,
    queries: ArrayLike,
    *,
    to: str | Path,
    epsilon: float,
    k: int,
    names: int | None = None,
    levels: ArrayLike | PublicLevels | None = None,
    public_scores: QueryScores | None = None,
    norm: Norm = "unit",
    column: str = "",
    engine: Any = None,
    scheduler: str | None = None,
    key_folder: str | Path | None = None,
    block_rows: int | None = None,
    check_rows: bool = True,
    ledger: AccountLike | None = None,
    seed: int | None = None,
    progress: StepProgress | None = None,
) -> DistributedBatch:
    """Release which records of a partitioned collection answer each query of a public batch, under one pure epsilon.

    ``queries``, ``epsilon``, ``k``, ``names``, ``levels`` and ``public_scores`` are as in `scoreshield.release_batch`,
    and the other arguments as in `release_scores`.
    """
    facts, rows = _open_collection(source, column, "", to)
    prepare = _prepare_with(prepare_batch, queries=queries, k=k, names=names, levels=levels, norm=norm)
    guarantee = prepare(rows, epsilon, seed)
    public = make_public_rows(facts.rows, facts.dimension)
    check_batch_worth(guarantee, facts.dimension, k, public_scores, None, lambda other: prepare(public, other, 0))
    canonical, _ = _embeddings.as_queries(queries, facts.dimension, "queries")
    options = {"norm": norm, "checked": check_rows}
    run = _ClusterRun(to, engine, scheduler, key_folder, block_rows, ledger, seed, progress)
    return cast("DistributedBatch", run.make(guarantee, "batch", facts, canonical, options))


@clear_frames_on_error
@validate(**HISTOGRAM_CHECKS, **_CHECKS)
def release_histogram(
    source: str | Path,
    query: ArrayLike,
    *,
    to: str | Path,
    bins: int | ArrayLike = 64,
    epsilon: float,
    delta: float = 0.0,
    mechanism: HistogramMechanism = "geometric",
    score_range: tuple[float, float] = FULL_RANGE,
    norm: Norm = "unit",
    column: str = "",
    engine: Any = None,
    scheduler: str | None = None,
    key_folder: str | Path | None = None,
    block_rows: int | None = None,
    check_rows: bool = True,
    ledger: AccountLike | None = None,
    seed: int | None = None,
    progress: StepProgress | None = None,
) -> DistributedHistogram:
    """Release how many scores of one public query lie in each public bin, for a partitioned collection.

    ``bins``, ``epsilon``, ``delta`` and ``mechanism`` are as in `scoreshield.release_histogram`, and the other
    arguments as in `release_scores`. A task writes its counts encrypted by a one-time pad. The driver decrypts the
    sum of all counts, and adds the noise once.
    """
    if query is None:
        raise InvalidInput("A cluster counts the scores of one query: give one.")
    facts, rows = _open_collection(source, column, "", to)
    prepare = _prepare_with(
        prepare_histogram,
        query=query,
        bins=bins,
        delta=delta,
        mechanism=mechanism,
        score_range=score_range,
        norm=norm,
    )
    guarantee = prepare(rows, epsilon, seed)
    queries, _ = _embeddings.as_queries(query, facts.dimension)
    options = {"norm": norm, "checked": check_rows, "edges": encode_matrix(find_edges(bins, *score_range))}
    run = _ClusterRun(to, engine, scheduler, key_folder, block_rows, ledger, seed, progress)
    return cast("DistributedHistogram", run.make(guarantee, "histogram", facts, queries, options))


@clear_frames_on_error
@validate(
    **{name: PRIVACY_CHECKS[name] for name in ("epsilon", "delta", "calibration", "score_range")},
    **_CHECKS,
    device=check_device_name,  # the driver itself needs no GPU
)
def release_gram(
    source: str | Path,
    *,
    to: str | Path,
    epsilon: float,
    delta: float,
    calibration: Calibration = "analytic",
    score_range: tuple[float, float] = FULL_RANGE,
    column: str = "",
    device: str = "cpu",
    engine: Any = None,
    scheduler: str | None = None,
    key_folder: str | Path | None = None,
    block_rows: int | None = None,
    check_rows: bool = True,
    ledger: AccountLike | None = None,
    seed: int | None = None,
    progress: StepProgress | None = None,
) -> DistributedGram:
    """Release all pairwise cosine similarities of a partitioned collection with Gaussian noise, in square blocks.

    ``epsilon``, ``delta``, ``calibration`` and ``score_range`` are as in `scoreshield.release_gram`, and the other
    arguments as in `release_scores`. A part holds the pairs of 2,048 records with 2,048 others, in 4 bytes each where
    the noise allows it and in 8 otherwise: 20 GB for 10^5 records. A task needs memory for one part, whatever
    `block_rows` is, which is the records that a task checks before the charge.

    ``device="cuda"`` lets each worker multiply on its GPU, with the `gpu` extra on all of them: in this process, or on
    Dask, where `dask_cuda` starts one worker for each GPU. Each worker is asked for its GPU before the charge. The
    noise is drawn by the CPUs.
    """
    facts, rows = _open_collection(source, column, "", to)
    contract = PrivacyRequest(epsilon, delta, "gaussian", calibration, score_range)
    _, guarantee = calibrate_gram(PrivateCollection.check(rows, Replacement(), least=2), contract, name_sampler(seed))
    options = {"checked": check_rows, "side": PAIR_ROWS}
    run = _ClusterRun(to, engine, scheduler, key_folder, block_rows, ledger, seed, progress, device)
    return cast("DistributedGram", run.make(guarantee, "gram", facts, np.empty((0, facts.dimension)), options))


def _describe(source: str | Path, column: str, ids: str, to: str | Path) -> SourceFacts:
    """Describe a collection: a table at the version of the release in the folder, if one was begun.

    Of files, those of the begun release are described. A release that is whole does not answer for files that were
    added since.
    """
    if not isinstance(source, str | Path):  # the text of an array would show its rows
        raise InvalidInput(
            "A cluster reads its collection from storage: give the path or address of a .npy file, of a folder of "
            "Parquet files or of a table, and not an array."
        )
    if not isinstance(to, str | Path):
        raise InvalidInput("The 'to' parameter must be the path or address of a folder.")
    begun = _read_begun(to)
    if begun is None or (begun.source.kind == "files" and open_folder(to).read(FINAL) is not None):
        return describe_source(source, column, ids)
    return describe_source(source, column, ids, begun=begun.source)


def _open_collection(source: str | Path, column: str, ids: str, to: str | Path) -> tuple[SourceFacts, Rows]:
    """Describe a collection, and open its rows, none of which is read."""
    facts = _describe(source, column, ids, to)
    return facts, cast("Rows", open_source(facts))


def _read_begun(to: str | Path) -> Manifest | None:
    """Read the manifest in the folder of a release; None without one. The driver reports a damaged one."""
    begun = open_folder(to).read(MANIFEST)
    if begun is not None:
        with contextlib.suppress(InvalidInput):
            return Manifest.from_bytes(begun)
    return None


def _keep_projection(projection: NDArray[np.float64] | None, to: str | Path) -> NDArray[np.float64] | None:
    """Return the projection of the release in the folder, if this one differs by rounding alone.

    The factorisation that makes it may round differently with another number of threads. Then the same call again
    would ask for another release.
    """
    begun = _read_begun(to)
    if projection is None or begun is None or begun.kind != "index":
        return projection
    known = decode_matrix(begun.options["projection"])
    if known is None or known.shape != projection.shape or not np.allclose(known, projection, rtol=0, atol=1e-12):
        return projection
    return known


def _prepare_with(prepare: Callable[..., Any], **arguments: Any) -> Callable[[Any, float, int | None], Guarantee]:
    """Return what states the guarantee of a release of some rows. No row is read for it."""

    def state(rows: Any, epsilon: float, seed: int | None) -> Guarantee:
        guarantee: Guarantee = prepare(rows, epsilon=epsilon, rng=seed, **arguments).guarantee
        return guarantee

    return state


def _count_rows(block_rows: int | None, facts: SourceFacts, most: int = _MOST_TILES) -> int:
    """Return the records of a block: by default, blocks of up to so many tiles, and 64 of them if there are enough."""
    if block_rows is None:
        return min(most, max(1, facts.rows // (64 * TILE_ROWS))) * TILE_ROWS
    if block_rows % TILE_ROWS:
        _validation.reject("block_rows", f"a multiple of {TILE_ROWS:,}", block_rows)
    return block_rows


def _find_path(address: str) -> str:
    """Follow the links of a path; other addresses are as they are."""
    return address if "://" in address else os.path.realpath(address)


@dataclass(frozen=True)
class _ClusterRun:
    """Where a release goes, what makes it, and what is charged.

    Attributes:
        to: The folder of the release.
        engine: What runs the tasks, as a caller names it.
        scheduler: The address of a cluster.
        key_folder: The folder for the key while the release runs.
        block_rows: How many records a task takes; None for the default.
        ledger: What is charged.
        seed: A research seed.
        progress: Called after each block.
        device: Where the workers multiply pairs of records.
    """

    to: str | Path
    engine: Any
    scheduler: str | None
    key_folder: str | Path | None
    block_rows: int | None
    ledger: AccountLike | None
    seed: int | None
    progress: StepProgress | None
    device: str = "cpu"

    def make(
        self,
        guarantee: Guarantee,
        kind: str,
        source: SourceFacts,
        queries: NDArray[np.float64],
        options: Mapping[str, Any],
        most_tiles: int = _MOST_TILES,
    ) -> DistributedRelease:
        """Charge the release, run its blocks, and open it when it is whole.

        Args:
            guarantee: What it promises.
            kind: What its tiles draw.
            source: The collection.
            queries: The public queries, one per row.
            options: Further facts that the tasks need.
            most_tiles: The most tiles of a block by default.
        """
        block_rows = _count_rows(self.block_rows, source, most_tiles)
        manifest = begin_manifest(
            guarantee, kind=kind, source=source, queries=queries, options=options, block_rows=block_rows
        )
        if self.progress is not None and not callable(self.progress):
            _validation.reject("progress", "a function or None", self.progress)
        if self.key_folder is not None and not isinstance(self.key_folder, str | Path):
            _validation.reject("key_folder", "the path of a folder or None", self.key_folder)
        account, folder = check_cluster_account(self.ledger), open_folder(self.to)
        self._check_places(folder.address, source.address)
        opened = choose_engine(self.engine, scheduler=self.scheduler, key_folder=self.key_folder)
        try:
            if self.device != "cpu" and opened.name not in ("local", "dask"):
                raise InvalidInput("The workers of Spark and Ray have no GPU here: use device='cpu', or Dask.")
            Driver(folder, opened, account, self.seed, self.progress, self.device).make(manifest)
        finally:
            if opened is not self.engine:
                opened.close()
        return open_release(self.to)

    def _check_places(self, folder: str, collection: str) -> None:
        """Check that the release lies outside of the collection, and the key outside of the release."""
        if f"{_find_path(folder)}/".startswith(f"{_find_path(collection)}/"):
            raise InvalidInput("The folder of the release lies in the collection: name one outside of it.")
        keys = "" if self.key_folder is None else str(self.key_folder)
        if "://" in keys or (keys and f"{_find_path(keys)}/".startswith(f"{_find_path(folder)}/")):
            raise InvalidInput(
                "The folder of keys must be a path of a shared file system, outside of the release's folder."
            )
