"""Exact samplers on scripted bits: draws that the first word leaves open, and the words at which a decision turns."""

from __future__ import annotations

import math
from fractions import Fraction

import mpmath
import numpy as np
import pytest

from scoreshield.privacy.sampling import discrete, gaussian, intervals, sphere

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
def test_draw_boundary_decided_first_bit_differs(
    negative: bool, agree: int, factor: Fraction, boundary: int, half: bool
) -> None:
    """X agrees with the boundary on 63 bits and ``agree`` words; the next word decides, whichever way it goes."""
    with mpmath.workdps(200):
        edge = mpmath.mpf(boundary) + (mpmath.mpf(1) / 2 if half else 1)
        limit = mpmath.exp(-edge * factor.denominator / factor.numerator)
        first, *tail = bits_of(limit, 63, 6)
    for word in {0, tail[agree] - 1, tail[agree] + 1, ONES} - {tail[agree]}:
        x, words = first, [*tail[:agree], word]
        if negative:
            x, words = mirrored(x, words)
        stream = Script([*words, 7])
        found = discrete._decide_log(stream, x, factor, half=half)  # type: ignore[arg-type]
        assert found == boundary + (word < tail[agree])  # a smaller X has a larger logarithm
        assert stream.left == 1


@pytest.mark.parametrize("negative", [False, True])
@pytest.mark.parametrize("agree", [0, 1])
@pytest.mark.parametrize("boundary", [0, 3, 1000])
def test_gaussian_draw_boundary_decided_first_bit(negative: bool, agree: int, boundary: int) -> None:
    """With Y = 0 the first of a pair is the radius itself, and the second is 0."""
    scale = (boundary + 0.5) / 1.25
    with mpmath.workdps(200):
        limit = mpmath.exp(-((mpmath.mpf(boundary) + 0.5) ** 2) / (2 * mpmath.mpf(scale) ** 2))
        first, *tail = bits_of(limit, 63, 6)
    for word in {0, tail[agree] - 1, tail[agree] + 1, ONES} - {tail[agree]}:
        x, words = first, [*tail[:agree], word]
        if negative:
            x, words = mirrored(x, words)
        stream = Script([part for each in words for part in (each, 0)] + [7, 7])
        found = gaussian._decide(stream, x, 0, scale)  # type: ignore[arg-type]
        size = boundary + (word < tail[agree])
        assert found == (-size if negative else size, 0)
        assert stream.left == 2


@pytest.mark.parametrize("y", [-7, -1, 0, 5])
def test_normals_of_mirrored_bits_are_mirrored(y: int) -> None:
    """X in [9, 10] / 16 and X in [-10, -9] / 16 give the same pair of intervals, but for the sign."""
    with intervals.LOCK:
        above, below = sphere._normal_enclosures(9, y, 4), sphere._normal_enclosures(~9, y, 4)
        assert above is not None
        assert below is not None
        for one, other in zip(above, below, strict=True):
            assert (one.a, one.b) == (-other.b, -other.a)
        inside = intervals.INTERVALS.mpf(np.sqrt(-2 * np.log(9.5 / 16)) * np.cos(np.pi / 2 * (y + 0.5) / 16))
        assert above[0].a <= inside.a <= inside.b <= above[0].b
        assert sphere._normal_enclosures(0, y, 4) is None
        assert sphere._normal_enclosures(-1, y, 4) is None
        cap = sphere.Cap(5, 1.0, 0.5, 1.0, 0.1)
        up, down = sphere._height_enclosure(cap, (9, 4)), sphere._height_enclosure(cap, (~9, 4))
        assert up is not None
        assert down is not None
        assert [(part.a, part.b) for part in up] == [(part.a, part.b) for part in down]
        w = (9.5 / 16) ** 0.5  # |X|^(2 / (d - 1)), of 1 - gamma^2 = 3/4
        assert float(up[0].a) <= np.sqrt(1 - 0.75 * w) <= float(up[0].b)
        assert float(up[1].a) <= np.sqrt(0.75 * w) <= float(up[1].b)
        assert float(up[0].b) - float(up[0].a) < 0.05
        assert sphere._height_enclosure(cap, (0, 4)) is None
        assert sphere._height_enclosure(cap, (-1, 4)) is None


@pytest.mark.parametrize("agree", [0, 1])
def test_height_accepted_first_bit_differs(agree: int) -> None:
    """Accepted if U t < gamma; X = 1/2 is all zeros after its first bit, which leaves U's word to decide."""
    cap = sphere.Cap(3, 1.0, 0.25, 1.0, 0.1)  # W = |X|, so t^2 = 1 - 15/16 |X|
    x = 1 << 62
    with mpmath.workdps(200):
        chance = mpmath.mpf("0.25") / mpmath.sqrt(1 - mpmath.mpf(15) / 32)
        first, *tail = bits_of(chance, 64, 6)
    for word, accepted in ((tail[agree] - 2**40, True), (tail[agree] + 2**40, False)):
        words = [part for each in (*tail[:agree], word) for part in (0, each)]
        stream = Script([*words, 7, 7])
        found = sphere._exact_height(cap, (x, 63), first, stream)  # type: ignore[arg-type]
        assert (found is not None) == accepted
        assert stream.left == 2
        if found is not None:
            assert found == (x << 64 * (agree + 1), 63 + 64 * (agree + 1))


@pytest.mark.parametrize("sign", [0, -1])
def test_the_smallest_numbers_are_read_on(sign: int) -> None:
    """X may begin with as many zeros as it likes: its logarithm is then large, not an error."""
    for zeros in (1, 2):
        flip = ONES if sign else 0
        words = [flip] * zeros + [(1 << 63) ^ flip]
        stream = Script(words)
        found = discrete._decide_log(stream, sign, Fraction(1), half=False)  # type: ignore[arg-type]
        assert found == math.floor((63 + 64 * zeros + 1) * math.log(2))
        assert stream.left == 0


@pytest.mark.parametrize("numerator", [1, 2, 3, 6])
@pytest.mark.parametrize("agree", [0, 1, 2])
def test_coin_decided_first_bit_differs(numerator: int, agree: int) -> None:
    """A coin is decided by the first bit that differs."""
    chance = discrete.enclose(lambda iv: iv.mpf(numerator) / 7)
    with mpmath.workdps(200):
        first, *tail = bits_of(mpmath.mpf(numerator) / 7, 64, 6)
    for word, heads in ((0, True), (ONES, False)):
        stream = Script([first, *tail[:agree], word, 7])
        assert discrete.flip_coins(stream, chance, 1).tolist() == [heads]  # type: ignore[arg-type]
        assert stream.left == 1


def test_coins_next_chance_need_no_second_word() -> None:
    """Coins next to their chance need no second word."""
    chance = discrete.enclose(lambda iv: iv.mpf(3) / 7)
    edge = 3 * 2**64 // 7
    stream = Script([edge - 2, edge + 2, 0, ONES])
    assert discrete.flip_coins(stream, chance, 4).tolist() == [True, False, True, False]  # type: ignore[arg-type]


@pytest.mark.parametrize(("value", "expected"), [(0, False), (1, True)])
def test_coins_that_always_fall_the_same_way(value: int, expected: bool) -> None:
    chance = discrete.enclose(lambda iv: iv.mpf(value))
    # Of the words that touch the end of the range each further bit leaves it open, so none of those here.
    found = discrete.flip_coins(Script([1, 2**63, ONES - 1]), chance, 3)  # type: ignore[arg-type]
    assert found.tolist() == [expected] * 3


def test_a_coin_that_is_nearly_certain() -> None:
    """Of the largest words only the last is left open where the chance is between 1 - 2^-64 and 1."""
    stream = Script([ONES - 1, ONES - 2])
    found = discrete.flip_coins(stream, lambda bits: (2**bits - 1, 2**bits), 2)  # type: ignore[arg-type]
    assert found.tolist() == [True, True]


@pytest.mark.parametrize("bound", [1, 2, 3, 5, 2**32, 2**62 + 1])
def test_whole_numbers_below_a_bound(bound: int) -> None:
    """The words below 2^64 mod bound are drawn again; each remainder then has as many words as any other."""
    surplus = 2**64 % bound
    words = [surplus, surplus + 1, ONES, 2**63 + 12345]
    found = discrete.draw_below(Script(words), np.full(4, bound, dtype=np.int64))  # type: ignore[arg-type]
    assert found.tolist() == [word % bound for word in words]
    if surplus:
        found = discrete.draw_below(Script([surplus - 1, 0, surplus + 2]), np.array([bound]))  # type: ignore[arg-type]
        assert found.tolist() == [(surplus + 2) % bound]


def test_each_number_has_a_bound_of_its_own() -> None:
    found = discrete.draw_below(Script([ONES, 0, ONES - 1, ONES - 5]), np.array([3, 7, 2]))  # type: ignore[arg-type]
    # 2^64 = 2 mod 7, so the 0 for the second is drawn again, after the others.
    assert found.tolist() == [ONES % 3, (ONES - 5) % 7, (ONES - 1) % 2]


def test_a_table_is_read_at_its_edges() -> None:
    """Cumulative weights 1, 1, 5, 2^62: the number u of 62 bits picks the first column whose sum exceeds it."""
    table = np.array([[1, 1, 5, 2**62], [2**62, 2**62, 2**62, 2**62]], dtype=np.uint64)
    numbers = [0, 1, 4, 5, 2**62 - 1]
    words = [4 * number + low for number in numbers for low in (0, 3)]
    found = discrete.draw_columns(Script(words), table, np.zeros(10, dtype=np.int64))  # type: ignore[arg-type]
    assert found.tolist() == [0, 0, 2, 2, 2, 2, 3, 3, 3, 3]
    found = discrete.draw_columns(Script(words), table, np.ones(10, dtype=np.int64))  # type: ignore[arg-type]
    assert found.tolist() == [0] * 10


@pytest.mark.parametrize("count", [1, discrete._CHUNK - 1, discrete._CHUNK, 2 * discrete._CHUNK + 3])
def test_long_draws_short_ones_after_other(count: int) -> None:
    """Long draws are the short ones one after the other."""
    words = np.random.default_rng(3).integers(0, 2**64, 2 * discrete._CHUNK + 100, dtype=np.uint64).tolist()
    table = np.array([[2**61, 2**62]], dtype=np.uint64)
    rows = np.zeros(count, dtype=np.int64)
    picked = discrete.draw_columns(Script(words), table, rows)  # type: ignore[arg-type]
    assert np.array_equal(picked, (np.array(words[:count], dtype=np.uint64) >= 2**63).astype(int))
    stream = Script(words)
    steps, minus = discrete.draw_geometric(stream, 0.5, count)  # type: ignore[arg-type]
    signed = np.array(words[:count], dtype=np.uint64).view(np.int64)
    assert np.array_equal(minus, signed < 0)
    size = -2 * np.log(np.abs((signed.astype(np.float64) + 0.5) / 2**63))
    assert np.array_equal(steps, np.floor(size))
    drawn = np.empty(count)
    discrete.fill_rounded_laplace(Script(words), 2.0, drawn)  # type: ignore[arg-type]
    assert np.array_equal(np.abs(drawn), np.rint(size))
    assert np.array_equal(np.signbit(drawn), signed < 0)


def test_minus_zero_of_a_staircase_is_drawn_again() -> None:
    """With one place per step a draw reads a size with its sign, and a place among 1."""
    plus = 7 * 2**63 // 10  # X = 0.7, and -ln 0.7 is less than a step
    minus = 2**64 - plus
    out = np.empty(1)
    discrete.fill_staircase(Script([minus, 5, plus, 5]), 1.0, 1, 1, out)  # type: ignore[arg-type]
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
    low, high = discrete.enclose(formula)(bits)
    with mpmath.workdps(120):
        true = {"1/3": mpmath.mpf(1) / 3, "exp": mpmath.exp(-1), "one": mpmath.mpf(1), "zero": mpmath.mpf(0)}[value]
        assert 0 <= low <= true * 2**bits <= high <= 2**bits
        assert high - low <= 2
