"""Exact sampling of directions that lean towards a given one: uniform on a spherical cap or on the rest of the sphere.

What is drawn is `round(f u)` with u a true random point of the sphere and f a public factor. As in
`scoreshield.privacy.sampling.gaussian`, u is a function of infinite strings of fair bits. As many are read as the
comparisons and the rounding need: double precision with a proved error settles nearly all, interval arithmetic the
rest. With `Z` a vector of d independent standard normals:

* the whole sphere: `u = Z / |Z|`, kept or thrown away by its height `t = ⟨u, v⟩`;
* a small cap: the height by rejection (below), then `u = t v + √(1 - t^2)  w`, w the direction of Z's part
  orthogonal to v.

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
#: Caps below this share of the sphere are drawn by their height; larger ones by rejection from the whole sphere.
_SMALL_CAP = 0.2
_PAIRS = 8192  # values in flight fit the second-level cache
_HALVINGS = 9
_EXPM1 = tuple((-1.0) ** k / float(np.prod(np.arange(1.0, k + 2))) for k in range(9))
_MASK = 2**64 - 1

Bits = tuple[int, int]  # a word x and how many bits follow the point: x <= X 2^bits <= x + 1


@dataclass(frozen=True)
class Cap:
    """What is drawn: with chance 1 / (1 + e^-coin) from the cap above height gamma, else from the rest, times factor.

    ``share`` is the cap's share of the sphere; it chooses between two exact ways to the same law, no more.
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
    """Rows of standard normals to within _NORMAL, with the bits that they are made of."""

    values: Float
    x: Words
    y: Words
    longer: dict[tuple[int, int], tuple[int, int, int]] = field(default_factory=dict)

    @classmethod
    def draw(cls, stream: Stream, rows: int, dimension: int) -> _Normals:
        pairs = (dimension + 1) // 2
        words = stream.words(2 * rows * pairs).reshape(2, rows, pairs)
        drawn = cls(np.empty((rows, 2 * pairs)), words[0], words[1])
        block = max(1, _PAIRS // pairs)
        for start in range(0, rows, block):
            part = slice(start, start + block)
            first, second, outside = gaussian._normal_pairs(words[0, part].reshape(-1), words[1, part].reshape(-1))
            drawn.values[part, :pairs] = first.reshape(-1, pairs)
            drawn.values[part, pairs:] = second.reshape(-1, pairs)
            for place in np.flatnonzero(outside):
                drawn._refine(stream, start + int(place) // pairs, int(place) % pairs)
        drawn.values = drawn.values[:, :dimension]
        return drawn

    def _refine(self, stream: Stream, row: int, pair: int) -> None:
        """Recompute a pair with more random bits, because the float error bound does not hold for it."""
        x, y, bits = int(self.x[row, pair]), int(self.y[row, pair]), 63
        while True:
            x, y, bits = _read(stream, x), _read(stream, y), bits + 64
            with intervals.LOCK:
                found = _normal_enclosures(x, y, bits)
                if found is not None and all(float(value.delta) < 2.0**-60 for value in found):
                    break
        self.longer[row, pair] = x, y, bits
        self.values[row, pair] = float(found[0].mid)
        self.values[row, pair + self.x.shape[1]] = float(found[1].mid)

    def bits(self, row: int) -> list[tuple[int, int, int]]:
        pairs = self.x.shape[1]
        return [self.longer.get((row, j), (int(self.x[row, j]), int(self.y[row, j]), 63)) for j in range(pairs)]


@dataclass
class _Heights:
    """Heights t in the cap and depths s = sqrt(1 - t^2), with bounds on their errors and the bits they are made of."""

    t: Float
    s: Float
    error: Float
    words: Words
    longer: dict[int, Bits]


def lean(cap: Cap, rows: Float, stream: Stream) -> Float:
    """round(factor u) for each unit row, as whole floats; u leans towards the row."""
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
        values, kept = _from_sphere(cap, rows[whole], heads[whole], stream)
        out[whole[kept]] = values[kept]
        whole = whole[~kept]
    out += 0.0  # no negative zeros


def _from_sphere(cap: Cap, rows: Float, heads: NDArray[np.bool_], stream: Stream) -> tuple[Float, NDArray[np.bool_]]:
    """A uniform point for each row, and whether it lies where the coin wants it (mirrored into the cap if need be)."""
    n, d = rows.shape
    normals = _Normals.draw(stream, n, d)
    z = normals.values
    length = np.sqrt(np.vecdot(z, z))
    height = np.vecdot(z, rows) / length
    error = 1.1 * (2 * _NORMAL * np.sqrt(d) / length + (3 * d + 16) * _U)
    mirrored = heads & (height < 0)
    above = np.where(heads, np.abs(height), height) - cap.gamma
    unclear = np.abs(above) <= error
    kept = (above >= 0) == heads
    values = z / np.where(mirrored, -length, length)[:, None]
    # |error of u_j| <= NORMAL / |z| + |u_j| slope
    flat, slope = _NORMAL / length, _NORMAL * np.sqrt(d) / length + (d + 10) * _U
    unclear |= _round(cap.factor, values, flat, slope, None)
    for row in np.flatnonzero(unclear):
        found = _exact_sphere(cap, rows[row], bool(heads[row]), normals.bits(int(row)), stream)
        kept[row] = found is not None
        if found is not None:
            values[row] = found
    return values, kept


def _from_cap(cap: Cap, rows: Float, stream: Stream) -> Float:
    """A uniform point of each row's cap, by its height and a direction orthogonal to the row."""
    n, d = rows.shape
    heights = _draw_heights(cap, stream, n)
    normals = _Normals.draw(stream, n, d)
    z = normals.values
    size = np.sqrt(np.vecdot(z, z))
    side = z - np.vecdot(z, rows)[:, None] * rows
    length = np.sqrt(np.vecdot(side, side))
    with np.errstate(divide="ignore", invalid="ignore"):  # a vanishing side is left to the exact path
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
    """Round factor * values in place; True for rows with an entry too near to a half to tell.

    The bound on each entry's error is flat + slope (sum of the parts' sizes, or the entry's own); all rows are tried
    with the largest that can be, 3/2, and only those that fail with their own.
    """
    sizes = 1.5 * slope
    scaled = values * factor
    nearest = np.rint(scaled)
    scaled -= nearest
    np.abs(scaled, out=scaled)
    # 1.1 for second-order terms, and a few roundings of the product.
    room = 0.5 - 1.1 * factor * (flat + sizes + 8 * _U)
    failed: NDArray[np.bool_] = ~(scaled.max(axis=1) < room)
    for row in np.flatnonzero(failed):
        own = np.abs(values[row]) if parts is None else np.abs(parts[0][row]) + np.abs(parts[1][row])
        bound = 1.1 * factor * (flat[row] + slope[row] * own + 8 * _U * np.abs(values[row]))
        failed[row] = not bool(np.all(scaled[row] < 0.5 - bound))
    values[:] = nearest
    return failed


def _draw_heights(cap: Cap, stream: Stream, count: int) -> _Heights:
    power = 2 / (cap.dimension - 1)
    width = (1 - cap.gamma) * (1 + cap.gamma)
    t, s, error = np.empty(count), np.empty(count), np.empty(count)
    words = np.empty(count, dtype=np.int64)
    longer: dict[int, Bits] = {}
    todo = np.arange(count)
    off = (286 * power + 30) * _U  # half the bound on the error of 1 - W
    while len(todo):
        drawn = stream.words(2 * len(todo)).reshape(2, -1)
        value, logarithm = gaussian.compute_log_magnitude(drawn[0])
        rest = _one_minus_exp(np.maximum(-power * logarithm, 0.0))
        height = np.sqrt(cap.gamma**2 + width * rest)
        chance = cap.gamma / height
        uniform = (drawn[1].view(np.uint64) >> np.uint64(11)).astype(np.float64) * _U
        unsure = 2 * (off / height**2 + 4 * _U)
        kept = uniform < chance
        unclear = (np.abs(uniform - chance) <= unsure) | (np.abs(value) < gaussian._SMALLEST_X)
        for place in np.flatnonzero(unclear):
            found = _exact_height(cap, (int(drawn[0, place]), 63), int(drawn[1, place]) & _MASK, stream)
            kept[place] = found is not None
            if found is not None:
                longer[int(todo[place])] = found
        chosen = todo[kept]
        t[chosen], words[chosen] = height[kept], drawn[0][kept]
        with np.errstate(divide="ignore"):
            s[chosen] = np.sqrt(width * (1 - rest[kept]))
            error[chosen] = off / height[kept] + off * width / s[chosen] + 8 * _U
        todo = todo[~kept]
    return _Heights(t, s, error, words, longer)


def _one_minus_exp(x: Float) -> Float:
    """1 - e^-x for 0 <= x <= 27 to within 45 u, relative: a series on x / 2^9, and e -> e (2 - e) nine times."""
    small = x * 2.0**-_HALVINGS
    total = np.full_like(small, _EXPM1[-1])
    for coefficient in _EXPM1[-2::-1]:
        total *= small
        total += coefficient
    total *= small
    for _ in range(_HALVINGS):
        total *= 2 - total
    return total


# Interval arithmetic, for what double precision leaves open. Everything below holds the lock of the shared context.


def _read(stream: Stream, word: int) -> int:
    return (word << 64) + (int(stream.words(1)[0]) & _MASK)


def _normal_enclosures(x: int, y: int, bits: int) -> tuple[Any, Any] | None:
    """Both normals of a pair whose X and Y begin with these bits; None while the radius has no bound."""
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
    """t and s = sqrt(1 - t^2) for the X that begins with these bits."""
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
    """Whether a proposed height is accepted: its bits if so, None if not."""
    (x, bits), size = start, 64
    while True:
        x, bits = _read(stream, x), bits + 64
        word, size = _read(stream, word), size + 64
        with intervals.LOCK:
            found = _height_enclosure(cap, (x, bits))
            if found is None:
                continue
            iv = intervals.INTERVALS
            over = iv.mpf([word, word + 1]) / (1 << size) * found[0] - discrete.make_rational(iv, cap.gamma)
            if iv.is_below(over, 0):
                return x, bits
            if iv.is_below(0, over):
                return None


def _exact_cap(cap: Cap, v: Float, start: Bits, pairs: list[tuple[int, int, int]], stream: Stream) -> list[int]:
    """round(factor u) on the cap, reading on until every entry is decided."""
    x, bits = start
    while True:
        x, bits = _read(stream, x), bits + 64
        pairs = [(_read(stream, a), _read(stream, b), k + 64) for a, b, k in pairs]
        with intervals.LOCK:
            found = _height_enclosure(cap, (x, bits))
            z = _row_enclosures(pairs, len(v))
            if found is None or z is None:
                continue
            iv, axis = intervals.INTERVALS, _unit(v)
            along = _dot(z, axis)
            side = [a - along * b for a, b in zip(z, axis, strict=True)]
            square = _dot(side, side)
            if not iv.is_below(0, square):
                continue
            depth = found[1] / iv.sqrt(square)
            rounded = _round_all(cap, [found[0] * a + depth * b for a, b in zip(axis, side, strict=True)])
        if rounded is not None:
            return rounded


def _exact_sphere(
    cap: Cap, v: Float, heads: bool, pairs: list[tuple[int, int, int]], stream: Stream
) -> list[int] | None:
    """round(factor u) for a point of the sphere if it lies where the coin wants it, None if it does not."""
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
            rounded = _round_all(cap, [value / length for value in z])
        if rounded is not None:
            return rounded


def _row_enclosures(pairs: list[tuple[int, int, int]], dimension: int) -> list[Any] | None:
    found = [_normal_enclosures(*pair) for pair in pairs]
    if any(pair is None for pair in found):
        return None
    return [pair[part] for part in (0, 1) for pair in found if pair is not None][:dimension]


def _unit(v: Float) -> list[Any]:
    """The row, divided by its length in interval arithmetic: of length one in truth, not up to rounding."""
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
    rounded = [gaussian._nearest(value * factor) for value in values]
    return None if any(value is None for value in rounded) else [value for value in rounded if value is not None]
