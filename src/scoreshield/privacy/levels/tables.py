"""Discrete channels: a score is rounded to a public level, and an output is drawn from that level's row of a table.

A row of the table holds whole multiples of 2^-62. So no float represents a probability, and the channel that is
certified is the channel that is drawn. The constructor of `LevelChannel` checks, with exact integers and a rational
number below `e^ε`, that for every ordered pair of levels

    Σ_j (w_ij - e^ε w_kj)_+ ≤ δ 2^62.

Under record replacement one score moves, from any level to any other, and the draws of the other scores cancel. So the
whole vector is (epsilon, delta)-private. Two functions make channels: `optimal_channel` solves the linear program for a
public prior and a utility (`scoreshield.privacy.levels.program`), and `randomised_response` works on public cut points
(Warner 1965; Kairouz et al. 2016). docs/optimal.md has the proofs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from typing import Any, ClassVar, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from scoreshield import _validation
from scoreshield._frames import clear_frames_on_error
from scoreshield._validation import check_delta, check_epsilon, check_inside_unit, validate
from scoreshield.errors import InvalidInput
from scoreshield.privacy.levels import program
from scoreshield.privacy.levels.cuts import (
    RetrievalCuts,
    check_increasing,
    check_range,
    predict_recall,
    retrieval_cuts,
)
from scoreshield.privacy.levels.profile import compute_channel_profile, compute_total_variation
from scoreshield.privacy.levels.program import WHOLE
from scoreshield.privacy.profiles import Profile, StepProfile, round_up
from scoreshield.privacy.sampling import discrete
from scoreshield.privacy.sampling.stream import Stream

__all__ = [
    "LevelChannel",
    "RetrievalCuts",
    "optimal_channel",
    "predict_recall",
    "randomised_response",
    "retrieval_cuts",
    "thinned_response",
]

Float = NDArray[np.float64]
Number = TypeVar("Number", np.float64, np.uint64)

#: The least distance between two cuts.
LEAST_WIDTH = 2.0**-40


@dataclass(frozen=True, eq=False, repr=False)
class LevelChannel:
    """A table from score levels to released values. The constructor verifies that it is (epsilon, delta)-private.

    Attributes:
        inputs: The levels, increasing, in the public range.
        cuts: A clean score above ``cuts[i]`` has a level above ``inputs[i]``. There is one cut fewer than levels.
        outputs: The values that may be released, increasing multiples of ``step``.
        step: The public grid, a power of two.
        weights: Whole numbers, inputs x outputs; each row sums to 2^62.
        epsilon: The epsilon of the table, for a change from any level to any other.
        delta: The delta of the table, for the same change.
        share: The share of records that are answered for, each by an epsilon-private table; the other records have the
            lowest output. It is 1 where delta is above 0.
    """

    inputs: tuple[float, ...]
    cuts: tuple[float, ...]
    outputs: tuple[float, ...]
    step: float
    weights: NDArray[np.uint64]
    epsilon: float
    delta: float = 0.0
    share: float = 1.0

    name: ClassVar[str] = "levels"

    @validate()
    def __post_init__(self) -> None:
        for field in ("inputs", "cuts", "outputs"):
            values = check_increasing(getattr(self, field), field)
            object.__setattr__(self, field, tuple(float(value) + 0.0 for value in values))
        object.__setattr__(self, "epsilon", _validation.check_epsilon(self.epsilon))
        object.__setattr__(self, "delta", _validation.check_probability(self.delta, "delta", zero=True))
        lows, highs = self.inputs[:-1], self.inputs[1:]
        inside = [low <= cut < high for low, cut, high in zip(lows, self.cuts, highs, strict=False)]
        if len(self.cuts) != len(lows) or not all(inside):
            _validation.reject("cuts", "one number between each two inputs", self.cuts)
        step = _validation.check_positive(self.step, "step")
        if math.frexp(step)[0] != 0.5 or any(math.fmod(value, step) for value in self.outputs):
            _validation.reject("step", "a power of two that divides every output", self.step)
        weights = _whole_weights(self.weights, (len(self.inputs), len(self.outputs)))
        object.__setattr__(self, "weights", weights)
        object.__setattr__(self, "share", _validation.check_positive(self.share, "share"))
        _verify(weights.tolist(), self.epsilon, self.delta)
        _verify_share(weights[:, 0].tolist(), self.epsilon, self.delta, self.share)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, LevelChannel) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def _key(self) -> tuple[object, ...]:
        table = self.weights.tobytes()
        return self.inputs, self.cuts, self.outputs, self.step, table, self.epsilon, self.delta, self.share

    def __repr__(self) -> str:
        privacy = f"epsilon {self.epsilon:g}" + (f", delta {self.delta:g}" if self.delta else "")
        return (
            f"<LevelChannel of {len(self.inputs)} levels in [{self.inputs[0]:.4g}, {self.inputs[-1]:.4g}] and "
            f"{len(self.outputs)} outputs, {privacy}>"
        )

    @cached_property
    def probabilities(self) -> Float:
        """The table as floats, for sums; draws use the integers."""
        return _freeze(self.weights.astype(np.float64) / WHOLE)

    @cached_property
    def _cumulative(self) -> NDArray[np.uint64]:
        return _freeze(np.cumsum(self.weights, axis=1, dtype=np.uint64))

    @cached_property
    def _tails(self) -> Float:
        """P[output number >= j] for j = 0, ..., m."""
        above = np.uint64(WHOLE) - self._cumulative
        return _freeze(np.concatenate([np.ones((len(above), 1)), above.astype(np.float64) / WHOLE], axis=1))

    def level_of(self, scores: ArrayLike) -> NDArray[np.int64]:
        """Find the number of each score's level. A score outside the range has the level at its nearer end."""
        places = np.searchsorted(self.cuts, np.asarray(scores, dtype=np.float64), side="left")
        return np.asarray(places, dtype=np.int64)

    @clear_frames_on_error
    @validate()
    def release(self, stream: Stream, clean_scores: ArrayLike) -> Float:
        """Draw an output independently for each clean score. The result has the shape of the scores.

        One word of the stream is read for each score, for every value of the score.
        """
        must = "an array of finite numbers"
        scores = _validation.check_array(clean_scores, "clean_scores", must)
        if scores.dtype.kind not in "fiu" or not np.isfinite(scores).all():
            _validation.reject("clean_scores", must, clean_scores)
        columns = discrete.draw_columns(stream, self._cumulative, self.level_of(scores).ravel())
        return np.asarray(self.outputs, dtype=np.float64)[columns].reshape(scores.shape)

    def exceed(self, threshold: ArrayLike, score: ArrayLike, inclusive: bool = False) -> Any:
        """Compute P[released > threshold | clean score], or >= if ``inclusive``."""
        side = "left" if inclusive else "right"
        first = np.searchsorted(self.outputs, np.asarray(threshold, dtype=np.float64), side=side)  # type: ignore[call-overload]
        return self._tails[self.level_of(score), first]

    @property
    def errors(self) -> Float:
        """The root mean squared error at each level."""
        gaps = np.asarray(self.outputs) - np.asarray(self.inputs)[:, None]
        return np.asarray(np.sqrt((self.probabilities * gaps**2).sum(axis=1)))

    @cached_property
    def std(self) -> float:
        """The root mean squared error, with bias, at the level where it is largest (`worst_input`)."""
        return float(self.errors.max())

    @property
    def worst_input(self) -> float:
        return self.inputs[int(self.errors.argmax())]

    @validate()
    def expected_cost(self, prior: object = None, utility: object = "squared", threshold: float | None = None) -> float:
        """Compute the mean cost of a release. Smaller is better. The arguments are those of `optimal_channel`."""
        masses = program.build_masses(prior, self.inputs, self.cuts)
        costs = program.build_costs(utility, self.inputs, self.outputs, threshold)
        return float(masses @ (self.probabilities * costs).sum(axis=1))

    def expected_utility(
        self, prior: object = None, utility: object = "squared", threshold: float | None = None
    ) -> float:
        """Compute minus the expected cost. Larger is better."""
        return -self.expected_cost(prior, utility, threshold)

    def profile(self, sensitivity: float | None = None) -> Profile:
        """Return the privacy profile for a change from any level to any other.

        Other noise laws need ``sensitivity``; a level table does not use it.
        """
        del sensitivity
        return self._profile

    @cached_property
    def _profile(self) -> Profile:
        if self.delta:
            return compute_channel_profile(self.weights, self.epsilon)
        return StepProfile.of_advantage(self.epsilon, compute_total_variation(self.weights))

    @validate(share=check_inside_unit)
    def thin(self, share: float) -> LevelChannel:
        """Make the table that answers with probability ``share``, and else with the lowest output; pure tables only.

        It has the same epsilon, and an attack advantage that is ``share`` times as large. A record that is answered
        for is exposed as before.

        Args:
            share: The public share of records that are answered for, between 0 and 1.
        """
        if self.delta:
            raise InvalidInput(f"Only a pure table can be thinned; this one has delta {self.delta:g}.")
        kept, ratio = Fraction(share), program.floor_ratio(self.epsilon)
        columns = [_thin_column(column, kept, ratio) for column in self.weights.T.tolist()[1:]]
        lowest = [WHOLE - sum(column[level] for column in columns) for level in range(len(self.inputs))]
        answered = max(Fraction(self.share) * kept, _find_least_share(lowest, ratio))
        weights = np.array([lowest, *columns], dtype=np.uint64).T
        return replace(self, weights=weights, share=min(1.0, round_up(answered)))

    def to_dict(self) -> dict[str, Any]:
        """Convert the table to plain values. A row of weights is one string of hexadecimal numbers."""
        return {
            "name": self.name,
            "inputs": list(self.inputs),
            "cuts": list(self.cuts),
            "outputs": list(self.outputs),
            "step": self.step,
            "weights": [" ".join(f"{weight:x}" for weight in row) for row in self.weights.tolist()],
            "epsilon": self.epsilon,
            "delta": self.delta,
            **({"share": self.share} if self.share < 1 else {}),
        }

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> LevelChannel:
        """Read back what ``to_dict`` wrote; the privacy that it states is verified again."""
        try:
            rows = [[int(weight, 16) for weight in row.split()] for row in data["weights"]]
            weights = np.array(rows, dtype=np.uint64)
            fields = {field: data[field] for field in ("inputs", "cuts", "outputs", "step", "epsilon", "delta")}
            fields["share"] = data.get("share", 1.0)
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise InvalidInput(f"This is not a table of score levels: {type(error).__name__} on {error}.") from None
        return cls(**fields, weights=weights)


def _thin_column(column: list[int], share: Fraction, ratio: Fraction) -> list[int]:
    """A share of each weight in whole numbers, of which none exceeds the ratio times another."""
    least = math.ceil(share * min(column))
    return [max(least, min(int(ratio * least), int(share * weight))) for weight in column]


def _whole_weights(weights: Any, shape: tuple[int, int]) -> NDArray[np.uint64]:
    """Check for whole numbers of this shape whose rows sum to 2^62, and copy them to a read-only array."""
    must = f"whole numbers >= 0 of shape {shape} whose rows sum to 2^62"
    numbers = np.array(weights.tolist() if isinstance(weights, np.ndarray) else weights, dtype=object)
    fits = numbers.shape == shape and all(type(weight) is int and weight >= 0 for weight in numbers.flat)
    if not fits or any(sum(row) != WHOLE for row in numbers.tolist()):
        _validation.reject("weights", must, weights)
    return _freeze(numbers.astype(np.uint64))


def _freeze(table: NDArray[Number]) -> NDArray[Number]:
    """Copy a table to an array that cannot be made writable."""
    return np.frombuffer(table.tobytes(), dtype=table.dtype).reshape(table.shape)


def _verify(rows: Sequence[Sequence[int]], epsilon: float, delta: float) -> None:
    """Reject weights that are not (epsilon, delta)-private. All comparisons are between exact numbers."""
    ratio = program.floor_ratio(epsilon)
    if delta == 0:
        private = all(max(column) <= ratio * min(column) for column in zip(*rows, strict=True))
    else:
        private = program.find_worst_excess(rows, ratio) <= Fraction(delta) * WHOLE
    if not private:
        raise InvalidInput(
            f"These weights are not (epsilon, delta) = ({epsilon:g}, {delta:g}) private for every pair of inputs; "
            "give weights that are, or the epsilon and delta that they have."
        )


def _find_least_share(lowest: Sequence[int], ratio: Fraction) -> Fraction:
    """Find the least share of a pure table, from the column of its lowest output.

    Without the records that are not answered for, an entry w of this column becomes w - (1 - share) 2^62. The share is
    the least for which none of these exceeds the ratio times another. The other columns stay as they are.
    """
    return 1 - (ratio * min(lowest) - max(lowest)) / ((ratio - 1) * WHOLE)


def _verify_share(lowest: Sequence[int], epsilon: float, delta: float, share: float) -> None:
    """Reject a share for which the table of the records that are answered for is not epsilon-private."""
    if share == 1:
        return
    if share > 1 or delta or Fraction(share) < _find_least_share(lowest, program.floor_ratio(epsilon)):
        must = "in (0, 1], 1 where delta > 0, and so large that the records that are answered for have a private table"
        _validation.reject("share", must, share)


@validate(epsilon=check_epsilon, delta=check_delta)
def optimal_channel(
    epsilon: float,
    delta: float = 0.0,
    *,
    score_range: tuple[float, float] = (-1.0, 1.0),
    levels: int | None = None,
    prior: object = None,
    utility: object = "squared",
    threshold: float | None = None,
    outputs: ArrayLike | None = None,
) -> LevelChannel:
    """Find the channel of least expected cost among all (epsilon, delta)-private ones on these levels.

    The channel is the solution of a linear program.

    Args:
        epsilon: The epsilon of the channel, at least 1e-6.
        delta: The delta of the channel, 0 or at least 1e-12.
        score_range: The public range of scores. Scores outside are moved to its ends.
        levels: The number of evenly spaced levels. The default is 41, or 21 with ``delta`` > 0, which is then also
            about the largest number.
        prior: The public distribution of scores: None (uniform over the levels), one positive weight per level, a
            callable density, or a distribution (of SciPy, or a ``Distribution``), which is integrated between the cuts.
        utility: "squared" or "absolute" error, "threshold", or a matrix of costs, levels x outputs. With "threshold"
            the cost is 1 where the released score is on the other side of ``threshold``.
        threshold: The threshold of the "threshold" utility. A score is accepted if it is above the threshold.
        outputs: The values that may be released, within the range. The default is the levels.
    """
    if epsilon < 1e-6:
        _validation.reject("epsilon", "at least 1e-6", epsilon)
    if 0 < delta < 1e-12:
        _validation.reject("delta", "0, or at least 1e-12, because weights are multiples of 2^-62", delta)
    low, high = check_range(score_range)
    step = _step(high - low)
    count = _validation.check_count((21 if delta else 41) if levels is None else levels, "levels", least=2)
    inputs = _on_grid(np.linspace(low, high, min(count, program.LARGEST_PURE)), low, high, step)
    output_values = inputs if outputs is None else _check_outputs(outputs, low, high, step)
    _check_size(count, len(output_values), delta)
    ends = float(inputs[0]), float(inputs[-1])
    t = None if threshold is None else program.check_threshold(threshold, *ends)
    cuts = (inputs[:-1] + inputs[1:]) / 2
    if t is not None:  # levels keep the clean decision: the cut around the threshold is the threshold
        cuts[np.searchsorted(inputs, t, side="right") - 1] = t
    costs = program.build_costs(utility, inputs, output_values, t)
    costs = program.build_masses(prior, inputs, cuts)[:, None] * (costs - costs.min(axis=1, keepdims=True))
    rows = _choose_best_rows(min(epsilon, program.LARGEST_EPSILON), delta, costs)
    weights = np.array(rows, dtype=np.uint64)
    return LevelChannel(tuple(inputs), tuple(cuts), tuple(output_values), step, weights, epsilon, delta)


def _choose_best_rows(epsilon: float, delta: float, costs: Float) -> program.Rows:
    """Solve the programs, round both solutions so that they are private exactly, and choose the cheaper one."""
    ratio = program.floor_ratio(epsilon)
    caps = program.solve_pure(epsilon, costs).caps
    mixture = program.round_mixture(caps, costs, ratio, delta)  # without delta, the pure channel itself
    if delta * math.exp(-epsilon) < program.FINEST_DELTA:
        return mixture
    general = program.round_approximate(program.solve_approximate(epsilon, delta, costs), costs, ratio, delta)
    limit = program.compute_expected_cost(mixture, costs) * (1 - 1e-9)
    return mixture if general is None or program.compute_expected_cost(general, costs) >= limit else general


@validate(epsilon=check_epsilon)
def randomised_response(
    epsilon: float, cuts: ArrayLike, *, score_range: tuple[float, float] = (-1.0, 1.0)
) -> LevelChannel:
    """Make k-ary randomised response on the k = len(cuts) + 1 bins between public cut points, with pure epsilon.

    The true bin is released with probability e^epsilon / (e^epsilon + k - 1), rounded down to about 2^-62. All other
    bins share the rest equally. A score that equals a cut is in the bin below it. The release holds a value inside
    the bin.
    """
    middles, edges, step = place_levels(cuts, score_range)
    k = len(middles)
    other = math.ceil(WHOLE / (program.floor_ratio(epsilon) + k - 1))
    weights = np.full((k, k), other, dtype=np.uint64)
    np.fill_diagonal(weights, WHOLE - (k - 1) * other)
    return LevelChannel(tuple(middles), tuple(edges), tuple(middles), step, weights, epsilon)


@validate(epsilon=check_epsilon, advantage=check_inside_unit)
def thinned_response(
    epsilon: float, cuts: ArrayLike, *, advantage: float, score_range: tuple[float, float] = (-1.0, 1.0)
) -> LevelChannel:
    """Randomised response that answers for a share of the records only; pure epsilon, and a bounded attack advantage.

    With probability a the answer is that of `randomised_response`, and otherwise the lowest level. The attack advantage
    is a times as large. The share a is the largest that keeps ``advantage``. A record that is answered for
    is protected by epsilon only, so state both figures.

    Args:
        epsilon: The epsilon of the randomised response.
        cuts: Public cut points, as in `randomised_response`.
        advantage: The largest advantage of a membership test against the release.
        score_range: The public range of the scores.

    Returns:
        The table; its ``share`` is a. Where randomised response itself keeps the advantage, it is not thinned.
    """
    table = randomised_response(epsilon, cuts, score_range=score_range)
    if table.profile().advantage <= advantage:
        return table
    share = advantage / table.profile().advantage
    while (thinned := table.thin(share)).profile().advantage > advantage:
        share *= 1 - 2.0**-48
    return thinned


def place_levels(cuts: ArrayLike, score_range: tuple[float, float]) -> tuple[Float, Float, float]:
    """Place a level inside each bin between public cut points: the levels, the cuts and the step of their grid."""
    low, high = check_range(score_range)
    edges = np.concatenate([[low], check_increasing(cuts, "cuts"), [high]])
    width = float(np.diff(edges).min())
    if not width >= LEAST_WIDTH:
        _validation.reject("cuts", f"inside ({low:g}, {high:g}) and at least 2^-40 apart", cuts)
    step = min(_step(high - low), math.ldexp(1.0, math.frexp(width)[1] - 3))
    return np.rint((edges[:-1] + edges[1:]) / 2 / step) * step, edges[1:-1], step


def _step(width: float) -> float:
    """Compute the step of the public grid: a power of two, 2^-30 of the range or a little less."""
    return math.ldexp(1.0, math.frexp(width)[1] - 31)


def _on_grid(values: Float, low: float, high: float, step: float) -> Float:
    """Round to the nearest multiples of the step inside the range, without negative zero."""
    return np.clip(np.rint(values / step), math.ceil(low / step), math.floor(high / step)) * step + 0.0


def _check_outputs(outputs: Any, low: float, high: float, step: float) -> Float:
    values = check_increasing(outputs, "outputs")
    on_grid = _on_grid(values, low, high, step)
    if values[0] < low or values[-1] > high or len(values) > 10_000 or (np.diff(on_grid) <= 0).any():
        _validation.reject("outputs", f"in [{low:g}, {high:g}], at most 10,000, {step:g} or more apart", outputs)
    return on_grid


def _check_size(count: int, outputs: int, delta: float) -> None:
    if count * outputs > program.LARGEST_PURE:
        most = f"at most {math.isqrt(program.LARGEST_PURE)} if outputs are the levels"
        must = f"{most}, and {program.LARGEST_PURE:,} entries (levels x outputs) in all"
        _validation.reject("levels", must, count)
    if delta and count * (count - 1) * outputs > program.LARGEST_PAIRS:
        _validation.reject("levels", "at most 21 (if outputs are the levels) where delta > 0", count)
