r"""Noise of a custom law: a table of probabilities on the grid, whose privacy is computed from the table itself.

A caller gives a law and, if wanted, the privacy profile that the law is said to have. The law becomes a table of
whole weights in units of 2^-128, one for each grid step. The sampler draws from this table exactly, so the
table is the law, and no property of the caller's functions is trusted.

One record moves one score by at most ``width`` steps. So the exact profile is

    δ(ε) = max over shifts s, |s| <= width, of Σ_i (p_i - e^ε p_(i-s))_+

with p = 0 outside the table. The sums are bounded from above and from below in double precision: each product is
enlarged or reduced by more than its rounding error. A claimed profile that lies below the lower bound raises an error.
A certificate states the larger of the claim and the upper bound. docs/proofs/custom.md has the proof.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from scoreshield import _validation
from scoreshield._formatting import format_bound, format_number
from scoreshield._validation import check_text, validate
from scoreshield._views import Columns, NotebookObject, ObjectSummary
from scoreshield.errors import InvalidInput
from scoreshield.privacy.adjacency import FULL_RANGE, check_score_range
from scoreshield.privacy.noise.gaussian import FINEST_STEP
from scoreshield.privacy.profiles import CurveProfile, Profile
from scoreshield.privacy.sampling import discrete
from scoreshield.privacy.sampling.stream import Stream

Float = NDArray[np.float64]
#: A privacy profile as a caller gives it: delta as a function of epsilon.
ProfileFunction = Callable[[float], float]

#: The most cells of a table, and the most steps that one record may move a score by.
MOST_CELLS, MOST_STEPS = 2**14, 2**12
_MOST_SIDE = (MOST_CELLS - 1) // 2
#: More than the rounding error of a weight as a double and of one product with it, relative; and of a sum of cells.
_MARGIN, _SUM_MARGIN = 2.0**-48, 2.0**-36
#: A claim may lie below the computed profile by so much: the rounding of a law to a table.
_CLAIM_SHARE, _CLAIM_ROOM = 1e-6, 1e-12
#: Of the stated curve: the error between two knots, relative and absolute, and the most knots, with that of a release.
_CURVE_SHARE, _CURVE_ROOM, MOST_KNOTS = 0.01, 1e-15, 257
#: Tails below this are outside every table.
_LEAST_TAIL = 2.0**-126
#: Where a notebook shows the delta.
_SHOWN_EPSILONS = (0.5, 1.0, 2.0, 5.0, 10.0)
_LARGEST_EPSILON = 700.0


@dataclass(frozen=True, repr=False)
class CustomNoise(NotebookObject):
    """Additive noise of a law that the caller chooses, as a table on the grid. `tabulate` makes the table.

    Attributes:
        weights: Whole numbers, one for each cell, which sum to 2^128; the first and the last are above 0.
        first: The first cell, in grid steps.
        step: The grid step, a power of two.
        sensitivity: How far one record may move a score: a whole number of steps.
        label: The name of the law, for the certificate.
        claimed_profile: The claim that the computed profile is compared with; None if there is none. It is not
            saved: the certificate of a release states a curve that holds the claim.
    """

    weights: tuple[int, ...]
    first: int
    step: float
    sensitivity: float
    label: str = "custom"
    claimed_profile: Profile | ProfileFunction | None = field(default=None, compare=False)

    name: ClassVar[str] = "custom"

    @validate()
    def __post_init__(self) -> None:
        must = f"at most {MOST_CELLS:,} whole numbers >= 0 that sum to 2^128, with the first and the last above 0"
        weights = self.weights
        if type(weights) is not tuple or not 0 < len(weights) <= MOST_CELLS:
            _validation.reject("weights", must, type(weights))
        if not all(type(weight) is int and weight >= 0 for weight in weights) or not (weights[0] and weights[-1]):
            _validation.reject("weights", must, type(weights))
        if sum(weights) != discrete.TABLE_WHOLE:
            _validation.reject("weights", must, type(weights))
        if type(self.first) is not int or abs(self.first) > 2**40:
            _validation.reject("first", "a whole number of grid steps", self.first)
        object.__setattr__(self, "step", _check_step(self.step))
        sensitivity = _validation.check_positive(self.sensitivity, "sensitivity")
        object.__setattr__(self, "sensitivity", sensitivity)
        if math.fmod(sensitivity, self.step) or not 1 <= sensitivity / self.step <= MOST_STEPS:
            _validation.reject("sensitivity", f"a whole number of grid steps, at most {MOST_STEPS:,}", sensitivity)
        check_text(self.label, "label")
        if self.claimed_profile is not None:
            _ = self._curve  # compares the claim with the table

    def __repr__(self) -> str:
        return (
            f"<CustomNoise {self.label!r} of {len(self.weights):,} cells, standard deviation {self.std:.4g}, "
            f"sensitivity {self.sensitivity:g}>"
        )

    def _summarise(self) -> ObjectSummary:
        facts = {
            "Standard deviation": format_number(self.std),
            "Moves by at most": f"{format_number(self.sensitivity)}, the range of the scores",
            "Table": f"{len(self.weights):,} cells of {format_bound(self.step)}",
        }
        stated = "computed" if self.claimed_profile is None else "the claim, or the computed value where it is larger"
        deltas = [float(self._curve.delta_at(epsilon)) for epsilon in _SHOWN_EPSILONS]
        columns: Columns = {"epsilon": list(_SHOWN_EPSILONS), "delta": deltas}
        return ObjectSummary(f"CustomNoise {self.label!r}", "", facts, columns, f"Its privacy, {stated}")

    def _list_columns(self) -> Columns:
        return {"epsilon": list(self._curve.losses), "delta": list(self._curve.deltas)}

    @classmethod
    @validate(score_range=check_score_range)
    def tabulate(
        cls,
        law: Any,
        *,
        profile: Profile | ProfileFunction | None = None,
        score_range: tuple[float, float] = FULL_RANGE,
        step: float | None = None,
        reach: float | None = None,
        label: str | None = None,
    ) -> CustomNoise:
        """Make the table of a law, and compare the claimed privacy profile with the one of the table.

        Args:
            law: An object with one of these methods, which take and return an array: ``cdf`` (with ``sf``, if it has
                one, for the upper tail), as every distribution of SciPy has; ``quantile`` or ``ppf``, the inverse of
                the cdf; or ``pdf``, up to a factor, with ``step`` and ``reach``.
            profile: The claimed privacy for a move across the whole ``score_range``: a function from epsilon to delta,
                or a profile of this library. None states the computed profile without a claim.
            score_range: The public range of the release, which gives the sensitivity.
            step: The grid step, a power of two. By default it is at most an eighth of the spread of the law.
            reach: The largest noise; the end cells hold what lies beyond. By default it is as large as a table allows.
            label: The name of the law on the certificate.

        Returns:
            The noise, for ``release_scores(mechanism=...)``.

        Raises:
            InvalidInput: The claim is below the true privacy of the table, or the law has no table.
        """
        tails = _LawTails.read(law)
        if tails is None and (step is None or reach is None):
            raise InvalidInput("A law that has only a 'pdf' needs a 'step' and a 'reach'.")
        spread = 0.0 if tails is None else tails.find_spread()
        size = math.inf if reach is None else _validation.check_positive(reach, "reach")
        if reach is None and tails is not None:
            size = tails.find_reach(spread)
        step = _choose_step(spread, size, score_range) if step is None else _check_step(step)
        cells = min(math.ceil(size / step), _MOST_SIDE)
        if reach is not None and cells * step < reach:
            must = f"at most {_MOST_SIDE:,} steps of {step:g}: give a smaller reach or a larger step"
            _validation.reject("reach", must, reach)
        places = np.arange(-cells, cells + 1)
        masses = (
            _read_density(law, np.asarray(places * step, dtype=np.float64))
            if tails is None
            else tails.read_cells(places, step)
        )
        weights, first = _make_weights(masses, -cells)
        moved = count_moved_steps(score_range, step)
        if not 1 <= moved <= MOST_STEPS:
            raise InvalidInput(
                f"One record moves a score by {moved:,} steps of {step:g}, and a table covers 1 to {MOST_STEPS:,}: "
                "give another 'step', more noise or another 'score_range'."
            )
        return cls(weights, first, step, moved * step, _name_law(law) if label is None else label, profile)

    # The law.

    @cached_property
    def probabilities(self) -> Float:
        """The table as floats, for sums; draws use the whole numbers."""
        return _read_probabilities(self.weights)

    @cached_property
    def _edges(self) -> Float:
        return _freeze((np.arange(len(self.weights) + 1) + (self.first - 0.5)) * self.step)

    @cached_property
    def _rises(self) -> Float:
        return _freeze([0.0, *(total / discrete.TABLE_WHOLE for total in itertools.accumulate(self.weights))])

    @cached_property
    def _falls(self) -> Float:
        tails = list(itertools.accumulate(reversed(self.weights)))
        return _freeze([*(total / discrete.TABLE_WHOLE for total in reversed(tails)), 0.0])

    @cached_property
    def std(self) -> float:
        """The standard deviation of the noise."""
        values = np.arange(self.first, self.first + len(self.weights)) * self.step
        mean = float(self.probabilities @ values)
        return math.sqrt(float(self.probabilities @ (values - mean) ** 2))

    @property
    def scale(self) -> float:
        return self.std

    def cdf(self, x: ArrayLike) -> Any:
        """P[noise <= x]. A cell is spread over its width, since a clean score lies anywhere between two grid points."""
        return np.interp(np.asarray(x, dtype=np.float64), self._edges, self._rises)

    def sf(self, x: ArrayLike) -> Any:
        """P[noise > x], accurate in the far tail."""
        return np.interp(np.asarray(x, dtype=np.float64), self._edges, self._falls)

    def quantile(self, p: ArrayLike) -> Any:
        """Compute the x with P[noise <= x] = p."""
        return np.interp(np.asarray(p, dtype=np.float64), self._rises, self._edges)

    def log_density(self, x: ArrayLike) -> Float:
        """Compute the logarithm of the probability of the cell that holds each x."""
        places = np.rint(np.asarray(x, dtype=np.float64) / self.step).astype(np.int64) - self.first
        inside = (places >= 0) & (places < len(self.weights))
        cells = np.where(inside, self.probabilities[np.clip(places, 0, len(self.weights) - 1)], 0.0)
        return np.asarray(np.log(np.maximum(cells, 2.0**-130)))

    def fill(self, stream: Stream, step: float, out: Float) -> None:
        """Fill an array with independent draws, in whole steps of the grid."""
        assert step == self.step  # the table is on this grid only
        discrete.fill_table(stream, self.weights, self.first, out)

    # Its privacy.

    def profile(self, sensitivity: float) -> Profile:
        """Return the computed privacy of this noise on an entry that one change moves by at most ``sensitivity``."""
        width = math.ceil(sensitivity / self.step)
        return self._curve if width == self.width and self.claimed_profile is None else self._compute_curve(width)

    @property
    def width(self) -> int:
        """The sensitivity in grid steps."""
        return round(self.sensitivity / self.step)

    def bound_delta(self, epsilon: float, *, is_lower: bool = False) -> float:
        """Bound the exact delta of the table at ``epsilon`` from above; from below if ``is_lower``."""
        return _bound_table(self.weights, self.width, epsilon, is_lower)

    def state_profile(self, epsilon: float) -> CurveProfile:
        """Return the curve for a certificate: the claim, or the computed profile where it is larger; exact at epsilon.

        Raises:
            InvalidInput: The claim is below the true privacy at ``epsilon``.
        """
        curve = self._curve
        if epsilon in curve.losses or not 0 < epsilon < curve.losses[-1]:
            return curve
        knots = dict(zip(curve.losses, curve.deltas, strict=True)) | {epsilon: self._state_delta(epsilon)}
        return _make_curve(knots)

    def rebuild(self) -> CustomNoise:
        """Return a new object with the same table and claim, checked again, without anything that this one caches."""
        return CustomNoise(self.weights, self.first, self.step, self.sensitivity, self.label, self.claimed_profile)

    def drop_claim(self) -> CustomNoise:
        """Return the table without the claim, as a release holds it."""
        return self if self.claimed_profile is None else replace(self, claimed_profile=None)

    @cached_property
    def _curve(self) -> CurveProfile:
        """The claim, or the computed profile where it is larger, at the knots of the computed profile."""
        return _make_curve({epsilon: self._state_delta(epsilon) for epsilon in self._compute_curve(self.width).losses})

    def _compute_curve(self, width: int) -> CurveProfile:
        return _trace_curve(lambda epsilon: _bound_table(self.weights, width, epsilon, False))

    def _state_delta(self, epsilon: float) -> float:
        """Return the larger of the claim and the upper bound at epsilon; reject a claim below the lower bound."""
        upper = self.bound_delta(epsilon)
        if self.claimed_profile is None:
            return upper
        claim = _ask_claim(self.claimed_profile, epsilon)
        if claim < upper:
            true = self.bound_delta(epsilon, is_lower=True)
            if claim * (1 + _CLAIM_SHARE) + _CLAIM_ROOM < true:
                raise InvalidInput(
                    f"The claimed profile is below the true privacy of {self.label!r}: at epsilon {epsilon:.6g} it "
                    f"claims delta {claim:.6g}, and the noise that would be drawn has delta {true:.6g}; give more "
                    "noise or the true profile."
                )
        return max(claim, upper)

    # Files.

    def to_dict(self) -> dict[str, Any]:
        """Convert the table to plain values. The weights are one string of hexadecimal numbers."""
        return {
            "name": self.name,
            "label": self.label,
            "first": self.first,
            "step": self.step,
            "sensitivity": self.sensitivity,
            "weights": " ".join(f"{weight:x}" for weight in self.weights),
        }

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> CustomNoise:
        """Read back what ``to_dict`` wrote."""
        try:
            if len(data["weights"]) > 40 * MOST_CELLS:
                raise ValueError("too many weights")
            weights = tuple(int(weight, 16) for weight in data["weights"].split(" "))
            return cls(weights, data["first"], data["step"], data["sensitivity"], data["label"])
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise InvalidInput(f"This is not a table of noise: {type(error).__name__} on {error}.") from None


def count_moved_steps(score_range: tuple[float, float], step: float) -> int:
    """Count the largest number of grid steps between two scores in this range, clamped and rounded."""
    low, high = score_range
    return max(round(high / step) - round(low / step), math.ceil((high - low) / step))


# From a law to a table.


class _LawTails:
    """The cdf of a law and 1 - cdf, each accurate in its own tail."""

    def __init__(self, law: Any, cdf: Callable[[Float], Any], sf: Callable[[Float], Any] | None) -> None:
        self._law, self._cdf, self._sf = law, cdf, sf

    @classmethod
    def read(cls, law: Any) -> _LawTails | None:
        """Read the methods of a law; None if it has a density only."""
        if callable(cdf := getattr(law, "cdf", None)):
            return cls(law, cdf, getattr(law, "sf", None))
        for name in ("quantile", "ppf", "icdf"):
            if callable(quantile := getattr(law, name, None)):
                return cls(law, _invert(quantile), None)
        if not callable(getattr(law, "pdf", None)):
            _validation.reject("law", "an object with a method 'cdf', 'quantile', 'ppf' or 'pdf'", type(law))
        return None

    def below(self, x: Float) -> Float:
        return _check_values(self._cdf(x), x, "cdf")

    def above(self, x: Float) -> Float:
        return 1 - self.below(x) if not callable(self._sf) else _check_values(self._sf(x), x, "sf")

    def _outside(self, size: float) -> float:
        return float(self.below(np.array([-size]))[0] + self.above(np.array([size]))[0])

    def find_spread(self) -> float:
        """Find the size that the noise exceeds with probability 0.3173, as Gaussian noise does at its deviation."""
        high = 1.0
        while self._outside(high) > 0.3173:
            high *= 2
            if high > 2.0**60:
                raise InvalidInput("The law has no spread: its cdf does not reach 0 and 1.")
        low = high
        while self._outside(low) <= 0.3173:
            low /= 2
            if low < FINEST_STEP:
                raise InvalidInput("The law has no spread: it is concentrated in one point.")
        for _ in range(60):
            middle = (low + high) / 2
            low, high = (middle, high) if self._outside(middle) > 0.3173 else (low, middle)
        return high

    def find_reach(self, spread: float) -> float:
        """Find a size that the noise practically never exceeds; the table of a heavy-tailed law ends before it."""
        size = spread
        while size < 2.0**30 * spread and self._outside(size) > _LEAST_TAIL:
            size *= 2
        return size

    def read_cells(self, places: NDArray[np.int64], step: float) -> Float:
        """Compute the probability of each cell; the end cells hold the tails."""
        edges = np.append(places - 0.5, places[-1] + 0.5) * step
        below, above = self.below(edges), self.above(edges)
        if (np.diff(below) < 0).any() or (np.diff(above) > 0).any():
            raise InvalidInput("The cdf of the law falls somewhere, or its 'sf' rises: it is no distribution.")
        masses = np.where(below[1:] <= 0.5, np.diff(below), -np.diff(above))
        masses[0] += below[0]
        masses[-1] += above[-1]
        return masses


def _invert(quantile: Callable[[Float], Any]) -> Callable[[Float], Float]:
    """Make a cdf of its inverse, by bisection."""

    def cdf(x: Float) -> Float:
        low, high = np.zeros(len(x)), np.ones(len(x))
        for _ in range(80):
            middle = (low + high) / 2
            with np.errstate(divide="ignore", invalid="ignore"):
                is_left = np.asarray(quantile(middle), dtype=np.float64) <= x
            low, high = np.where(is_left, middle, low), np.where(is_left, high, middle)
        return np.minimum.accumulate(low[::-1])[::-1]

    return cdf


def _check_values(values: Any, x: Float, name: str) -> Float:
    found = np.asarray(values, dtype=np.float64)
    if found.shape != x.shape or not ((found >= 0) & (found <= 1)).all():
        raise InvalidInput(f"The {name!r} of the law must return one number in [0, 1] for each number of an array.")
    return found


def _read_density(law: Any, x: Float) -> Float:
    masses = np.asarray(law.pdf(x), dtype=np.float64)
    if masses.shape != x.shape or not (np.isfinite(masses) & (masses >= 0)).all() or not masses.any():
        raise InvalidInput("The 'pdf' of the law must return one finite number >= 0 for each number of an array.")
    return np.asarray(masses / masses.sum())


def _make_weights(masses: Float, first: int) -> tuple[tuple[int, ...], int]:
    """Turn probabilities into whole weights with the exact sum, without empty cells at the ends."""
    whole = discrete.TABLE_WHOLE
    numbers = [int(math.ldexp(mass, discrete.TABLE_BITS)) for mass in masses.tolist()]
    total = sum(numbers)
    numbers = [number * whole // total for number in numbers]
    numbers[int(np.argmax(masses))] += whole - sum(numbers)
    filled = [place for place, number in enumerate(numbers) if number]
    return tuple(numbers[filled[0] : filled[-1] + 1]), first + filled[0]


def _choose_step(spread: float, reach: float, score_range: tuple[float, float]) -> float:
    """Choose a power of two that is small beside the noise and the range, and so large that the table has few cells."""
    width = score_range[1] - score_range[0]
    step = _floor_power(min(spread / 8, width / 16))
    while reach / step > _MOST_SIDE and 2 * step <= min(spread / 8, width / 2):
        step *= 2
    return max(FINEST_STEP, step)


def _floor_power(value: float) -> float:
    """Return the largest power of two that is at most this value."""
    return math.ldexp(1.0, math.frexp(value)[1] - 1)


def _check_step(step: Any) -> float:
    value = _validation.check_positive(step, "step")
    if math.frexp(value)[0] != 0.5 or not FINEST_STEP <= value <= 1:
        _validation.reject("step", "a power of two between 2^-50 and 1", step)
    return value


def _name_law(law: Any) -> str:
    inner = getattr(law, "dist", law)  # a frozen distribution of SciPy names its family
    name = getattr(inner, "name", None)
    return name if isinstance(name, str) and name else type(law).__name__


# From a table to its privacy.


def _freeze(values: ArrayLike) -> Float:
    """Copy numbers to an array that cannot be made writable."""
    return np.frombuffer(np.asarray(values, dtype=np.float64).tobytes(), dtype=np.float64)


@lru_cache(maxsize=4)
def _read_probabilities(weights: tuple[int, ...]) -> Float:
    return _freeze([weight / discrete.TABLE_WHOLE for weight in weights])


@lru_cache(maxsize=2048)
def _bound_table(weights: tuple[int, ...], width: int, epsilon: float, is_lower: bool) -> float:
    """Bound the delta of a table, from the weights that are drawn; equal tables share the result."""
    return _bound_divergence(_read_probabilities(weights), width, epsilon, is_lower=is_lower)


def _bound_divergence(p: Float, width: int, epsilon: float, *, is_lower: bool = False) -> float:
    """Bound the largest Σ (p_i - e^epsilon p_(i-s))_+ over all shifts of at most ``width`` cells, on the safe side."""
    side = -1.0 if is_lower else 1.0
    ratio = math.exp(min(epsilon, _LARGEST_EPSILON)) * (1 - side * _MARGIN)
    gains, losses = p * (1 + side * _MARGIN), p * ratio * (1 - side * _MARGIN)
    heads, tails = np.cumsum(gains), np.cumsum(gains[::-1])
    is_symmetric = np.array_equal(p, p[::-1])
    worst = 0.0
    for shift in range(1, width + 1):
        if shift >= len(p):
            worst = 1.0
            break
        up = float(np.maximum(gains[shift:] - losses[:-shift], 0.0).sum() + heads[shift - 1])
        worst = max(worst, up)
        if not is_symmetric:
            down = float(np.maximum(gains[:-shift] - losses[shift:], 0.0).sum() + tails[shift - 1])
            worst = max(worst, down)
    return min(1.0, worst * (1 + side * _SUM_MARGIN))


def _trace_curve(delta_at: ProfileFunction) -> CurveProfile:
    """Compute a falling convex function at so many knots that straight lines (in e^epsilon) between them fit it."""
    values: dict[float, float] = {0.0: delta_at(0.0)}
    floor, last = delta_at(_LARGEST_EPSILON), 2.0**-6
    while last < _LARGEST_EPSILON and delta_at(last) > floor * (1 + _CURVE_SHARE) + _CURVE_ROOM:
        last = min(2 * last, _LARGEST_EPSILON)
    for knot in np.linspace(0, last, 17)[1:].tolist():
        values[knot] = delta_at(knot)
    todo = list(itertools.pairwise(sorted(values)))
    while todo and len(values) < MOST_KNOTS - 1:
        left, right = todo.pop(0)
        middle = (left + right) / 2
        share = math.expm1(middle - right) / math.expm1(left - right)
        chord = values[right] + (values[left] - values[right]) * share
        true = delta_at(middle)
        if chord > true * (1 + _CURVE_SHARE) + _CURVE_ROOM and right - left > 1e-6:
            values[middle] = true
            todo += [(left, middle), (middle, right)]
    return _make_curve(values)


def _make_curve(values: dict[float, float]) -> CurveProfile:
    """Make a falling convex curve of upper bounds on a profile.

    A profile is convex in x = e^epsilon, and falls by at most 1 per unit of x. So what it has at one knot bounds it at
    the knots before, and the lower convex hull of upper bounds is an upper bound.
    """
    knots = sorted(values)
    x = [math.exp(knot) for knot in knots]
    deltas = [values[knot] for knot in knots]
    for place in range(len(knots) - 1, 0, -1):
        deltas[place - 1] = min(deltas[place - 1], deltas[place] + (x[place] - x[place - 1]) * (1 + 1e-12))
    deltas = np.minimum.accumulate(deltas).tolist()
    hull: list[int] = []
    for place in range(len(knots)):
        while len(hull) > 1 and not _is_below_chord(x, deltas, hull[-2], hull[-1], place):
            hull.pop()
        hull.append(place)
    return CurveProfile(tuple(knots[place] for place in hull), tuple(deltas[place] for place in hull))


def _is_below_chord(x: list[float], y: list[float], left: int, middle: int, right: int) -> bool:
    """Whether the middle point is a corner of the lower hull. A point on the chord, up to rounding, is not needed."""
    share = (x[right] - x[middle]) / (x[right] - x[left])
    return y[middle] < (y[right] + (y[left] - y[right]) * share) * (1 - 1e-12)


def _ask_claim(claim: Profile | ProfileFunction, epsilon: float) -> float:
    """Ask a claimed profile for its delta at epsilon."""
    value = claim.delta_at(epsilon) if isinstance(claim, Profile) else claim(epsilon)
    return _validation.check_probability(value, "profile", zero=True) if value != 1 else 1.0
