"""Membership inference from scores: test whether a record is in the collection, and compare with the upper bound.

The attacker queries the private index about a record z, with its own embedding or with a probe such as another picture
of the same person. The attacker computes a statistic of the answer, and says "member" if it is large. These are
published attacks, reduced to what scores alone allow (docs/membership.md names each source and what is left out):

* ``best``, ``gap``, ``total``: the largest score, its difference to the next one, and the sum of all;
* ``calibrated``: the largest score less the largest with public records, so that a common topic is no evidence (offline
  calibration, Watson et al. 2022; Carlini et al. 2022);
* ``position``, ``rank``: the score at the position where z would be, and how few scores lie above that;
* ``likelihood at position``, ``likelihood``: the likelihood-ratio test (Neyman & Pearson) with public reference scores
  for the two populations and the public noise law, for a known position, or averaged over unknown positions. It exists
  only for scores with additive noise. For screening and for a PrivUnit index with an unknown position, only the simpler
  statistics are available.

The ceiling is the guarantee's own trade-off curve f. In `make_game` the in and out worlds of each target are mixtures
of neighbouring collections, and f is concave. So the pooled curve of any statistic lies below it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, cast, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from scoreshield import _validation
from scoreshield._validation import check_count, validate
from scoreshield.attack.distinguishing import CeilingSource, MembershipResult, check_finite_array, evaluate_statistic
from scoreshield.errors import InvalidInput, ScoreShieldError
from scoreshield.geometry import embeddings as _embeddings
from scoreshield.privacy.composition import compose
from scoreshield.privacy.profiles import Profile
from scoreshield.releases.results import MatchRelease, ScoreRelease, TopKRelease

Float = NDArray[np.float64]
Whole = NDArray[np.intp]
#: A function from one public query to the answer of the service: a release, or an array of n scores.
Answer = Callable[[Float], Any]

MembershipStatistic = Literal[
    "best", "gap", "total", "calibrated", "position", "rank", "likelihood at position", "likelihood"
]
STATISTICS: tuple[MembershipStatistic, ...] = get_args(MembershipStatistic)

_NEEDS_POSITION = ("position", "rank", "likelihood at position")
_NEEDS_OTHERS = ("calibrated", "likelihood at position", "likelihood")
_RATIOS = ("likelihood at position", "likelihood")
_NODES = 32  # quantiles that represent a population of reference scores
_CELLS, _REACH = 1 << 15, 40.0  # of a tabled density, in standard deviations
_LEAST = 1e-300  # a density below this counts as zero


@dataclass(frozen=True, eq=False)
class Targets:
    """Records that an attacker queries about.

    Attributes:
        queries: (m, d) The queries, one row per target.
        positions: (m,) The position of each target in the collection; None if it is unknown to the attacker.
        own: (k,) Public scores of such queries with their own record; [1] if the query is the record itself.
        others: (m, r) Public scores of each query with other records of the same kind.
    """

    queries: Float
    positions: Whole | None = None
    own: Float | None = None
    others: Float | None = None

    @validate()
    def __post_init__(self) -> None:
        rows = check_finite_array(self.queries, "queries", "a matrix of finite numbers, one row a target", 2)
        object.__setattr__(self, "queries", rows)
        if self.positions is not None:
            must = f"{len(rows)} whole numbers from 0 on, one a query"
            places = _validation.check_array(self.positions, "positions", must)
            if places.shape != (len(rows),) or places.dtype.kind not in "iu" or (places < 0).any():
                _validation.reject("positions", must, self.positions)
            object.__setattr__(self, "positions", places.astype(np.intp))
        for name, dimensions, length in (("own", 1, None), ("others", 2, len(rows))):
            if getattr(self, name) is not None:
                shape = "a vector of public scores" if length is None else f"a matrix of public scores, {length} rows"
                object.__setattr__(self, name, check_finite_array(getattr(self, name), name, shape, dimensions, length))

    def __len__(self) -> int:
        return len(self.queries)


def _check_reference(value: Any, name: str) -> float:
    share = _validation.check_real(value, name, "a share in (0, 0.4]")
    if not 0 < share <= 0.4:
        _validation.reject(name, "a share in (0, 0.4]", value)
    return share


def _check_function(value: Any, name: str) -> Answer:
    if not callable(value):
        _validation.reject(name, "a function from a query to a release or an array of scores", value)
    return cast("Answer", value)


class Game(NamedTuple):
    """A private collection and two kinds of targets: members and non-members."""

    collection: NDArray[Any]
    members: Targets
    non_members: Targets


class Observation(NamedTuple):
    """One value per target for each statistic, and the guarantee that covers all answers about one target, if any."""

    values: dict[str, Float]
    profile: Profile | None


@validate(reference=_check_reference)
def make_game(
    records: ArrayLike, *, rng: int | np.random.Generator, probes: ArrayLike | None = None, reference: float = 0.1
) -> Game:
    """Enrol a random half of public or synthetic records; the others are the non-members.

    Non-members get a random position each, so that both worlds are neighbours of each other.

    Args:
        records: (n, d) Public or synthetic records, n >= 8.
        rng: A seed or a numpy Generator.
        probes: (n, d) The query about each record, such as another picture; None uses the record itself.
        reference: The share of the records, in (0, 0.4], that are neither, but known to the attacker. They give `own`
            and `others`.
    """
    rows = _embeddings.normalise_public_rows(_embeddings.as_rows(records, "records"), "records")
    asked = rows
    if probes is not None:
        asked = _embeddings.normalise_public_rows(_embeddings.as_rows(probes, "probes"), "probes")
        if asked.shape != rows.shape:
            _validation.reject("probes", f"an array of shape {rows.shape}, as the records are", asked)
    if len(rows) < 8:
        _validation.reject("records", "at least 8 records", rows)
    generator = _make_generator(rng)
    order = generator.permutation(len(rows))
    half, public = len(rows) // 2, math.ceil(reference * len(rows))
    enrolled, known, rest = order[:half], order[half : half + public], order[half + public :]
    own = np.ones(1) if probes is None else np.vecdot(rows[known], asked[known])

    def make_targets(chosen: Whole, positions: Whole) -> Targets:
        return Targets(asked[chosen], positions, own, asked[chosen] @ rows[known].T)

    claimed = generator.integers(half, size=len(rest))
    return Game(rows[enrolled], make_targets(enrolled, np.arange(half)), make_targets(rest, claimed))


def score_attack(
    release: Answer,
    members: Targets | ArrayLike,
    non_members: Targets | ArrayLike,
    *,
    statistics: MembershipStatistic | Iterable[MembershipStatistic] = "best",
    rounds: int = 1,
    ceiling: CeilingSource | None = None,
    confidence: float = 0.95,
) -> dict[str, MembershipResult]:
    """Query about every target, and evaluate each statistic on the same answers.

    Args:
        release: A function from one query (d,) to a score, match or top-k release, or to an array of n scores
            (``index.scores``).
        members: The targets in the collection, or their queries alone.
        non_members: The targets outside of the collection, or their queries alone.
        statistics: One or several of `STATISTICS`.
        rounds: The number of queries per target; scores are averaged, likelihoods multiplied.
        ceiling: A guarantee, release or profile that covers all answers about one target *together* (for an index: its
            guarantee). None composes the answers' own guarantees, `rounds` times. Plain arrays then have the ceiling 1.
        confidence: The confidence of each interval.

    Returns:
        One result per statistic, by name.
    """
    first = observe(release, members, statistics=statistics, rounds=rounds)
    second = observe(release, non_members, statistics=statistics, rounds=rounds)
    if first.profile != second.profile:
        raise InvalidInput("The answers about members and non-members must have the same guarantee.")
    promise = first.profile if ceiling is None else ceiling
    return {
        name: evaluate_statistic(values, second.values[name], ceiling=promise, confidence=confidence, statistic=name)
        for name, values in first.values.items()
    }


@validate(release=_check_function, rounds=check_count)
def observe(
    release: Answer,
    targets: Targets | ArrayLike,
    *,
    statistics: MembershipStatistic | Iterable[MembershipStatistic] = "best",
    rounds: int = 1,
) -> Observation:
    """Compute the statistics of targets of one kind; the arguments are those of `score_attack`."""
    if not isinstance(targets, Targets):
        targets = Targets(targets)  # type: ignore[arg-type]
    names = [statistics] if isinstance(statistics, str) else list(statistics)
    if not names:
        raise InvalidInput(f"Give at least one statistic of {', '.join(STATISTICS)}; got none.")
    for name in names:
        _require_parts(_validation.check_option(name, "statistics", STATISTICS), targets)
    values: dict[str, Float] = {name: np.empty(len(targets)) for name in names}
    reader = _Reader(targets, rounds)
    for place, query in enumerate(targets.queries):
        reader.read([_call(release, query) for _ in range(rounds)], place)
        for name in names:
            values[name][place] = reader.compute(name)
    guarantee = reader.guarantee
    return Observation(values, None if guarantee is None else compose([guarantee] * rounds))


class _Reader:
    """The statistics that an attacker computes from the answers about one target."""

    def __init__(self, targets: Targets, rounds: int) -> None:
        self.targets, self.rounds = targets, rounds
        self.guarantee: Any = None
        self._density: _Density | None = None
        self._nodes: tuple[Float, Float] | None = None

    def read(self, answers: list[Any], place: int) -> None:
        promises = [getattr(answer, "guarantee", None) for answer in answers]
        if place == 0:
            self.guarantee = promises[0]
        if any(_find_profile(promise) != _find_profile(self.guarantee) for promise in promises):
            raise InvalidInput("All answers of an attack must have the same guarantee.")
        self.place = place
        vectors = [_read_scores(answer) for answer in answers]
        if len({len(scores) for scores in vectors}) > 1:
            raise InvalidInput("Answers to the same query must have the same number of scores.")
        self.answers: Float = np.stack(vectors)
        self.scores: Float = self.answers.mean(axis=0)
        positions = self.targets.positions
        self.position = 0 if positions is None else int(positions[place])
        if self.position >= len(self.scores):
            raise InvalidInput(
                f"Target {place} has position {self.position}, but the answer has {len(self.scores)} scores."
            )

    def compute(self, name: MembershipStatistic) -> float:
        scores, position = self.scores, self.position
        match name:
            case "best":
                return float(scores.max())
            case "gap":
                two = np.partition(scores, -2)[-2:] if len(scores) > 1 else np.repeat(scores, 2)
                return float(two[1] - two[0])
            case "total":
                return float(scores.sum())
            case "calibrated":
                assert self.targets.others is not None
                return float(scores.max() - self.targets.others[self.place].max())
            case "position":
                return float(scores[position])
            case "rank":
                return -float((scores > scores[position]).sum())
            case "likelihood at position":
                return float(self._compute_ratios(self.answers[:, [position]])[0])
        ratios = self._compute_ratios(self.answers)
        return float(np.logaddexp.reduce(ratios) - math.log(len(ratios)))

    def _compute_ratios(self, answers: Float) -> Float:
        """Compute, per column of (rounds, n) scores, the log likelihood of "it is the target" over "it is another"."""
        if self._density is None or self._nodes is None:
            self._density, self._nodes = self._prepare()
        own, others = self._nodes
        chances = [
            np.logaddexp.reduce(self._density.log(answers[..., None] - nodes).sum(axis=0), axis=1)
            - math.log(len(nodes))
            for nodes in (own, others[self.place])
        ]
        ratio: Float = chances[0] - chances[1]
        return ratio

    def _prepare(self) -> tuple[_Density, tuple[Float, Float]]:
        law = getattr(self.guarantee, "noise", None)
        if not hasattr(law, "cdf") or hasattr(law, "exceed"):
            raise InvalidInput("A likelihood needs releases of scores with additive noise, whose law is public.")
        assert self.targets.own is not None
        assert self.targets.others is not None
        levels = (np.arange(_NODES) + 0.5) / _NODES
        own = self.targets.own if len(self.targets.own) <= _NODES else np.quantile(self.targets.own, levels)
        others = self.targets.others
        if others.shape[1] > _NODES:
            others = np.quantile(others, levels, axis=1).T
        reach = self.guarantee.score_range  # clean scores were clamped to it before the noise
        return _Density(law), (np.clip(own, *reach), np.clip(others, *reach))


class _Density:
    """The log density of symmetric noise, as a table of the probabilities of small cells."""

    def __init__(self, law: Any) -> None:
        self._step = _REACH * float(law.std) / _CELLS
        tail = np.asarray(law.cdf(-self._step * np.arange(_CELLS + 1)))  # P[noise > x]: no digits are lost far out
        self._table = np.log(np.maximum((tail[:-1] - tail[1:]) / self._step, _LEAST))

    def log(self, noise: Float) -> Float:
        cells = np.minimum(np.abs(noise) / self._step, _CELLS - 1).astype(np.intp)
        densities: Float = self._table[cells]
        return densities


def _call(release: Answer, query: Float) -> Any:
    try:
        return release(query)
    except ScoreShieldError:
        raise
    except Exception as error:  # the caller's function may fail in any way
        raise InvalidInput(f"The release function failed on a query: {type(error).__name__}: {error}") from error


def _find_profile(guarantee: Any) -> Any:
    return getattr(guarantee, "profile", None)


def _read_scores(answer: Any) -> Float:
    """Convert an answer to one number per record, larger for nearer."""
    if isinstance(answer, TopKRelease):
        scores = np.zeros(answer.guarantee.details["records"])
        scores[answer.indices] = np.arange(len(answer.indices), 0, -1)
        return scores
    if isinstance(answer, MatchRelease):
        floor = 0.0 if not len(answer.noisy) else float(answer.noisy.min()) - 1
        scores = np.full(answer.guarantee.shape[0], floor)
        scores[answer.candidates] = answer.noisy if len(answer.noisy) else 1.0
        return scores
    scores = answer.noisy if isinstance(answer, ScoreRelease) else answer
    must = "a release of scores, matches or the k best for one query, or a vector of finite scores (index.scores)"
    return check_finite_array(scores, "release", f"a function whose answer is {must}", 1)


def _require_parts(name: str, targets: Targets) -> None:
    missing = [
        part
        for part, needed, names in (
            ("positions", targets.positions, _NEEDS_POSITION),
            ("others", targets.others, _NEEDS_OTHERS),
            ("own", targets.own, _RATIOS),
        )
        if name in names and needed is None
    ]
    if missing:
        raise InvalidInput(f"The statistic {name!r} needs targets with {' and '.join(missing)}; these have none.")


def _make_generator(rng: Any) -> np.random.Generator:
    if isinstance(rng, np.random.Generator):
        return rng
    return np.random.default_rng(_validation.check_count(rng, "rng", least=0))
