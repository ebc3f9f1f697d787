"""Fixed-point arithmetic: its error against 80 digits, and its roundings against interval arithmetic."""

from __future__ import annotations

import mpmath
import numpy as np
import pytest

from scoreshield.privacy.sampling import fixed, gaussian
from scoreshield.privacy.sampling.stream import ResearchStream

#: What docs/noise.md derives, before the slack in ERROR_BITS.
DERIVED_BITS = 96.8


def hard_pairs(count: int) -> list[tuple[int, int]]:
    """Random pairs of 127 bits, small and large X of either sign, and Y at every edge."""
    rng = np.random.default_rng(5)
    edges = [0, -1, 1, 2**127 - 1, -(2**127), 2**126, -(2**126), 12345]
    pairs = []
    for place in range(count):
        x = int.from_bytes(rng.bytes(16), "big") >> 1
        if place % 3 == 1:
            x >>= int(rng.integers(0, 25))  # down to 2^-24
        if place % 3 == 2:
            x = 2**127 - 1 - (x >> int(rng.integers(1, 35)))  # up to radii of 2^-16
        y = edges[place % 8] if place % 5 == 0 else int.from_bytes(rng.bytes(16), "big") - 2**127
        pairs.append((x if place % 2 else ~x, y))
    return pairs


def exact_normals(x: int, y: int, unread: int) -> tuple[mpmath.mpf, mpmath.mpf]:
    """The formula in 80 digits, with the unread bits all zeros or all ones."""
    with mpmath.workdps(80):
        first, angle = mpmath.mpf(x + unread) / 2**127, mpmath.pi * mpmath.mpf(y + unread) / 2**128
        radius = mpmath.sign(first) * mpmath.sqrt(-2 * mpmath.log(abs(first)))
        return radius * mpmath.cos(angle), radius * mpmath.sin(angle)


def largest_error(pairs: list[tuple[int, int]]) -> float:
    """The largest error of a normal, as its binary logarithm."""
    worst = mpmath.mpf(0)
    with mpmath.workdps(80):
        for x, y in pairs:
            normals = fixed.compute_normals(x, y)
            for unread in (0, 1) if normals is not None else ():
                for found, exact in zip(normals or (), exact_normals(x, y, unread), strict=True):
                    worst = max(worst, abs(mpmath.mpf(found) / fixed.ONE - exact))
        return float(mpmath.log(worst, 2))


def test_normals_stay_within_their_derived_error(monkeypatch: pytest.MonkeyPatch) -> None:
    pairs = hard_pairs(3000)
    assert sum(fixed.compute_normals(*pair) is None for pair in pairs) < 300
    assert -110 < largest_error(pairs) < -DERIVED_BITS < -fixed.ERROR_BITS
    # Near misses: a constant that is wrong in its 100th bit, and a validity limit left out.
    monkeypatch.setattr(fixed, "_QUARTER_PI", fixed._QUARTER_PI + 2**25)
    assert largest_error(pairs) > -DERIVED_BITS
    monkeypatch.undo()
    monkeypatch.setattr(fixed, "_SMALLEST_SQUARE", 1)
    near_one = [(2**127 - 1 - 2**place, 2**125 + 1) for place in range(20, 80)]
    assert largest_error(near_one) > -DERIVED_BITS


def test_constants_are_right_to_the_last_unit() -> None:
    with mpmath.workdps(80):
        for constant, exact in (
            (fixed._LOG_2, mpmath.log(2)),
            (fixed._LOG_CENTRE, mpmath.log(mpmath.mpf(181) / 256)),
            (fixed._QUARTER_PI, mpmath.pi / 4),
        ):
            assert abs(constant - exact * fixed.ONE) < 1
    assert fixed._CENTRE * 256 == 181 * fixed.ONE


def test_roundings_are_those_of_interval_arithmetic(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pairs of 63 bits, read on to 127: both arithmetics round them to the same numbers."""
    pairs = [(x >> 64, y >> 64) for x, y in hard_pairs(300)]

    def decide_all() -> list[tuple[int, int]]:
        stream = ResearchStream(np.random.default_rng(8))
        return [gaussian._decide(stream, x, y, 1.37 * 2.0**26) for x, y in pairs]

    found = decide_all()
    asked: list[int] = []

    def leave_open(*pair: float) -> None:
        asked.append(int(pair[0]))

    monkeypatch.setattr(fixed, "round_pair", leave_open)
    assert decide_all() == found
    assert len(asked) > 250


def test_what_the_error_leaves_open() -> None:
    """A half within the error of a normal is left open; outside of it, the nearest number is found."""
    x, y = 3 << 124, 1 << 120
    normals = fixed.compute_normals(x, y)
    assert normals is not None
    assert fixed.compute_floats(x, y) == (normals[0] / fixed.ONE, normals[1] / fixed.ONE)
    first = normals[0] / fixed.ONE
    for bits, is_open in ((30, False), (60, False), (fixed.ERROR_BITS - 1, True)):
        assert (fixed.round_pair(x, y, 2.0**bits) is None) == is_open
    assert fixed.round_pair(x, y, 2.0**40) == (round(first * 2.0**40), round(normals[1] / fixed.ONE * 2.0**40))
    # Scales of 53 bits put the value 2^-53 or less from a half, far outside the error; then the error is made as large.
    scale = (round(first * 2.0**20) + 0.5) / first
    assert fixed.round_pair(x, y, scale) is not None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fixed, "ERROR", fixed.ONE >> 45)
        assert fixed.round_pair(x, y, scale) is None


@pytest.mark.parametrize("x", [0, -1, 2**103 - 1, -(2**103), 2**127 - 1, -(2**127), 2**127 - 1 - 2**93])
def test_pairs_outside_the_proof_are_left_open(x: int) -> None:
    """|X| below 2^-24, or so near to 1 that the radius is below 2^-16."""
    assert fixed.compute_normals(x, 5) is None
    assert fixed.compute_floats(x, 5) is None
    assert fixed.round_pair(x, 5, 1.0) is None


@pytest.mark.parametrize("x", [2**103, -(2**103) - 1, 2**127 - 1 - 2**96])
def test_pairs_at_the_edge_of_the_proof_are_computed(x: int) -> None:
    assert fixed.compute_normals(x, 5) is not None
