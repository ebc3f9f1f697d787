"""PrivUnit and its sampler piece by piece: scripted words, decisions at their borders, and the bounds on errors."""

from __future__ import annotations

import math
from typing import Any

import mpmath
import numpy as np
import pytest

from scoreshield.privacy import privunit
from scoreshield.privacy.privunit import PrivUnit
from scoreshield.privacy.profiles import StepProfile
from scoreshield.privacy.sampling import gaussian, intervals, sphere
from scoreshield.privacy.sampling.stream import ResearchStream

Array = np.ndarray
U = 2.0**-53
ONES = 2**64 - 1


class Script:
    """A stream that returns the given words and fails when it has no more."""

    def __init__(self, words: list[int]) -> None:
        self.left = [word & ONES for word in words]

    def words(self, count: int) -> Array:
        found, self.left = self.left[:count], self.left[count:]
        assert len(found) == count, "more words were read than a decision takes"
        return np.array(found, dtype=np.uint64).view(np.int64)


def research(seed: int) -> ResearchStream:
    return ResearchStream(np.random.default_rng(seed))


def normals_of(x: int, y: int, bits: int = 63) -> tuple[float, float]:
    """Box and Muller's pair of the words x and y, with the unread bits at one half."""
    size, angle = (x + 0.5) / 2.0**bits, math.pi / 2 * (y + 0.5) / 2.0**bits
    radius = math.copysign(math.sqrt(-2 * math.log(abs(size))), size)
    return radius * math.cos(angle), radius * math.sin(angle)


def words_of(count: int, seed: int) -> list[int]:
    return np.random.default_rng(seed).integers(-(2**63), 2**63, count).tolist()


class TestNormals:
    def test_rows_by_hand(self) -> None:
        """All X of all rows come first, then all Y; of three dimensions the second pair gives one value."""
        words = words_of(8, 1)
        found = sphere._Normals.draw(Script(words), 2, 3)
        for row in range(2):
            pairs = [normals_of(words[2 * row + j], words[4 + 2 * row + j]) for j in range(2)]
            wanted = [pairs[0][0], pairs[1][0], pairs[0][1]]
            assert found.values[row] == pytest.approx(wanted, rel=1e-12)
            assert found.bits(row) == [(words[2 * row + j], words[4 + 2 * row + j], 63) for j in range(2)]
        assert found.values.shape == (2, 3)
        assert found.longer == {}

    def test_blocks_are_one_draw(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A pair that needs more bits is put where it belongs, in whichever block it lies."""
        words = words_of(20, 2)
        words[3 * 2 + 1] = 2**40  # row 3, second pair
        more = words_of(2, 3)
        whole = sphere._Normals.draw(Script([*words, *more]), 5, 4)
        monkeypatch.setattr(sphere, "_PAIRS", 4)
        parts = sphere._Normals.draw(Script([*words, *more]), 5, 4)
        for found in (whole, parts):
            assert list(found.longer) == [(3, 1)]
            x, y, bits = found.longer[3, 1]
            assert (x, y, bits) == ((2**40 << 64) + (more[0] & ONES), (words[10 + 7] << 64) + (more[1] & ONES), 127)
            assert found.bits(3) == [(words[6], words[16], 63), (x, y, bits)]
            first, second = normals_of(2**40, words[17])
            assert (found.values[3, 1], found.values[3, 3]) == pytest.approx((first, second), rel=1e-12)
        assert np.array_equal(whole.values, parts.values)
        for row in range(5):
            assert parts.values[row, 0] == pytest.approx(normals_of(words[2 * row], words[10 + 2 * row])[0], rel=1e-12)

    def test_a_pair_is_read_until_it_has_sixty_bits(self) -> None:
        """X = 0 leaves the radius without a bound, and X in [1, 2] / 2^127 leaves it wide."""
        stream = Script([0, 5, 0, 7, 1, 0, 9, 11])
        found = sphere._Normals.draw(stream, 1, 2)
        assert stream.left == []
        assert found.longer[0, 0] == (((1 << 64) + 9), (((5 << 64) + 7 << 64) + 0 << 64) + 11, 255)
        assert found.values[0, 0] == pytest.approx(math.sqrt(2 * 191 * math.log(2)), rel=1e-12)

    @pytest.mark.parametrize("sign", [1, -1])
    def test_enclosures_have_the_ends_of_their_words(self, sign: int) -> None:
        """X in [9, 10] / 16 and Y in [3, 4] / 16."""
        with intervals.LOCK:
            found = sphere._normal_enclosures(9 if sign > 0 else ~9, 3, 4)
            assert found is not None
            low, high = math.sqrt(-2 * math.log(10 / 16)), math.sqrt(-2 * math.log(9 / 16))
            angles = [math.pi / 2 * 3 / 16, math.pi / 2 * 4 / 16]
            for part, function in zip(found, (math.cos, math.sin), strict=True):
                ends = sorted(sign * radius * function(angle) for radius in (low, high) for angle in angles)
                assert (float(part.a), float(part.b)) == pytest.approx((ends[0], ends[-1]), rel=1e-12)
            cap = sphere.Cap(5, 1.0, 0.5, 1.0, 0.1)
            t, s = sphere._height_enclosure(cap, (9 if sign > 0 else ~9, 4)) or (None, None)
            least, most = 0.75 * math.sqrt(9 / 16), 0.75 * math.sqrt(10 / 16)
            assert (float(s.a), float(s.b)) == pytest.approx((math.sqrt(least), math.sqrt(most)), rel=1e-12)
            assert (float(t.a), float(t.b)) == pytest.approx((math.sqrt(1 - most), math.sqrt(1 - least)), rel=1e-12)


class TestRounding:
    @pytest.mark.parametrize(
        ("value", "flat", "slope", "parts", "failed"),
        [
            (0.3, 0.0, 0.1, None, False),  # below 0.5 - 1.1 (3/2) 0.1
            (0.3, 0.0, 0.2, None, False),  # above 0.17, but its own size is 0.3: below 0.5 - 1.1 0.06
            (0.46, 0.0, 0.1, None, True),  # 0.5 - 1.1 0.046 = 0.4494
            (0.445, 0.0, 0.1, None, False),
            (0.445, 0.01, 0.1, None, True),  # less 0.011
            (0.3, 0.0, 0.2, (1.0, 0.0), True),  # 0.5 - 1.1 0.2 = 0.28
            (0.27, 0.0, 0.2, (1.0, 0.0), False),
            (0.27, 0.0, 0.2, (0.8, -0.3), True),
            (-0.3, 0.0, 0.2, (-1.0, 0.0), True),
            (-0.27, 0.0, 0.2, (0.0, -1.0), False),
            (0.3, 0.1, 0.1, (1.0, 0.5), True),  # 0.5 - 1.1 0.25 = 0.225
            (2.3, 0.0, 0.0, None, False),
            (2.6, 0.0, 0.2, None, True),
            (math.nan, 0.0, 0.0, None, True),
        ],
    )
    def test_what_is_too_near_to_a_half(
        self, value: float, flat: float, slope: float, parts: tuple[float, float] | None, failed: bool
    ) -> None:
        values = np.array([[0.1, value], [0.0, 1.0]])
        given = values.copy()

        def find_sizes(row: int, point: Array) -> Array:
            assert row == 0
            assert point == pytest.approx(given[0], nan_ok=True)
            return np.array([0.0, sum(abs(part) for part in parts or ())])

        sizes = None if parts is None else find_sizes
        found = sphere._round(1.0, values, np.array([flat, 0.0]), np.array([slope, 0.0]), sizes)
        assert found.tolist() == [failed, False]
        assert values[1].tolist() == [0.0, 1.0]
        if not math.isnan(value):
            assert values[0].tolist() == [0.0, np.rint(value)]

    @pytest.mark.parametrize(("share", "failed"), [(0.8, True), (1.25, False)])
    @pytest.mark.parametrize("size", [0.4, 1.0])
    def test_the_product_is_rounded_too(self, share: float, failed: bool, size: float) -> None:
        """Eight roundings of the entry, on a fine grid: 1.1 x 2^40 x 8 u = 0.00107 for an entry of 1."""
        factor = 2.0**40
        bound = 1.1 * 8 * U * factor * size
        values = np.array([[(math.floor(size * factor) + 0.5 - share * bound) / factor]])
        assert sphere._round(factor, values, np.zeros(1), np.zeros(1), None).tolist() == [failed]


def expected_heights(cap: sphere.Cap, words: list[int]) -> tuple[Array, Array]:
    power = np.abs((np.array(words, dtype=np.float64) + 0.5) / 2.0**63) ** (2 / (cap.dimension - 1))
    inside = (1 - cap.gamma**2) * power
    return np.sqrt(1 - inside), np.sqrt(inside)


class TestHeights:
    CAP = sphere.Cap(5, 1.0, 0.5, 1.0, 0.1)

    def test_accepted_by_chance(self) -> None:
        """Accepted where U < gamma / t; the second is thrown away and drawn again, after the others."""
        x = [(3 << 60) + 1, -(5 << 60), (1 << 62) + 12_345]
        drawn = sphere._draw_heights(self.CAP, Script([*x, 0, ONES, 1 << 62, 1 << 61, 0]), 3)
        x[1] = 1 << 61
        t, s = expected_heights(self.CAP, x)
        assert drawn.words.tolist() == x
        assert drawn.t == pytest.approx(t, rel=1e-13)
        assert drawn.s == pytest.approx(s, rel=1e-13)
        off = (286 * 0.5 + 30) * U
        assert drawn.error == pytest.approx(off / t + off * 0.75 / s + 8 * U, rel=1e-9, abs=0)
        assert drawn.longer == {}

    @pytest.mark.parametrize("side", [-1, 1])
    @pytest.mark.parametrize(("share", "asked"), [(0.9, True), (1.1, False)])
    def test_how_near_is_too_near(self, side: int, share: float, asked: bool, monkeypatch: pytest.MonkeyPatch) -> None:
        """Within 2 (off / t^2 + 4 u) of the chance, interval arithmetic decides."""
        seen: list[Any] = []

        def decide(*given: Any) -> Any:
            seen.append(given[:3])
            return (77, 127)

        monkeypatch.setattr(sphere, "_exact_height", decide)
        x = 1 << 61
        t = float(expected_heights(self.CAP, [x])[0][0])
        chance, unsure = 0.5 / t, 2 * ((286 * 0.5 + 30) * U / t**2 + 4 * U)
        word = round((chance + side * share * unsure) * 2**53) << 11
        stream = Script([x, word, x, 0])
        drawn = sphere._draw_heights(self.CAP, stream, 1)
        assert seen == ([(self.CAP, (x, 63), word)] if asked else [])
        assert drawn.longer == ({0: (77, 127)} if asked else {})
        assert len(stream.left) == (2 if asked or side < 0 else 0)

    def test_small_words_are_decided_exactly(self) -> None:
        """Near X = 0 the height is near 1 and the chance is gamma: one half."""
        x, more = 2**43, 5
        stream = Script([x, x, 3 << 62, 1 << 60, more, 0, more, 0, x, 1 << 60, more, 0])
        drawn = sphere._draw_heights(self.CAP, stream, 2)
        assert drawn.longer == {1: ((x << 64) + more, 127), 0: ((x << 64) + more, 127)}
        assert stream.left == []
        assert drawn.words.tolist() == [x, x]
        assert drawn.t == pytest.approx(expected_heights(self.CAP, [x, x])[0], rel=1e-12)


def expected_point(cap: sphere.Cap, v: Array, z: Array, word: int) -> Array:
    (t,), (s,) = expected_heights(cap, [word])
    side = z - (z @ v) * v
    return t * v + s * side / np.linalg.norm(side)


def unit(d: int, seed: int) -> Array:
    row = np.random.default_rng(seed).standard_normal(d)
    return row / np.linalg.norm(row)


class TestExactPaths:
    @pytest.mark.parametrize("d", [2, 3, 4])
    def test_points_of_the_cap(self, d: int) -> None:
        cap, v = sphere.Cap(d, 1.0, 0.6, 2.0**12, 0.1), unit(d, d)
        for seed in range(6):
            words = words_of(1 + 2 * ((d + 1) // 2), seed)
            pairs = [(words[1 + 2 * j], words[2 + 2 * j], 63) for j in range((d + 1) // 2)]
            drawn = [normals_of(x, y) for x, y, _ in pairs]
            z = np.array([*(pair[0] for pair in drawn), *(pair[1] for pair in drawn)])[:d]
            found = sphere._exact_cap(cap, v, (words[0], 63), pairs, research(seed))
            assert np.abs(np.array(found) - cap.factor * expected_point(cap, v, z, words[0])).max() < 0.5001

    @pytest.mark.parametrize("heads", [False, True])
    @pytest.mark.parametrize("d", [2, 3])
    def test_points_of_the_sphere(self, d: int, heads: bool) -> None:
        """Kept where the coin wants them; for heads, mirrored to the side of the row first."""
        cap, v, kept = sphere.Cap(d, 1.0, 0.4, 2.0**12, 0.4), unit(d, d), []
        for seed in range(14):
            words = words_of(2 * ((d + 1) // 2), seed)
            pairs = [(words[2 * j], words[2 * j + 1], 63) for j in range((d + 1) // 2)]
            drawn = [normals_of(x, y) for x, y, _ in pairs]
            z = np.array([*(pair[0] for pair in drawn), *(pair[1] for pair in drawn)])[:d]
            u = z / np.linalg.norm(z)
            if heads and u @ v < 0:
                u = -u
            found = sphere._exact_sphere(cap, v, heads, pairs, research(seed))
            assert (found is not None) == ((u @ v >= 0.4) == heads)
            kept.append(found is not None)
            if found is not None:
                assert np.abs(np.array(found) - cap.factor * u).max() < 0.5001
        assert True in kept
        assert False in kept

    def test_words_are_read_until_all_is_decided(self) -> None:
        """X = 0 in a pair, or in the height, decides nothing: one more word of each is read, and then another."""
        cap, v = sphere.Cap(2, 1.0, 0.25, 2.0**12, 0.4), np.array([0.6, 0.8])
        stream = Script([0, 5, 1 << 62, 5, 9, 9])
        assert sphere._exact_sphere(cap, v, True, [(0, 1 << 61, 63)], stream) is not None
        assert len(stream.left) == 2
        stream = Script([0, 0, 5, 1 << 62, 1 << 62, 5, 9, 9, 9])
        assert len(sphere._exact_cap(cap, v, (0, 63), [(0, 1 << 61, 63)], stream)) == 2
        assert len(stream.left) == 3
        stream = Script([0, 0, 1 << 62, 7, 9, 9])
        assert sphere._exact_height(cap, (0, 63), 0, stream) == (1 << 62, 191)
        assert len(stream.left) == 2

    def test_heights_at_a_border_are_read_on(self) -> None:
        """cos(pi Y / 2) = 1/2 at Y = 2/3 and 0 at Y = 1: while the words agree with that, nothing is decided."""
        cap, v, third = sphere.Cap(2, 1.0, 0.5, 2.0**12, 0.4), np.array([1.0, 0.0]), 0x5555555555555555
        for word, heads, kept in ((0, True, True), (ONES, True, False), (0, False, False), (ONES, False, True)):
            stream = Script([1, third, 1, third, 1, word, 9, 9])
            found = sphere._exact_sphere(cap, v, heads, [(1 << 62, third, 63)], stream)
            assert (found is not None) == kept
            assert len(stream.left) == 2
        stream = Script([1, ONES, 1, ONES, 1, 0, 9, 9])
        assert sphere._exact_sphere(cap, v, True, [(1 << 62, 2**63 - 1, 63)], stream) is None
        assert len(stream.left) == 2

    def test_a_point_near_the_centre_is_read_on(self) -> None:
        """While |X| may be 1 the radius may be 0, and has no direction."""
        cap, v, one = sphere.Cap(2, 1.0, 0.5, 2.0**12, 0.4), np.array([1.0, 0.0]), 2**63 - 1
        stream = Script([ONES, 5, 0, 5, 9, 9])
        assert sphere._exact_sphere(cap, v, True, [(one, 1 << 60, 63)], stream) is not None
        assert len(stream.left) == 2
        stream = Script([1, ONES, 5, 1, 0, 5, 9, 9, 9])
        assert len(sphere._exact_cap(cap, v, (1 << 60, 63), [(one, 1 << 60, 63)], stream)) == 2
        assert len(stream.left) == 3

    def test_a_row_need_not_be_of_length_one(self) -> None:
        """Its direction counts, in interval arithmetic; a row of rounded entries is off by a few units of 2^-53."""
        cap, v = sphere.Cap(3, 1.0, 0.6, 2.0**12, 0.1), unit(3, 1)
        pairs = [(1 << 61, 1 << 60, 63), (1 << 62, 1 << 59, 63)]
        assert sphere._exact_cap(cap, v, (1 << 60, 63), pairs, research(1)) == sphere._exact_cap(
            cap, 2 * v, (1 << 60, 63), pairs, research(1)
        )

    def test_entries_that_are_open_are_none(self) -> None:
        cap = sphere.Cap(2, 1.0, 0.5, 4.0, 0.1)
        with intervals.LOCK:
            iv = intervals.INTERVALS
            iv.prec = 100
            clear, wide = iv.mpf(1) / 3, iv.mpf([0, 1]) / 4
            assert sphere._round_all(cap, [clear, -clear, clear * 2]) == [1, -1, 3]
            assert sphere._round_all(cap, [clear, wide]) is None
            assert sphere._row_enclosures([(9, 3, 4), (0, 3, 4)], 3) is None
            assert len(sphere._row_enclosures([(9, 3, 4), (7, 3, 4)], 3) or []) == 3


class TestFastPaths:
    """What the fast paths hand to rounding, and when they leave a row to interval arithmetic."""

    @staticmethod
    def watch(monkeypatch: pytest.MonkeyPatch, z: Array, exact: str) -> tuple[list[Any], list[Any]]:
        drawn = sphere._Normals(z, np.arange(z.size).reshape(z.shape), -np.arange(z.size).reshape(z.shape))
        monkeypatch.setattr(sphere._Normals, "draw", lambda *_: drawn)
        rounded, asked = [], []  # type: tuple[list[Any], list[Any]]
        original = sphere._round

        def watched(*given: Any) -> Any:
            rounded.append([given[0], given[1].copy(), *given[2:5]])
            return original(*given)

        def decide(*given: Any) -> Any:
            asked.append(given)
            return [7] * z.shape[1]

        monkeypatch.setattr(sphere, "_round", watched)
        monkeypatch.setattr(sphere, exact, decide)
        return rounded, asked

    def test_the_sphere(self, monkeypatch: pytest.MonkeyPatch) -> None:
        d, v = 3, np.array([1.0, 0.0, 0.0])
        z = np.array([[2.0, 1.0, 2.0], [-2.0, 1.0, 2.0], [-2.0, 1.0, 2.0], [0.6, 0.8, 0.0], [0.6 + 1e-12, 0.8, 0.0]])
        before, heads = z.copy(), np.array([False, False, True, True, True])
        rounded, asked = self.watch(monkeypatch, z, "_exact_sphere")
        cap, stream = sphere.Cap(d, 1.0, 0.6, 10.0, 0.4), object()
        values, kept = sphere._from_sphere(cap, np.tile(v, (5, 1)), heads, stream)  # type: ignore[arg-type]
        assert kept.tolist() == [False, True, True, True, True]
        assert values[1].tolist() == [-7.0, 3.0, 7.0]
        assert values[2].tolist() == [7.0, -3.0, -7.0]  # mirrored
        assert values[3].tolist() == [7.0, 7.0, 7.0]  # too near to the border of the cap
        ((factor, given, flat, slope, find_sizes),) = rounded
        length = np.array([3.0, 3.0, 3.0, 1.0, 1.0])
        assert factor == 10.0
        assert find_sizes is None
        assert given[0] == pytest.approx(before[0] / 3)
        assert flat == pytest.approx(gaussian.ERROR / length, rel=1e-9, abs=0)
        assert slope == pytest.approx(gaussian.ERROR * math.sqrt(3) / length + 13 * U, rel=1e-9, abs=0)
        assert [case[2] for case in asked] == [True]
        assert asked[0][0] is cap
        assert asked[0][1].tolist() == v.tolist()
        assert asked[0][3] == [(9, -9, 63), (10, -10, 63), (11, -11, 63)]
        assert asked[0][4] is stream

    @pytest.mark.parametrize(
        ("size", "share", "asked"),
        [
            *((0.5, share, asked) for share, asked in ((-1.01, 0), (-0.99, 1), (0.99, 1), (1.01, 0))),
            *((2.0**20, share, asked) for share, asked in ((-1.15, 0), (-0.85, 1), (0.85, 1), (1.15, 0))),
        ],
    )
    def test_how_near_to_the_border(
        self, size: float, share: float, asked: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Within 1.1 (2 NORMAL sqrt(d) / |z| + (3 d + 16) u) of gamma a height decides nothing."""
        error = 1.1 * (2 * gaussian.ERROR * math.sqrt(2) / size + 22 * U)
        height = 0.6 + share * error
        z = size * np.array([[height, math.sqrt(1 - height**2)]])
        _, seen = self.watch(monkeypatch, z, "_exact_sphere")
        cap = sphere.Cap(2, 1.0, 0.6, 1.0, 0.4)
        values, kept = sphere._from_sphere(cap, np.array([[1.0, 0.0]]), np.array([True]), None)  # type: ignore[arg-type]
        assert len(seen) == asked
        assert kept.tolist() == [bool(asked) or share > 0]
        assert (values.tolist() == [[7.0, 7.0]]) == bool(asked)

    def test_what_the_exact_sphere_throws_away(self, monkeypatch: pytest.MonkeyPatch) -> None:
        z = np.array([[0.6, 0.8]])
        self.watch(monkeypatch, z, "_exact_sphere")
        monkeypatch.setattr(sphere, "_exact_sphere", lambda *_: None)
        cap = sphere.Cap(2, 1.0, 0.6, 1.0, 0.4)
        _, kept = sphere._from_sphere(cap, np.array([[1.0, 0.0]]), np.array([True]), None)  # type: ignore[arg-type]
        assert kept.tolist() == [False]

    @staticmethod
    def heights(monkeypatch: pytest.MonkeyPatch, count: int, longer: dict[int, tuple[int, int]]) -> sphere._Heights:
        error = np.full(count, 1e-13)
        made = sphere._Heights(np.full(count, 0.8), np.full(count, 0.6), error, np.arange(20, 20 + count), longer)
        monkeypatch.setattr(sphere, "_draw_heights", lambda *_: made)
        return made

    def test_the_cap(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A side that vanishes, or nearly so, and a height that took more words are left to interval arithmetic."""
        v = np.array([1.0, 0.0])
        z = np.array([[3.0, 4.0], [2.0, -1.0], [3.0, 0.0], [3.0, 1e-310], [3.0, 1e-9], [3.0, 1e-4], [1.0, 1.0]])
        rounded, asked = self.watch(monkeypatch, z, "_exact_cap")
        self.heights(monkeypatch, 7, {6: (99, 127)})
        cap, stream = sphere.Cap(2, 1.0, 0.5, 4.0, 0.1), object()
        found = sphere._from_cap(cap, np.tile(v, (7, 1)), stream)  # type: ignore[arg-type]
        assert found.tolist() == [[3.0, 2.0], [3.0, -2.0], [7.0] * 2, [7.0] * 2, [7.0] * 2, [3.0, 2.0], [7.0] * 2]
        ((factor, given, flat, slope, find_sizes),) = rounded
        assert factor == 4.0
        assert given[0] == pytest.approx([0.8, 0.6])
        size, length = np.array([5.0, math.sqrt(5)]), np.array([4.0, 1.0])
        loss = (gaussian.ERROR * math.sqrt(2) + 22 * U * size) / length
        assert flat[:2] == pytest.approx(gaussian.ERROR / length, rel=1e-9, abs=0)
        assert slope[:2] == pytest.approx(2 * loss + 12 * U + 1e-13, rel=1e-9, abs=0)
        assert find_sizes(0, given[0]) == pytest.approx([1.0, 1.0])  # |v| + |w|
        assert find_sizes(1, given[1]) == pytest.approx([1.0, 1.0])
        assert find_sizes(0, np.array([0.8, 0.3])) == pytest.approx([1.0, 0.5])
        assert [case[2] for case in asked] == [(22, 63), (23, 63), (24, 63), (99, 127)]
        assert asked[0][3] == [(4, -4, 63), (5, -5, 63)]
        assert all(case[0] is cap and case[1].tolist() == [1.0, 0.0] and case[4] is stream for case in asked)

    @pytest.mark.parametrize(("share", "asked"), [(0.99, 0), (1.01, 1)])
    def test_how_short_a_side_may_be(self, share: float, asked: int, monkeypatch: pytest.MonkeyPatch) -> None:
        """So short that the error of its direction is 2^-20, and no shorter."""
        side = 2.0**20 * (gaussian.ERROR * math.sqrt(2) + 22 * U) / share
        _, seen = self.watch(monkeypatch, np.array([[math.sqrt(1 - side**2), side]]), "_exact_cap")
        self.heights(monkeypatch, 1, {})
        sphere._from_cap(sphere.Cap(2, 1.0, 0.5, 1.0, 0.1), np.array([[1.0, 0.0]]), None)  # type: ignore[arg-type]
        assert len(seen) == asked


class TestLean:
    def test_blocks_and_ways(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """2^20 entries at a time; heads go to a small cap, tails to the sphere until each is kept."""
        seen: list[Any] = []
        monkeypatch.setattr(sphere, "_lean_block", lambda *given: seen.append((given[1].shape, given[3].shape)))
        rows = np.zeros((5, 2**19))
        out = sphere.lean(sphere.Cap(2**19, 1.0, 0.5, 1.0, 0.1), rows, None)  # type: ignore[arg-type]
        assert out.shape == rows.shape
        assert seen == [((2, 2**19), (2, 2**19)), ((2, 2**19), (2, 2**19)), ((1, 2**19), (1, 2**19))]
        seen.clear()
        sphere.lean(sphere.Cap(2**21, 1.0, 0.5, 1.0, 0.1), np.zeros((2, 2**21)), None)  # type: ignore[arg-type]
        assert [shape for shape, _ in seen] == [(1, 2**21)] * 2

    @pytest.mark.parametrize("small", [False, True])
    def test_who_is_drawn_how(self, small: bool, monkeypatch: pytest.MonkeyPatch) -> None:
        heads = np.array([True, False, True, False])
        monkeypatch.setattr(sphere.discrete, "flip_coins", lambda *_: heads)
        rounds: list[Any] = []

        def from_cap(_: Any, rows: Array, stream: Any, room: Any) -> Array:
            assert stream is room is None
            rounds.append(("cap", rows[:, 0].tolist()))
            return rows + 10

        def from_sphere(_: Any, rows: Array, coins: Array, stream: Any, room: Any) -> tuple[Array, Array]:
            assert stream is room is None
            rounds.append((coins.tolist(), rows[:, 0].tolist()))
            kept = np.arange(len(rows)) == len(rows) - 1
            return np.where(kept[:, None], rows + 20, 99.0), kept

        monkeypatch.setattr(sphere, "_from_cap", from_cap)
        monkeypatch.setattr(sphere, "_from_sphere", from_sphere)
        out = np.empty((4, 2))
        rows = np.array([[0.0, 0.0], [1.0, 0.0], [2.0, 0.0], [-20.0, -20.0]])
        sphere._lean_block(sphere.Cap(2, 1.0, 0.5, 1.0, 0.19 if small else 0.2), rows, None, out)  # type: ignore[arg-type]
        if small:
            assert rounds == [("cap", [0.0, 2.0]), ([False, False], [1.0, -20.0]), ([False], [1.0])]
            assert out.tolist() == [[10.0, 10.0], [21.0, 20.0], [12.0, 10.0], [0.0, 0.0]]
        else:
            assert [len(asked) for _, asked in rounds] == [4, 3, 2, 1]
            assert rounds[0] == ([True, False, True, False], [0.0, 1.0, 2.0, -20.0])
            assert out.tolist() == [[20.0, 20.0], [21.0, 20.0], [22.0, 20.0], [0.0, 0.0]]
        assert not np.signbit(out).any()

    def test_no_heads_in_a_small_cap(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sphere.discrete, "flip_coins", lambda *_: np.zeros(2, dtype=bool))
        monkeypatch.setattr(sphere, "_from_sphere", lambda *given: (-0.0 * given[1], np.ones(2, dtype=bool)))
        out = np.empty((2, 2))
        sphere._lean_block(sphere.Cap(2, 1.0, 0.5, 1.0, 0.1), np.ones((2, 2)), None, out)  # type: ignore[arg-type]
        assert out.tolist() == [[0.0, 0.0]] * 2
        assert not np.signbit(out).any()

    def test_the_coin(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Heads with 1 / (1 + e^-coin), one coin per row."""
        seen: list[Any] = []

        def coins(stream: Any, chance: Any, count: int) -> Array:
            seen.append((stream, chance(64), count))
            return np.zeros(count, dtype=bool)

        monkeypatch.setattr(sphere.discrete, "flip_coins", coins)
        monkeypatch.setattr(sphere, "_from_sphere", lambda *given: (given[1], np.ones(3, dtype=bool)))
        sphere._lean_block(sphere.Cap(2, 1.5, 0.5, 1.0, 0.1), np.ones((3, 2)), "stream", np.empty((3, 2)))  # type: ignore[arg-type]
        ((stream, (low, high), count),) = seen
        assert (stream, count) == ("stream", 3)
        assert high - low <= 2
        assert low / 2**64 == pytest.approx(1 / (1 + math.exp(-1.5)), rel=1e-14)


class TestParameters:
    @pytest.mark.parametrize("d", [2, 3, 24, 1000])
    @pytest.mark.parametrize("epsilon", [0.01, 0.5, 0.999, 1.0, 1.5, 8.0])
    def test_the_widest_cap_takes_the_whole_budget(self, d: int, epsilon: float) -> None:
        gamma = privunit._find_widest_cap(d, epsilon)
        assert float(privunit._cap_cost(d, gamma)) == pytest.approx(epsilon, rel=1e-8)

    def test_no_cap_is_narrower_than_the_grid(self) -> None:
        assert privunit._find_widest_cap(2, 400.0) == 1 - 2.0**-32
        maker = PrivUnit.calibrate(2, 500.0)
        assert maker.gamma <= 1 - 2.0**-32
        assert 499 < maker.coin + float(privunit._cap_cost(2, maker.gamma)) <= 500

    @pytest.mark.parametrize(("d", "epsilon"), [(2, 0.5), (24, 6.0), (384, 20.0), (2, 200.0)])
    def test_the_step(self, d: int, epsilon: float) -> None:
        """The power of two just above a 1024th of the deviation; entries stay below 2^23 steps."""
        maker = PrivUnit.calibrate(d, epsilon)
        least = max(maker.std / 1024, 1 / (maker.mean * 2.0**23))
        assert maker.step / 2 <= least < maker.step
        assert math.frexp(maker.step)[0] == 0.5

    def test_the_mass_of_a_cap_is_rounded_up(self) -> None:
        for d, epsilon in ((3, 0.5), (24, 6.0), (384, 20.0)):
            maker = PrivUnit.calibrate(d, epsilon)
            profile = maker.profile
            assert isinstance(profile, StepProfile)
            assert profile.epsilon == epsilon
            with mpmath.workdps(40):
                p = 1 / (1 + mpmath.exp(-mpmath.mpf(maker.coin)))
                assert p < mpmath.mpf(profile.mass) < p * (1 + mpmath.mpf("2e-12"))

    @pytest.mark.parametrize(("d", "gamma"), [(2, 0.3), (3, 0.5), (24, 0.2), (384, 0.01)])
    def test_moments_of_a_cap(self, d: int, gamma: float) -> None:
        """The mean height by integration, for a mechanism that spends the whole of its budget."""
        epsilon = 3.0
        with mpmath.workdps(30):
            weight = lambda t: (1 - t * t) ** (mpmath.mpf(d - 3) / 2)  # noqa: E731
            whole = mpmath.quad(weight, [-1, 0, 1])
            share = mpmath.quad(weight, [gamma, (1 + gamma) / 2, 1]) / whole
            upper = mpmath.quad(lambda t: t * weight(t), [gamma, (1 + gamma) / 2, 1]) / whole
            coin = epsilon - mpmath.log((1 - share) / share)
            p = 1 / (1 + mpmath.exp(-coin))
            mean = p * upper / share - (1 - p) * upper / (1 - share)
        assert privunit._mean(d, epsilon, gamma) == pytest.approx(float(mean), rel=1e-9)

    def test_what_is_drawn_is_what_was_calibrated(self, monkeypatch: pytest.MonkeyPatch) -> None:
        seen: list[Any] = []

        def lean(*given: Any) -> Array:
            seen.append(given)
            given[3][:] = [[3.0, -2.0]]
            return given[3]

        monkeypatch.setattr(sphere, "lean", lean)
        maker, rows = PrivUnit.calibrate(2, 1.0), np.array([[0.6, 0.8]])
        found = maker.release(rows, "stream")  # type: ignore[arg-type]
        assert found.tolist() == [[3 * maker.step, -2 * maker.step]]
        assert found.dtype == np.float32
        cap = sphere.Cap(2, maker.coin, maker.gamma, 1 / (maker.mean * maker.step), maker.cap)
        assert [given[:3] for given in seen] == [(cap, rows, "stream")]
        assert seen[0][1] is rows
        assert seen[0][3] is found  # written to its place, without a copy
        place = np.zeros((1, 2), dtype=np.float32)
        assert maker.release(rows, "stream", place) is place  # type: ignore[arg-type]
        assert np.array_equal(place, found)


@pytest.mark.parametrize(("dimension", "epsilon"), [(2, 1.0), (8, 6.0), (384, 20.0)])
def test_variance_score_linear_square(dimension: int, epsilon: float) -> None:
    """It is s^2 times that of a score of 1, and (1 - s^2) times that of a score of 0."""
    maker = PrivUnit.calibrate(dimension, epsilon)
    at_zero, at_one = maker.score_std(0.0) ** 2, maker.score_std(1.0) ** 2
    for score in (0.25, -0.5, 0.9):
        expected = score**2 * at_one + (1 - score**2) * at_zero
        assert maker.score_std(score) ** 2 == pytest.approx(expected, rel=1e-9)
    assert maker.score_std([0.25, 0.5]).tolist() == [maker.score_std(0.25), maker.score_std(0.5)]
