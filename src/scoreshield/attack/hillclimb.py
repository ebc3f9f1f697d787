"""Score-guided attacks on a matcher, and the privacy budget at which noise stops them.

A matcher holds a secret unit template t of length d and answers a unit probe p with p . t plus Gaussian noise of
standard deviation sigma. The attacker sees only answers, and searches for a probe whose cosine with t passes a
threshold.

After m answers the expected cosine is at most

    c = √((r/d) / (1 + r (d-1) σ²/m)),  r = min(m, d),
    c = 1/√(1 + d (d-1) σ²/m)  for m ≥ d.

This holds for *every* attack, however adaptive, on a Gaussian template N(0, I/d) (with the inner product for the
cosine). It also holds for whole passes of the linear attack on any unit template, which comes within about 1/d of it.
So probing an orthonormal basis repeatedly and averaging is optimal. Both proofs are in docs/attacks.md.

Gaussian answers compose exactly: m of them are mu-GDP with μ = 2 √m / σ. So for m >= d the bound is
1/√(1 + 4 d (d-1)/μ²). The *total* budget decides, and neither m nor sigma alone.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import nctdtr

from scoreshield import _validation
from scoreshield._validation import check_count, check_inside_unit, check_positive, optional, validate, whole_from
from scoreshield.geometry import embeddings as _embeddings
from scoreshield.privacy import calibration as gaussian

Float = NDArray[np.float64]
#: A cosine lies in [-1, 1]: replacing the template moves one answer by at most this.
SENSITIVITY = 2.0


_VECTOR = "a vector of at least two real numbers"


def _check_sigma(value: Any, name: str) -> float:
    must = "0, or a number between 1e-100 and 1e100"
    number = _validation.check_real(value, name, must)
    if number != 0 and not 1e-100 <= number <= 1e100:
        _validation.reject(name, must, value)
    return number


def _check_cosine(value: Any, name: str) -> float:
    cosine = check_inside_unit(value, name)
    if not 1e-9 <= cosine <= 1 - 1e-9:
        _validation.reject(name, "between 1e-9 and 1 - 1e-9", value)
    return cosine


def _check_matcher(value: Any, name: str) -> Matcher:
    if not isinstance(value, Matcher):
        _validation.reject(name, "a Matcher", value)
    return value


class Matcher:
    """A simulated matcher: one secret template, noisy cosines for probes, and a count of the answers.

    Use it only for experiments on public or synthetic templates. The noise is a float Gaussian from a predictable
    generator, so `rng` is required. This noise gives no privacy; the class measures the effect of such noise.

    Args:
        template: The enrolled vector, normalised; at least two entries.
        sigma: The standard deviation of the noise on each answer; 0 for an unprotected matcher.
        threshold: A probe is accepted if its true cosine is at least this.
        rng: A seed or a numpy Generator.
    """

    @validate(sigma=_check_sigma, threshold=_check_cosine)
    def __init__(self, template: ArrayLike, *, sigma: float, threshold: float, rng: int | np.random.Generator) -> None:
        row = _embeddings.as_rows(np.atleast_2d(_validation.check_array(template, "template", _VECTOR)), "template")
        if len(row) != 1 or row.shape[1] < 2:
            _validation.reject("template", _VECTOR, np.asarray(template))
        self._template: Float = _embeddings.normalise_public_rows(row, "template")[0]
        self.sigma, self.threshold = sigma, threshold
        self.queries = 0
        self._rng = _make_generator(rng, "Matcher")

    @classmethod
    @validate(queries=check_count)
    def calibrate(
        cls,
        template: ArrayLike,
        *,
        epsilon: float,
        delta: float,
        threshold: float,
        rng: int | np.random.Generator,
        queries: int = 1,
    ) -> Matcher:
        """Make a matcher whose noise gives (epsilon, delta) to `queries` answers together: with 1, to each answer."""
        sigma = gaussian.calibrate(epsilon, delta, SENSITIVITY * math.sqrt(queries))
        return cls(template, sigma=sigma, threshold=threshold, rng=rng)

    @property
    def dimension(self) -> int:
        return len(self._template)

    @validate()
    def scores(self, probes: ArrayLike) -> Float:
        """Answer each probe (a row of length d, normalised here) with one noisy score; each row counts as a query."""
        unit = self._unit(probes)
        self.queries += len(unit)
        answers: Float = unit @ self._template
        if self.sigma > 0:
            answers += self.sigma * self._rng.standard_normal(len(unit))
        return answers

    @validate()
    def cosine(self, probe: ArrayLike) -> float:
        """Return the true cosine of one probe, which no attacker knows. It is not counted as a query."""
        return float(self._unit(probe)[0] @ self._template)

    def _unit(self, probes: ArrayLike) -> Float:
        must = f"a vector of {self.dimension} real numbers or a matrix of such rows"
        array = np.atleast_2d(_validation.check_array(probes, "probes", must))
        if array.ndim != 2 or array.shape[1] != self.dimension:
            _validation.reject("probes", must, array)
        return _embeddings.normalise_public_rows(_embeddings.as_rows(array, "probes"), "probes")


@dataclass(frozen=True, eq=False)
class Climb:
    """The outcome of an attack on a matcher.

    Attributes:
        attack: "hill climbing" or "linear".
        probe: The attacker's last and best guess, of unit length.
        cosine: The true cosine of the probe with the template.
        accepted: Whether the cosine passes the matcher's threshold.
        queries: The number of answers that the attack used.
        epsilon: The total epsilon of all answers that the matcher has given so far; infinite without noise.
        delta: The delta of that total.
        history: (queries, true cosine) at doubling numbers of queries, and at the end.
    """

    attack: str
    probe: Float
    cosine: float
    accepted: bool
    queries: int
    epsilon: float
    delta: float
    history: tuple[tuple[int, float], ...]


@validate(
    matcher=_check_matcher,
    queries=whole_from(2),
    delta=check_inside_unit,
    pairs=optional(check_count),
    width=check_positive,
)
def hill_climb(
    matcher: Matcher,
    *,
    queries: int,
    delta: float,
    rng: int | np.random.Generator,
    pairs: int | None = None,
    width: float = 1.0,
) -> Climb:
    """Attack a matcher by an evolution strategy with antithetic pairs.

    Each generation draws random directions u orthogonal to the guess x, and probes x + width u and x - width u. It adds
    slope times u to an accumulated path, whose direction is the next guess. The path grows with the accumulated noise,
    so the steps become smaller.

    Args:
        matcher: The matcher to attack.
        queries: The number of answers it may use, at least 2; one of an odd number is not used.
        delta: The delta for the total epsilon of the answers.
        rng: A seed or a numpy Generator.
        pairs: The number of directions per generation; None for a quarter of the dimension, at most 16.
        width: The distance of the probes from the guess; a share width^2 / (1 + width^2) of each answer's signal is
            slope.
    """
    d = matcher.dimension
    pairs = min(16, max(1, d // 4)) if pairs is None else pairs
    generator = _make_generator(rng, "hill_climb")
    path = _unit(generator.standard_normal(d))
    log = _Log(matcher)
    while queries - log.query_count >= 2:
        guess = _unit(path)
        directions = generator.standard_normal((min(pairs, (queries - log.query_count) // 2), d))
        directions -= np.outer(directions @ guess, guess)
        directions = _unit(directions)
        answers = matcher.scores(np.concatenate([guess + width * directions, guess - width * directions]))
        plus, minus = np.split(answers, 2)
        path = path + ((plus - minus) * (math.sqrt(1 + width**2) / (2 * width))) @ directions
        log.note(len(answers), path)
    return log.end("hill climbing", path, delta)


@validate(matcher=_check_matcher, queries=check_count, delta=check_inside_unit)
def linear_attack(matcher: Matcher, *, queries: int, delta: float, rng: int | np.random.Generator) -> Climb:
    """Attack a matcher without climbing: probe a random orthonormal basis repeatedly, average, and add up the template.

    With fewer queries than dimensions, it estimates the part of the template on the probed directions. The estimate is
    least squares. For the even design it is also the direction of the posterior mean, so no better estimate exists. Its
    cosine has the mean `linear_cosine` and passes a threshold with the probability `linear_acceptance`.
    """
    d = matcher.dimension
    basis = np.linalg.qr(_make_generator(rng, "linear_attack").standard_normal((d, d)))[0].T
    totals, times = np.zeros(d), np.zeros(d)
    log = _Log(matcher)
    while log.query_count < queries:
        these = slice(0, min(d, queries - log.query_count))
        answers = matcher.scores(basis[these])
        totals[these] += answers
        times[these] += 1
        log.note(len(answers), (totals / np.maximum(times, 1)) @ basis)
    return log.end("linear", (totals / np.maximum(times, 1)) @ basis, delta)


@validate(dimension=whole_from(2), queries=check_count, sigma=_check_sigma)
def best_cosine(dimension: int, queries: int, sigma: float) -> float:
    """Compute the bound on the expected cosine after this many answers; the module docstring says when it holds."""
    d, m = dimension, queries
    r = min(m, d)
    return math.sqrt(r / d / (1 + r * (d - 1) * sigma**2 / m))


@validate(dimension=whole_from(2), queries=check_count, sigma=_check_sigma)
def linear_cosine(dimension: int, queries: int, sigma: float) -> float:
    """Compute the expected cosine of the linear attack, exactly, for a whole number of passes over the basis.

    The estimate is t + g / k with g standard normal and k = sqrt(m/d) / sigma. The mean direction of such a vector (the
    projected normal law) is

        k √(2/π) ∫₀¹ e^(-k²u²/2) (1 - u²)^((d-1)/2) du.
    """
    d, k = dimension, _compute_signal(dimension, queries, sigma)
    if k > 1e8 * math.sqrt(d):  # 1 - cos is below (d - 1) / (2 k^2)
        return 1.0
    from scipy.integrate import quad  # slow to import, and needed only here

    # With u = sin(angle) the integrand is smooth, and below e^-70 beyond a few multiples of 1 / sqrt(k^2 + d).
    end = math.pi / 2 * min(1.0, 12 / math.sqrt(k * k + d))

    def integrand(angle: float) -> float:
        return math.exp(-((k * math.sin(angle)) ** 2) / 2 + d * math.log(math.cos(angle)))

    return k * math.sqrt(2 / math.pi) * float(quad(integrand, 0, end, epsabs=0, epsrel=1e-12)[0])


@validate(dimension=whole_from(2), queries=check_count, sigma=_check_sigma, cosine=_check_cosine)
def linear_acceptance(dimension: int, queries: int, sigma: float, cosine: float) -> float:
    """Compute the probability that the linear attack's probe passes the threshold `cosine`.

    With k as in `linear_cosine` the cosine is x / sqrt(x^2 + y^2), x normal with mean k, y an independent chi
    with d - 1 degrees of freedom. So sqrt(d - 1) x / y is noncentral t.
    """
    d, k = dimension, _compute_signal(dimension, queries, sigma)
    if k > 1e4 * math.sqrt(d) / math.sqrt(1 - cosine**2):  # the cosine is far nearer to 1 than the threshold is
        return 1.0
    return 1 - float(nctdtr(d - 1, k, cosine * math.sqrt((d - 1) / (1 - cosine**2))))


@validate(dimension=whole_from(2), sigma=_check_sigma, cosine=_check_cosine)
def count_needed_queries(dimension: int, sigma: float, cosine: float) -> int:
    """Compute the least number of answers after which `best_cosine` is at least `cosine`."""
    d, variance, square = dimension, sigma**2, cosine**2
    several = d * (d - 1) * variance * square / (1 - square)
    needed = several if several >= d else square * d * (1 + (d - 1) * variance)
    return max(1, math.ceil(needed * (1 - 1e-12)))  # rounding must not raise a whole number


@validate(dimension=whole_from(2), queries=check_count, cosine=_check_cosine)
def compute_stopping_sigma(dimension: int, queries: int, cosine: float) -> float:
    """Compute the least noise per answer that holds `best_cosine` at `cosine`; 0 if that needs no noise."""
    d, m = dimension, queries
    r = min(m, d)
    excess = r / (d * cosine**2) - 1
    return math.sqrt(max(0.0, excess) * m / (r * (d - 1)))


@validate(queries=whole_from(0), sigma=_check_sigma, delta=check_inside_unit, sensitivity=check_positive)
def budget_at(queries: int, sigma: float, delta: float, sensitivity: float = SENSITIVITY) -> float:
    """Compute the total epsilon of this many answers at `delta`, by exact composition.

    mu = sensitivity sqrt(m) / sigma.
    """
    if queries == 0:
        return 0.0
    mu = math.inf if sigma == 0 else sensitivity * math.sqrt(queries) / sigma
    return math.inf if mu > 1e9 else gaussian.find_epsilon(delta, mu)


@validate(dimension=whole_from(2), cosine=_check_cosine, delta=check_inside_unit, sensitivity=check_positive)
def stopping_epsilon(dimension: int, cosine: float, delta: float, sensitivity: float = SENSITIVITY) -> float:
    """Compute the total epsilon, over all answers together, below which `best_cosine` stays under `cosine`.

    mu = sensitivity sqrt(d (d - 1)) c / sqrt(1 - c^2). It depends on the dimension and the cosine alone, not on the
    number of queries or the noise of each. *At* this budget the linear attack passes about half of the time.
    """
    d = dimension
    return gaussian.find_epsilon(delta, sensitivity * cosine * math.sqrt(d * (d - 1) / (1 - cosine**2)))


class _Log:
    """The queries of an attack so far, and the true cosine at doubling numbers of queries."""

    def __init__(self, matcher: Matcher) -> None:
        self.matcher, self.query_count, self.next_count = matcher, 0, 1
        self.history: list[tuple[int, float]] = []

    def note(self, queries: int, estimate: Float) -> None:
        self.query_count += queries
        if self.query_count >= self.next_count:
            self.history.append((self.query_count, self.matcher.cosine(estimate)))
            self.next_count = 2 * self.query_count

    def end(self, attack: str, estimate: Float, delta: float) -> Climb:
        probe, matcher = _unit(estimate), self.matcher
        cosine = matcher.cosine(probe)
        if self.history[-1][0] != self.query_count:
            self.history.append((self.query_count, cosine))
        spent = budget_at(matcher.queries, matcher.sigma, delta)
        accepted = cosine >= matcher.threshold
        return Climb(attack, probe, cosine, accepted, self.query_count, spent, delta, tuple(self.history))


def _unit(vectors: Float) -> Float:
    lengths: Float = np.linalg.norm(vectors, axis=-1, keepdims=True)
    return vectors / lengths


def _make_generator(rng: Any, purpose: str) -> np.random.Generator:
    if isinstance(rng, np.random.Generator):
        return rng
    if isinstance(rng, bool) or not isinstance(rng, int | np.integer) or rng < 0:
        _validation.reject("rng", "a seed (a whole number, at least 0) or a numpy Generator", rng)
    # The purpose separates a matcher's noise from an attacker's choices if both get the same seed.
    return np.random.default_rng([int(rng), *purpose.encode()])


def _compute_signal(dimension: int, queries: int, sigma: float) -> float:
    """Compute the signal-to-noise ratio sqrt(m/d) / sigma of each coordinate of a unit template."""
    if queries % dimension:
        _validation.reject("queries", f"a multiple of the dimension, {dimension}", queries)
    return math.inf if sigma == 0 else math.sqrt(queries / dimension) / sigma
