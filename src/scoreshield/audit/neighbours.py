"""Neighbouring collections that an audit tries to distinguish: constructed worst cases, or given ones.

`worst_pairs` moves the released object as far as `scoreshield.privacy.adjacency` says that it can move:

* scores: a record that equals the query, against its opposite;
* a row and a Gram matrix: a record e against -e among records that all equal e, 2 sqrt(n - 1) and 2 sqrt(2 (n - 1))
  apart;
* an index: any v against -v;
* a selection: a record that passes, or comes first, against one that does not;
* a batch: a record that equals the first query against its opposite;
* a histogram: a score in the first bin against one in the last.

Many mistakes show only among certain other records. `list_pairs` varies what is replaced and what stands beside it:
other records that all score 0, 1 or -1, that are spread, that tie or are duplicates, more of them than a limit may ask
for, and numbers of passing records just below and above small numbers. Two kinds of pairs test common mistakes. A score
of 1 against a score of 0 shows noise that leaks through its low bits. Rows that are too long, too short or zero show
missing normalisation. The record may have any position, since a release may treat its last record differently from its
first.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from scoreshield import _validation
from scoreshield._validation import check_count, check_positive, one_of, validate, whole_from
from scoreshield.privacy.mechanisms import Regime

Rows = NDArray[np.float32]
KINDS: tuple[Regime, ...] = get_args(Regime)

_EQUAL = "a record equal to the query against its opposite"
_MOST = "the direction that moves all queries' scores most"
#: The most sums of a batch's queries, and single queries of it, that are tried.
_SUMS, _SINGLE = 2, 4
#: Numbers of records that pass beside the changed one: limits in use are often among them, or one more.
_COUNTS = (0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 14, 15, 19, 20, 24, 25, 29, 30, 49, 50, 99, 100)
#: Sizes of larger collections, with more records than most limits.
_MANY = (24, 120)


@dataclass(frozen=True, eq=False)
class Pair:
    """Two collections that differ in one record.

    Attributes:
        first: An (n, d) float32 array.
        second: An array of the same shape.
        index: The position of the record that differs.
        description: The pair in words, for the report.
    """

    first: Rows
    second: Rows
    index: int
    description: str

    @validate()
    def __post_init__(self) -> None:
        first, second = _check_rows(self.first, "first"), _check_rows(self.second, "second")
        if first.shape != second.shape:
            _validation.reject("second", f"of the first collection's shape {first.shape}", second)
        index = _validation.check_count(self.index, "index", least=0)
        if index >= len(first):
            _validation.reject("index", f"a position below {len(first)}", index)
        moved = np.flatnonzero((first != second).any(axis=1))
        if len(moved) and moved.tolist() != [index]:
            must = f"equal to the first collection but for record {index}: neighbours differ in one record"
            _validation.reject("second", must, _validation.Words(f"{len(moved)} records that differ"))
        for name, value in (("first", first), ("second", second), ("index", index)):
            object.__setattr__(self, name, value)

    @property
    def has_unit_rows(self) -> bool:
        """Whether all records are unit vectors; a release may reject others."""
        lengths = np.linalg.norm(np.concatenate([self.first, self.second]).astype(np.float64), axis=1)
        return bool(np.abs(lengths - 1).max() < 1e-3)

    def swap(self) -> Pair:
        """Exchange the two collections."""
        return Pair(self.second, self.first, self.index, self.description)


def replace_record(rows: ArrayLike, index: int, one: ArrayLike, other: ArrayLike, description: str) -> Pair:
    """Make a pair of collections that have `one` and `other` at a position, and `rows` elsewhere."""
    first, second = np.array(rows, dtype=np.float32), np.array(rows, dtype=np.float32)
    first[index], second[index] = one, other
    return Pair(first, second, index, description)


@validate(n=check_count, d=check_count, kind=one_of(KINDS), index=whole_from(0))
def worst_pairs(n: int, d: int, kind: Regime, query: ArrayLike | None = None, *, index: int = 0) -> list[Pair]:
    """Construct pairs of collections that move a release as far as one record can.

    Args:
        n: The number of records.
        d: Their length.
        kind: What is released.
        query: The public query, or for scores a batch with one query per row. None takes the first axis.
        index: The position of the record that differs.

    Returns:
        At least one pair, the most important first.
    """
    if index >= n:
        _validation.reject("index", f"a position below {n}", index)
    queries = _check_queries(query, d)
    if len(queries) > 1 and kind == "scores":
        return _make_batch_pairs(queries, n, index)
    q = queries[0]
    away = _find_orthogonal(q)
    alike, apart, at = np.tile(q, (n, 1)), np.tile(away, (n, 1)), _describe_place(index, n)
    if kind in ("row", "gram"):
        return [replace_record(alike, index, q, -q, f"all records equal, one of them against its opposite{at}")]
    if kind == "index":
        return [replace_record(apart, index, q, -q, f"a record against its opposite{at}")]
    beside = "score 0" if d > 1 else "equal the query"
    pairs = [replace_record(apart, index, q, -q, f"{_EQUAL}; the others {beside}{at}")]
    if kind == "top-k":
        tied = f"a record that ties for the first place against the last{at}"
        return [replace_record(alike, index, q, -q, tied), *pairs]
    if d > 1:
        other = f"a record that scores 1 against one that scores 0, as the others do{at}"
        pairs.append(replace_record(apart, index, q, away, other))
    if kind == "scores":
        pairs.append(
            replace_record(apart, index, 3 * q, -3 * q, f"a record three times too long against its opposite{at}")
        )
    return pairs


def _make_batch_pairs(queries: NDArray[np.float64], n: int, index: int) -> list[Pair]:
    """Construct pairs for a batch: along the direction that moves all scores most, sums of queries, and single queries.

    Noise that two queries share shows where their scores move apart: in sums with random signs, and from one query to
    another. Of many queries, a few with different positions are used for the latter.
    """
    _, _, axes = np.linalg.svd(queries)
    apart, at = np.tile(axes[-1], (n, 1)), _describe_place(index, n)
    moves = [(axes[0], -axes[0], f"a record along {_MOST}")]
    signs = np.random.default_rng(len(queries)).choice([-1.0, 1.0], (_SUMS, len(queries)))
    for number, total in enumerate(signs @ queries, 1):
        if (size := float(np.linalg.norm(total))) > 1e-6:
            name = f"a record along sum {number} of the queries with random signs, against its opposite"
            moves.append((total / size, -total / size, name))
    some = np.unique(np.linspace(0, len(queries) - 1, _SINGLE).round().astype(int))
    for one, other in zip(some, np.roll(some, -1), strict=True):
        q, next_ = queries[one], queries[other]
        moves.append((q, -q, f"a record equal to query {one} against its opposite"))
        if np.linalg.norm(q - next_) > 1e-6:
            moves.append((q, next_, f"a record equal to query {one} against query {other}"))
    long = f"a record along {_MOST}, three times too long, against its opposite"
    moves.append((3 * axes[0], -3 * axes[0], long))
    return [replace_record(apart, index, one, other, description + at) for one, other, description in moves]


def list_pairs(n: int, d: int, query: ArrayLike | None = None) -> list[Pair]:
    """List pairs that show common mistakes, the most important first.

    Args:
        n: The usual number of records; some pairs have more or fewer.
        d: Their length.
        query: The public query or a batch of them; None takes the first axis.

    Returns:
        Pairs without repetition. The last ones have rows that are not unit vectors.
    """
    queries = _check_queries(query, d)
    pairs = _list_batch_pairs(queries, n) if len(queries) > 1 else list(_list_query_pairs(queries[0], n))
    kept: dict[bytes, Pair] = {}
    for pair in pairs:
        kept.setdefault(repr(pair.first.shape).encode() + pair.first.tobytes() + pair.second.tobytes(), pair)
    return sorted(kept.values(), key=lambda pair: not pair.has_unit_rows)


def list_diagonal_pairs(n: int, d: int) -> list[Pair]:
    """List pairs whose record moves along all axes at once, which moves many numbers a little instead of one much.

    In one dimension there are none.
    """
    if d == 1:
        return []
    diagonal = np.full(d, 1 / math.sqrt(d))
    return [
        _surround(diagonal, _find_orthogonal(diagonal), (diagonal, -diagonal), "points along all axes", others, size, 0)
        for size in dict.fromkeys((1, 2, n))
        for others in (("score 0", "score 1") if size > 1 else ("score 0",))
    ]


def _list_batch_pairs(queries: NDArray[np.float64], n: int) -> list[Pair]:
    pairs = [pair for size in (n, 1, 24) for pair in _make_batch_pairs(queries, size, 0)]
    pairs += _make_batch_pairs(queries, n, n - 1)
    _, _, axes = np.linalg.svd(queries)
    total = queries.sum(axis=0)
    has_sum = float(np.linalg.norm(total)) > 1e-6
    middle, along = (total / np.linalg.norm(total), "the sum of all queries") if has_sum else (axes[0], _MOST)
    for others, name in ((middle, "point along it"), (-middle, "are opposite to it")):
        for size in (2, n, 24):
            rows = np.tile(others, (size, 1))
            beside = f"the others {name}{_describe_place(0, size)}"
            text = f"a record along {along}, against its opposite; {beside}"
            pairs.append(replace_record(rows, 0, middle, -middle, text))
    return pairs + list(_list_query_pairs(queries[0], n))


def _list_query_pairs(q: NDArray[np.float64], n: int) -> Iterator[Pair]:
    """List the pairs of one query. In one dimension, where unit rows score 1 or -1, most of them do not exist."""
    if len(q) > 1:
        yield from _list_leaning_pairs(q, n)
    else:
        yield from _list_pairs_of_signs(q, n)
    for seed in range(2):
        yield random_pair(n, len(q), seed)
    away = _find_orthogonal(q)
    for count in _COUNTS:
        for low, score in ((-q, -1), (away, 0)) if len(q) > 1 else ((-q, -1),):
            rows = np.concatenate([np.tile(q, (count + 1, 1)), np.tile(low, (4, 1))])
            text = f"scores 1 against {score}; {count} others score 1, and 4 score {score}"
            yield replace_record(rows, 0, q, low, f"a record that {text} (record 0 of {len(rows)}, counted from 0)")
    for size in (n, 1):
        rows = np.tile(away, (size, 1))
        for one, other, text in (
            (3 * q, -3 * q, "three times too long against its opposite"),
            (3 * q, q, "three times too long against one of length 1"),
            (0.01 * q, -q, "a hundred times too short against one of length 1"),
            (q, 0 * q, "equal to the query against a row of zeros"),
        ):
            yield replace_record(rows, 0, one, other, f"a record {text}{_describe_place(0, size)}")


def _list_pairs_of_signs(q: NDArray[np.float64], n: int) -> Iterator[Pair]:
    """List pairs of one dimension: a record changes its sign among others of either sign."""
    for others in ("score 1", "score -1", "score 1 and -1", "score 1, one -1"):
        for size in (n, 1, 2, 3, *_MANY):
            for index in (0, size - 1, size // 2):
                yield _surround(q, q, (q, -q), "scores 1 against -1", others, size, index)


def _list_leaning_pairs(q: NDArray[np.float64], n: int) -> Iterator[Pair]:
    """List pairs whose records have any score, by leaning from the query towards a vector orthogonal to it."""
    away = _find_orthogonal(q)
    half, near = _lean(q, away, 0.5), _lean(q, away, 0.999)
    moves = {
        "scores 1 against -1": (q, -q),
        "scores 1 against 0": (q, away),
        "scores 0 against -1": (away, -q),
        "scores 1 against 0.5": (q, half),
        "scores 1 against 0.999": (q, near),
        # Off every grid that a release may round to.
        "scores 0.7312 against -0.2187": (_lean(q, away, 0.7312), _lean(q, away, -0.2187)),
    }
    for name in ("scores 1 against -1", "scores 1 against 0"):
        for index in (0, n - 1, n // 2):
            yield _surround(q, away, moves[name], name, "score 0", n, index)
    for others in _BACKGROUNDS:
        for name in ("scores 1 against -1", "scores 1 against 0", "scores 0 against -1"):
            yield _surround(q, away, moves[name], name, others, n, 0)
    for size in (1, 2, 3, *_MANY):
        for others in ("score 0", "score 1", "are spread", "are spread below 0.9"):
            yield _surround(q, away, moves["scores 1 against -1"], "scores 1 against -1", others, size, 0)
    for others in ("are spread", "score 0", "score 1"):
        for name in ("scores 0.7312 against -0.2187", "scores 1 against 0.5", "scores 1 against 0.999"):
            yield _surround(q, away, moves[name], name, others, n, 0)
        yield _surround(q, away, moves["scores 1 against 0"], "scores 1 against 0", others, _MANY[0], _MANY[0] - 1)


def _lean(q: NDArray[np.float64], away: NDArray[np.float64], score: float) -> NDArray[np.float64]:
    """Make a unit vector with this score, in the plane of two orthogonal ones."""
    return np.asarray(score * q + math.sqrt(1 - score**2) * away)


#: How the other records stand to the query: the score of each of m records.
_BACKGROUNDS: dict[str, Callable[[int], NDArray[np.float64]]] = {
    "score 0": lambda m: np.zeros(m),
    "score 1": lambda m: np.ones(m),
    "score -1": lambda m: -np.ones(m),
    "are spread": lambda m: np.linspace(-0.95, 0.95, m),
    "are spread below 0.9": lambda m: np.linspace(0.2, 0.9, m),
    "score 0.5": lambda m: np.full(m, 0.5),
    "score 0.05": lambda m: np.full(m, 0.05),
    "score 1 and -1": lambda m: np.where(np.arange(m) % 2, 1.0, -1.0),
    "score in tenths": lambda m: np.round(np.linspace(-0.5, 0.9, m), 1),
    "score 1, one -1": lambda m: np.where(np.arange(m) == 0, -1.0, 1.0),
}


def _surround(
    q: NDArray[np.float64],
    away: NDArray[np.float64],
    move: tuple[NDArray[np.float64], NDArray[np.float64]],
    name: str,
    others: str,
    n: int,
    index: int,
) -> Pair:
    """Put a record that moves among others with given scores."""
    scores = np.insert(_BACKGROUNDS[others](n - 1), index, 0.0)[:, None]
    rows = scores * q + np.sqrt(1 - scores**2) * away
    beside = f"; the others {others}" if n > 1 else ""
    return replace_record(rows, index, *move, f"a record that {name}{beside}{_describe_place(index, n)}")


@validate(n=whole_from(2), d=whole_from(2), radius=check_positive)
def drift_pair(n: int, d: int, radius: float) -> Pair:
    """Construct equal records, one of which turns so far that the Gram matrix moves by `radius` in Frobenius norm.

    This is for claims whose adjacency is `GramRadius`. With a cosine c to the others, n - 1 similarities fall by
    1 - c, which moves the matrix by sqrt(2 (n - 1)) (1 - c).

    Args:
        n: The number of records, at least 2.
        d: Their length, at least 2.
        radius: How far the matrix moves, at most as far as the replacement of a record moves it.
    """
    cosine = 1 - radius / math.sqrt(2 * (n - 1))
    if cosine < -1:
        _validation.reject("radius", f"at most {math.sqrt(8 * (n - 1)):.6g}, the replacement of a record", radius)
    start, side = np.eye(d)[:2]
    turned = cosine * start + math.sqrt(1 - cosine**2) * side
    description = f"equal records, one of which moves the Gram matrix by {radius:g}{_describe_place(0, n)}"
    return replace_record(np.tile(start, (n, 1)), 0, start, turned, description)


@validate()
def from_canaries(embeddings: ArrayLike, canaries: ArrayLike) -> list[Pair]:
    """Make one pair for each canary: a collection with the canary in a slot, against the collection without it.

    Canaries take the slots 0, 1, 2, ..., and start again at 0 where there are more canaries than records.

    Args:
        embeddings: The collection.
        canaries: The canaries, one per row.
    """
    rows, given = _check_rows(embeddings, "embeddings"), _check_rows(canaries, "canaries")
    if given.shape[1] != rows.shape[1]:
        _validation.reject("canaries", f"rows of length {rows.shape[1]}, as the embeddings are", given)
    slots = [number % len(rows) for number in range(len(given))]
    return [
        replace_record(rows, slot, canary, rows[slot], f"canary {number} in place of record {slot}")
        for number, (slot, canary) in enumerate(zip(slots, given, strict=True))
    ]


def random_pair(n: int, d: int, seed: int, *, index: int = 0) -> Pair:
    """Make random unit records, one of them against its opposite."""
    rows = np.random.default_rng(seed).standard_normal((n, d))
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    description = f"random records (seed {seed}), one of them against its opposite{_describe_place(index, n)}"
    return replace_record(rows, index, rows[index], -rows[index], description)


def _check_rows(rows: Any, name: str) -> Rows:
    must = "an (n, d) array of finite numbers"
    array = _validation.check_array(rows, name, must)
    if array.ndim != 2 or 0 in array.shape or array.dtype.kind not in "fiu" or not np.isfinite(array).all():
        _validation.reject(name, must, array if array.ndim else rows)
    frozen = np.array(array, dtype=np.float32)
    frozen.flags.writeable = False
    return frozen


def _check_queries(query: ArrayLike | None, d: int) -> NDArray[np.float64]:
    """Convert the queries to unit rows, at least one."""
    if query is None:
        return np.asarray(np.eye(1, d), dtype=np.float64)
    must = f"a vector of {d} finite numbers that is not zero, or a batch of such, one per row"
    array = _validation.check_array(query, "query", must)
    rows = np.atleast_2d(array)
    if rows.ndim != 2 or not len(rows) or rows.shape[1] != d or array.dtype.kind not in "fiu":
        _validation.reject("query", must, array if array.ndim else query)
    lengths = np.linalg.norm(rows.astype(np.float64), axis=1, keepdims=True)
    if not np.isfinite(rows).all() or not lengths.all():
        _validation.reject("query", must, array)
    return np.asarray(rows / lengths)


def _describe_place(index: int, n: int) -> str:
    """Describe the position of the record."""
    return f" (record {index} of {n}, counted from 0)"


def _find_orthogonal(q: NDArray[np.float64]) -> NDArray[np.float64]:
    """Find a unit vector orthogonal to q; in one dimension, where there is none, q itself."""
    if len(q) == 1:
        return q
    other = np.eye(len(q))[int(np.argmin(np.abs(q)))]
    other = other - (other @ q) * q
    return np.asarray(other / np.linalg.norm(other))
