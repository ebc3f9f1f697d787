"""The law by which a release changes each score, read from its guarantee.

A guarantee holds public facts only. So everything that is computed from its law is public too: what a release is worth,
and how its scores are shown.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtr, polygamma

from scoreshield.decisions.scores import AdditiveLaw, Channel, Law, pass_probability
from scoreshield.privacy.adjacency import FULL_RANGE
from scoreshield.privacy.anchors import AnchoredLaw
from scoreshield.privacy.guarantee import Guarantee
from scoreshield.privacy.levels.tables import randomised_response
from scoreshield.privacy.noise import GaussianNoise, StaircaseNoise

Float = NDArray[np.float64]

#: How many levels a law has that is no table by itself.
_LEVELS = 128


@dataclass(frozen=True)
class GumbelLaw:
    """The law of one-shot selection: the k best scores with Gumbel noise are k rounds of the exponential mechanism."""

    scale: float

    @property
    def std(self) -> float:
        """The standard deviation."""
        return self.scale * math.pi / math.sqrt(6)

    def cdf(self, x: ArrayLike) -> Any:
        """Compute P[W <= x]."""
        with np.errstate(over="ignore"):
            return np.exp(-np.exp(-np.asarray(x, dtype=np.float64) / self.scale))

    def sf(self, x: ArrayLike) -> Any:
        """Compute P[W > x]."""
        with np.errstate(over="ignore"):
            return -np.expm1(-np.exp(-np.asarray(x, dtype=np.float64) / self.scale))


@dataclass(frozen=True, eq=False)
class TableLaw:
    """A channel from levels of the clean score to released levels, for predictions. It promises no privacy.

    Attributes:
        cuts: The increasing cuts between the levels of the clean score. A score that equals a cut is below it.
        outputs: The increasing released values.
        probabilities: One row per level of the clean score, one column per output.
    """

    cuts: Float
    outputs: Float
    probabilities: Float

    def level_of(self, score: ArrayLike) -> NDArray[np.intp]:
        """Find the level of each clean score."""
        return np.searchsorted(self.cuts, np.asarray(score, dtype=np.float64), side="left")

    def exceed(self, threshold: ArrayLike, score: ArrayLike, inclusive: bool = False) -> Any:
        """Compute P[released > threshold | clean score], or >= if ``inclusive``."""
        tails = np.cumsum(self.probabilities[:, ::-1], axis=1)[:, ::-1]
        tails = np.concatenate([tails, np.zeros((len(tails), 1))], axis=1)
        first = np.searchsorted(self.outputs, np.asarray(threshold), side="left" if inclusive else "right")
        return tails[self.level_of(score), first]

    @cached_property
    def std(self) -> float:
        """The root mean squared distance of the released value from the level, at the level where it is largest."""
        edges = np.concatenate([self.cuts[:1], self.cuts, self.cuts[-1:]])
        middles = (edges[:-1] + edges[1:]) / 2
        errors = (self.probabilities * (self.outputs - middles[:, None]) ** 2).sum(axis=1)
        return float(np.sqrt(errors.max()))


def find_score_law(guarantee: Guarantee) -> Law | AnchoredLaw | None:
    """Find the law by which a release changes each score, from its guarantee.

    Of an index whose reduction or center is not known to predictions, it is a cautious one (`has_unknown_law`).

    Returns:
        None where scores are not released one by one: a batch, a codebook, a histogram, a Gram matrix.
    """
    details = guarantee.details
    match guarantee.regime:
        case "scores" | "row" if guarantee.mechanism == "anchored":
            return AnchoredLaw.from_details(details, guarantee.score_range)
        case "scores" | "row":
            return guarantee.noise
        case "index" if "score_std" in details:
            return make_index_law(details["score_std"], guarantee.shape[1], details["reduction"])
        case "matches":
            low, high = guarantee.score_range
            name, refining = guarantee.mechanism, details["refining_epsilon"]
            return _make_screening_law(name, details["threshold"], details["screening_epsilon"], refining, low, high)
        case "top-k":
            return GumbelLaw(guarantee.scale)
        case "hits":
            true, false = details["true_name_probability"], details["false_name_probability"]
            return _make_hit_law(true, false, tuple(details["cuts"]))
        case _:
            return None


def has_unknown_law(guarantee: Guarantee) -> bool:
    """Return whether public facts do not say how far released scores lie from the clean ones.

    A private PCA, a public basis and a center change the records before noise. What they change depends on the records.
    """
    return _releases_vectors(guarantee) and (has_unknown_basis(guarantee) or "center" in guarantee.details)


def has_unknown_basis(guarantee: Guarantee) -> bool:
    """Return whether an index keeps a part of the dimensions, and what this part holds is not public."""
    return _releases_vectors(guarantee) and guarantee.details["reduction"] not in ("none", "random")


def _releases_vectors(guarantee: Guarantee) -> bool:
    return guarantee.regime == "index" and "score_std" in guarantee.details


def make_index_law(std: float, components: int, reduction: str = "none") -> GaussianNoise:
    """Make the law of an index: the noise of its vectors along a query is normal up to a term of order 1 / components.

    A random subspace of r dimensions changes a cosine near 0 by about 1 / sqrt(r). What another basis keeps is unknown,
    and it is taken to keep no more.
    """
    return GaussianNoise(math.hypot(std, 0.0 if reduction == "none" else components**-0.5))


def find_ranking_law(guarantee: Guarantee, dimension: int | None = None) -> Law | AnchoredLaw | None:
    """Find the law of released scores for a prediction of recall.

    It is that of `find_score_law`, except for an index: the noise of PrivUnit is not the same on all scores, nor is
    what a subspace changes. A basis whose quality is unknown is taken as a random one.

    Args:
        guarantee: Of the release.
        dimension: Of the embeddings; None where it is unknown, and counts as large.
    """
    if not _releases_vectors(guarantee):
        return find_score_law(guarantee)
    law, components = find_law_within_basis(guarantee), guarantee.shape[1]
    if guarantee.details["reduction"] == "none" or components == dimension:
        return law
    return _make_reduced_law(law, components, dimension)


def find_law_within_basis(guarantee: Guarantee) -> TableLaw | GaussianNoise:
    """Find the law of an index on the cosines of its reduced records, which lose nothing more."""
    details = guarantee.details
    if guarantee.mechanism != "privunit":
        return GaussianNoise(details["score_std"])
    return make_privunit_law(details["score_std"], details["shrinkage"], guarantee.shape[1], details["cap_probability"])


@lru_cache(maxsize=64)
def _make_reduced_law(law: TableLaw | GaussianNoise, components: int, dimension: int | None) -> TableLaw:
    """Make the law of scores in a random subspace of r of d dimensions, with noise on the reduced cosines.

    The cosine c of two projected vectors is the correlation of r draws. Fisher's ``artanh c`` is about normal. For a
    clean cosine s, its mean is ``artanh s + s / (2 (r - 1))``, and its variance ``psi'((r - 1) / 2) / 2``, which is
    exact for s = 0. A subspace of all dimensions changes nothing: the factor ``1 - r / d`` on both.
    """
    table = law if isinstance(law, TableLaw) else _make_table(law, FULL_RANGE)
    lost = 1.0 if dimension is None else 1 - components / dimension
    std = math.sqrt(float(polygamma(1, (components - 1) / 2)) / 2 * lost)
    edges = np.linspace(-1, 1, 2 * _LEVELS + 1)
    middles = (edges[:-1] + edges[1:]) / 2
    means = np.arctanh(middles) + middles * lost / (2 * (components - 1))
    tails = ndtr((means[:, None] - np.arctanh(table.cuts)) / std)
    full = np.concatenate([np.ones((len(tails), 1)), tails, np.zeros((len(tails), 1))], axis=1)
    return TableLaw(edges[1:-1], table.outputs, -np.diff(full, axis=1) @ table.probabilities)


@lru_cache(maxsize=64)
def make_privunit_law(std: float, shrinkage: float, components: int, cap: float) -> TableLaw:
    """Make the law of scores by PrivUnit, as a table.

    A released vector has length 1 / m, where m is the shrinkage. With the probability p of the cap it points towards
    the record, with a mean of 1 / p along it and little variance there. Otherwise it is nearly a random vector. What is
    left of the squared length is spread evenly over the other r - 1 directions. Along the record, the second moment is
    `1 / m^2 - (r - 1) std^2` in all.
    """
    length = shrinkage**-2
    near = max((length - (components - 1) * std**2 - (1 - cap) * length / components) / cap, cap**-2)
    within, across = near - cap**-2, max(length - near, 0.0) / (components - 1)
    edges = np.linspace(-1, 1, 2 * _LEVELS + 1)
    middles = ((edges[:-1] + edges[1:]) / 2)[:, None]
    spread = np.sqrt((1 - middles**2) * across + middles**2 * within)
    cuts = np.linspace(-1 - 5 * std, 1 / cap + 5 * std, 4 * _LEVELS)
    tails = cap * ndtr((middles / cap - cuts) / np.maximum(spread, 1e-9))
    tails = tails + (1 - cap) * ndtr(-cuts / math.sqrt(length / components))
    return make_binned_table(edges[1:-1], cuts, tails)


def make_binned_table(levels: Float, cuts: Float, tails: Float) -> TableLaw:
    """Make a table of released values in bins, from the probabilities of values above each cut between bins."""
    full = np.concatenate([np.ones((len(tails), 1)), tails, np.zeros((len(tails), 1))], axis=1)
    width = cuts[1] - cuts[0]
    outputs = np.concatenate([[cuts[0] - width / 2], (cuts[:-1] + cuts[1:]) / 2, [cuts[-1] + width / 2]])
    return TableLaw(levels, outputs, -np.diff(full, axis=1))


def find_noise_std(guarantee: Guarantee) -> float | None:
    """Find the standard deviation of a released score from the clean one, clamped to `find_noise_range`.

    Returns:
        None where no score is released, or only where it lies: names, hits, levels, and windows, which end below the
        best scores. None too where public facts do not determine it (`has_unknown_law`).
    """
    if guarantee.regime == "matches":
        return None if guarantee.mechanism == "randomised-response" else _refining_noise(guarantee).std
    if guarantee.regime in ("hits", "top-k") or has_unknown_law(guarantee):
        return None
    law = find_score_law(guarantee)
    return float(law.std) if isinstance(law, AdditiveLaw) and not isinstance(law, Channel) else None


def find_noise_range(guarantee: Guarantee) -> tuple[float, float]:
    """Find the range that scores are clamped to before noise. That of a screening begins at its threshold."""
    low, high = guarantee.score_range
    return (guarantee.details["threshold"] if guarantee.regime == "matches" else low), high


def _refining_noise(guarantee: Guarantee) -> StaircaseNoise:
    low, high = find_noise_range(guarantee)
    return StaircaseNoise.calibrate(guarantee.details["refining_epsilon"], high - low)


@lru_cache(maxsize=64)
def _make_screening_law(
    mechanism: str, threshold: float, epsilon: float, refining_epsilon: float, low: float, high: float
) -> Law:
    """Make the law of a screening: a bit, and for a record that passes also a noisy score."""
    if mechanism == "randomised-response":
        # A threshold at the lower end of the range leaves one level to the scores that equal it.
        cut = max(threshold, low + (high - low) * 2.0**-20)
        return randomised_response(epsilon, [cut], score_range=(low, high))
    passed = _make_table(StaircaseNoise.calibrate(refining_epsilon, high - threshold), (threshold, high))
    kept = 1 / (1 + math.exp(-epsilon))
    rows = np.vstack([(1 - kept) * passed.probabilities[:1], kept * passed.probabilities])
    rows = np.hstack([1 - rows.sum(axis=1, keepdims=True), rows])
    outputs = np.append(passed.outputs[0] - 1, passed.outputs)
    return TableLaw(np.append(threshold, passed.cuts), outputs, rows)


def _make_table(law: AdditiveLaw, within: tuple[float, float]) -> TableLaw:
    """Make a table of additive noise on a range, with released values in bins."""
    low, high = within
    edges = np.linspace(low, high, _LEVELS + 1)
    middles = (edges[:-1] + edges[1:]) / 2
    reach = min(6 * law.std, 40 * (high - low))
    cuts = np.linspace(low - reach, high + reach, 2 * _LEVELS)
    return make_binned_table(edges[1:-1], cuts, pass_probability(law, cuts[None, :], middles[:, None]))


@lru_cache(maxsize=64)
def _make_hit_law(true: float, false: float, levels: tuple[float, ...]) -> TableLaw:
    """Make the law of the first query to a hit budget, before any hit is used.

    A query goes down the levels. In the round of its own level a record is named with the larger probability, and in
    each other round with the smaller one. Its first name counts.
    """
    cuts = np.array(levels)
    count = len(cuts) + 1
    rows = np.zeros((count, count))
    for level in range(count):
        left = 1.0
        for output in range(count - 1, 0, -1):
            named = true if output == level else false
            rows[level, output] = left * named
            left *= 1 - named
        rows[level, 0] = left
    edges = np.concatenate([[-1.0], cuts, [1.0]])
    return TableLaw(cuts, (edges[:-1] + edges[1:]) / 2, rows)
