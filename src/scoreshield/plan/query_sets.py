"""The mechanisms that answer many queries for one epsilon, with their predicted recall.

An index answers any query: its noise on a score is known, and the recall follows as for noise on scores. A batch and a
hit budget depend on which records answer several queries, so they are simulated on the public matrix of scores
(`scoreshield.decisions.simulation`), as `.worth` of a search is. A codebook is tried on public queries.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtr

from scoreshield.decisions.queries import Prediction
from scoreshield.decisions.simulation import simulate_hits
from scoreshield.plan.candidates import Candidate, make_candidate, make_unit_profiles, write_gaussian_budget
from scoreshield.plan.contracts import round_budget_down
from scoreshield.plan.search_candidates import RecallNeed
from scoreshield.privacy.adjacency import Replacement
from scoreshield.privacy.hit_budget import HitBudget
from scoreshield.privacy.noise import GaussianNoise
from scoreshield.privacy.privunit import LARGEST_EPSILON, SMALLEST_EPSILON, PrivUnit
from scoreshield.privacy.profiles import GaussianProfile, PureProfile
from scoreshield.releases.batch import BatchAlphabet, PublicLevels, simulate_public_batch
from scoreshield.releases.codebook import PublicCodebook
from scoreshield.search.hits import HIT_CUTS, count_enough_names

Float = NDArray[np.float64]

#: How many heights of a released direction are followed, in the cap and outside.
_HEIGHTS = 6


def predict_query_sets(
    need: RecallNeed,
    pairs: NDArray[np.int64] | None,
    dimension: int | None,
    codebook: PublicCodebook | None,
    public_queries: ArrayLike | None,
) -> Iterator[Candidate]:
    """Predict the mechanisms that spend one epsilon on all queries together.

    Args:
        need: The need.
        pairs: The relevant pairs of the public matrix, where it is known.
        dimension: The dimension of the vectors, for an index.
        codebook: Public vectors of the same domain, if there are any.
        public_queries: Public queries to try the codebook on.
    """
    if dimension is not None:
        yield from _predict_indexes(need, dimension, codebook)
    yield _predict_batch(need)
    if pairs is not None:
        yield _predict_hits(need)
    if codebook is not None and public_queries is not None:
        yield _predict_codebook(need, codebook, public_queries)


@dataclass(frozen=True)
class IndexScores:
    """Scores of an index by PrivUnit: a released direction of height c has normal scores around `s c / m`.

    The height c is in the cap with probability p, and in the rest of the sphere otherwise.

    Attributes:
        unit: The mechanism of one vector.
        dimension: The dimension of the vectors. Where the mechanism has fewer components, a random subspace adds about
            `(1 - s^2)^2 / r` to the variance.
        stretch: What the spread is multiplied with, where a center is subtracted.
    """

    unit: PrivUnit
    dimension: int
    stretch: float = 1.0

    @property
    def std(self) -> float:
        """The standard deviation of the score 0, the largest one."""
        lost = 1 / self.unit.dimension if self.unit.dimension < self.dimension else 0.0
        return self.stretch * math.hypot(self.unit.std, math.sqrt(lost))

    @cached_property
    def _heights(self) -> tuple[Float, Float]:
        """Quantiles of the height, and their weights: half of them in the cap."""
        heights = np.linspace(-1, 1, 8193)[1:-1]
        logs = (self.unit.dimension - 3) / 2 * np.log1p(-(heights**2))
        points = []
        for inside in (heights >= self.unit.gamma, heights < self.unit.gamma):
            sums = np.cumsum(np.exp(logs[inside] - logs[inside].max()))
            points.append(np.interp((np.arange(_HEIGHTS) + 0.5) / _HEIGHTS, sums / sums[-1], heights[inside]))
        shares = np.repeat([self.unit.p, 1 - self.unit.p], _HEIGHTS) / _HEIGHTS
        return np.concatenate(points), shares

    def exceed(self, threshold: ArrayLike, score: ArrayLike, inclusive: bool = False) -> Any:
        """Compute P[released > threshold | clean score]."""
        del inclusive
        r, mean = self.unit.dimension, self.unit.mean
        s, t = np.asarray(score, dtype=np.float64), np.asarray(threshold, dtype=np.float64)
        lost = (1 - s**2) ** 2 / r if r < self.dimension else 0.0
        total: Any = 0.0
        for height, share in zip(*self._heights, strict=True):
            spread = np.sqrt((1 - s**2) * (1 - height**2) / ((r - 1) * mean**2) + lost + 1e-12)
            # A center stretches the differences of scores instead; the noise shrinks by as much.
            total = total + share * ndtr((s - t + self.stretch * s * (height / mean - 1)) / (self.stretch * spread))
        return total


def _predict_indexes(need: RecallNeed, dimension: int, codebook: PublicCodebook | None) -> Iterator[Candidate]:
    """An index by PrivUnit with the best number of components, and one by Gaussian noise.

    If all records share a mean of squared length c, subtracting it stretches the differences of scores by
    1 / sqrt(1 - c).
    """
    contract, note = need.contract, "the same for any number of queries, known in advance or not"
    sizes = [*(r for r in (8, 16, 32, 64, 128, 256, 512) if r < dimension), dimension]
    # Under an attack bound the epsilon depends on the number of components.
    spends = {r: contract.find_call_epsilon(make_unit_profiles(r)) for r in sizes}
    spends = {r: spend for r, spend in spends.items() if SMALLEST_EPSILON <= spend <= LARGEST_EPSILON}
    if spends:
        best = min(spends, key=lambda r: IndexScores(PrivUnit.calibrate(r, spends[r]), dimension).std)
        spend, kept = spends[best], "" if best == dimension else f", components={best}"
        yield make_candidate(
            "privunit index",
            f"release_index(rows, epsilon={spend:.6g}{kept})",
            need.predict(IndexScores(PrivUnit.calibrate(best, spend), dimension)),
            PrivUnit.calibrate(best, spend).profile,
            contract,
            note=note,
            shifted=(0.0, 0.0),
        )
        whole = round_budget_down(contract.epsilon) if contract.calibration != "attack" else 0.0
        delta = round_budget_down(contract.delta)
        if codebook is not None and contract.delta > 0 and whole > 10:
            center = codebook.vectors.mean(axis=0, dtype=np.float64)
            stretch = math.sqrt(max(1 - float(center @ center), 0.05))
            yield make_candidate(
                "privunit index with a private center",
                f'release_index(rows, epsilon={whole:.6g}, delta={delta:.6g}, center="private")',
                need.predict(
                    IndexScores(PrivUnit.calibrate(dimension, whole - min(0.5, whole / 10)), dimension, stretch)
                ),
                PureProfile(whole),
                contract,
                note=f"{note}; the center's length is that of the codebook's",
                shifted=(0.0, 0.0),
            )
    budget = write_gaussian_budget(contract)
    if budget is not None:
        profile = GaussianProfile(contract.mu)
        yield make_candidate(
            "gaussian index",
            f'release_index(rows, {budget}, mechanism="gaussian")',
            need.predict(GaussianNoise(2 / contract.mu)),
            profile,
            contract,
            note=note,
            shifted=(0.0, 0.0),
        )


def _predict_batch(need: RecallNeed) -> Candidate:
    """A batch: simulated on the public matrix, and scaled to other numbers of queries and records by its worth."""
    epsilon = need.contract.find_call_epsilon()
    levels = None if need.scores is None or need.scores.shape[1] < 50 else PublicLevels.fit(need.scores)
    alphabet = BatchAlphabet.choose(
        epsilon=epsilon, records=need.records, queries=need.queries, k=need.k, levels=levels
    )
    clean = need.predict(0)
    if need.known.joint is None:
        note = "estimated from the clean recall and the size of the batch; queries that want the same records find less"
        worth = alphabet.estimate_worth(need.k)
        prediction = Prediction(clean.value * worth, math.hypot(clean.error, 0.15 * clean.value))
    else:
        details = alphabet.state_guarantee(Replacement(), epsilon, "research").details
        simulated, factor = simulate_public_batch(details, need.known, records=need.records, k=need.k)
        note = "simulated on the public scores"
        prediction = simulated.predict(clean.value, asked=need.asked, factor=factor)
    chosen = "" if levels is None else ", levels=PublicLevels.fit(public_scores)"
    return make_candidate(
        "batch",
        f"release_batch(rows, queries, epsilon={epsilon:.6g}, k={need.k}{chosen})",
        prediction,
        alphabet.response.profile,
        need.contract,
        note=f"for {need.queries:,} queries that are known now; {note}",
    )


def _predict_hits(need: RecallNeed) -> Candidate:
    """A hit budget: simulated on public queries in a row."""
    epsilon = need.contract.find_call_epsilon()
    budget = HitBudget.choose(epsilon, need.records)
    simulated = simulate_hits(
        need.known,
        budget,
        HIT_CUTS,
        records=need.records,
        k=need.k,
        enough=count_enough_names(budget, need.k),
        queries=need.queries,
    )
    return make_candidate(
        "hit budget",
        f'PrivateSearch(store, epsilon={epsilon:.6g}, mode="hits")',
        simulated.predict(need.predict(0).value, asked=need.asked),
        PureProfile(epsilon),
        need.contract,
        note=f"simulated on {simulated.queries:,} public queries in a row",
    )


def _predict_codebook(need: RecallNeed, codebook: PublicCodebook, public_queries: ArrayLike) -> Candidate:
    """A codebook index: the share of clean answers that it keeps, tried on public queries."""
    epsilon = need.contract.find_call_epsilon()
    trial, clean = codebook.try_on(public_queries, epsilon=epsilon, k=need.k), need.predict(0)
    value = trial.recall * clean.value
    error = math.hypot(1.645 * trial.error * clean.value, clean.error * trial.recall)
    return make_candidate(
        "codebook index",
        f"release_index(rows, epsilon={epsilon:.6g}, codebook=codebook)",
        Prediction(value, error),
        PureProfile(epsilon),
        need.contract,
        note=f"keeps {trial.recall:.2f} of the clean answers to the public queries",
    )
