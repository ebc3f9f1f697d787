"""Exact sampling of directions near a given one: uniform on a spherical cap or on the rest of the sphere.

The sampler returns `round(f u)`, where u is a true random point of the sphere and f is a public factor. As in
`scoreshield.privacy.sampling.gaussian`, u is a function of infinite strings of fair bits. The sampler reads bits until
all comparisons and roundings are decided. Double precision with a proved error bound decides nearly all of them, and
interval arithmetic decides the rest. Let `Z` be a vector of d independent standard normals:

* the whole sphere: `u = Z / |Z|`, accepted or rejected by its height `t = ⟨u, v⟩`;
* a small cap: the height by rejection (below), then `u = t v + √(1 - t^2)  w`, where w is the direction of the part of
  Z that is orthogonal to v.

The height of a uniform point of the cap has density `(1-t^2)^((d-3)/2)` on `[γ, 1]`. In
`W = (1-t^2)/(1-γ^2)` that is `W^((d-3)/2) / t` up to a constant, so `W = |X|^(2/(d-1))` with
`|X|` uniform, accepted with probability `γ / t`, is exact. docs/index-release.md has the proofs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scoreshield.privacy.sampling import discrete, fixed, gaussian, intervals
from scoreshield.privacy.sampling.gaussian import Float
from scoreshield.privacy.sampling.stream import BlockStream, Stream, Words

_U = 2.0**-53
#: Bound on the error of one standard normal of the fast path.
_NORMAL = gaussian.ERROR
#: A cap below this share of the sphere is drawn by its height; a larger one by rejection from the whole sphere.
_SMALL_CAP = 0.2
_PAIRS, _BLOCK_PAIRS = gaussian._PAIRS, gaussian._BLOCK_PAIRS
_HALVINGS = 9
_EXPM1 = tuple((-1.0) ** k / float(np.prod(np.arange(1.0, k + 2))) for k in range(9))
_MASK = 2**64 - 1

Bits = tuple[int, int]  # an integer x, and the number of bits after the binary point: x <= X 2^bits <= x + 1


@dataclass(frozen=True)
class Cap:
    """The law of the direction that is drawn, and the factor that multiplies it.

    With probability 1 / (1 + e^-coin) the direction is uniform on the cap above height gamma, otherwise on the rest of
    the sphere. ``share`` is the cap's share of the sphere. It only chooses between two exact samplers of the same law.
    """

    dimension: int
    coin: float
    gamma: float
    factor: float
    share: float

    @property
    def small(self) -> bool:
        return self.share < _SMALL_CAP


class _Room(gaussian.Scratch):
    """Room for the pairs, the words and the matrices of one block of rows."""

    def __init__(self, pairs: int) -> None:
        super().__init__(pairs)
        self._numbers: list[Float] = [np.empty(0) for _ in range(3)]

    def read_words(self, stream: Stream, count: int) -> Words:
        if len(self.words) < count + 2:
            self.words = np.empty(count + 2, dtype=np.int64)
        return super().read_words(stream, count)

    def take_matrix(self, place: int, rows: int, columns: int) -> Float:
        """Return matrix number 0, 1 or 2, of this shape. What it held before is lost."""
        if len(self._numbers[place]) < rows * columns:
            self._numbers[place] = np.empty(rows * columns)
        return self._numbers[place][: rows * columns].reshape(rows, columns)


@dataclass
class _Normals:
    """Rows of standard normals with errors up to _NORMAL, and the bits that they are computed from."""

    values: Float
    x: Words
    y: Words
    longer: dict[tuple[int, int], tuple[int, int, int]] = field(default_factory=dict)

    @classmethod
    def draw(cls, stream: Stream, rows: int, dimension: int, room: _Room | None = None) -> _Normals:
        """Draw rows of normals. Their values and words are in ``room``, if it is given, until it is used again."""
        pairs = (dimension + 1) // 2
        most = max(1, (_BLOCK_PAIRS if isinstance(stream, BlockStream) else _PAIRS) // pairs)
        room = _Room(min(most, rows) * pairs) if room is None else room
        words = room.read_words(stream, 2 * rows * pairs).reshape(2, rows, pairs)
        normals = cls(room.take_matrix(0, rows, 2 * pairs), words[0], words[1])
        for start in range(0, rows, most):
            part = slice(start, start + most)
            values = normals.values[part].reshape(-1, 2, pairs).transpose(1, 0, 2)
            *_, outside = gaussian._normal_pairs(words[0, part].reshape(-1), words[1, part].reshape(-1), room, values)
            places = gaussian._find_marks(outside)
            following = stream.words(2 * len(places)).tolist() if places else []
            for number, place in enumerate(places):
                more = following[2 * number : 2 * number + 2]
                normals._refine(stream, start + place // pairs, place % pairs, more)
        normals.values = normals.values[:, :dimension]
        return normals

    def _refine(self, stream: Stream, row: int, pair: int, more: list[int]) -> None:
        """Recompute a pair with more random bits, because the float error bound does not hold for it.

        The first two further words are given.
        """
        x, y, bits = int(self.x[row, pair]), int(self.y[row, pair]), 63
        while True:
            words = stream.words(2).tolist() if bits > 63 else more
            x, y, bits = (x << 64) + (words[0] & _MASK), (y << 64) + (words[1] & _MASK), bits + 64
            if bits == fixed.BITS and (found := fixed.compute_floats(x, y)) is not None:
                break
            with intervals.LOCK:
                enclosures = _normal_enclosures(x, y, bits)
                if enclosures is not None and all(float(value.delta) < 2.0**-60 for value in enclosures):
                    found = float(enclosures[0].mid), float(enclosures[1].mid)
                    break
        self.longer[row, pair] = x, y, bits
        self.values[row, pair], self.values[row, pair + self.x.shape[1]] = found

    def bits(self, row: int) -> list[tuple[int, int, int]]:
        pairs = self.x.shape[1]
        return [self.longer.get((row, j), (int(self.x[row, j]), int(self.y[row, j]), 63)) for j in range(pairs)]


@dataclass
class _Heights:
    """Heights t in the cap, depths s = sqrt(1 - t^2), bounds on their errors, and the bits they are computed from."""

    t: Float
    s: Float
    error: Float
    words: Words
    longer: dict[int, Bits]


def lean(cap: Cap, rows: Float, stream: Stream, out: NDArray[np.floating[Any]] | None = None) -> Any:
    """Draw round(factor u) for each unit row, as whole floats. The law of u is that of `Cap` around the row.

    Args:
        cap: The law.
        rows: The unit rows.
        stream: Where the words come from.
        out: Where the draws are written; a new array of doubles by default.
    """
    n, d = rows.shape
    result = np.empty((n, d)) if out is None else out
    block = max(1, (1 << 20) // d)
    most = _BLOCK_PAIRS if isinstance(stream, BlockStream) else _PAIRS
    room = _Room.take(stream, min(most, min(block, n) * ((d + 1) // 2)))
    for start in range(0, n, block):
        part = slice(start, start + block)
        _lean_block(cap, rows[part], stream, result[part], room)
    room.put_back(stream)
    return result


@lru_cache(maxsize=64)
def _find_chance(coin: float) -> Callable[[int], tuple[int, int]]:
    """Make the enclosures of 1 / (1 + e^-coin). Each is computed once: interval arithmetic takes long for a block."""
    return lru_cache(maxsize=8)(discrete.enclose(lambda iv: 1 / (1 + iv.exp(-discrete.make_rational(iv, coin)))))


def _lean_block(
    cap: Cap, rows: Float, stream: Stream, out: NDArray[np.floating[Any]], room: _Room | None = None
) -> None:
    heads = discrete.flip_coins(stream, _find_chance(cap.coin), len(rows))
    whole = np.arange(len(rows))
    if cap.small:
        chosen, whole = np.flatnonzero(heads), np.flatnonzero(~heads)
        if len(chosen):
            out[chosen] = _from_cap(cap, _take_rows(rows, chosen, room), stream, room)
    while len(whole):
        values, is_accepted = _from_sphere(cap, _take_rows(rows, whole, room), heads[whole], stream, room)
        out[whole[is_accepted]] = values[is_accepted]
        whole = whole[~is_accepted]
    out += 0.0  # no negative zeros


def _take_rows(rows: Float, chosen: NDArray[np.intp], room: _Room | None) -> Float:
    target: Float = (
        np.empty((len(chosen), rows.shape[1])) if room is None else room.take_matrix(1, len(chosen), rows.shape[1])
    )
    return np.take(rows, chosen, axis=0, out=target, mode="clip")  # which needs no copy to check the places first


def _from_sphere(
    cap: Cap, rows: Float, heads: NDArray[np.bool_], stream: Stream, room: _Room | None = None
) -> tuple[Float, NDArray[np.bool_]]:
    """Draw a uniform point of the sphere for each row; return also whether it lies on the side that the coin chose.

    Where the coin chose the cap, a point of the lower half is mirrored first.
    """
    n, d = rows.shape
    normals = _Normals.draw(stream, n, d, room)
    values = normals.values
    length = np.sqrt(np.vecdot(values, values))
    height = np.vecdot(values, rows) / length
    error = 1.1 * (2 * _NORMAL * np.sqrt(d) / length + (3 * d + 16) * _U)
    mirrored = heads & (height < 0)
    above = np.where(heads, np.abs(height), height) - cap.gamma
    unclear = np.abs(above) <= error
    is_accepted = (above >= 0) == heads
    values /= np.where(mirrored, -length, length)[:, None]
    # |error of u_j| <= NORMAL / |z| + |u_j| slope
    flat, slope = _NORMAL / length, _NORMAL * np.sqrt(d) / length + (d + 10) * _U
    unclear |= _round(cap.factor, values, flat, slope, None, room)
    for row in np.flatnonzero(unclear):
        steps = _exact_sphere(cap, rows[row], bool(heads[row]), normals.bits(int(row)), stream)
        is_accepted[row] = steps is not None
        if steps is not None:
            values[row] = steps
    return values, is_accepted


def _from_cap(cap: Cap, rows: Float, stream: Stream, room: _Room | None = None) -> Float:
    """Draw a uniform point of each row's cap, by its height and a direction orthogonal to the row.

    With c = s / |side| the point t v + s side / |side| is c z + (t - c <z, v>) v, so that the side is not needed.
    """
    n, d = rows.shape
    heights = _draw_heights(cap, stream, n)
    normals = _Normals.draw(stream, n, d, room)
    values = normals.values
    square, along = np.vecdot(values, values), np.vecdot(values, rows)
    size = np.sqrt(square)
    length = _compute_side_length(values, rows, square, along)
    with np.errstate(divide="ignore", invalid="ignore"):  # where the side vanishes, interval arithmetic decides
        loss = (_NORMAL * np.sqrt(d) + (3 * d + 16) * _U * size) / length
        ratio = heights.s / length
        values *= ratio[:, None]
        values += np.multiply(rows, (heights.t - ratio * along)[:, None], out=_make_matrix(room, n, d))
        # |error of u_j| <= NORMAL / |side| + (|v_j| + |w_j|) slope
        flat, slope = _NORMAL / length, 2 * loss + (d + 10) * _U + heights.error
        unclear = ~(loss < 2.0**-20)

        def find_sizes(row: int, point: Float) -> Float:
            sizes: Float = np.abs(rows[row]) + np.abs(point - heights.t[row] * rows[row]) / heights.s[row]
            return sizes

        unclear |= _round(cap.factor, values, flat, slope, find_sizes, room)
    unclear[list(heights.longer)] = True
    for row in np.flatnonzero(unclear):
        start = heights.longer.get(int(row), (int(heights.words[row]), 63))
        values[row] = _exact_cap(cap, rows[row], start, normals.bits(int(row)), stream)
    return values


def _compute_side_length(z: Float, rows: Float, square: Float, along: Float) -> Float:
    """Compute |z - <z, v> v| by Pythagoras. Where too little of z is left for that, compute it from the difference."""
    rest = square - along * along
    short = np.flatnonzero(~(rest >= square / 9))
    if len(short):
        side = z[short] - along[short, None] * rows[short]
        rest[short] = np.vecdot(side, side)
    length: Float = np.sqrt(rest)
    return length


def _make_matrix(room: _Room | None, rows: int, columns: int) -> Float:
    return np.empty((rows, columns)) if room is None else room.take_matrix(2, rows, columns)


def _round(
    factor: float,
    values: Float,
    flat: Float,
    slope: Float,
    find_sizes: Callable[[int, Float], Float] | None,
    room: _Room | None = None,
) -> NDArray[np.bool_]:
    """Round factor * values in place; return True for rows with an entry that is too near to a half to be decided.

    The bound on each entry's error is flat + slope * size. ``find_sizes`` gives the sizes of a row's entries from its
    number and its values; without it, the size is that of the entry itself. All rows are first tried with the largest
    possible size, 3/2. Rows that fail are tried again with their true sizes.
    """
    sizes = 1.5 * slope
    scaled = np.multiply(values, factor, out=_make_matrix(room, *values.shape))
    np.rint(scaled, out=values)
    scaled -= values
    # 1.1 for second-order terms, and a few roundings of the product.
    room_left = 0.5 - 1.1 * factor * (flat + sizes + 8 * _U)
    is_undecided: NDArray[np.bool_] = ~((scaled.max(axis=1) < room_left) & (scaled.min(axis=1) > -room_left))
    for row in np.flatnonzero(is_undecided):
        point = (values[row] + scaled[row]) / factor
        size = np.abs(point) if find_sizes is None else find_sizes(int(row), point)
        bound = 1.1 * factor * (flat[row] + slope[row] * size + 8 * _U * np.abs(point))
        is_undecided[row] = not bool(np.all(np.abs(scaled[row]) < 0.5 - bound))
    return is_undecided


def _draw_heights(cap: Cap, stream: Stream, count: int) -> _Heights:
    power = 2 / (cap.dimension - 1)
    width = (1 - cap.gamma) * (1 + cap.gamma)
    t, s, error = np.empty(count), np.empty(count), np.empty(count)
    words = np.empty(count, dtype=np.int64)
    longer: dict[int, Bits] = {}
    todo = np.arange(count)
    off = (286 * power + 30) * _U  # half the bound on the error of 1 - W
    while len(todo):
        pairs = stream.words(2 * len(todo)).reshape(2, -1)
        value, logarithm = gaussian.compute_log_magnitude(pairs[0])
        rest = _one_minus_exp(np.maximum(-power * logarithm, 0.0))
        height = np.sqrt(cap.gamma**2 + width * rest)
        chance = cap.gamma / height
        uniform = (pairs[1].view(np.uint64) >> np.uint64(11)).astype(np.float64) * _U
        unsure = 2 * (off / height**2 + 4 * _U)
        is_accepted = uniform < chance
        unclear = (np.abs(uniform - chance) <= unsure) | (np.abs(value) < gaussian._SMALLEST_X)
        for place in np.flatnonzero(unclear):
            bits = _exact_height(cap, (int(pairs[0, place]), 63), int(pairs[1, place]) & _MASK, stream)
            is_accepted[place] = bits is not None
            if bits is not None:
                longer[int(todo[place])] = bits
        chosen = todo[is_accepted]
        t[chosen], words[chosen] = height[is_accepted], pairs[0][is_accepted]
        with np.errstate(divide="ignore"):
            s[chosen] = np.sqrt(width * (1 - rest[is_accepted]))
            error[chosen] = off / height[is_accepted] + off * width / s[chosen] + 8 * _U
        todo = todo[~is_accepted]
    return _Heights(t, s, error, words, longer)


def _one_minus_exp(x: Float) -> Float:
    """Compute 1 - e^-x for 0 <= x <= 27 with a relative error up to 45 u: a series on x / 2^9, then nine doublings.

    A doubling maps e = 1 - e^-y to e (2 - e) = 1 - e^-2y.
    """
    small = x * 2.0**-_HALVINGS
    total = np.full_like(small, _EXPM1[-1])
    for coefficient in _EXPM1[-2::-1]:
        total *= small
        total += coefficient
    total *= small
    for _ in range(_HALVINGS):
        total *= 2 - total
    return total


# Interval arithmetic, where double precision does not decide. Everything below holds the lock of the shared context.


def _read(stream: Stream, word: int) -> int:
    return (word << 64) + (int(stream.words(1)[0]) & _MASK)


def _normal_enclosures(x: int, y: int, bits: int) -> tuple[Any, Any] | None:
    """Enclose both normals of a pair whose X and Y begin with these bits; return None while the radius has no bound."""
    magnitude = x if x >= 0 else -x - 1
    if magnitude == 0:
        return None
    iv = intervals.INTERVALS
    iv.prec = bits + 64
    if bits == fixed.BITS and (normals := fixed.compute_normals(x, y)) is not None:
        first, second = (iv.mpf([value - fixed.ERROR, value + fixed.ERROR]) / fixed.ONE for value in normals)
        return first, second
    radius = iv.sqrt(-2 * iv.log(iv.mpf([magnitude, magnitude + 1]) / (1 << bits)))
    if x < 0:
        radius = -radius
    angle = iv.pi * iv.mpf([y, y + 1]) / (2 << bits)
    return radius * iv.cos(angle), radius * iv.sin(angle)


def _height_enclosure(cap: Cap, start: Bits) -> tuple[Any, Any] | None:
    """Enclose t and s = sqrt(1 - t^2) for the X that begins with these bits; return None while t has no bound."""
    word, bits = start
    magnitude = word if word >= 0 else -word - 1
    if magnitude == 0:
        return None
    iv = intervals.INTERVALS
    iv.prec = bits + 64
    gamma = discrete.make_rational(iv, cap.gamma)
    w = iv.exp(iv.log(iv.mpf([magnitude, magnitude + 1]) / (1 << bits)) * 2 / (cap.dimension - 1))
    inside = (1 - gamma * gamma) * w
    return iv.sqrt(1 - inside), iv.sqrt(inside)


def _exact_height(cap: Cap, start: Bits, word: int, stream: Stream) -> Bits | None:
    """Decide whether a proposed height is accepted: return its bits if it is, None if it is not."""
    (x, bits), size = start, 64
    while True:
        x, bits = _read(stream, x), bits + 64
        word, size = _read(stream, word), size + 64
        with intervals.LOCK:
            enclosures = _height_enclosure(cap, (x, bits))
            if enclosures is None:
                continue
            iv = intervals.INTERVALS
            over = iv.mpf([word, word + 1]) / (1 << size) * enclosures[0] - discrete.make_rational(iv, cap.gamma)
            if iv.is_below(over, 0):
                return x, bits
            if iv.is_below(0, over):
                return None


def _exact_cap(cap: Cap, v: Float, start: Bits, pairs: list[tuple[int, int, int]], stream: Stream) -> list[int]:
    """Compute round(factor u) on the cap; read further bits until every entry is decided."""
    x, bits = start
    while True:
        x, bits = _read(stream, x), bits + 64
        pairs = [(_read(stream, a), _read(stream, b), k + 64) for a, b, k in pairs]
        with intervals.LOCK:
            enclosures = _height_enclosure(cap, (x, bits))
            z = _row_enclosures(pairs, len(v))
            if enclosures is None or z is None:
                continue
            iv, axis = intervals.INTERVALS, _unit(v)
            along = _dot(z, axis)
            side = [a - along * b for a, b in zip(z, axis, strict=True)]
            square = _dot(side, side)
            if not iv.is_below(0, square):
                continue
            depth = enclosures[1] / iv.sqrt(square)
            steps = _round_all(cap, [enclosures[0] * a + depth * b for a, b in zip(axis, side, strict=True)])
        if steps is not None:
            return steps


def _exact_sphere(
    cap: Cap, v: Float, heads: bool, pairs: list[tuple[int, int, int]], stream: Stream
) -> list[int] | None:
    """Compute round(factor u) for a point of the sphere; None if the point is not on the side that the coin chose."""
    while True:
        pairs = [(_read(stream, a), _read(stream, b), k + 64) for a, b, k in pairs]
        with intervals.LOCK:
            z = _row_enclosures(pairs, len(v))
            if z is None:
                continue
            iv = intervals.INTERVALS
            square = _dot(z, z)
            if not iv.is_below(0, square):
                continue
            length = iv.sqrt(square)
            height = _dot(z, _unit(v)) / length
            if heads and not (iv.is_below(height, 0) or iv.is_below(0, height)):
                continue
            if heads and iv.is_below(height, 0):
                height, length = -height, -length
            over = height - discrete.make_rational(iv, cap.gamma)
            if not (iv.is_below(over, 0) or iv.is_below(0, over)):
                continue
            if iv.is_below(0, over) != heads:
                return None
            steps = _round_all(cap, [value / length for value in z])
        if steps is not None:
            return steps


def _row_enclosures(pairs: list[tuple[int, int, int]], dimension: int) -> list[Any] | None:
    enclosures = [_normal_enclosures(*pair) for pair in pairs]
    if any(pair is None for pair in enclosures):
        return None
    return [pair[part] for part in (0, 1) for pair in enclosures if pair is not None][:dimension]


def _unit(v: Float) -> list[Any]:
    """Divide the row by its length in interval arithmetic: the enclosed vector has length one exactly."""
    iv = intervals.INTERVALS
    entries = [discrete.make_rational(iv, float(value)) for value in v]
    length = iv.sqrt(_dot(entries, entries))
    return [entry / length for entry in entries]


def _dot(first: list[Any], second: list[Any]) -> Any:
    total = intervals.INTERVALS.mpf(0)
    for a, b in zip(first, second, strict=True):
        total += a * a if first is second else a * b
    return total


def _round_all(cap: Cap, values: list[Any]) -> list[int] | None:
    factor = discrete.make_rational(intervals.INTERVALS, cap.factor)
    steps = [gaussian._nearest(value * factor) for value in values]
    return None if any(value is None for value in steps) else [value for value in steps if value is not None]
