"""The risk of a release by simulation, with a confidence interval, compared with every bound. For public data only."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import stdtrit

from scoreshield import _validation
from scoreshield._validation import check_inside_unit, one_of, validate, whole_from
from scoreshield.geometry import denoise as denoisers
from scoreshield.geometry.elliptope import project_elliptope
from scoreshield.privacy.adjacency import FULL_RANGE, REGIMES
from scoreshield.risk.closed_forms import (
    FEASIBLE,
    Bounds,
    Float,
    Range,
    Regime,
    bounds,
    check_clean_scores,
    check_rank,
    check_regime_range,
    check_sigma,
    exact_risk,
    write_table,
)

_CHUNK = 1_000_000  # noise values in memory at once


@dataclass(frozen=True)
class Estimate:
    """A simulated risk with its confidence interval (Student's, on the mean of independent trials).

    Attributes:
        mean: The mean over the trials.
        low: The lower end of the interval.
        high: The upper end of the interval.
        standard_error: The standard error of the mean.
        trials: The number of trials.
        confidence: The confidence of the interval.
        unconverged: The number of trials whose projection did not reach its tolerance. It should be 0.
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
    """Bounds compared with the simulated risk of the projection.

    Attributes:
        bounds: The bounds.
        estimate: The simulated risk.
        exact: The exact risk, where it has a closed form (scores and row).
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
        return write_table(head, rows, self.bounds.conditional)


@validate(regime=one_of(REGIMES), sigma=check_sigma, trials=whole_from(2), confidence=check_inside_unit)
def simulate(
    regime: Regime,
    clean: ArrayLike,
    sigma: float,
    *,
    trials: int,
    rng: int | np.random.Generator,
    estimator: denoisers.Denoiser = "projection",
    rank: int | None = None,
    index: int | None = None,
    score_range: Range = FULL_RANGE,
    confidence: float = 0.99,
) -> Estimate:
    """Simulate the risk at ``clean``. For public data only: neither the result nor its noise is private.

    Args:
        regime: "scores", "row" or "gram".
        clean: Scores, shape (n,), or a valid cosine matrix, shape (n, n).
        sigma: The calibrated scale.
        trials: The number of independent draws of the noise, at least 2.
        rng: A seed or a numpy Generator. There is no secure mode, since nothing here may be released.
        estimator: "projection", "none" (the noisy values) or, for gram, another denoiser of ``scoreshield.geometry``:
            "rank", "shrinkage", "identity", "sure".
        rank: For gram: the public rank for these denoisers.
        index: For row: the record whose row it is.
        score_range: For scores and row: the public range.
        confidence: The confidence of the interval.
    """
    truth = _check_truth(regime, clean, index, score_range)
    generator = _make_generator(rng)
    options = denoisers.METHODS if regime == "gram" else ("projection", "none")
    _validation.check_option(estimator, "estimator", options)
    if rank is not None or estimator in ("rank", "shrinkage", "sure"):
        rank = check_rank(rank, truth.regime, truth.n)
    if truth.regime == "gram":
        losses, unconverged = _simulate_gram_losses(truth.free, sigma, estimator, rank or truth.n, trials, generator)
    else:
        losses = _simulate_box_losses(truth.free, sigma, truth.ends, estimator, trials, generator)
        unconverged = 0
    mean, error = float(losses.mean()), float(losses.std(ddof=1)) / math.sqrt(trials)
    reach = float(stdtrit(trials - 1, (1 + confidence) / 2)) * error
    return Estimate(mean, max(0.0, mean - reach), mean + reach, error, trials, confidence, unconverged)


def _simulate_box_losses(
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


def _simulate_gram_losses(
    clean: Float, sigma: float, estimator: denoisers.Denoiser, rank: int, trials: int, generator: np.random.Generator
) -> tuple[Float, int]:
    std = sigma / math.sqrt(2)
    tol = min(1e-7, max(1e-12, 1e-4 * sigma))  # so that the error of the solver stays far below the noise
    is_unconverged = False

    def project(matrix: Float) -> Float:
        nonlocal is_unconverged
        projection = project_elliptope(matrix, tol=tol)
        is_unconverged |= not projection.converged
        return projection.matrix

    above = np.triu_indices(len(clean), 1)
    losses, unconverged = np.empty(trials), 0
    for trial in range(trials):
        noisy = clean.copy()
        noisy[above] += std * generator.standard_normal(len(above[0]))
        noisy.T[above] = noisy[above]
        is_unconverged = False
        estimate = denoisers.denoise(noisy, std, estimator, rank=rank, project=project).matrix
        losses[trial] = np.linalg.norm(estimate - clean) ** 2
        unconverged += is_unconverged
    return losses, unconverged


@validate(regime=one_of(REGIMES), sigma=check_sigma, trials=whole_from(2), confidence=check_inside_unit)
def compare(
    regime: Regime,
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
    """Compare every bound with the simulated risk of the projection at ``clean``. For public data only.

    The number of scores at an end of the range is counted in ``clean``.

    Args:
        regime: "scores", "row" or "gram".
        clean: Scores, shape (n,), or a valid cosine matrix, shape (n, n).
        sigma: The calibrated scale.
        trials: The number of independent draws of the noise, at least 2.
        rng: A seed or a numpy Generator.
        rank: For gram: at least the rank of ``clean``. None leaves the rank bounds out.
        index: For row: the record whose row it is.
        score_range: For scores and row: the public range.
        confidence: The confidence of the interval.
    """
    truth = _check_truth(regime, clean, index, score_range)
    if rank is not None and check_rank(rank, truth.regime, truth.n) < truth.rank:
        _validation.reject("rank", f"at least {truth.rank}, the rank of 'clean'", rank)
    box = truth.regime != "gram"
    active = int(np.isin(truth.free, truth.ends).sum()) if box else 0
    table = bounds(truth.regime, truth.n, sigma, active=active, rank=rank, score_range=truth.ends)
    estimate = simulate(
        regime, clean, sigma, trials=trials, rng=rng, index=index, score_range=truth.ends, confidence=confidence
    )
    exact = exact_risk(truth.free, sigma, truth.ends) if box else None
    return Comparison(table, estimate, exact, {bound.name: _judge_bound(bound.value, estimate) for bound in table})


def _judge_bound(value: float, estimate: Estimate) -> str:
    if value >= estimate.high:
        return "holds"
    return "fails" if value < estimate.low else "not decided"


@dataclass(frozen=True)
class _Truth:
    """A checked clean object: its free scores without the row's own, or the matrix and its numerical rank."""

    regime: Regime
    n: int
    free: Float
    ends: Range
    rank: int = 0


def _check_truth(regime: Regime, clean: ArrayLike, index: int | None, score_range: Range) -> _Truth:
    ends = check_regime_range(score_range, regime)
    if (regime == "row") != (index is not None):
        _validation.reject("index", "the row's own position for row, and None otherwise", index)
    if regime == "gram":
        gram, rank = _check_gram(clean)
        return _Truth(regime, len(gram), gram, ends, rank)
    scores = check_clean_scores(clean, "clean", ends, index)
    return _Truth(regime, len(scores), scores if index is None else np.delete(scores, index), ends)


def _check_gram(value: ArrayLike) -> tuple[Float, int]:
    """Check for a valid cosine matrix; return it exactly symmetric with unit diagonal, and its numerical rank."""
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


def _make_generator(rng: int | np.random.Generator) -> np.random.Generator:
    if isinstance(rng, np.random.Generator):
        return rng
    if isinstance(rng, bool) or not isinstance(rng, int | np.integer) or rng < 0:
        _validation.reject("rng", "a non-negative integer seed or a numpy Generator", rng)
    return np.random.default_rng(int(rng))
