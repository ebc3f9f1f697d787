"""The mechanisms for verification under one contract, each with its best public range and its predicted true matches.

Scores are counted on 2,048 bins, so that a hundred thousand of them cost no more than a few thousand. The threshold
keeps the false-match rate on the public impostors. Few of them leave the rate of others open, and few genuine scores
leave the true matches open: both are in the error of a prediction.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import bdtr, betaincinv

from scoreshield.decisions.queries import Prediction
from scoreshield.decisions.scores import Law, Sample, Scores, pass_probability
from scoreshield.plan.base import ScoreRange
from scoreshield.plan.candidates import SHIFT, Candidate, list_noise_laws, make_candidate
from scoreshield.plan.contracts import Contract
from scoreshield.privacy.adjacency import FULL_RANGE
from scoreshield.privacy.levels.bits import AcceptBit, accept_bit
from scoreshield.privacy.profiles import Profile

Float = NDArray[np.float64]

_BINS = 2048
#: How many points stand for the law of a share that a sample leaves open.
_POSTERIOR = 64


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
    size = len(near) if isinstance(near, Sample) else None
    rows: dict[str, list[_NoiseRow]] = {}
    for within in (FULL_RANGE, *_list_ranges(threshold, near)) if ranges is None else ranges:
        for name, call, law, profile in list_noise_laws(contract, within):
            if name == "gaussian" and ranges is None and within != FULL_RANGE:
                continue
            rate, at = populations.find_true_matches(law, target, within)
            row = _NoiseRow(name, call, law, profile, within, rate, at)
            rows.setdefault(name if ranges is None else f"{name} {within}", []).append(row)
    for same in rows.values():
        best = max(same, key=lambda row: row.rate)
        changed = [
            populations.find_rate(best.law, best.threshold, best.within, by) - best.rate for by in (-SHIFT, SHIFT)
        ]
        false = populations.find_false_interval(best.law, best.threshold, best.within)
        ends = [] if false is None else [populations.find_true_matches(best.law, end, best.within)[0] for end in false]
        paper = "the paper's mechanism; " if best.name == "gaussian" and best.within == FULL_RANGE else ""
        yield make_candidate(
            best.name,
            best.call,
            Prediction(best.rate, _join_errors(find_rate_error(best.rate, size, asked), ends)),
            best.profile,
            contract,
            within=best.within,
            note=f"{paper}accept if the released score exceeds {best.threshold:.4g}",
            shifted=(changed[0], changed[1]),
            false_matches=false,
        )
    yield _predict_accept_bit(contract, far, near, target, asked)


class _NoiseRow(NamedTuple):
    """Noise on a range, and the true-match rate at the threshold that keeps the false-match rate."""

    name: str
    call: str
    law: Law
    profile: Profile
    within: ScoreRange
    rate: float
    threshold: float


def _predict_accept_bit(contract: Contract, far: Scores, near: Scores, target: float, asked: int) -> Candidate:
    spend = contract.find_call_epsilon()
    bit = accept_bit(spend, impostor=far, genuine=near, false_match_rate=target)
    made = f"accept_bit({spend:.6g}, impostor=impostor, genuine=genuine, false_match_rate={target:g}).table"
    rate, shifted = bit.true_match_rate, [_accept(bit, near, by) for by in (-SHIFT, SHIFT)]
    false = [_accept(bit, far, by) for by in (-SHIFT, SHIFT)]
    chances = float(bit.table.probabilities[0, 1]), float(bit.table.probabilities[1, 1])
    size = len(near) if isinstance(near, Sample) else None
    error = find_rate_error(_rate_above(near, bit.threshold), size, asked, chances)
    real: tuple[float, float] | None = None
    ends: list[float] = []
    if isinstance(far, Sample):
        # The threshold is a score of the sample: the share of all scores above one with x of n above it has this law.
        above = round(len(far) * _rate_above(far, bit.threshold))
        shares = betaincinv(above + 1, max(len(far) - above, 1), [0.05, 0.95])
        real, least = (_mix(chances, float(shares[0])), _mix(chances, float(shares[1]))), 1 / len(far)
        ends = [_mix(chances, _rate_above(near, far.clean_threshold(max(share, least)))) for share in shares.tolist()]
    return make_candidate(
        "accept bit",
        f"release_scores(rows, query, epsilon={spend:.6g}, mechanism={made})",
        Prediction(rate, _join_errors(error, ends)),
        bit.table.profile(),
        contract,
        note=f"accept if the released score exceeds {bit.threshold:.4g}; if all scores lay {SHIFT:g} lower or higher, "
        f"false matches would be {100 * false[0]:.2g} % or {100 * false[1]:.2g} %",
        shifted=(shifted[0] - rate, shifted[1] - rate),
        false_matches=real,
    )


def find_rate_error(
    share: float, size: int | None, asked: int | None, chances: tuple[float, float] = (0.0, 1.0)
) -> float:
    """Find half the width of the interval around a predicted rate that holds the released rate nine times in ten.

    If a share of n public pairs passes, a beta law is left for the share of all pairs that pass: that of Jeffreys'
    prior with half a miss more, because the threshold was chosen on the same pairs. The released rate counts accepted
    pairs among those that are asked. So twenty pairs that all pass do not predict a rate of one without error.

    Args:
        share: The share of the public pairs that pass.
        size: The number of public pairs; None where their law is known.
        asked: The number of pairs asked; None for the rate of all pairs.
        chances: The probabilities that a pair is accepted if it does not pass, and if it passes.
    """
    levels = (np.arange(_POSTERIOR) + 0.5) / _POSTERIOR
    shares = np.array([share])
    if size is not None:
        shares = betaincinv(size * share + 0.5, size * (1 - share) + 1.0, levels)
    rate, rates = _mix(chances, share), chances[0] + (chances[1] - chances[0]) * shares
    if asked is None:
        return float(np.quantile(np.abs(rates - rate), 0.9))

    def is_enough(width: float) -> bool:
        first, last = math.ceil(asked * (rate - width) - 1e-9), math.floor(asked * (rate + width) + 1e-9)
        below = bdtr(first - 1, asked, rates) if first > 0 else 0.0
        return float(np.mean(bdtr(min(last, asked), asked, rates) - below)) >= 0.9

    low, high = 0.0, 1.0
    while high - low > 1e-5:
        middle = (low + high) / 2
        low, high = (low, middle) if is_enough(middle) else (middle, high)
    return high


def _join_errors(error: float, ends: Sequence[float]) -> float:
    """Add what an error of the threshold changes: rates at both ends of the interval of the false-match rate."""
    return math.hypot(error, (max(ends) - min(ends)) / 2) if ends else error


def _mix(chances: tuple[float, float], share: float) -> float:
    return chances[0] + (chances[1] - chances[0]) * share


def _rate_above(scores: Scores, threshold: float) -> float:
    return float(scores.clean_rate(np.array([threshold]), inclusive=False)[0])


def _list_ranges(threshold: float, near: Scores) -> Iterator[ScoreRange]:
    """Ranges around the clean threshold: a narrow one has little noise, a wide one keeps more order."""
    reach = max(near.clean_threshold(0.5) - threshold, 0.02)
    for part in (0.5, 1.0, 2.0):
        low, high = max(threshold - part * reach, -1.0), min(threshold + part * reach, 1.0)
        low, high = math.floor(low * 200) / 200, math.ceil(high * 200) / 200
        yield max(low, -1.0), min(high, 1.0)


def _accept(bit: AcceptBit, scores: Scores, distance: float) -> float:
    """The rate at which a bit accepts scores that lie farther by a distance."""
    chances = float(bit.table.probabilities[0, 1]), float(bit.table.probabilities[1, 1])
    return _mix(chances, _rate_above(scores, bit.threshold - distance))


class _ScoreCounts:
    """Two populations of scores, counted on common bins."""

    def __init__(self, far: Scores, near: Scores) -> None:
        low, high = min(far.lowest, near.lowest), max(far.highest, near.highest)
        edges = np.linspace(low, high, _BINS + 1)
        self._points = (edges[1:] + edges[:-1]) / 2
        self._size = len(far) if isinstance(far, Sample) else None
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

    def find_false_interval(self, law: Law, threshold: float, within: ScoreRange) -> tuple[float, float] | None:
        """Find the interval that holds the false-match rate of other impostors nine times in ten.

        The rate is a mean over the sample of the probability to pass. Noise makes these probabilities more alike, so
        the sample is worth more impostors than it has. None where the law of the impostors is known.
        """
        if self._size is None:
            return None
        passed = pass_probability(law, threshold, np.clip(self._points, *within))
        rate = float(np.clip(self._far @ passed, 1e-12, 1 - 1e-12))
        variance = max(float(self._far @ (passed - rate) ** 2), 1e-9 * rate * (1 - rate))
        worth = self._size * max(rate * (1 - rate) / variance, 1.0)
        low, high = betaincinv(worth * rate + 0.5, worth * (1 - rate) + 0.5, [0.05, 0.95])
        return float(low), float(high)

    def find_rate(self, law: Law, threshold: float, within: ScoreRange, distance: float) -> float:
        """Find the true-match rate at a threshold on noisy scores, if clean scores lie farther by a distance."""
        points = np.clip(self._points + distance, *within)
        return float(np.clip(self._near @ pass_probability(law, threshold, points), 0.0, 1.0))
