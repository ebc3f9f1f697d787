"""Exact samplers on scripted bits: draws that the first word leaves open, and the words at which a decision turns."""

from __future__ import annotations

import math
from fractions import Fraction

import mpmath
import numpy as np
import pytest

from scoreshield.privacy import exact

ONES = 2**64 - 1


class Script:
    """A stream that returns the given unsigned words and fails when it has no more."""

    def __init__(self, words: list[int]) -> None:
        self._words = list(words)

    def words(self, count: int) -> np.ndarray:
        found, self._words = self._words[:count], self._words[count:]
        assert len(found) == count, "more words were read than a decision takes"
        return np.array(found, dtype=np.uint64).view(np.int64)

    @property
    def left(self) -> int:
        return len(self._words)


def bits_of(value: mpmath.mpf, first: int, words: int) -> list[int]:
    """The bits of a number in (0, 1): a first word of so many bits, then words of 64."""
    whole = int(mpmath.floor(value * mpmath.mpf(2) ** (first + 64 * words)))
    tail = [(whole >> 64 * place) & ONES for place in range(words - 1, -1, -1)]
    return [whole >> 64 * words, *tail]


def mirrored(word: int, tail: list[int]) -> tuple[int, list[int]]:
    """The bits of -X for the bits of X, as two's complement has them: all inverted."""
    return ~word, [ONES - part for part in tail]


@pytest.mark.parametrize("negative", [False, True])
@pytest.mark.parametrize("agree", [0, 1, 2])
@pytest.mark.parametrize(("factor", "boundary"), [(Fraction(3), 4), (Fraction(1000, 7), 150), (Fraction(1, 3), 0)])
@pytest.mark.parametrize("half", [False, True])
def test_a_draw_at_a_boundary_is_decided_by_the_first_bit_that_differs(
    negative: bool, agree: int, factor: Fraction, boundary: int, half: bool
) -> None:
    """X agrees with the boundary on 63 bits and ``agree`` words; the next word decides, whichever way it goes."""
    with mpmath.workdps(200):
        edge = mpmath.mpf(boundary) + (mpmath.mpf(1) / 2 if half else 1)
        limit = mpmath.exp(-edge * factor.denominator / factor.numerator)
        first, *tail = bits_of(limit, 63, 6)
    for word, found in ((0, boundary + 1), (ONES, boundary)):  # a smaller X has a larger logarithm
        if word == tail[agree]:
            continue
        x, words = first, [*tail[:agree], word]
        if negative:
            x, words = mirrored(x, words)
        stream = Script([*words, 7])
        assert exact._decide_log(stream, x, factor, half=half) == found  # type: ignore[arg-type]
        assert stream.left == 1


@pytest.mark.parametrize("sign", [0, -1])
def test_the_smallest_numbers_are_read_on(sign: int) -> None:
    """X may begin with as many zeros as it likes: its logarithm is then large, not an error."""
    for zeros in (1, 2):
        flip = ONES if sign else 0
        words = [flip] * zeros + [(1 << 63) ^ flip]
        stream = Script(words)
        found = exact._decide_log(stream, sign, Fraction(1), half=False)  # type: ignore[arg-type]
        assert found == math.floor((63 + 64 * zeros + 1) * math.log(2))
        assert stream.left == 0


@pytest.mark.parametrize("numerator", [1, 2, 3, 6])
@pytest.mark.parametrize("agree", [0, 1, 2])
def test_a_coin_is_decided_by_the_first_bit_that_differs(numerator: int, agree: int) -> None:
    chance = exact.enclose(lambda iv: iv.mpf(numerator) / 7)
    with mpmath.workdps(200):
        first, *tail = bits_of(mpmath.mpf(numerator) / 7, 64, 6)
    for word, heads in ((0, True), (ONES, False)):
        stream = Script([first, *tail[:agree], word, 7])
        assert exact.coins(stream, chance, 1).tolist() == [heads]  # type: ignore[arg-type]
        assert stream.left == 1


def test_coins_next_to_their_chance_need_no_second_word() -> None:
    chance = exact.enclose(lambda iv: iv.mpf(3) / 7)
    edge = 3 * 2**64 // 7
    stream = Script([edge - 2, edge + 2, 0, ONES])
    assert exact.coins(stream, chance, 4).tolist() == [True, False, True, False]  # type: ignore[arg-type]


@pytest.mark.parametrize(("value", "expected"), [(0, False), (1, True)])
def test_coins_that_always_fall_the_same_way(value: int, expected: bool) -> None:
    chance = exact.enclose(lambda iv: iv.mpf(value))
    # Of the words that touch the end of the range each further bit leaves it open, so none of those here.
    found = exact.coins(Script([1, 2**63, ONES - 1]), chance, 3)  # type: ignore[arg-type]
    assert found.tolist() == [expected] * 3


@pytest.mark.parametrize("bound", [1, 2, 3, 5, 2**32, 2**62 + 1])
def test_whole_numbers_below_a_bound(bound: int) -> None:
    """The words below 2^64 mod bound are drawn again; each remainder then has as many words as any other."""
    surplus = 2**64 % bound
    words = [surplus, surplus + 1, ONES, 2**63 + 12345]
    found = exact.below(Script(words), np.full(4, bound, dtype=np.int64))  # type: ignore[arg-type]
    assert found.tolist() == [word % bound for word in words]
    if surplus:
        found = exact.below(Script([surplus - 1, 0, surplus + 2]), np.array([bound]))  # type: ignore[arg-type]
        assert found.tolist() == [(surplus + 2) % bound]


def test_each_number_has_a_bound_of_its_own() -> None:
    found = exact.below(Script([ONES, 0, ONES - 1, ONES - 5]), np.array([3, 7, 2]))  # type: ignore[arg-type]
    # 2^64 = 2 mod 7, so the 0 for the second is drawn again, after the others.
    assert found.tolist() == [ONES % 3, (ONES - 5) % 7, (ONES - 1) % 2]


def test_a_table_is_read_at_its_edges() -> None:
    """Cumulative weights 1, 1, 5, 2^62: the number u of 62 bits picks the first column whose sum exceeds it."""
    table = np.array([[1, 1, 5, 2**62], [2**62, 2**62, 2**62, 2**62]], dtype=np.uint64)
    numbers = [0, 1, 4, 5, 2**62 - 1]
    words = [4 * number + low for number in numbers for low in (0, 3)]
    found = exact.choose(Script(words), table, np.zeros(10, dtype=np.int64))  # type: ignore[arg-type]
    assert found.tolist() == [0, 0, 2, 2, 2, 2, 3, 3, 3, 3]
    found = exact.choose(Script(words), table, np.ones(10, dtype=np.int64))  # type: ignore[arg-type]
    assert found.tolist() == [0] * 10


@pytest.mark.parametrize("count", [1, exact._CHUNK - 1, exact._CHUNK, 2 * exact._CHUNK + 3])
def test_long_draws_are_the_short_ones_one_after_the_other(count: int) -> None:
    words = np.random.default_rng(3).integers(0, 2**64, 2 * exact._CHUNK + 100, dtype=np.uint64).tolist()
    table = np.array([[2**61, 2**62]], dtype=np.uint64)
    rows = np.zeros(count, dtype=np.int64)
    picked = exact.choose(Script(words), table, rows)  # type: ignore[arg-type]
    assert np.array_equal(picked, (np.array(words[:count], dtype=np.uint64) >= 2**63).astype(int))
    stream = Script(words)
    steps, minus = exact.geometric(stream, 0.5, count)  # type: ignore[arg-type]
    signed = np.array(words[:count], dtype=np.uint64).view(np.int64)
    assert np.array_equal(minus, signed < 0)
    size = -2 * np.log(np.abs((signed.astype(np.float64) + 0.5) / 2**63))
    assert np.array_equal(steps, np.floor(size))
    drawn = np.empty(count)
    exact.fill_rounded_laplace(Script(words), 2.0, drawn)  # type: ignore[arg-type]
    assert np.array_equal(np.abs(drawn), np.rint(size))
    assert np.array_equal(np.signbit(drawn), signed < 0)


def test_minus_zero_of_a_staircase_is_drawn_again() -> None:
    """With one place per step a draw reads a size with its sign, and a place among 1."""
    plus = 7 * 2**63 // 10  # X = 0.7, and -ln 0.7 is less than a step
    minus = 2**64 - plus
    out = np.empty(1)
    exact.fill_staircase(Script([minus, 5, plus, 5]), 1.0, 1, 1, out)  # type: ignore[arg-type]
    assert out.tolist() == [0.0]
    assert not np.signbit(out[0])


@pytest.mark.parametrize("value", ["1/3", "exp", "one", "zero"])
@pytest.mark.parametrize("bits", [1, 64, 200])
def test_enclosures_enclose_and_are_tight(value: str, bits: int) -> None:
    formula = {
        "1/3": lambda iv: iv.mpf(1) / 3,
        "exp": lambda iv: iv.exp(iv.mpf(-1)),
        "one": lambda iv: iv.mpf(1),
        "zero": lambda iv: iv.mpf(0),
    }[value]
    low, high = exact.enclose(formula)(bits)
    with mpmath.workdps(120):
        true = {"1/3": mpmath.mpf(1) / 3, "exp": mpmath.exp(-1), "one": mpmath.mpf(1), "zero": mpmath.mpf(0)}[value]
        assert 0 <= low <= true * 2**bits <= high <= 2**bits
        assert high - low <= 2
