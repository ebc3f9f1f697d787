"""Neighbouring collections that an audit tries to distinguish: constructed worst cases, search results, or given ones.

The constructions move the released object as far as `scoreshield.privacy.adjacency` says that it can move:

* scores: a record that equals the query, against its opposite;
* a row and a Gram matrix: a record e against -e among records that all equal e, 2 sqrt(n - 1) and 2 sqrt(2 (n - 1))
  apart;
* an index: any v against -v;
* a selection: a record that passes, or comes first, against one that does not;
* a batch: a record that equals the first query against its opposite;
* a histogram: a score in the first bin against one in the last.

Two more pairs test common mistakes. A score of 1 against a score of 0 shows noise that leaks through its low bits, and
ranges that are read off the data. A record that is too long shows missing normalisation. The record may have any
position, since a release may treat its last record differently from its first.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from scoreshield import _validation
from scoreshield._validation import check_count, check_positive, one_of, validate, whole_from
from scoreshield.audit.outputs import Source
from scoreshield.audit.statistics import estimate_advantage
from scoreshield.privacy.mechanisms import Regime

Rows = NDArray[np.float32]
KINDS: tuple[Regime, ...] = get_args(Regime)

_EQUAL = "a record equal to the query against its opposite"
#: The most sums of a batch's queries, single queries of it, and positions of the record that are tried.
_SUMS, _SINGLE, _PLACES = 2, 4, 8


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
            _validation.reject("second", must, f"{len(moved)} records that differ")
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
    pairs = [replace_record(apart, index, q, -q, f"{_EQUAL}; the others score 0{at}")]
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
    moves = [(axes[0], -axes[0], "a record along the direction that moves all queries' scores most")]
    signs = np.random.default_rng(len(queries)).choice([-1.0, 1.0], (_SUMS, len(queries)))
    for total in signs @ queries:
        if (size := float(np.linalg.norm(total))) > 1e-6:
            moves.append((total / size, -total / size, "a record along a sum of the queries with random signs"))
    some = np.unique(np.linspace(0, len(queries) - 1, _SINGLE).round().astype(int))
    for one, other in zip(some, np.roll(some, -1), strict=True):
        q, next_ = queries[one], queries[other]
        moves.append((q, -q, f"a record equal to query {one} against its opposite"))
        if np.linalg.norm(q - next_) > 1e-6:
            moves.append((q, next_, f"a record equal to query {one} against query {other}"))
    moves.append((3 * axes[0], -3 * axes[0], "a record three times too long against its opposite"))
    return [replace_record(apart, index, one, other, description + at) for one, other, description in moves]


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


def choose_places(n: int, seed: int) -> list[int]:
    """Choose positions of the record: all of a few, else the first, the middle, the last and some random ones."""
    if n <= _PLACES:
        return list(range(n))
    some = np.random.default_rng([seed, n]).permutation(n)[: _PLACES - 3]
    return list(dict.fromkeys([0, n // 2, n - 1, *some.tolist()]))


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
    """Make random unit records, one of them against its opposite: a start for `climb`."""
    rows = np.random.default_rng(seed).standard_normal((n, d))
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    description = f"random records, one of them against its opposite{_describe_place(index, n)}"
    return replace_record(rows, index, rows[index], -rows[index], description)


@validate(rounds=check_count, releases=whole_from(8))
def climb(
    release: Callable[..., Any] | Source,
    start: Pair,
    *,
    rounds: int = 30,
    releases: int = 128,
    seed: int = 0,
    timeout: float | None = None,
) -> Pair:
    """Search for a pair whose outputs differ more than those of `start`, by random steps.

    A step turns the record, or another one, or moves the record to another position. It is accepted if the outputs
    differ more. An audit evaluates the result with fresh outputs, so the search costs no confidence.

    Args:
        release: The release, or a `Source` of it.
        start: The first pair.
        rounds: How many steps are tried. Each draws `releases` outputs on both sides.
        releases: Outputs on each side per step.
        seed: The seed of the steps.
        timeout: Seconds that one call may take; None sets no limit.
    """
    source = release if isinstance(release, Source) else Source(release, seed=seed, timeout=timeout)
    rng = np.random.default_rng(seed)

    def measure_gain(pair: Pair) -> float:
        return estimate_advantage(*source.draw_both(pair.first, pair.second, releases, rng))

    best, height = start, measure_gain(start)
    for step in range(rounds):
        trial = _take_step(best, rng, size=1.0 / (1 + step / 10))
        trial_height = measure_gain(trial)
        if trial_height > height:
            best, height = trial, trial_height
    if best is start:
        return start
    at = _describe_place(best.index, len(best.first))
    return Pair(best.first, best.second, best.index, f"found by climbing{at}, from: {start.description}")


def _take_step(pair: Pair, rng: np.random.Generator, size: float) -> Pair:
    """Make a nearby pair: turn the record on one side or both, and sometimes another record, or exchange records."""
    rows = pair.first.astype(np.float64)
    one, other = rows[pair.index].copy(), pair.second[pair.index].astype(np.float64)
    which = rng.integers(4)
    if which in (0, 2):
        one = _turn(one, rng, size)
    if which in (1, 2):
        other = _turn(other, rng, size)
    if which == 3:
        one = _turn(one, rng, size)
        other = -one
    if len(rows) > 1 and rng.random() < 0.3:
        place = int(rng.choice(np.delete(np.arange(len(rows)), pair.index)))
        rows[place] = _turn(rows[place], rng, size)
    index = int(rng.integers(len(rows))) if rng.random() < 0.2 else pair.index
    rows[pair.index] = rows[index]
    return replace_record(rows, index, one, other, pair.description)


def _turn(row: NDArray[np.float64], rng: np.random.Generator, size: float) -> NDArray[np.float64]:
    step = rng.standard_normal(len(row))
    turned = row + size * step / np.linalg.norm(step)
    length = float(np.linalg.norm(turned))
    return np.asarray(turned / length if length > 1e-6 else row)


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
