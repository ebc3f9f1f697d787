"""The similarity scores of one public query, or several, with every record of a collection (regime i).

This module reads from top to bottom as one release does: validate, sensitivity, calibrate, compute, charge, noise. A
new noise law for scores goes to ``privacy/noise/`` and to ``PrivacyRequest.calibrate`` in ``releases/pipeline.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from scoreshield import _validation
from scoreshield._formatting import choose_words
from scoreshield._frames import clear_frames_on_error
from scoreshield._types import AccountLike, Calibration, Norm, Rng
from scoreshield._validation import (
    Check,
    check_count,
    check_progress,
    check_real,
    constrain,
    one_of,
    optional,
    validate,
)
from scoreshield.decisions.queries import QueryScores
from scoreshield.decisions.ranking import choose_for_ranking
from scoreshield.decisions.worth import WORTH_CHECKS
from scoreshield.errors import InvalidInput
from scoreshield.geometry import embeddings as _embeddings
from scoreshield.geometry.arrays import Progress
from scoreshield.geometry.passes import MeasuredRows
from scoreshield.geometry.windows import convert_when_read, score_windows
from scoreshield.privacy import calibration as gaussian
from scoreshield.privacy.adjacency import (
    FULL_RANGE,
    Adjacency,
    Identity,
    ReleaseShape,
    Replacement,
    Sensitivity,
    spectral_norm,
)
from scoreshield.privacy.guarantee import Guarantee, ReleaseFacts
from scoreshield.privacy.levels.tables import LevelChannel, optimal_channel, randomised_response
from scoreshield.privacy.noise import CustomNoise, StaircaseNoise, add_noise
from scoreshield.privacy.noise.custom import count_moved_steps
from scoreshield.privacy.sampling.stream import Stream, identify_process, name_sampler
from scoreshield.privacy.tails import AnchoredWindows
from scoreshield.releases.advice import Adviser, check_guarantee_worth, make_public_rows
from scoreshield.releases.pipeline import (
    PRIVACY_CHECKS,
    AdditiveMechanism,
    PendingRelease,
    PrivacyRequest,
    PrivateCollection,
    draw_tie_break,
)
from scoreshield.releases.results import ScoreRelease

ScoreMechanism = Literal["gaussian", "laplace", "staircase", "optimal", "anchored", "auto"]
SCORE_MECHANISMS: tuple[str, ...] = get_args(ScoreMechanism)
#: What a caller does with released scores.
ScoreUse = Literal["values", "ranking", "threshold"]
SCORE_USES: tuple[str, ...] = get_args(ScoreUse)
Float = NDArray[np.float64]


def _check_mechanism(value: Any, name: str) -> Any:
    """Check for the name of a mechanism, a level table, anchored windows or a custom law."""
    # A subclass could draw something else than what is certified.
    if not (value is None or isinstance(value, str) or type(value) in (LevelChannel, AnchoredWindows, CustomNoise)):
        _validation.reject(name, "a name, a LevelChannel, an AnchoredWindows or a CustomNoise", value)
    return _validation.check_option(value, name, SCORE_MECHANISMS) if isinstance(value, str) else value


SCORE_CHECKS: dict[str, Check] = {
    **PRIVACY_CHECKS,
    "mechanism": _check_mechanism,
    "norm": one_of(_embeddings.NORMS),
    "for_": one_of(SCORE_USES),
    "threshold": optional(check_real),
    "k": WORTH_CHECKS["k"],
    "public_scores": WORTH_CHECKS["public_scores"],
}


@clear_frames_on_error
@validate(
    **SCORE_CHECKS | {"k": optional(check_count), "require_recall": WORTH_CHECKS["require_recall"]},
    progress=check_progress,
)
def release_scores(
    embeddings: ArrayLike,
    query: ArrayLike,
    *,
    epsilon: float,
    delta: float = 0.0,
    mechanism: ScoreMechanism | LevelChannel | AnchoredWindows | CustomNoise | None = None,
    for_: ScoreUse = "values",
    k: int | None = None,
    threshold: float | None = None,
    public_scores: QueryScores | None = None,
    require_recall: float | None = None,
    calibration: Calibration = "analytic",
    adjacency: Adjacency = Replacement(),  # noqa: B008 (frozen, without state)
    score_range: tuple[float, float] = FULL_RANGE,
    norm: Norm = "unit",
    rng: Rng = None,
    ledger: AccountLike | None = None,
    unsafe_reproduce_paper: bool = False,
    progress: Progress | None = None,
) -> ScoreRelease:
    """Release the cosine similarities of a public query, or of a batch, with every record (regime i).

    Args:
        embeddings: The collection, (n, d), float32 or float64, of any strides. It is never modified.
        query: One public query (d,) or a batch (m, d). A batch is one release, calibrated to 2 |Q|_2 (spectral norm);
            docs/noise.md says when a batch is the wrong tool.
        epsilon: The epsilon of the release. There is no default.
        delta: The delta of the release. Gaussian noise needs delta > 0; pure mechanisms take none.
        mechanism: ``"gaussian"``; ``"laplace"`` or ``"staircase"`` for one query, where one record moves one score:
            pure epsilon, without delta, and far less noise at the same epsilon (docs/mechanisms.md compares them);
            ``"optimal"``, the best table of 41 levels for squared error and a uniform prior, or any table of
            `optimal_channel` or `randomised_response`; ``"anchored"``, windows around a private quantile, which keep
            the ten best records of one query, or an `AnchoredWindows` for another number of them; a `CustomNoise`,
            any law as a table (docs/custom-noise.md); ``"auto"`` chooses by ``for_``. Without a mechanism it is
            ``"auto"`` if ``for_`` is given, and ``"gaussian"`` otherwise.
        for_: What the scores are for, which decides what ``"auto"`` chooses. ``"values"``: Gaussian (if delta allows
            it) or staircase noise, whichever has the smaller standard deviation. ``"ranking"``: what is predicted to
            keep the most of the ``k`` best records (`decisions.choose_for_ranking`): noise, windows or a level table.
            ``"threshold"``: one bit per record by randomised response, which says whether its score is above
            ``threshold``; no pure mechanism has a smaller worst error of this decision.
        k: How many best records will be asked for. One that is given says that the scores are ranked, whatever they are
            for. For ``"ranking"`` and ``require_recall`` it is 10 otherwise.
        threshold: The public threshold, where scores are for one.
        public_scores: Public scores of the same model, for ``"ranking"`` and predictions; None takes those that ship.
        require_recall: Raise an error, before anything is charged, unless the predicted recall at ``k`` is at least
            this (`decisions.predict_worth`).
        calibration: ``"analytic"`` (the least noise), ``"conservative"`` or ``"classical"`` (textbook rules, which
            raise an error where they are not private).
        adjacency: Who is protected: ``Replacement()`` or ``Identity(labels)``. With
            ``Identity(labels, centroids=True)`` one score per identity is released, in sorted order of the labels.
        score_range: A public range that clean scores are clamped to before the noise. A narrower one takes less noise.
        norm: ``"unit"`` normalises rows, and takes a zero row as the first basis vector. ``"ball"`` only shortens rows
            longer than one.
        rng: None for the secure sampler. A seed or a numpy Generator is research mode, which repeats and is not
            private.
        ledger: ``ledger.account(name)`` of a `Ledger`, charged before any random bit is drawn. The
            name is that of the collection. A row that is not finite is found before the charge and costs nothing.
        unsafe_reproduce_paper: Use a textbook rule where it is not private. The guarantee then states the true pair.
        progress: Called with (rows done, rows in all), before anything is charged, after each part of a large
            collection. An error that it raises ends the release, which then costs nothing.

    Returns:
        A ScoreRelease with ``.scores`` (feasible), ``.noisy`` (for ranking), ``.guarantee`` and ``.top_k(k,
        threshold=None)``.

    Warns:
        UselessRelease: The scores are ranked (by ``for_``, anchored windows or a ``k``), and the ranking is predicted
            to be mostly noise. It is given before anything is charged, and not in research mode.

    Raises:
        InvalidInput: An argument is not valid.
        InvalidCalibration: A textbook rule is not private here.
        BudgetExceeded: The ledger does not cover the release.
    """
    is_anchored = isinstance(mechanism, AnchoredWindows) or mechanism == "anchored"
    is_ranked = k is not None or for_ == "ranking" or is_anchored
    k = 10 if k is None else k
    prepare = partial(
        prepare_scores,
        query=query,
        delta=delta,
        mechanism=mechanism,
        for_=for_,
        k=k,
        threshold=threshold,
        public_scores=public_scores,
        calibration=calibration,
        adjacency=adjacency,
        score_range=score_range,
        norm=norm,
        unsafe_reproduce_paper=unsafe_reproduce_paper,
    )
    pending = prepare(embeddings, epsilon=epsilon, rng=rng, progress=progress)
    if require_recall is not None or (is_ranked and rng is None):
        rows = make_public_rows(*_embeddings.find_shape(embeddings))
        check_score_worth(
            pending.guarantee,
            rows.shape[1],
            k,
            public_scores,
            require_recall,
            lambda other: prepare(rows, epsilon=other, rng=0).guarantee,
            is_automatic=for_ == "ranking",
            is_ranked=is_ranked,
        )
    return pending.release(ledger)


def check_score_worth(
    guarantee: Guarantee,
    dimension: int,
    k: int,
    public_scores: QueryScores | None,
    require_recall: float | None,
    repeat: Callable[[float], Guarantee],
    *,
    is_automatic: bool,
    is_ranked: bool,
) -> None:
    """Predict the worth of scores before their charge, and warn where a ranking by them would be noise.

    ``repeat`` states the guarantee of the same release at another epsilon.
    """

    adviser = Adviser(
        "scores",
        guarantee.epsilon,
        dimension,
        public_scores,
        require_recall,
        is_automatic=is_automatic,
        is_grouped=isinstance(guarantee.adjacency, Identity) and guarantee.adjacency.largest > 1,
        queries=guarantee.shape[0] if len(guarantee.shape) > 1 else 1,
        score_range=guarantee.score_range,
    )
    is_charged = is_ranked and guarantee.sampler != "research"
    check_guarantee_worth(adviser, k, repeat, guarantee=guarantee, is_charged=is_charged)


@constrain(**SCORE_CHECKS)
def prepare_scores(
    embeddings: ArrayLike,
    query: ArrayLike,
    *,
    epsilon: float,
    delta: float = 0.0,
    mechanism: ScoreMechanism | LevelChannel | AnchoredWindows | CustomNoise | None = None,
    for_: ScoreUse = "values",
    k: int = 10,
    threshold: float | None = None,
    public_scores: QueryScores | None = None,
    calibration: Calibration = "analytic",
    adjacency: Adjacency = Replacement(),  # noqa: B008
    score_range: tuple[float, float] = FULL_RANGE,
    norm: Norm = "unit",
    rng: Rng = None,
    unsafe_reproduce_paper: bool = False,
    progress: Progress | None = None,
    measured: MeasuredRows | None = None,
    may_anchor: bool = True,
) -> PendingScores:
    """Prepare a score release before its charge, with the arguments of `release_scores`.

    Args:
        measured: These embeddings, where one collection answers many single queries. They share passes over its rows.
        may_anchor: Whether ``for_="ranking"`` may choose windows around a private quantile of all scores.
    """
    problem = _ScoreProblem.check(embeddings, query, adjacency, score_range, norm, rng, progress)
    if measured is not None:
        problem = replace(problem, measured=measured)
    if mechanism is None:
        mechanism = "gaussian" if for_ == "values" else "auto"
    _check_use(mechanism, for_, threshold)
    if threshold is not None and not score_range[0] < threshold < score_range[1]:
        must = f"strictly between {score_range[0]:g} and {score_range[1]:g}, the ends of the score range"
        _validation.reject("threshold", must, threshold)
    if mechanism == "auto":
        mechanism, delta = _choose_mechanism(problem, epsilon, delta, for_, k, threshold, public_scores, may_anchor)
        is_chosen = True
    else:
        is_chosen = False
    if isinstance(mechanism, LevelChannel) or mechanism == "optimal":
        return _prepare_levels(problem, epsilon, delta, mechanism, calibration)
    if isinstance(mechanism, AnchoredWindows) or mechanism == "anchored":
        if delta != 0:
            _validation.reject("delta", "0 (left out) for anchored windows, which are private without it", delta)
        if calibration != "analytic" or unsafe_reproduce_paper:
            raise InvalidInput("Calibration rules are for Gaussian noise: leave them out for anchored windows.")
        windows = AnchoredWindows() if mechanism == "anchored" else mechanism
        return _prepare_anchored(problem, epsilon, windows, is_chosen=is_chosen)
    if isinstance(mechanism, CustomNoise):
        if calibration != "analytic" or unsafe_reproduce_paper:
            raise InvalidInput("Calibration rules are for Gaussian noise: leave them out for a custom law.")
        return _prepare_custom(problem, epsilon, delta, mechanism)
    assert mechanism != "auto"  # it was replaced
    if mechanism == "gaussian" and delta == 0 and problem.moves_one_score():
        must = "above 0 for Gaussian noise (1e-6, say); for a search, for_='ranking' keeps more and needs none"
        _validation.reject("delta", must, delta)
    request = PrivacyRequest(epsilon, delta, mechanism, calibration, score_range, unsafe_reproduce_paper)
    return _prepare_additive(problem, request)


@dataclass(frozen=True)
class _ScoreProblem:
    """The checked arguments that every mechanism for scores shares. Nothing here reads a row before ``compute``."""

    source: PrivateCollection
    queries: Float
    shape: tuple[int, ...]
    score_range: tuple[float, float]
    norm: Norm
    rng: Rng
    sampler: str
    progress: Progress | None
    measured: MeasuredRows | None = None

    @classmethod
    def check(
        cls,
        embeddings: ArrayLike,
        query: ArrayLike,
        adjacency: Adjacency,
        score_range: tuple[float, float],
        norm: Norm,
        rng: Rng,
        progress: Progress | None = None,
    ) -> _ScoreProblem:
        source = PrivateCollection.check(convert_when_read(embeddings), adjacency)
        queries, single = _embeddings.as_queries(query, source.dimension)
        shape = (source.size,) if single else (len(queries), source.size)
        return cls(source, queries, shape, score_range, norm, rng, name_sampler(rng), progress)

    @property
    def width(self) -> float:
        return self.score_range[1] - self.score_range[0]

    def bound_sensitivity(self) -> Sensitivity:
        """Bound how far one neighbour can move the scores, from public facts."""
        size, count = self.source.size, len(self.queries)
        shape = ReleaseShape("scores", size, self.width, count, spectral_norm(self.queries), self.source.rounding)
        return self.source.adjacency.bound_sensitivity(shape)

    def moves_one_score(self) -> bool:
        """Return whether one neighbour can move one score only."""
        shape = ReleaseShape("scores", self.source.size, queries=len(self.queries))
        return self.source.adjacency.bound_sensitivity(shape).moved == 1

    def state_facts(self) -> ReleaseFacts:
        """State the public facts of the release."""
        return ReleaseFacts(self.source.adjacency, "scores", self.shape, self.score_range, self.sampler)

    def compute(self) -> Float:
        """Compute the clean scores of all queries, one after the other, clamped to the public range.

        The rows are read once, in windows, so that a file may be larger than memory.
        """
        rows = self.source.rows()
        if self.measured is not None and self.norm == "unit" and len(self.queries) == 1 and rows is self.source.records:
            scores = self.measured.score(self.queries[0])
            return np.clip(scores, *self.score_range, out=scores)
        values = np.empty((len(self.queries), len(rows)))
        for places, scores in score_windows(rows, self.queries, self.norm):
            np.clip(scores, *self.score_range, out=values[:, places])
            if self.progress is not None:
                self.progress(places.stop, len(rows))
        return values.reshape(-1)

    def make_release(self, noisy: Float, guarantee: Guarantee, stream: Stream) -> ScoreRelease:
        """Make the release of noisy scores."""
        return ScoreRelease(noisy=noisy.reshape(self.shape), guarantee=guarantee, tie_break=draw_tie_break(stream))


@dataclass(frozen=True, repr=False)
class PendingScores(PendingRelease[Float, ScoreRelease]):
    """A release of scores whose guarantee is known, and which can be prepared again for another query.

    Attributes:
        problem: The checked arguments.
    """

    problem: _ScoreProblem = field(kw_only=True)

    def with_query(self, query: ArrayLike) -> PendingScores:
        """Prepare the same release for another single query, without choosing and calibrating its noise again.

        The sensitivity of Gaussian noise depends on the last digits of the query's length, so it is prepared anew.
        """
        assert self.guarantee.mechanism != "gaussian"
        queries, is_single = _embeddings.as_queries(query, self.problem.source.dimension)
        assert is_single
        assert self.problem.shape == (self.problem.source.size,)
        problem = replace(self.problem, queries=queries)
        return replace(self, problem=problem, compute=problem.compute, process=identify_process())


def _prepare_additive(
    problem: _ScoreProblem, request: PrivacyRequest, details: dict[str, Any] | None = None
) -> PendingScores:
    """Prepare scores with Gaussian, Laplace or staircase noise."""
    noise = request.calibrate(problem.bound_sensitivity())
    guarantee = request.state_guarantee(noise, problem.state_facts())
    if details:
        guarantee = replace(guarantee, details=details)

    def draw(values: Float, stream: Stream) -> ScoreRelease:
        add_noise(values, noise.law, noise.step, stream)
        return problem.make_release(values, guarantee, stream)

    return PendingScores(guarantee, problem.source.adjacency, problem.rng, problem.compute, draw, problem=problem)


def _prepare_levels(
    problem: _ScoreProblem,
    epsilon: float,
    delta: float,
    mechanism: Literal["optimal"] | LevelChannel,
    calibration: Calibration,
) -> PendingScores:
    """Prepare scores that are drawn from a level table: one record moves one score, and the other draws cancel."""
    if calibration != "analytic":
        raise InvalidInput("Calibration rules are for Gaussian noise: leave them out for a level table.")
    if not problem.moves_one_score():
        raise InvalidInput(
            "A level table is private only if one record moves one score: give one query, and no identities without "
            "centroids."
        )
    if isinstance(mechanism, LevelChannel):
        name, table = "levels", replace(mechanism)  # checked again, without anything that the caller's object caches
    else:
        name, table = "optimal", optimal_channel(epsilon, delta, score_range=problem.score_range)
    if table.epsilon > epsilon or table.delta > delta:
        raise InvalidInput(
            f"The table is private at ({table.epsilon:g}, {table.delta:g}), which the given ({epsilon:g}, {delta:g}) "
            "does not cover: make a table for it."
        )
    guarantee = Guarantee.for_level_table(problem.state_facts(), table, mechanism=name)

    def draw(values: Float, stream: Stream) -> ScoreRelease:
        values[...] = table.release(stream, values)
        return problem.make_release(values, guarantee, stream)

    return PendingScores(guarantee, problem.source.adjacency, problem.rng, problem.compute, draw, problem=problem)


def _prepare_anchored(
    problem: _ScoreProblem, epsilon: float, windows: AnchoredWindows, *, is_chosen: bool
) -> PendingScores:
    """Prepare windows around a private quantile; staircase noise if the collection is too small for them.

    Where ``"auto"`` chose them, it compared them with the other mechanisms, and the caller gets no warning about the
    dimension.
    """
    if not problem.moves_one_score():
        raise InvalidInput(
            "Anchored windows are private only if one record moves one score: give one query, and no identities "
            "without centroids."
        )
    choice = windows.choose(epsilon, problem.source.size, problem.score_range)
    if choice.law is None:
        request = PrivacyRequest(epsilon, 0.0, "staircase", "analytic", problem.score_range)
        return _prepare_additive(problem, request, details=choice.to_details())
    if not is_chosen:
        windows.warn_about_dimension(problem.source.dimension)
    law = choice.law
    guarantee = Guarantee.for_mechanism(
        problem.state_facts(),
        epsilon=epsilon,
        delta=0.0,
        mechanism="anchored",
        sensitivity=problem.width,
        grid_sensitivity=problem.width,
        scale=law.window_width,
        grid=law.step,
        profile=law.profile,
        details=law.to_details() | choice.to_details(),
    )

    def draw(values: Float, stream: Stream) -> ScoreRelease:
        return problem.make_release(law.release(stream, values), guarantee, stream)

    return PendingScores(guarantee, problem.source.adjacency, problem.rng, problem.compute, draw, problem=problem)


def _prepare_custom(problem: _ScoreProblem, epsilon: float, delta: float, law: CustomNoise) -> PendingScores:
    """Prepare scores with noise of a custom law: one record moves one score, and the other draws cancel."""
    if not problem.moves_one_score():
        raise InvalidInput(
            "Noise of a custom law is checked for one record that moves one score: give one query, and no identities "
            "without centroids."
        )
    if delta == 0:
        _validation.reject("delta", "above 0 for a custom law, since its table has ends (1e-9, say)", delta)
    law = law.rebuild()
    if count_moved_steps(problem.score_range, law.step) > law.width:
        raise InvalidInput(
            f"The custom law was checked for a sensitivity of {law.sensitivity:g}, and this score range needs more: "
            "make it with the same 'score_range'."
        )
    profile = law.state_profile(epsilon)
    if (true := profile.delta_at(epsilon)) > delta:
        raise InvalidInput(
            f"The custom law has delta {true:.6g} at epsilon {epsilon:g}, which the given delta {delta:g} does not "
            "cover: give more noise, or a larger epsilon or delta."
        )
    noise = law.drop_claim()
    guarantee = Guarantee.for_mechanism(
        problem.state_facts(),
        epsilon=epsilon,
        delta=delta,
        mechanism=law.name,
        sensitivity=problem.width,
        grid_sensitivity=law.sensitivity,
        scale=noise.std,
        grid=law.step,
        profile=profile,
        noise=noise,
        details={"law": law.label, "profile_from": "table" if law.claimed_profile is None else "claim"},
    )

    def draw(values: Float, stream: Stream) -> ScoreRelease:
        add_noise(values, noise, noise.step, stream)
        return problem.make_release(values, guarantee, stream)

    return PendingScores(guarantee, problem.source.adjacency, problem.rng, problem.compute, draw, problem=problem)


def _check_use(mechanism: Any, for_: ScoreUse, threshold: float | None) -> None:
    """Raise an error where the use of the scores and the mechanism do not fit together."""
    if for_ != "values" and mechanism != "auto":
        raise InvalidInput(f"for_={for_!r} chooses the mechanism: leave 'mechanism' out, or 'for_'.")
    if (for_ == "threshold") != (threshold is not None):
        raise InvalidInput("for_='threshold' and threshold=..., the public score that decides, belong together.")


def _choose_mechanism(
    problem: _ScoreProblem,
    epsilon: float,
    delta: float,
    for_: ScoreUse,
    k: int,
    threshold: float | None,
    public_scores: QueryScores | None,
    may_anchor: bool,
) -> tuple[Any, float]:
    """Choose a mechanism, and the delta that it spends, by what the scores are for. It reads public facts only."""
    if for_ != "values" and not problem.moves_one_score():
        what = "several queries" if len(problem.queries) > 1 else "identities without centroids"
        if for_ == "threshold":
            raise InvalidInput(
                f"for_='threshold' releases one bit for each record, which is not private for {what}: give one query, "
                "and no identities without centroids."
            )
        if delta == 0:
            batch = choose_words("release_batch", "`scoreshield release batch`")
            other = f"; {batch} answers several queries for one epsilon" if len(problem.queries) > 1 else ""
            delta_name = choose_words("'delta'", "--delta")
            raise InvalidInput(f"A ranking for {what} takes Gaussian noise: give a {delta_name} above 0{other}.")
    if for_ == "values" or not problem.moves_one_score():
        return _choose_noise(problem, epsilon, delta)
    if for_ == "threshold":
        assert threshold is not None  # `_check_use` requires one
        return randomised_response(epsilon, [threshold], score_range=problem.score_range), 0.0
    choice = choose_for_ranking(
        epsilon,
        delta,
        records=problem.source.size,
        k=k,
        score_range=problem.score_range,
        public_scores=public_scores,
        dimension=problem.source.dimension,
        may_anchor=may_anchor,
    )
    return choice.mechanism, choice.delta


def _choose_noise(problem: _ScoreProblem, epsilon: float, delta: float) -> tuple[AdditiveMechanism, float]:
    """Choose Gaussian or staircase noise by standard deviation, from public facts. Staircase noise spends no delta."""
    if delta == 0:
        return "staircase", 0.0
    staircase = StaircaseNoise.calibrate(epsilon, problem.width).std
    if problem.moves_one_score() and staircase < gaussian.calibrate(epsilon, delta, problem.width):
        return "staircase", 0.0
    return "gaussian", delta
