"""What someone who knows a fault would do: the two collections, the statistic, and where to cut it.

A claim of (epsilon, delta) allows no event to happen more often than `compute_ceiling` says. Each attack names an event
that does: `statistic(output) >= cut`. Its rates on both collections are exact where there is a closed form. Otherwise
they were counted in 400,000 releases. `tests/audit/test_battery_cases.py` checks them.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from scipy.special import ndtr
from scipy.stats import beta

from audit_battery import faults
from audit_battery.cases import (
    BATCH,
    DIMENSIONS,
    EPSILON,
    QUERY,
    RECORDS,
    SCALE,
    SIGMA,
    Array,
    Case,
    round_to_grid,
    score,
)
from scoreshield.audit import Claim

Statistic = Callable[[Any], float]


@dataclass(frozen=True, eq=False)
class Attack:
    """The attack of someone who knows the fault.

    Attributes:
        first: The collection on which the event happens more often.
        second: The collection that differs in one record.
        statistic: A number of an output; larger means the first collection. An exception counts as an output.
        cut: The event is `statistic(output) >= cut`.
        rates: How often the event happens on the first and on the second collection.
        is_exact: Whether the rates have a closed form.
    """

    first: Array
    second: Array
    statistic: Statistic
    cut: float
    rates: tuple[float, float]
    is_exact: bool = True


def observe(case: Case, rows: Array) -> Any:
    """Draw one output of a case. An exception is an output too."""
    try:
        return case.release(rows) if case.query is None else case.release(rows, query=case.query)
    except Exception as error:
        return error


def compute_ceiling(claim: Claim, rate: float) -> float:
    """Compute how often an event may happen that has this rate on the neighbour."""
    if claim.profile is not None:
        return float(claim.profile.tpr_at(rate))
    steep = math.exp(claim.epsilon) * rate + claim.delta
    return min(steep, 1 - math.exp(-claim.epsilon) * max(1 - claim.delta - rate, 0.0), 1.0)


def bound_rate(hits: int, releases: int, error: float) -> tuple[float, float]:
    """Compute the Clopper–Pearson bounds of a rate, each wrong with probability `error`."""
    lower = float(beta.ppf(error, hits, releases - hits + 1)) if hits else 0.0
    upper = float(beta.ppf(1 - error, hits + 1, releases - hits)) if hits < releases else 1.0
    return lower, upper


def count_needed(rates: tuple[float, float], claim: Claim, confidence: float = 0.99) -> int:
    """Estimate how many releases on each side contradict the claim, if both counts are a deviation unlucky.

    Args:
        rates: How often the event of an attack happens on the first and on the second collection.
        claim: The claim.
        confidence: The confidence of the contradiction.
    """
    p, q = rates
    releases = 10
    while releases < 10**9:
        hits = math.floor(max(releases * p - math.sqrt(releases * p * (1 - p)), 0.0))
        false = math.ceil(min(releases * q + math.sqrt(releases * q * (1 - q)), releases))
        lower = bound_rate(hits, releases, (1 - confidence) / 2)[0]
        if lower > compute_ceiling(claim, bound_rate(false, releases, (1 - confidence) / 2)[1]):
            return releases
        releases = math.ceil(releases * 1.1)
    return releases


# ---- Collections.


def _collect(record: Array, others: Array, index: int = 0) -> Array:
    """Make a collection of eight: one record at a position, and the others in their order."""
    others = np.atleast_2d(others)
    others = np.tile(others, (RECORDS - 1, 1)) if len(others) == 1 else others
    return np.insert(others, index, record, axis=0).astype(np.float32)


def _point(similarity: float) -> Array:
    """Make a record with this similarity to `QUERY`."""
    return similarity * BATCH[0] + math.sqrt(1 - similarity**2) * BATCH[1]


def _sign(pattern: str) -> Array:
    """Make a unit record whose entries have these signs, such as "+--"; a zero elsewhere."""
    signs = np.array([{"+": 1.0, "-": -1.0}[sign] for sign in pattern])
    return np.pad(signs, (0, DIMENSIONS - len(signs))) / math.sqrt(len(signs))


def _pair(one: float, other: float, others: float | Array = 0.0, index: int = 0) -> tuple[Array, Array]:
    """Make two collections: a record with one similarity to the query against another, among others."""
    rest = _point(others) if np.isscalar(others) else np.array([_point(value) for value in np.asarray(others)])
    return _collect(_point(one), rest, index), _collect(_point(other), rest, index)


def _signs(one: str, other: str) -> tuple[Array, Array]:
    """Make two collections: a record with these signs against others, among records that are never counted."""
    others = _sign("-" * len(one))
    return _collect(_sign(one), others), _collect(_sign(other), others)


OPPOSITE = _pair(1.0, -1.0)
ZERO = _pair(0.0, 1.0)
AWAY = BATCH[-1]


# ---- Statistics.


def _own(output: Any) -> float:
    """The entry of the record that differs, which is the first."""
    return float(output[0])


def _number(output: Any) -> float:
    return float(output)


def _negative(output: Any) -> float:
    return -float(output)


def _clip_sum(entries: Any, low: float, high: float) -> float:
    """Add up entries within a range: the log likelihood ratio of Laplace noise, but for a factor and a constant."""
    return float(np.clip(entries, low, high).sum())


def count_low_bits(output: Any) -> float:
    """The exponent of the lowest set bit of the first entry, with a minus sign."""
    value = float(output[0])
    if value == 0:
        return 0.0
    mantissa, exponent = math.frexp(value)
    whole = int(abs(mantissa) * 2**53)
    return float(53 - exponent - ((whole & -whole).bit_length() - 1))


def _is_half_precision(value: float) -> bool:
    return float(np.float16(value)) == value


@cache
def _list_seeded_outputs() -> frozenset[bytes]:
    """List all outputs that the first collection can have with a seed of 16 bits."""
    scores = score(OPPOSITE[0], QUERY)
    return frozenset(faults.add_seeded_noise(scores, seed).tobytes() for seed in range(2**16))


def _is_output_of_clock(output: Any) -> float:
    """Whether the output is that of the first collection with a seed of the last seconds."""
    scores, now = score(OPPOSITE[0], QUERY), int(time.time())
    return float(any(np.array_equal(output, faults.add_seeded_noise(scores, now - late)) for late in range(3)))


def _make_reference(release: Callable[..., Array]) -> Statistic:
    """Make a statistic that compares with an earlier release of the first collection."""

    @cache
    def see_reference() -> bytes:
        return release(OPPOSITE[0], QUERY).tobytes()

    return lambda output: float(output.tobytes() == see_reference())


# ---- The attacks.


def _attack(pair: tuple[Array, Array], statistic: Statistic, cut: float, p: float, q: float, **options: Any) -> Attack:
    return Attack(*pair, statistic, cut, (p, q), **options)


def _halves(loss: float, cut: float, pair: tuple[Array, Array] = OPPOSITE, statistic: Statistic = _own) -> Attack:
    """Laplace noise on one number: above the clean value of the first collection."""
    return _attack(pair, statistic, cut, 0.5, 0.5 * math.exp(-loss))


def _gaussian(sigma: float, cut: float) -> Attack:
    return _attack(OPPOSITE, _own, cut, float(ndtr((1 - cut) / sigma)), float(ndtr((-1 - cut) / sigma)))


def _attack_mean_in_range() -> Attack:
    """Means of 1 and 0.75 with noise of scale 0.25, each divided by its chance to lie in [-1, 1]."""
    cut, scale = 0.9375, 0.25
    inside = 1 - 0.5 * math.exp(-0.25 / scale) - 0.5 * math.exp(-1.75 / scale)
    p = (1 - math.exp(-(1 - cut) / scale)) / (1 - math.exp(-2 / scale))
    q = 0.5 * (math.exp(-(cut - 0.75) / scale) - math.exp(-0.25 / scale)) / inside
    return _attack(_pair(1.0, -1.0, 1.0), _number, cut, p, q)


def _attack_max_value() -> Attack:
    """The largest of eight noisy counts, which are all 0 or all 1, is below 1.5."""

    def stay_below(bar: float) -> float:
        return (1 - 0.5 * math.exp(-bar * EPSILON / 2)) ** 8

    return _attack(_signs("-" * 8, "+" * 8), _negative, -1.5, stay_below(1.5), stay_below(0.5))


def _list_attacks() -> dict[str, Attack]:
    clean = score(OPPOSITE[0], QUERY)
    alike = (_collect(QUERY, QUERY), _collect(-QUERY, QUERY))
    batch = tuple(_collect(sign * _sign("++++"), AWAY) for sign in (1, -1))
    close = tuple(_collect(sign * QUERY, AWAY) for sign in (1, -1))
    swap = tuple(_collect(BATCH[place], AWAY) for place in (0, 1))
    flat = _pair(0.1, 1.0, [0.0] + [0.1] * 6)
    gaussian_tail = 3 * SIGMA - 1 + 1e-4
    kept = 1 / (1 + math.exp(-EPSILON))
    move = 2 / math.sqrt(5)  # the score of the first axis for each of `CLOSE_QUERIES`
    return {
        "report-compared-value": _attack(
            _signs("-" * 7 + "+", "+" * 7 + "-"),
            lambda output: -float(output[15]) if output[7] == 1 else -99.0,
            -3.0,
            *(0.0110, 0.0013),
            is_exact=False,
        ),
        "ignore-number-of-answers": _attack(
            _signs("----++++", "++++----"),
            lambda output: float((output[4:] == 1).sum() - (output[:4] == 1).sum()),
            2.0,
            *(0.0525, 0.0049),
            is_exact=False,
        ),
        "compare-clean-counts": _attack(
            swap, lambda output: float(output[0] - output[1]), 1.0, 1 - math.exp(-EPSILON / 4), 0.0
        ),
        "compare-clean-scores": _attack(
            OPPOSITE, lambda output: float(output[0] - output[1]), 1.0, 0.5 - 0.5 * math.exp(-EPSILON / 4), 0.0
        ),
        "answer-without-limit": _attack(
            _signs("++++----", "----++++"),
            lambda output: float(output[:4].sum() - output[4:].sum()),
            2.0,
            *(0.1856, 0.0352),
            is_exact=False,
        ),
        "report-max-value": _attack_max_value(),
        "report-clean-gap": _attack(
            (_collect(QUERY, _sign("-" * 8)), _collect(-QUERY, _sign("-" * 8))),
            lambda output: float(output[1]),
            0.5,
            *(1.0, 0.0),
        ),
        "select-without-factor-two": _attack(
            _signs("+--", "-++"), _negative, 0.0, math.e / (math.e + 2), 1 / (1 + 2 * math.e)
        ),
        "preselect-by-score": _attack(OPPOSITE, lambda output: float(output[0] != 0), 1.0, 1.0, 0.0),
        "order-by-score": _attack(OPPOSITE, lambda output: -float(output[:, 0].argmin()), 0.0, 1.0, 0.0),
        "break-ties-by-score": _attack(
            OPPOSITE, lambda output: -float(output.argmin()), 0.0, *(0.5088, 0.0189), is_exact=False
        ),
        "scale-batch-by-l2": _attack(
            batch, lambda output: _clip_sum(output[0], -0.5, 0.5), 2.0, 1 / 16, math.exp(-2 * EPSILON) / 16
        ),
        "scale-gram-by-l2": _attack(
            alike,
            lambda output: _clip_sum(output[0, 1:], -1.0, 1.0),
            7.0,
            *(2.0**-7, 2.0**-7 * math.exp(-math.sqrt(7) * EPSILON)),
        ),
        "spend-epsilon-on-each-query": _attack(
            close,
            lambda output: _clip_sum(output[0], -move, move),
            4 * move - 1e-6,
            *(1 / 16, math.exp(-4 * move * EPSILON) / 16),
        ),
        "count-for-added-records": _attack(
            OPPOSITE,
            lambda output: _clip_sum([output[0], RECORDS - output[1]], 0.0, 1.0),
            2.0,
            *(0.25, 0.25 * math.exp(-2 * EPSILON)),
        ),
        "overflow-sum": _halves(
            255 / 64 / SCALE, 127 / 64, _pair(0.0, 1 / 64, [1.0, 63 / 64, 0.0, 0.0, 0.0, 0.0, 0.0]), _number
        ),
        "divide-noise-twice": _halves(8 * EPSILON, 1 / 8, statistic=_number),
        "divide-by-matches": _halves(4 * EPSILON, 1.0, _pair(1.0, 0.0), _number),
        "skip-clamping": _halves(3 * EPSILON, 3.0, (_collect(3 * QUERY, AWAY), _collect(-3 * QUERY, AWAY))),
        "seed-with-16-bits": _attack(
            OPPOSITE, lambda output: float(output.tobytes() in _list_seeded_outputs()), 1.0, 1.0, 0.0
        ),
        "seed-with-clock": _attack(OPPOSITE, _is_output_of_clock, 1.0, 1.0, 0.0),
        "cache-noise-of-query": _attack(OPPOSITE, _make_reference(faults.cache_noise_of_query), 1.0, 1.0, 0.0),
        "hash-collection": _attack(OPPOSITE, _make_reference(faults.hash_collection), 1.0, 1.0, 0.0),
        "share-noise-between-queries": _attack(swap, lambda output: float(output[0, 0] - output[0, 1]), 0.0, 1.0, 0.0),
        "share-noise-between-records": _attack(OPPOSITE, lambda output: float(output[0] - output[1]), 0.0, 1.0, 0.0),
        "skip-last-record": _attack(
            _pair(1.0, -1.0, index=RECORDS - 1), lambda output: float(output[-1]), 0.0, 1.0, 0.0
        ),
        "add-float-laplace": _attack(ZERO, count_low_bits, 54.0, *(0.1509, 0.0), is_exact=False),
        "add-float-gaussian": _attack(ZERO, count_low_bits, 54.0, *(0.0351, 0.0), is_exact=False),
        "add-float16-noise": _attack(
            OPPOSITE,
            lambda output: float(_is_half_precision(output[0] - 1)) - float(_is_half_precision(output[0] + 1)),
            1.0,
            *(0.4291, 0.0),
            is_exact=False,
        ),
        "round-noise-only": _attack(
            _pair(0.5 + 1 / 300, 0.5),
            lambda output: float(abs(output[0] * 128 - np.rint(output[0] * 128))),
            1e-3,
            *(1.0, 0.0),
        ),
        "halve-laplace": _halves(2 * EPSILON, 1.0),
        "shrink-laplace": _halves(1.3 * EPSILON, 1.0),
        "invert-scale": _halves(2.0, 1.0),
        "shrink-gaussian": _gaussian(SIGMA / 2.5, EPSILON * (SIGMA / 2.5) ** 2 / 2),
        "shrink-gaussian-slightly": _gaussian(SIGMA * 0.85, EPSILON * (SIGMA * 0.85) ** 2 / 2),
        "shrink-gaussian-curve": _gaussian(SIGMA * 0.85, 0.0),
        "ignore-delta": _gaussian(faults.IGNORED_SIGMA, EPSILON * faults.IGNORED_SIGMA**2 / 2),
        "cut-laplace": _attack(
            OPPOSITE,
            _own,
            faults.LAPLACE_BOUND - 1 + 1e-4,
            *(0.5 * math.exp(-(faults.LAPLACE_BOUND - 2 + 1e-4) / SCALE), 0.0),
        ),
        "cut-gaussian": _attack(
            OPPOSITE,
            _own,
            gaussian_tail,
            *(float((ndtr(3) - ndtr((gaussian_tail - 1) / SIGMA)) / (2 * ndtr(3) - 1)), 0.0),
        ),
        "draw-until-in-range": _attack_mean_in_range(),
        "keep-bits-too-often": _attack(OPPOSITE, _own, 0.5, kept + (1 - kept) / 2, (1 - kept) / 2),
        "drop-scores": _attack(OPPOSITE, _own, 0.5, 0.5, 0.0),
        "resample-records": _attack(OPPOSITE, _number, 1 / 16, 1 - (7 / 8) ** 8, 0.0),
        "answer-clean-sometimes": _attack(
            OPPOSITE,
            lambda output: -float(np.abs(output - round_to_grid(clean)).max()),
            *(-1e-9, faults.CLEAN_SHARE, 0.0),
        ),
        "scale-by-range": _attack(alike, lambda output: -float(np.abs(output[1:] - 1).max()), -0.05, 1.0, 0.0),
        "scale-by-deviation": _attack(alike, lambda output: -float(np.abs(output[1:] - 1).max()), -0.05, 1.0, 0.0),
        "divide-by-largest": _attack(
            _pair(0.1, 1.0, 0.1), lambda output: _clip_sum(output[1:], 0.1, 1.0), 5.0, *(0.3438, 0.0647), is_exact=False
        ),
        "stretch-to-unit-range": _attack(
            flat, lambda output: _clip_sum(output[2:], 0.1, 1.0), 4.0, *(0.6199, 0.0497), is_exact=False
        ),
        "clip-at-quantile": _attack(_pair(0.0, 1.0), lambda output: -float(np.abs(output[1:]).max()), -0.05, 1.0, 0.0),
        "choose-bins-from-data": _attack(
            flat,
            lambda output: _clip_sum([output[3], RECORDS - output[0]], 1.0, 7.0),
            14.0,
            *(0.25, 0.25 * math.exp(-6 * EPSILON)),
        ),
        "suppress-small-counts": _attack(
            _pair(1.0, -1.0, [1.0] * 2 + [0.0] * 5), lambda output: float(output != 0), 1.0, 1.0, 0.0
        ),
        "raise-on-duplicate": _attack(OPPOSITE, lambda output: float(isinstance(output, ValueError)), 1.0, 1.0, 0.0),
        "return-nothing-without-match": _attack(OPPOSITE, lambda output: float(output is not None), 1.0, 1.0, 0.0),
        "return-matches-only": _attack(OPPOSITE, lambda output: float(len(output)), 1.0, 1.0, 0.0),
        "describe-best-match": _attack(
            OPPOSITE, lambda output: float(re.findall(r"-?\d+\.\d+", output)[0]), 0.5, 1.0, 0.0
        ),
    }


#: The attack on each fault, by the name of the case. A seed of 32 bits has none: the search takes too long.
ATTACKS = _list_attacks()
