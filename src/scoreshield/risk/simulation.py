"""The risk of a release by simulation, with a confidence interval, beside every bound on it. For public data only."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import cast

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import stdtrit

from scoreshield import _validation
from scoreshield._validation import check_inside_unit, validate, whole_from
from scoreshield.geometry import denoise as denoisers
from scoreshield.geometry.elliptope import project_elliptope
from scoreshield.privacy.adjacency import FULL_RANGE, REGIMES
from scoreshield.risk.closed_forms import (
    FEASIBLE,
    Bounds,
    Float,
    Range,
    as_table,
    bounds,
    check_range,
    check_rank,
    check_scores,
    check_sigma,
    exact_risk,
)

_CHUNK = 1_000_000  # noise values in flight


@dataclass(frozen=True)
class Estimate:
    """A simulated risk with its confidence interval (Student's, on the mean of independent trials).

    Attributes:
        mean: Over the trials.
        standard_error: See `mean`.
        low: The ends of the interval.
        high: See `low`.
        trials: As asked.
        confidence: See `trials`.
        unconverged: Trials whose projection stopped short of its tolerance; 0 in all sound uses.
    """

    mean: float
    low: float
    high: float
    standard_error: float
    trials: int
    confidence: float
    unconverged: int = 0

    def __str__(self) -> str:
        interval = f"{self.low:.4g} to {self.high:.4g}"
        return f"{self.mean:.4g} ({self.confidence:.7g} interval {interval}, {self.trials:,} trials)"


@dataclass(frozen=True)
class Comparison:
    """Bounds beside the simulated risk of the projection.

    Attributes:
        bounds: What is compared.
        estimate: See `bounds`.
        exact: The risk itself, where it has a closed form (scores and row).
        verdicts: For each bound "holds" (at or above the interval), "fails" (below it) or "not decided" (inside it).
    """

    bounds: Bounds
    estimate: Estimate
    exact: float | None
    verdicts: dict[str, str]

    def __str__(self) -> str:
        head = f"{self.bounds.regime}, n = {self.bounds.n:,}, sigma = {self.bounds.sigma:g}: risk {self.estimate}"
        if self.exact is not None:
            head += f", exactly {self.exact:.6g}"
        rows = [
            (b.name, f"{b.value:.4g}", self.verdicts[b.name], "conditional" if b.conditional else "")
            for b in self.bounds.all
        ]
        return as_table(head, rows, self.bounds.conditional)


@validate(trials=whole_from(2), confidence=check_inside_unit)
def simulate(
    regime: str,
    clean: ArrayLike,
    sigma: float,
    *,
    trials: int,
    rng: int | np.random.Generator,
    estimator: str = "projection",
    rank: int | None = None,
    index: int | None = None,
    score_range: Range = FULL_RANGE,
    confidence: float = 0.99,
) -> Estimate:
    """The risk at ``clean``, by simulation. For public data only: the answer is not private, and neither is its noise.

    Args:
        clean: Scores, shape (n,), or a valid cosine matrix, shape (n, n).
        trials: Independent draws of the noise, at least 2.
        rng: A seed or a numpy Generator. There is no secure mode, since nothing here may be released.
        estimator: "projection", "none" (the noisy values) or, for gram, another denoiser of ``scoreshield.geometry``:
            "rank", "shrinkage", "identity", "sure".
        rank: Gram: what those denoisers take as the public rank.
        index: Row: the record whose row it is.
        score_range: Scores and row: the public range.
        confidence: Of the interval.
    """
    truth = _truth(regime, clean, index, score_range)
    sigma = check_sigma(sigma)
    generator = _generator(rng)
    options = denoisers.METHODS if truth.regime == "gram" else ("projection", "none")
    estimator = _validation.check_option(estimator, "estimator", options)
    if rank is not None or estimator in ("rank", "shrinkage", "sure"):
        rank = check_rank(rank, truth.regime, truth.n)
    if truth.regime == "gram":
        losses, unconverged = _gram_losses(truth.free, sigma, estimator, rank or truth.n, trials, generator)
    else:
        losses, unconverged = _box_losses(truth.free, sigma, truth.ends, estimator, trials, generator), 0
    mean, error = float(losses.mean()), float(losses.std(ddof=1)) / math.sqrt(trials)
    reach = float(stdtrit(trials - 1, (1 + confidence) / 2)) * error
    return Estimate(mean, max(0.0, mean - reach), mean + reach, error, trials, confidence, unconverged)


def _box_losses(
    scores: Float, sigma: float, ends: Range, estimator: str, trials: int, generator: np.random.Generator
) -> Float:
    losses = np.empty(trials)
    step = max(1, _CHUNK // len(scores))
    for start in range(0, trials, step):
        chunk = losses[start : start + step]
        noisy = scores + sigma * generator.standard_normal((len(chunk), len(scores)))
        if estimator == "projection":
            np.clip(noisy, *ends, out=noisy)
        noisy -= scores
        np.einsum("ij,ij->i", noisy, noisy, out=chunk)
    return losses


def _gram_losses(
    clean: Float, sigma: float, estimator: str, rank: int, trials: int, generator: np.random.Generator
) -> tuple[Float, int]:
    std = sigma / math.sqrt(2)
    tol = min(1e-7, max(1e-12, 1e-4 * sigma))  # so that the solver's own error stays far below the noise
    stopped_short = False

    def project(matrix: Float) -> Float:
        nonlocal stopped_short
        found = project_elliptope(matrix, tol=tol)
        stopped_short |= not found.converged
        return found.matrix

    above = np.triu_indices(len(clean), 1)
    losses, unconverged = np.empty(trials), 0
    for trial in range(trials):
        noisy = clean.copy()
        noisy[above] += std * generator.standard_normal(len(above[0]))
        noisy.T[above] = noisy[above]
        stopped_short = False
        found = denoisers.denoise(noisy, std, cast("denoisers.Denoiser", estimator), rank=rank, project=project).matrix
        losses[trial] = np.linalg.norm(found - clean) ** 2
        unconverged += stopped_short
    return losses, unconverged


@validate()
def compare(
    regime: str,
    clean: ArrayLike,
    sigma: float,
    *,
    trials: int,
    rng: int | np.random.Generator,
    rank: int | None = None,
    index: int | None = None,
    score_range: Range = FULL_RANGE,
    confidence: float = 0.99,
) -> Comparison:
    """Every bound beside the simulated risk of the projection at ``clean``. For public data only.

    ``rank``, for gram, is at least the rank of ``clean``; None leaves the rank bounds out. How many scores are at an
    end of the range is counted in ``clean``. The rest is as in ``simulate``.
    """
    truth = _truth(regime, clean, index, score_range)
    if rank is not None and check_rank(rank, truth.regime, truth.n) < truth.rank:
        _validation.reject("rank", f"at least {truth.rank}, the rank of 'clean'", rank)
    box = truth.regime != "gram"
    active = int(np.isin(truth.free, truth.ends).sum()) if box else 0
    table = bounds(truth.regime, truth.n, sigma, active=active, rank=rank, score_range=truth.ends)
    estimate = simulate(
        regime, clean, sigma, trials=trials, rng=rng, index=index, score_range=truth.ends, confidence=confidence
    )
    exact = exact_risk(truth.free, sigma, truth.ends) if box else None
    return Comparison(table, estimate, exact, {bound.name: _verdict(bound.value, estimate) for bound in table})


def _verdict(value: float, estimate: Estimate) -> str:
    if value >= estimate.high:
        return "holds"
    return "fails" if value < estimate.low else "not decided"


@dataclass(frozen=True)
class _Truth:
    """A checked clean object: its free scores (the row's own left out), or the matrix and its numerical rank."""

    regime: str
    n: int
    free: Float
    ends: Range
    rank: int = 0


def _truth(regime: str, clean: ArrayLike, index: int | None, score_range: Range) -> _Truth:
    regime = _validation.check_option(regime, "regime", REGIMES)
    ends = check_range(regime, score_range)
    if (regime == "row") != (index is not None):
        _validation.reject("index", "the row's own position for row, and None otherwise", index)
    if regime == "gram":
        gram, rank = _gram(clean)
        return _Truth(regime, len(gram), gram, ends, rank)
    scores = check_scores(clean, "clean", ends, index)
    return _Truth(regime, len(scores), scores if index is None else np.delete(scores, index), ends)


def _gram(value: ArrayLike) -> tuple[Float, int]:
    """A valid cosine matrix, exactly symmetric with exact unit diagonal, and its numerical rank."""
    must = "a valid cosine matrix (symmetric, unit diagonal, positive semidefinite), at least 2 by 2"
    array = _validation.check_array(value, "clean", must)
    if array.ndim != 2 or array.shape[0] != array.shape[1] or len(array) < 2 or array.dtype.kind not in "fiu":
        _validation.reject("clean", must, array)
    gram = np.array(array, dtype=np.float64)
    off = max(float(np.abs(gram - gram.T).max()), float(np.abs(gram.diagonal() - 1).max()))
    if not off <= FEASIBLE:  # NaN included
        _validation.reject("clean", must, array)
    gram = (gram + gram.T) / 2
    np.fill_diagonal(gram, 1.0)
    eigenvalues = np.linalg.eigvalsh(gram)
    if eigenvalues[0] < -FEASIBLE * len(gram):
        _validation.reject("clean", must, array)
    return gram, int((eigenvalues > FEASIBLE * eigenvalues[-1]).sum())


def _generator(rng: int | np.random.Generator) -> np.random.Generator:
    if isinstance(rng, np.random.Generator):
        return rng
    if isinstance(rng, bool) or not isinstance(rng, int | np.integer) or rng < 0:
        _validation.reject("rng", "a non-negative integer seed or a numpy Generator", rng)
    return np.random.default_rng(int(rng))
