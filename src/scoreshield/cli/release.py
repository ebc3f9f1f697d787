"""`scoreshield release`: a private object from a file of embeddings, with its certificate beside it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

import scoreshield as ss
from scoreshield import _files
from scoreshield._types import Norm
from scoreshield.cli.cluster import ClusterOptions
from scoreshield.cli.help import CommandApp
from scoreshield.cli.options import (
    Array,
    CalibrationOption,
    ChargeOptions,
    CodeSize,
    Delta,
    Embeddings,
    Epsilon,
    IdentityOptions,
    Levels,
    MechanismOption,
    Output,
    OutputOptions,
    PureDelta,
    Queries,
    Query,
    QueryArray,
    RankingOptions,
    ScoreMechanismOption,
    ScoreRange,
    ScoreUseOption,
    Unsafe,
    WindowOptions,
    WorthOptions,
    expand_groups,
    progress_bar,
)
from scoreshield.cli.output import check_output, is_same_file, read_codebook, read_ids, read_query, write_release
from scoreshield.geometry.denoise import Denoiser
from scoreshield.releases.gram import GramProjection
from scoreshield.releases.histogram import HistogramMechanism
from scoreshield.releases.index_plan import CENTERS, IndexMechanism, IndexUse, Reduction
from scoreshield.releases.top_k import Selection
from scoreshield.releases.versions import Changes

app = CommandApp(
    help="Release scores, matches, the best records, a batch, a histogram, an index, a row or a Gram matrix: FILE.npz "
    "with the guarantee inside, FILE.json and FILE.txt beside it.",
    epilog="scoreshield release scores docs.npy --query q.npy --epsilon 8 --for ranking --output r.npz",
)


@app.command(
    "scores",
    epilog="scoreshield release scores docs.npy --query q.npy --epsilon 8 --for ranking --output r.npz",
)
@expand_groups
def release_scores_command(
    *,
    embeddings: Embeddings,
    query: Queries,
    epsilon: Epsilon,
    output: Output,
    delta: PureDelta = 0.0,
    array: Array = None,
    query_array: QueryArray = None,
    mechanism: ScoreMechanismOption = None,
    use: ScoreUseOption = "values",
    windows: WindowOptions,
    calibration: CalibrationOption = "analytic",
    identities: IdentityOptions,
    score_range: ScoreRange = (-1.0, 1.0),
    norm: Annotated[Norm, typer.Option(help="unit: normalise rows; ball: only shorten rows longer than one.")] = "unit",
    ranking: RankingOptions,
    worth: WorthOptions,
    charge: ChargeOptions,
    unsafe_reproduce_paper: Unsafe = False,
    cluster: ClusterOptions,
    options: OutputOptions,
) -> None:
    """Release the similarity of a public query with every record."""
    cluster.check(
        embeddings,
        identities,
        tail=windows.tail is not None,
        best=windows.best is not None,
        require_recall=worth.require_recall is not None,
        unsafe_reproduce_paper=unsafe_reproduce_paper,
        threshold=ranking.threshold is not None and use != "threshold",
    )
    if cluster.engine is None:
        check_output(
            output, options.force, embeddings, query, identities.labels, ledger=charge.ledger, has_page=options.html
        )
    ranking.check(use)
    if use != "values" and mechanism not in (None, "auto"):
        raise ss.InvalidInput(f"--for {use} chooses the mechanism: leave --mechanism out, or --for.")
    if use == "threshold" and ranking.threshold is None:
        raise ss.InvalidInput("--for threshold needs --threshold, the public score that decides.")
    if cluster.engine is not None:
        from scoreshield import distributed

        cluster.release(
            distributed.release_scores,
            embeddings,
            read_query(query, query_array),
            output=output,
            array=array,
            charge=charge,
            options=options,
            describe=lambda release: _list_best(release, ranking),
            epsilon=epsilon,
            delta=delta,
            mechanism=mechanism,
            for_=use,
            threshold=ranking.threshold if use == "threshold" else None,
            best=cluster.keep_best,
            ids=cluster.id_column or "",
            public_scores=worth.read_scores(),
            calibration=calibration,
            score_range=score_range,
            norm=norm,
        )
        return
    public, public_scores = read_query(query, query_array), worth.read_scores()
    with progress_bar(options.as_json) as progress:
        release = ss.release_scores(
            _files.read_array(embeddings, name=array, mapped=True),
            public,
            epsilon=epsilon,
            delta=delta,
            mechanism=windows.choose_mechanism(mechanism),
            for_=use,
            k=ranking.top_k,
            threshold=ranking.threshold if use == "threshold" else None,
            public_scores=public_scores,
            require_recall=worth.require_recall,
            calibration=calibration,
            adjacency=identities.choose_adjacency(),
            score_range=score_range,
            norm=norm,
            rng=charge.seed,
            ledger=charge.open_account(),
            unsafe_reproduce_paper=unsafe_reproduce_paper,
            progress=progress,
        )
    k = 10 if ranking.top_k is None else ranking.top_k
    facts = ranking.list_best_records(release) | worth.describe(release.guarantee, k, public.shape[-1], public_scores)
    write_release(charge.annotate(release), output, options.as_json, facts, has_page=options.html)


@app.command("row", epilog="scoreshield release row faces.npy --index 17 --epsilon 5 --delta 1e-6 --output r.npz")
@expand_groups
def release_row_command(
    *,
    embeddings: Embeddings,
    index: Annotated[int, typer.Option(help="Which record, counted from 0; public.")],
    epsilon: Epsilon,
    delta: Delta,
    output: Output,
    array: Array = None,
    mechanism: MechanismOption = "gaussian",
    calibration: CalibrationOption = "analytic",
    identities: IdentityOptions,
    score_range: ScoreRange = (-1.0, 1.0),
    ranking: RankingOptions,
    worth: WorthOptions,
    charge: ChargeOptions,
    unsafe_reproduce_paper: Unsafe = False,
    options: OutputOptions,
) -> None:
    """Release the similarity of one record with every record."""
    check_output(output, options.force, embeddings, identities.labels, ledger=charge.ledger, has_page=options.html)
    ranking.check()
    if worth.require_recall is not None and ranking.top_k is None:
        raise ss.InvalidInput("--require-recall needs --top-k, which says how many records are read from the row.")
    records, public_scores = _files.read_array(embeddings, name=array, mapped=True), worth.read_scores()
    release = ss.release_row(
        records,
        index,
        epsilon=epsilon,
        delta=delta,
        mechanism=mechanism,  # type: ignore[arg-type]  # the release rejects what it does not offer
        calibration=calibration,
        adjacency=identities.choose_adjacency(),
        score_range=score_range,
        k=ranking.top_k,
        public_scores=public_scores,
        require_recall=worth.require_recall,
        rng=charge.seed,
        ledger=charge.open_account(),
        unsafe_reproduce_paper=unsafe_reproduce_paper,
    )
    facts = ranking.list_best_records(release)
    if ranking.top_k is not None:
        facts |= worth.describe(release.guarantee, ranking.top_k, records.shape[-1], public_scores)
    write_release(charge.annotate(release), output, options.as_json, facts, has_page=options.html)


@app.command("gram", epilog="scoreshield release gram emb.npy --epsilon 20 --delta 1e-6 --output r.npz")
@expand_groups
def release_gram_command(
    *,
    embeddings: Embeddings,
    epsilon: Epsilon,
    delta: Delta,
    output: Output,
    array: Array = None,
    mechanism: MechanismOption = "gaussian",
    calibration: CalibrationOption = "analytic",
    identities: IdentityOptions,
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
    device: Annotated[
        str, typer.Option(help="cpu or cuda: where the projection runs, or the workers multiply.")
    ] = "cpu",
    max_iterations: Annotated[int | None, typer.Option(help="Stop the projection after this number of steps.")] = None,
    charge: ChargeOptions,
    unsafe_reproduce_paper: Unsafe = False,
    cluster: ClusterOptions,
    options: OutputOptions,
) -> None:
    """Release all pairwise similarities."""
    cluster.check(
        embeddings,
        identities,
        mechanism=mechanism != "gaussian",
        gram_radius=gram_radius is not None,
        projection=projection != "exact",
        denoise=denoise != "projection",
        max_iterations=max_iterations is not None,
        unsafe_reproduce_paper=unsafe_reproduce_paper,
    )
    if cluster.engine is not None:
        from scoreshield import distributed

        cluster.release(
            distributed.release_gram,
            embeddings,
            output=output,
            array=array,
            charge=charge,
            options=options,
            epsilon=epsilon,
            delta=delta,
            calibration=calibration,
            score_range=score_range,
            device=device,
        )
        return
    check_output(output, options.force, embeddings, identities.labels, ledger=charge.ledger, has_page=options.html)
    adjacency = identities.choose_adjacency()
    if gram_radius is not None:
        if identities.labels is not None:
            raise ss.InvalidInput("Give --labels or --gram-radius, not both: each states who is protected.")
        adjacency = ss.GramRadius(gram_radius)
    with progress_bar(options.as_json) as progress:
        release = ss.release_gram(
            _files.read_array(embeddings, name=array),
            epsilon=epsilon,
            delta=delta,
            mechanism=mechanism,  # type: ignore[arg-type]  # the release rejects what it does not offer
            calibration=calibration,
            adjacency=adjacency,
            score_range=score_range,
            projection=projection,
            denoise=denoise,
            device=device,
            max_iterations=max_iterations,
            rng=charge.seed,
            ledger=charge.open_account(),
            unsafe_reproduce_paper=unsafe_reproduce_paper,
            progress=progress,
        )
    write_release(
        charge.annotate(release),
        output,
        options.as_json,
        {
            "projection": release.projection,
            "denoise": release.denoise,
            "iterations": release.iterations,
            "residual": release.residual,
            "converged": release.converged,
        },
        has_page=options.html,
    )


@app.command(
    "matches", epilog="scoreshield release matches docs.npy --query q.npy --threshold 0.45 --epsilon 5 --output m.npz"
)
@expand_groups
def release_matches_command(
    *,
    embeddings: Embeddings,
    query: Query,
    threshold: Annotated[float, typer.Option(help="Public; records that score above it are matches.")],
    epsilon: Epsilon,
    output: Output,
    refine: Annotated[
        float, typer.Option(help="Share of the budget that scores the records named; 0 names them.")
    ] = 0.0,
    array: Array = None,
    query_array: QueryArray = None,
    identities: IdentityOptions,
    score_range: ScoreRange = (-1.0, 1.0),
    worth: WorthOptions,
    charge: ChargeOptions,
    cluster: ClusterOptions,
    options: OutputOptions,
) -> None:
    """Release which records pass a public threshold, by randomised response."""
    cluster.check(
        embeddings,
        identities,
        require_recall=worth.require_recall is not None,
        public_scores=worth.public_scores is not None,
    )
    if cluster.engine is not None:
        from scoreshield import distributed

        cluster.release(
            distributed.release_matches,
            embeddings,
            read_query(query, query_array),
            threshold,
            output=output,
            array=array,
            charge=charge,
            options=options,
            ids=cluster.id_column or "",
            epsilon=epsilon,
            refine=refine,
            score_range=score_range,
        )
        return
    check_output(
        output, options.force, embeddings, query, identities.labels, ledger=charge.ledger, has_page=options.html
    )
    public, public_scores = read_query(query, query_array), worth.read_scores()
    release = ss.release_matches(
        _files.read_array(embeddings, name=array, mapped=True),
        public,
        threshold,
        epsilon=epsilon,
        refine=refine,
        adjacency=identities.choose_adjacency(),
        score_range=score_range,
        public_scores=public_scores,
        require_recall=worth.require_recall,
        rng=charge.seed,
        ledger=charge.open_account(),
    )
    low, high = release.count_interval()
    facts = {
        "released": len(release.indices),
        "expected_false": release.expected_false,
        "count": release.count,
        "count_95_percent": [low, high],
        **worth.describe(release.guarantee, 10, public.shape[-1], public_scores),
    }
    write_release(charge.annotate(release), output, options.as_json, facts, has_page=options.html)


@app.command("top-k", epilog="scoreshield release top-k docs.npy --query q.npy --k 5 --epsilon 20 --output t.npz")
@expand_groups
def release_top_k_command(
    *,
    embeddings: Embeddings,
    query: Query,
    k: Annotated[int, typer.Option("--k", help="How many; the budget is split over them.")],
    epsilon: Epsilon,
    output: Output,
    mechanism: Annotated[Selection, typer.Option(help="How the best are chosen.")] = "permute-and-flip",
    array: Array = None,
    query_array: QueryArray = None,
    identities: IdentityOptions,
    score_range: ScoreRange = (-1.0, 1.0),
    worth: WorthOptions,
    charge: ChargeOptions,
    options: OutputOptions,
) -> None:
    """Release the indices of the k best records, without their scores."""
    check_output(
        output, options.force, embeddings, query, identities.labels, ledger=charge.ledger, has_page=options.html
    )
    public, public_scores = read_query(query, query_array), worth.read_scores()
    release = ss.release_top_k(
        _files.read_array(embeddings, name=array, mapped=True),
        public,
        k,
        epsilon=epsilon,
        mechanism=mechanism,
        adjacency=identities.choose_adjacency(),
        score_range=score_range,
        public_scores=public_scores,
        require_recall=worth.require_recall,
        rng=charge.seed,
        ledger=charge.open_account(),
    )
    facts = {"top_k": release.indices.tolist()} | worth.describe(release.guarantee, k, public.shape[-1], public_scores)
    write_release(charge.annotate(release), output, options.as_json, facts, has_page=options.html)


@app.command("batch", epilog="scoreshield release batch docs.npy --queries qs.npy --k 10 --epsilon 10 --output b.npz")
@expand_groups
def release_batch_command(
    *,
    embeddings: Embeddings,
    queries: Annotated[Path, typer.Option("--queries", "--query", help="The public queries, one per row.")],
    k: Annotated[int, typer.Option(help="How many records per query will be asked for.")],
    epsilon: Epsilon,
    output: Output,
    names: Annotated[int | None, typer.Option(help="How many queries each record names; chosen by default.")] = None,
    level: Annotated[
        list[float] | None,
        typer.Option(help="A public lower edge of a level, in [-1, 1]; give it once per level, in rising order."),
    ] = None,
    levels: Levels = None,
    array: Array = None,
    queries_array: Annotated[
        str | None, typer.Option("--queries-array", "--query-array", help="Which array of the file of queries to read.")
    ] = None,
    identities: IdentityOptions,
    norm: Annotated[Norm, typer.Option(help="unit: normalise rows; ball: only shorten rows longer than one.")] = "unit",
    print_best: Annotated[
        bool, typer.Option("--print-best", help="Also print the best K records of each query.")
    ] = False,
    worth: WorthOptions,
    charge: ChargeOptions,
    cluster: ClusterOptions,
    options: OutputOptions,
) -> None:
    """Release which records answer each query of a batch, for one epsilon."""
    cluster.check(
        embeddings,
        identities,
        require_recall=worth.require_recall is not None,
    )
    if level is not None and levels is not None:
        raise ss.InvalidInput("Give --level or --levels, not both: each places the levels.")
    if cluster.engine is not None:
        from scoreshield import distributed

        cluster.release(
            distributed.release_batch,
            embeddings,
            _files.read_array(queries, name=queries_array),
            output=output,
            array=array,
            charge=charge,
            options=options,
            describe=lambda release: _list_answers(release, k) if print_best else {},
            epsilon=epsilon,
            k=k,
            names=names,
            levels=ss.PublicLevels.load(levels) if levels is not None else level,
            public_scores=worth.read_scores(),
            norm=norm,
        )
        return
    check_output(
        output,
        options.force,
        embeddings,
        queries,
        levels,
        identities.labels,
        ledger=charge.ledger,
        has_page=options.html,
    )
    public_scores = worth.read_scores()
    with progress_bar(options.as_json) as progress:
        release = ss.release_batch(
            _files.read_array(embeddings, name=array, mapped=True),
            _files.read_array(queries, name=queries_array),
            epsilon=epsilon,
            k=k,
            names=names,
            levels=ss.PublicLevels.load(levels) if levels is not None else level,
            adjacency=identities.choose_adjacency(),
            norm=norm,
            public_scores=public_scores,
            require_recall=worth.require_recall,
            rng=charge.seed,
            ledger=charge.open_account(),
            progress=progress,
        )
    facts: dict[str, Any] = {
        "false_names": release.false_names,
        "worth": release.worth(k, public_scores=public_scores).sentence,
    }
    if print_best:
        facts["best"] = [release.search(number, k).indices.tolist() for number in range(len(release.queries))]
    write_release(charge.annotate(release), output, options.as_json, facts, has_page=options.html)


@app.command("histogram", epilog="scoreshield release histogram docs.npy --query q.npy --epsilon 1 --output h.npz")
@expand_groups
def release_histogram_command(
    *,
    embeddings: Embeddings,
    epsilon: Epsilon,
    output: Output,
    query: Annotated[
        Path | None, typer.Option("--query", "--queries", help="The public query; without one, all pairs are counted.")
    ] = None,
    bins: Annotated[int, typer.Option(help="How many equal bins over the score range.")] = 64,
    delta: Annotated[float, typer.Option(help="For Gaussian noise; the geometric one takes none.")] = 0.0,
    mechanism: Annotated[HistogramMechanism, typer.Option(help="The noise on counts.")] = "geometric",
    target_fmr: Annotated[float | None, typer.Option(help="Also print the threshold with this share above.")] = None,
    array: Array = None,
    query_array: QueryArray = None,
    identities: IdentityOptions,
    score_range: ScoreRange = (-1.0, 1.0),
    charge: ChargeOptions,
    cluster: ClusterOptions,
    options: OutputOptions,
) -> None:
    """Release how many scores lie in each bin, and the operating point they give."""
    cluster.check(embeddings, identities)
    if target_fmr is not None and not 0 < target_fmr < 1:
        raise ss.InvalidInput(f"--target-fmr must lie strictly between 0 and 1. Got {target_fmr:g}.")
    if cluster.engine is not None:
        from scoreshield import distributed

        if query is None:
            raise ss.InvalidInput("--engine counts the scores of one query: give --query.")
        cluster.release(
            distributed.release_histogram,
            embeddings,
            read_query(query, query_array),
            output=output,
            array=array,
            charge=charge,
            options=options,
            describe=lambda release: _describe_histogram(release.to_histogram(), target_fmr),
            bins=bins,
            epsilon=epsilon,
            delta=delta,
            mechanism=mechanism,
            score_range=score_range,
        )
        return
    check_output(
        output, options.force, embeddings, query, identities.labels, ledger=charge.ledger, has_page=options.html
    )
    release = ss.release_histogram(
        _files.read_array(embeddings, name=array, mapped=True),
        None if query is None else read_query(query, query_array),
        bins=bins,
        epsilon=epsilon,
        delta=delta,
        mechanism=mechanism,
        adjacency=identities.choose_adjacency(),
        score_range=score_range,
        rng=charge.seed,
        ledger=charge.open_account(),
    )
    facts = _describe_histogram(release, target_fmr)
    write_release(charge.annotate(release), output, options.as_json, facts, has_page=options.html)


@app.command("index", epilog="scoreshield release index docs.npy --epsilon 50 --output index.npz")
@expand_groups
def release_index_command(
    *,
    embeddings: Embeddings,
    epsilon: Epsilon,
    output: Output,
    delta: Annotated[
        float, typer.Option(help="For Gaussian noise, a private PCA or a private center; PrivUnit takes none.")
    ] = 0.0,
    mechanism: Annotated[IndexMechanism, typer.Option(help="How each vector is made private.")] = "privunit",
    use: Annotated[IndexUse, typer.Option(help="Queries or pairs; it sets the number of components.")] = "search",
    components: Annotated[int | None, typer.Option(help="Reduce to this number of dimensions first.")] = None,
    reduction: Annotated[Reduction, typer.Option(help="random is free; pca costs a share of the budget.")] = "random",
    pca_share: Annotated[float, typer.Option(help="With --reduction pca: its share.")] = 0.1,
    center: Annotated[
        str, typer.Option(help="What is subtracted from unit records: none, private, or the file of a public vector.")
    ] = "none",
    center_array: Annotated[str | None, typer.Option(help="Which array of the file of --center to read.")] = None,
    center_share: Annotated[float | None, typer.Option(help="With --center private: its share of the budget.")] = None,
    codebook: Annotated[
        Path | None, typer.Option(help="Public vectors of the same model, never the records: release sets of them.")
    ] = None,
    codebook_source: Annotated[
        str | None, typer.Option(help="With --codebook: one sentence for the certificate, where they come from.")
    ] = None,
    codebook_array: Annotated[str | None, typer.Option(help="Which array of the file of --codebook to read.")] = None,
    code_size: CodeSize = None,
    changes: Annotated[
        Changes,
        typer.Option(help="public: ids and times of changes are public, and `release update` draws changes only."),
    ] = "private",
    ids: Annotated[Path | None, typer.Option(help="With --changes public: the ids, a text of lines or .npy.")] = None,
    array: Array = None,
    identities: IdentityOptions,
    worth: WorthOptions,
    charge: ChargeOptions,
    cluster: ClusterOptions,
    options: OutputOptions,
) -> None:
    """Release vectors that answer every later query."""
    center_file = None if center in CENTERS else Path(center)
    cluster.check(
        embeddings,
        identities,
        center_share=center_share is not None,
        codebook=codebook is not None,
        codebook_source=codebook_source is not None,
        codebook_array=codebook_array is not None,
        code_size=code_size is not None,
        pca_share=pca_share != 0.1,
        changes=changes != "private",
        ids=ids is not None,
        require_recall=worth.require_recall is not None,
        public_scores=worth.public_scores is not None,
    )
    if cluster.engine is not None:
        from scoreshield import distributed

        cluster.release(
            distributed.release_index,
            embeddings,
            output=output,
            array=array,
            charge=charge,
            options=options,
            describe=lambda release: {"score_std": release.guarantee.details["score_std"]},
            epsilon=epsilon,
            delta=delta,
            mechanism=mechanism,
            use=use,
            components=components,
            reduction=reduction,
            center=center if center_file is None else _files.read_array(center_file, name=center_array),
        )
        return
    check_output(
        output,
        options.force,
        embeddings,
        identities.labels,
        codebook,
        center_file,
        ids,
        ledger=charge.ledger,
        has_page=options.html,
    )
    if codebook is not None and is_same_file(codebook, embeddings):
        raise ss.InvalidInput("--codebook is the file of the records: its vectors are published with the index.")
    if codebook is None and (codebook_source is not None or code_size is not None):
        raise ss.InvalidInput("Give --codebook with --codebook-source and --code-size, or leave them out.")
    given: dict[str, Any] = {}
    if codebook is not None:
        given["codebook"] = read_codebook(codebook, codebook_source, code_size, codebook_array)
    given |= {"changes": changes, "ids": None if ids is None else read_ids(ids)}
    public_scores = worth.read_scores()
    with progress_bar(options.as_json) as progress:
        release = ss.release_index(
            _files.read_array(embeddings, name=array, mapped=True),
            epsilon=epsilon,
            delta=delta,
            mechanism=mechanism,
            use=use,
            components=components,
            reduction=reduction,
            pca_share=pca_share,
            center=center if center_file is None else _files.read_array(center_file, name=center_array),
            center_share=center_share,
            **given,
            public_scores=public_scores,
            require_recall=worth.require_recall,
            adjacency=identities.choose_adjacency(),
            rng=charge.seed,
            ledger=charge.open_account(),
            progress=progress,
        )
    details = release.guarantee.details
    facts: dict[str, Any] = {name: details[name] for name in ("score_std", "code_size") if name in details}
    if use == "search":
        facts["worth"] = release.worth(public_scores=public_scores).sentence
    write_release(charge.annotate(release), output, options.as_json, facts, has_page=options.html)


@app.command("update", epilog="scoreshield release update index.npz --removed gone.txt --output next.npz")
@expand_groups
def release_update_command(
    *,
    index: Annotated[
        Path, typer.Argument(help="The newest version of an index with --changes public.", metavar="INDEX")
    ],
    output: Output,
    added: Annotated[Path | None, typer.Option(help="New records, one per row.")] = None,
    added_ids: Annotated[Path | None, typer.Option(help="Their ids: a text of lines or .npy.")] = None,
    changed: Annotated[Path | None, typer.Option(help="Changed records, one per row.")] = None,
    changed_ids: Annotated[Path | None, typer.Option(help="Their ids: a text of lines or .npy.")] = None,
    removed: Annotated[Path | None, typer.Option(help="Ids that leave the index: a text of lines or .npy.")] = None,
    charge: ChargeOptions,
    options: OutputOptions,
) -> None:
    """Release the next version of an index: draw new and changed rows, and keep all others."""
    check_output(
        output,
        options.force,
        index,
        added,
        added_ids,
        changed,
        changed_ids,
        removed,
        ledger=charge.ledger,
        has_page=options.html,
    )
    if (added is None) != (added_ids is None) or (changed is None) != (changed_ids is None):
        raise ss.InvalidInput("Give --added with --added-ids and --changed with --changed-ids.")
    before = ss.load(index)
    if not isinstance(before, ss.IndexVersion | ss.CodebookVersion):
        raise ss.InvalidInput(f"{index} holds no index with --changes public.")
    with progress_bar(options.as_json) as progress:
        release = before.update(
            added=None if added is None or added_ids is None else (read_ids(added_ids), _files.read_array(added)),
            changed=None
            if changed is None or changed_ids is None
            else (read_ids(changed_ids), _files.read_array(changed)),
            removed=() if removed is None else read_ids(removed),
            rng=charge.seed,
            ledger=charge.open_account(),
            progress=progress,
        )
    facts = {"version": release.version, "largest_draws": release.largest_draws}
    write_release(charge.annotate(release), output, options.as_json, facts, has_page=options.html)


def _list_best(release: Any, ranking: RankingOptions) -> dict[str, Any]:
    """Rank the best records of a release in parts for the printed facts; empty without --top-k."""
    return {} if ranking.top_k is None else {"top_k": release.top_k(ranking.top_k).indices.tolist()}


def _list_answers(release: Any, k: int) -> dict[str, Any]:
    """List the best records of each query of a batch in parts."""
    found = release.search(list(range(len(release.queries))), k)
    return {"best": [[int(row) for row in rows if row >= 0] for rows in found.indices]}


def _describe_histogram(release: ss.HistogramRelease, target: float | None) -> dict[str, float]:
    """State the error of rates, and the threshold with a given share above."""
    facts = {"rate_error_95_percent": release.error(0.95)}
    return facts if target is None else facts | {"threshold": release.threshold(target)}
