"""The mechanisms for verification under one contract, each with its best public range and its predicted true matches.

Scores are counted on 2,048 bins, so that a hundred thousand of them cost no more than a few thousand. The threshold
keeps the false-match rate on the public impostors.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from scoreshield.decisions.queries import Prediction
from scoreshield.decisions.scores import Law, Sample, Scores, pass_probability
from scoreshield.plan.base import ScoreRange
from scoreshield.plan.candidates import SHIFT, Candidate, list_noise_laws, make_candidate
from scoreshield.plan.contracts import Contract
from scoreshield.privacy.adjacency import FULL_RANGE
from scoreshield.privacy.levels.bits import AcceptBit, accept_bit

Float = NDArray[np.float64]

_BINS = 2048
#: Nine values in ten lie within this many standard deviations.
_NINE_IN_TEN = 1.645


def predict_true_matches(
    contract: Contract, far: Scores, near: Scores, target: float, asked: int, ranges: Sequence[ScoreRange] | None
) -> Iterator[Candidate]:
    """Predict the true-match rate of each mechanism at a false-match rate.

    Args:
        contract: The contract.
        far: Public impostor scores.
        near: Public genuine scores.
        target: The false-match rate to keep.
        asked: Over how many genuine pairs the released rate will be taken.
        ranges: Public score ranges to consider; None adapts them to the public scores.
    """
    threshold = far.clean_threshold(target)
    populations = _ScoreCounts(far, near)

    def state(rate: float) -> Prediction:
        variance = max(rate * (1 - rate), 1e-4)
        number = len(near) if isinstance(near, Sample) else math.inf
        return Prediction(rate, _NINE_IN_TEN * math.sqrt(variance * (1 / asked + 1 / number)))

    candidates: dict[str, list[Candidate]] = {}
    for within in (FULL_RANGE, *_list_ranges(threshold, near)) if ranges is None else ranges:
        for name, call, law, profile in list_noise_laws(contract, within):
            if name == "gaussian" and ranges is None and within != FULL_RANGE:
                continue
            rate, at = populations.find_true_matches(law, target, within)
            changed = [populations.find_rate(law, at, within, by) - rate for by in (-SHIFT, SHIFT)]
            paper = "the paper's mechanism; " if name == "gaussian" and within == FULL_RANGE else ""
            note = f"{paper}accept if the released score exceeds {at:.4g}"
            candidates.setdefault(name if ranges is None else f"{name} {within}", []).append(
                make_candidate(
                    name,
                    call,
                    state(rate),
                    profile,
                    contract,
                    within=within,
                    note=note,
                    shifted=(changed[0], changed[1]),
                )
            )
    for rows in candidates.values():
        yield max(rows, key=lambda row: row.utility)
    spend = contract.find_call_epsilon()
    bit = accept_bit(spend, impostor=far, genuine=near, false_match_rate=target)
    made = f"accept_bit({spend:.6g}, impostor=impostor, genuine=genuine, false_match_rate={target:g}).table"
    rate, shifted = bit.true_match_rate, [_accept(bit, near, by) for by in (-SHIFT, SHIFT)]
    false = [_accept(bit, far, by) for by in (-SHIFT, SHIFT)]
    yield make_candidate(
        "accept bit",
        f"release_scores(rows, query, epsilon={spend:.6g}, mechanism={made})",
        state(rate),
        bit.table.profile(),
        contract,
        note=f"accept if the released score exceeds {bit.threshold:.4g}; if all scores lay {SHIFT:g} lower or higher, "
        f"false matches would be {100 * false[0]:.2g} % or {100 * false[1]:.2g} %",
        shifted=(shifted[0] - rate, shifted[1] - rate),
    )


def _list_ranges(threshold: float, near: Scores) -> Iterator[ScoreRange]:
    """Ranges around the clean threshold: a narrow one has little noise, a wide one keeps more order."""
    reach = max(near.clean_threshold(0.5) - threshold, 0.02)
    for part in (0.5, 1.0, 2.0):
        low, high = max(threshold - part * reach, -1.0), min(threshold + part * reach, 1.0)
        low, high = math.floor(low * 200) / 200, math.ceil(high * 200) / 200
        yield max(low, -1.0), min(high, 1.0)


def _accept(bit: AcceptBit, scores: Scores, distance: float) -> float:
    """The rate at which a bit accepts scores that lie farther by a distance."""
    above = float(scores.clean_rate(np.array([bit.threshold - distance]), inclusive=False)[0])
    first, second = float(bit.table.probabilities[0, 1]), float(bit.table.probabilities[1, 1])
    return first + (second - first) * above


class _ScoreCounts:
    """Two populations of scores, counted on common bins."""

    def __init__(self, far: Scores, near: Scores) -> None:
        low, high = min(far.lowest, near.lowest), max(far.highest, near.highest)
        edges = np.linspace(low, high, _BINS + 1)
        self._points = (edges[1:] + edges[:-1]) / 2
        self._far, self._near = (
            -np.diff(np.concatenate([[1.0], scores.clean_rate(edges[1:-1], inclusive=False), [0.0]]))
            for scores in (far, near)
        )

    def find_true_matches(self, law: Law, target: float, within: ScoreRange) -> tuple[float, float]:
        """Find the true-match rate where the noisy impostors keep the target, and its threshold."""
        points = np.clip(self._points, *within)
        reach = 40 * law.std
        low, high = float(points[0]) - reach, float(points[-1]) + reach
        for _ in range(5):  # each round narrows the interval to one of 127
            t = np.linspace(low, high, 128)
            false = self._far @ pass_probability(law, t, points[:, None])
            place = int(np.argmax(false <= target))
            low, high = float(t[max(place - 1, 0)]), float(t[place])
        return self.find_rate(law, high, within, 0.0), high

    def find_rate(self, law: Law, threshold: float, within: ScoreRange, distance: float) -> float:
        """Find the true-match rate at a threshold on noisy scores, if clean scores lie farther by a distance."""
        points = np.clip(self._points + distance, *within)
        return float(np.clip(self._near @ pass_probability(law, threshold, points), 0.0, 1.0))
