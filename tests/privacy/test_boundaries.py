"""The exact samplers where a draw hangs on one bit: chosen random words, against references in whole numbers.

A reference knows nothing of doubles: it takes the bits as a number, and decides with fractions, or with 200 digits.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

import mpmath
import numpy as np
import pytest

from scoreshield.privacy.levels.tables import LevelChannel, randomised_response
from scoreshield.privacy.privunit import PrivUnit
from scoreshield.privacy.sampling import discrete, gaussian, sphere
from scoreshield.privacy.sampling.stream import ResearchStream, Words
from scoreshield.releases import histogram, pipeline, top_k

WORD = 2**64


class Script:
    """A stream of these words, signed or unsigned, in this order; reading beyond them fails, unless more are given."""

    name = "research"

    def __init__(self, *words: int, then: int | None = None) -> None:
        self.left = [word % WORD for word in words]
        self.rest = None if then is None else ResearchStream(np.random.default_rng(then))

    def words(self, count: int) -> Words:
        given, self.left = self.left[:count], self.left[count:]
        words = np.array(given, dtype=np.uint64).view(np.int64)
        if len(given) == count:
            return words
        assert self.rest is not None, "the sampler read more words than it should"
        return np.concatenate([words, self.rest.words(count - len(given))])


# Uniform integers.


@pytest.mark.parametrize("bound", [1, 2, 3, 7, 10, 2**31, 2**62 - 1, 2**62, 3 * 2**61, 2**63 - 1])
def test_below_rejects_just_would_favour_small(bound: int) -> None:
    """Below rejects just what would favour small numbers."""
    surplus = WORD % bound
    assert (WORD - surplus) % bound == 0  # what is accepted falls on each remainder equally often
    edges = {surplus - 1, surplus, surplus + 1, 0, 1, bound - 1, bound, 2**63 - 1, 2**63, WORD - 1} - {-1}
    for word in edges:
        stream = Script(word, WORD - 1)
        found = discrete.draw_below(stream, np.array([bound]))
        rejected = word < surplus
        assert found[0] == (WORD - 1 if rejected else word) % bound
        assert len(stream.left) == (0 if rejected else 1)


def test_below_draws_again_for_the_rejected_alone() -> None:
    bounds = np.array([3 * 2**61, 5, 3 * 2**61])  # 2^64 mod 3 2^61 is 2^62
    found = discrete.draw_below(Script(2**62 - 1, 4, 2**62, 3 * 2**61 + 7), bounds)
    assert found.tolist() == [7, 4, 2**62]


# Tables.


@pytest.mark.parametrize(
    "weights",
    [
        [2**62],
        [1, 2**62 - 1],
        [2**62 - 1, 1],
        [0, 2**62, 0],
        [0, 0, 2**61, 0, 0, 2**61, 0],
        [1, 1, 2**61, 0, 2**61 - 3, 1],
    ],
)
def test_ties_in_a_table_go_to_the_next_column(weights: list[int]) -> None:
    """Column j is drawn for exactly the weights[j] numbers from the sum before it up to its own, that not included."""
    table = np.cumsum(np.array([weights], dtype=np.uint64), axis=1, dtype=np.uint64)
    sums = [sum(weights[: j + 1]) for j in range(len(weights))]
    edges = {edge for total in (0, *sums) for edge in (total - 1, total, total + 1) if 0 <= edge < 2**62}
    for uniform in edges:
        expected = next(j for j, total in enumerate(sums) if uniform < total)
        assert weights[expected] > 0
        for low_bits in (0, 1, 3):  # which do not count
            word = 4 * uniform + low_bits
            assert discrete.draw_columns(Script(word), table, np.array([0])).tolist() == [expected]


def test_a_table_reads_its_own_row_at_every_edge() -> None:
    channel = randomised_response(1.0, [-0.5, 0.1, 0.3])
    for row, weights in enumerate(channel.weights.tolist()):
        score = channel.inputs[row]
        for column in range(len(weights)):
            first, last = sum(weights[:column]), sum(weights[: column + 1]) - 1
            for uniform in (first, last):
                assert channel.release(Script(4 * uniform + 3), np.array([score]))[0] == channel.outputs[column]


def test_outputs_of_no_weight_are_never_drawn() -> None:
    weights = np.array([[0, 2**62, 0], [0, 2**62, 0]], dtype=np.uint64)
    channel = LevelChannel((-0.5, 0.5), (0.0,), (-0.5, 0.0, 0.5), 0.5, weights, 1.0)
    for word in (0, 3, 4, 2**63 - 1, 2**63, WORD - 1):
        assert channel.release(Script(word, word), np.array([-0.5, 0.5])).tolist() == [0.0, 0.0]


# Coins.


def test_a_coin_of_one_half_at_its_edge_reads_on() -> None:
    half = discrete.enclose(lambda iv: iv.mpf(1) / 2)
    assert discrete.flip_coins(Script(2**63 - 1), half, 1)[0]
    assert not discrete.flip_coins(Script(2**63 + 1), half, 1)[0]
    stream = Script(2**63, 0, 0, 1)  # equal so far, three times
    assert not discrete.flip_coins(stream, half, 1)[0]
    assert stream.left == []


@pytest.mark.parametrize("chance", [Fraction(0), Fraction(1), Fraction(1, 3), Fraction(2, 3), Fraction(1, WORD)])
def test_coins_against_fractions(chance: Fraction) -> None:
    """Heads if the number of all bits is below the chance; eight words of them decide any of these."""

    def enclosure(bits: int) -> tuple[int, int]:
        scaled = chance * 2**bits
        return math.floor(scaled), math.ceil(scaled)

    edge = math.floor(chance * WORD)
    for word in {word for word in (0, 1, edge - 1, edge, edge + 1, WORD - 1) if 0 <= word < WORD}:
        for following in (0, WORD - 1, WORD // 3 - 1, WORD // 3 + 1):
            number = word
            for _ in range(8):
                number = number * WORD + following
            heads = discrete.flip_coins(Script(word, *[following] * 8), enclosure, 1)[0]
            assert heads == (Fraction(number, WORD**9) < chance)


# Geometric and Laplace: a logarithm at the edge of a whole number.


def boundary(size: Callable[[], mpmath.mpf]) -> tuple[int, int, int]:
    """The 191 bits of a number in (0, 1) as a 63-bit word and two words of 64 bits after it, rounded down."""
    with mpmath.workdps(200):
        bits = int(mpmath.floor(size() * mpmath.mpf(2) ** 191))
    return bits >> 128, (bits >> 64) % WORD, bits % WORD


@pytest.mark.parametrize("epsilon", [0.3, 1.0, 2.5, 1e-6])
@pytest.mark.parametrize("k", [1, 2, 5])
def test_geometric_draws_on_both_sides_of_a_step(epsilon: float, k: int) -> None:
    """G >= k exactly where |X| <= e^(-k epsilon); a negative X has all its bits turned over, and the same G."""
    word, after, last = boundary(lambda: mpmath.exp(-k * mpmath.mpf(epsilon)))
    for place, expected in (
        ((word, after - 1), k),
        ((word, after + 1), k - 1),
        ((word, after, last - 1), k),
        ((word, after, last + 1), k - 1),
    ):
        for bits, minus in ((place, False), (tuple(~part for part in place), True)):
            stream = Script(*bits, then=1)
            found, sign = discrete.draw_geometric(stream, epsilon, 1)
            assert (found[0], sign[0]) == (expected, minus)
            assert stream.left == []  # fewer words do not decide
    for offset, expected in ((-(2**30), k), (2**30, k - 1)):
        assert discrete.draw_geometric(Script(word + offset, then=1), epsilon, 1)[0][0] == expected


@pytest.mark.parametrize(("word", "epsilon"), [(2**62, 1.0), (2**63 - 2**40, 3.0), (-(2**62), 1.0), (~(2**62), 50.0)])
def test_geometric_at_nought(word: int, epsilon: float) -> None:
    found, minus = discrete.draw_geometric(Script(word, then=1), epsilon, 1)
    assert (found[0], minus[0]) == (0, word < 0)


@pytest.mark.parametrize("zeros", [1, 2, 3])
def test_the_tail_has_no_end(zeros: int) -> None:
    """X begins with 64 zero bits, and 64 more: the draw is that of the tiny number, not of the smallest double."""
    words = [0] * zeros + [1, 0]
    epsilon = 0.01
    with mpmath.workdps(200):
        # The sign takes one of the bits; the 1 stands at the end of the word after the zeros.
        size = mpmath.mpf(1) / mpmath.mpf(2) ** (63 + 64 * zeros)
        expected = int(mpmath.floor(-mpmath.log(size) / mpmath.mpf(epsilon)))
    found = discrete.draw_geometric(Script(*words, then=1), epsilon, 1)[0][0]
    assert expected - 70 <= found <= expected  # the bits after it may still double it
    mirrored, minus = discrete.draw_geometric(Script(*(~word for word in words), then=1), epsilon, 1)
    assert minus[0]
    assert expected - 70 <= mirrored[0] <= expected


def test_random_words_against_a_slow_logarithm() -> None:
    words = np.random.default_rng(3).integers(-(2**63), 2**63 - 1, 400, endpoint=True)
    for epsilon in (0.013, 1.7):
        found = discrete.draw_geometric(Script(*words.tolist(), then=1), epsilon, len(words))[0]
        with mpmath.workdps(60):
            for word, draw in zip(words.tolist(), found.tolist(), strict=True):
                ends = [abs(mpmath.mpf(end)) / mpmath.mpf(2) ** 63 for end in (word, word + 1)]
                sizes = {int(mpmath.floor(-mpmath.log(end) / mpmath.mpf(epsilon))) for end in ends}
                assert draw in sizes


@pytest.mark.parametrize("steps", [0, 1, 7])
def test_laplace_draws_on_both_sides_of_a_half(steps: int) -> None:
    scale = 1000.25
    word, after, _ = boundary(lambda: mpmath.exp(-(steps + mpmath.mpf(1) / 2) / mpmath.mpf(scale)))
    for following, expected in ((after - 1, steps + 1), (after + 1, steps)):
        for flip, sign in ((False, 1.0), (True, -1.0)):
            bits = (~word, ~following) if flip else (word, following)
            out = np.empty(1)
            discrete.fill_rounded_laplace(Script(*bits, then=1), scale, out)
            assert out[0] == sign * expected


# Staircase.

THREE_QUARTERS = 3 * 2**61  # of the way to one: -ln is 0.29, which is no whole step for epsilon 1


def test_a_staircase_draws_minus_nought_again() -> None:
    out = np.empty(1)
    stream = Script(~THREE_QUARTERS, 0, THREE_QUARTERS, 0)  # 0 with a minus sign, then 0
    discrete.fill_staircase(stream, 1.0, 4, 4, out)
    assert stream.left == []
    assert out[0] == 0
    assert not np.signbit(out[0])
    discrete.fill_staircase(Script(~THREE_QUARTERS, 1), 1.0, 4, 4, out)
    assert out[0] == -1
    assert histogram._two_sided_geometric(Script(~THREE_QUARTERS, THREE_QUARTERS), 1.0, 1).tolist() == [0]


def test_both_parts_step_begin_end_should() -> None:
    """The inner part is 0, 1, 2, the outer 3 ... 7; a coin of probability 3 / (3 + 5 e^-1) chooses."""
    with mpmath.workdps(60):
        chance = int(mpmath.floor(3 / (3 + 5 * mpmath.exp(-1)) * mpmath.mpf(2) ** 64))
    out = np.empty(1)
    for coin, first in ((chance - 2, True), (chance + 2, False)):
        size = 3 if first else 5
        for place in range(size):
            word = WORD % size + (place - WORD % size) % size  # the least accepted word with this remainder
            discrete.fill_staircase(Script(THREE_QUARTERS, coin, word), 1.0, 8, 3, out)
            assert out[0] == (place if first else 3 + place)


# Gaussian.


def test_a_gaussian_mirrors_with_its_bits() -> None:
    """X with all its bits turned over is -X: both normals change sign, in the fast path and in intervals."""
    words = np.random.default_rng(5).integers(-(2**63), 2**63 - 1, 40, endpoint=True).tolist()
    for x, y, more, further in zip(*[iter(words)] * 4, strict=True):
        one = gaussian._decide(Script(more, further), x, y, 1e6)
        other = gaussian._decide(Script(~more, further), ~x, y, 1e6)
        assert one == tuple(-value for value in other)
        out, mirrored = np.empty(2), np.empty(2)
        gaussian.fill_rounded_gaussian(Script(x, y, more, further), 1e6, out)
        gaussian.fill_rounded_gaussian(Script(~x, y, ~more, further), 1e6, mirrored)
        assert out.tolist() == (-mirrored).tolist() == list(one)


@pytest.mark.parametrize("steps", [0, 3, 90])
def test_gaussian_half_decided_bits_double_cannot(steps: int) -> None:
    """Y = 0 makes the first normal the radius: R s = steps + 1/2 at a known X, of which 191 bits are given."""
    scale = 64.0
    word, after, last = boundary(lambda: mpmath.exp(-(((steps + mpmath.mpf(1) / 2) / mpmath.mpf(scale)) ** 2) / 2))
    for bits, expected in (
        ((word, after - 2**20), steps + 1),
        ((word, after + 2**20), steps),
        ((word, after, last - 2**20), steps + 1),
        ((word, after, last + 2**20), steps),
    ):
        for sign in (1, -1):
            out = np.empty(2)
            words = [part for given in bits for part in (given if sign > 0 else ~given, 0)]
            gaussian.fill_rounded_gaussian(Script(*words, then=1), scale, out)
            assert out.tolist() == [sign * expected, 0]


# Directions.


@pytest.mark.parametrize(("epsilon", "dimension"), [(6.0, 3), (1.0, 2)])
def test_the_coin_of_a_cap_at_its_edge(epsilon: float, dimension: int) -> None:
    """The first word decides between cap and rest; both ways to draw agree with it."""
    maker = PrivUnit.calibrate(dimension, epsilon)
    row = np.eye(dimension)[:1]
    with mpmath.workdps(80):
        edge = int(mpmath.floor(mpmath.mpf(2) ** 128 / (1 + mpmath.exp(-mpmath.mpf(maker.coin)))))
    word, after = edge >> 64, edge % WORD
    for small in (True, False):  # by height, and by rejection from the sphere
        cap = sphere.Cap(dimension, maker.coin, maker.gamma, 2.0**20, 0.0 if small else 1.0)
        for bits, heads in (
            ((word - 1,), True),
            ((word + 1,), False),
            ((word, after - 1), True),
            ((word, after + 1), False),
        ):
            for seed in range(6):
                steps = sphere.lean(cap, row, Script(*bits, then=seed))
                assert (steps[0, 0] / 2.0**20 > maker.gamma) == heads


def test_height_accepted_bits_beyond_double() -> None:
    """gamma / t to 128 bits, and words just below and beyond it."""
    cap = sphere.Cap(5, 1.0, 0.75, 2.0**20, 0.1)
    start = (2**62, 63)
    with mpmath.workdps(120):
        x = mpmath.mpf(2**62 * WORD * WORD) / mpmath.mpf(2) ** 191  # followed by two words of zeros
        t = mpmath.sqrt(1 - (1 - mpmath.mpf(0.75) ** 2) * x ** (mpmath.mpf(2) / 4))
        edge = int(mpmath.floor(mpmath.mpf(0.75) / t * mpmath.mpf(2) ** 192))
    for change, accepted in ((-(2**40), True), (2**40, False)):
        moved = edge + change * WORD  # in the second word
        parts = [(moved >> shift) % WORD for shift in (128, 64, 0)]
        found = sphere._exact_height(cap, start, parts[0], Script(0, parts[1], 0, parts[2], then=1))
        assert (found is not None) == accepted


# Orders and seeds.


@pytest.mark.parametrize("word", [0, 1, -1, 2**63 - 1, -(2**63)])
def test_a_tie_break_is_a_seed(word: int) -> None:
    assert 0 <= pipeline.draw_tie_break(Script(word)) < 2**62


def test_equal_keys_are_drawn_again() -> None:
    stream = Script(5, 5, 9, 7)
    assert top_k._random_order(stream, 2).tolist() == [1, 0]
    assert stream.left == []
