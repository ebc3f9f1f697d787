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

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scoreshield.privacy.sampling import discrete, gaussian, intervals
from scoreshield.privacy.sampling.gaussian import Float
from scoreshield.privacy.sampling.stream import Stream, Words

_U = 2.0**-53
#: Bound on the error of one standard normal of the fast path.
_NORMAL = gaussian.ERROR
#: A cap below this share of the sphere is drawn by its height; a larger one by rejection from the whole sphere.
_SMALL_CAP = 0.2
_PAIRS = 8192  # a block of this size fits into the second-level cache
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


@dataclass
class _Normals:
    """Rows of standard normals with errors up to _NORMAL, and the bits that they are computed from."""

    values: Float
    x: Words
    y: Words
    longer: dict[tuple[int, int], tuple[int, int, int]] = field(default_factory=dict)

    @classmethod
    def draw(cls, stream: Stream, rows: int, dimension: int) -> _Normals:
        pairs = (dimension + 1) // 2
        words = stream.words(2 * rows * pairs).reshape(2, rows, pairs)
        normals = cls(np.empty((rows, 2 * pairs)), words[0], words[1])
        block = max(1, _PAIRS // pairs)
        for start in range(0, rows, block):
            part = slice(start, start + block)
            first, second, outside = gaussian._normal_pairs(words[0, part].reshape(-1), words[1, part].reshape(-1))
            normals.values[part, :pairs] = first.reshape(-1, pairs)
            normals.values[part, pairs:] = second.reshape(-1, pairs)
            for place in np.flatnonzero(outside):
                normals._refine(stream, start + int(place) // pairs, int(place) % pairs)
        normals.values = normals.values[:, :dimension]
        return normals

    def _refine(self, stream: Stream, row: int, pair: int) -> None:
        """Recompute a pair with more random bits, because the float error bound does not hold for it."""
        x, y, bits = int(self.x[row, pair]), int(self.y[row, pair]), 63
        while True:
            x, y, bits = _read(stream, x), _read(stream, y), bits + 64
            with intervals.LOCK:
                enclosures = _normal_enclosures(x, y, bits)
                if enclosures is not None and all(float(value.delta) < 2.0**-60 for value in enclosures):
                    break
        self.longer[row, pair] = x, y, bits
        self.values[row, pair] = float(enclosures[0].mid)
        self.values[row, pair + self.x.shape[1]] = float(enclosures[1].mid)

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


def lean(cap: Cap, rows: Float, stream: Stream) -> Float:
    """Draw round(factor u) for each unit row, as whole floats. The law of u is that of `Cap` around the row."""
    n, d = rows.shape
    out = np.empty((n, d))
    block = max(1, (1 << 20) // d)
    for start in range(0, n, block):
        part = slice(start, start + block)
        _lean_block(cap, rows[part], stream, out[part])
    return out


def _lean_block(cap: Cap, rows: Float, stream: Stream, out: Float) -> None:
    heads = discrete.flip_coins(
        stream, discrete.enclose(lambda iv: 1 / (1 + iv.exp(-discrete.make_rational(iv, cap.coin)))), len(rows)
    )
    whole = np.arange(len(rows))
    if cap.small:
        chosen, whole = np.flatnonzero(heads), np.flatnonzero(~heads)
        if len(chosen):
            out[chosen] = _from_cap(cap, rows[chosen], stream)
    while len(whole):
        values, is_accepted = _from_sphere(cap, rows[whole], heads[whole], stream)
        out[whole[is_accepted]] = values[is_accepted]
        whole = whole[~is_accepted]
    out += 0.0  # no negative zeros


def _from_sphere(cap: Cap, rows: Float, heads: NDArray[np.bool_], stream: Stream) -> tuple[Float, NDArray[np.bool_]]:
    """Draw a uniform point of the sphere for each row; return also whether it lies on the side that the coin chose.

    Where the coin chose the cap, a point of the lower half is mirrored first.
    """
    n, d = rows.shape
    normals = _Normals.draw(stream, n, d)
    z = normals.values
    length = np.sqrt(np.vecdot(z, z))
    height = np.vecdot(z, rows) / length
    error = 1.1 * (2 * _NORMAL * np.sqrt(d) / length + (3 * d + 16) * _U)
    mirrored = heads & (height < 0)
    above = np.where(heads, np.abs(height), height) - cap.gamma
    unclear = np.abs(above) <= error
    is_accepted = (above >= 0) == heads
    values = z / np.where(mirrored, -length, length)[:, None]
    # |error of u_j| <= NORMAL / |z| + |u_j| slope
    flat, slope = _NORMAL / length, _NORMAL * np.sqrt(d) / length + (d + 10) * _U
    unclear |= _round(cap.factor, values, flat, slope, None)
    for row in np.flatnonzero(unclear):
        steps = _exact_sphere(cap, rows[row], bool(heads[row]), normals.bits(int(row)), stream)
        is_accepted[row] = steps is not None
        if steps is not None:
            values[row] = steps
    return values, is_accepted


def _from_cap(cap: Cap, rows: Float, stream: Stream) -> Float:
    """Draw a uniform point of each row's cap, by its height and a direction orthogonal to the row."""
    n, d = rows.shape
    heights = _draw_heights(cap, stream, n)
    normals = _Normals.draw(stream, n, d)
    z = normals.values
    size = np.sqrt(np.vecdot(z, z))
    side = z - np.vecdot(z, rows)[:, None] * rows
    length = np.sqrt(np.vecdot(side, side))
    with np.errstate(divide="ignore", invalid="ignore"):  # where the side vanishes, interval arithmetic decides
        side /= length[:, None]
        loss = (_NORMAL * np.sqrt(d) + (3 * d + 16) * _U * size) / length
        values: Float = heights.t[:, None] * rows + heights.s[:, None] * side
        # |error of u_j| <= NORMAL / |side| + (|v_j| + |w_j|) slope
        flat, slope = _NORMAL / length, 2 * loss + (d + 10) * _U + heights.error
        unclear = ~(loss < 2.0**-20)
        unclear |= _round(cap.factor, values, flat, slope, (rows, side))
    unclear[list(heights.longer)] = True
    for row in np.flatnonzero(unclear):
        start = heights.longer.get(int(row), (int(heights.words[row]), 63))
        values[row] = _exact_cap(cap, rows[row], start, normals.bits(int(row)), stream)
    return values


def _round(
    factor: float, values: Float, flat: Float, slope: Float, parts: tuple[Float, Float] | None
) -> NDArray[np.bool_]:
    """Round factor * values in place; return True for rows with an entry that is too near to a half to be decided.

    The bound on each entry's error is flat + slope * size. The size is the sum of the sizes of the parts, or that of
    the entry itself. All rows are first tried with the largest possible size, 3/2. Rows that fail are tried again with
    their true sizes.
    """
    sizes = 1.5 * slope
    scaled = values * factor
    nearest = np.rint(scaled)
    scaled -= nearest
    np.abs(scaled, out=scaled)
    # 1.1 for second-order terms, and a few roundings of the product.
    room = 0.5 - 1.1 * factor * (flat + sizes + 8 * _U)
    is_undecided: NDArray[np.bool_] = ~(scaled.max(axis=1) < room)
    for row in np.flatnonzero(is_undecided):
        size = np.abs(values[row]) if parts is None else np.abs(parts[0][row]) + np.abs(parts[1][row])
        bound = 1.1 * factor * (flat[row] + slope[row] * size + 8 * _U * np.abs(values[row]))
        is_undecided[row] = not bool(np.all(scaled[row] < 0.5 - bound))
    values[:] = nearest
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
