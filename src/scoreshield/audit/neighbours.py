"""Neighbouring collections that an audit tells apart: worst cases by construction, found by climbing, or given.

The constructions move the released object as far as `scoreshield.privacy.adjacency` says it can be moved:
scores by a record that is the query against its opposite; a row and a Gram matrix by a record e against -e among
records that all equal e, 2 sqrt(n - 1) and 2 sqrt(2 (n - 1)) apart; an index by any v against -v; a selection by a
record that passes, or comes first, against one that does not; a histogram by a score in the first bin against one in
the last. A score of 1 against a score of 0 is there for noise that leaks through its low bits and for ranges read off
the data, and a record that is too long for collections that nobody normalises. The record may stand at any place,
since a release may treat its last record otherwise than its first.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from scoreshield import _validation
from scoreshield._validation import check_count, one_of, validate, whole_from
from scoreshield.audit.outputs import Source
from scoreshield.privacy.guarantee import REGIMES as KINDS

Rows = NDArray[np.float32]

_EQUAL = "a record equal to the query against its opposite"
#: Sums of a batch's queries, single queries of it, and places of the record, that are tried at most.
_SUMS, _SINGLE, _PLACES = 2, 4, 8


@dataclass(frozen=True, eq=False)
class Pair:
    """Two collections that differ in one record.

    Attributes
    ----------
    first, second : (n, d) float32 arrays.
    index : the position of the record that differs.
    description : in words, for the report.
    """

    first: Rows
    second: Rows
    index: int
    description: str

    @validate()
    def __post_init__(self) -> None:
        first, second = _rows(self.first, "first"), _rows(self.second, "second")
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
        """Whether all records are unit vectors; a release may refuse others."""
        lengths = np.linalg.norm(np.concatenate([self.first, self.second]).astype(np.float64), axis=1)
        return bool(np.abs(lengths - 1).max() < 1e-3)

    def swapped(self) -> Pair:
        return Pair(self.second, self.first, self.index, self.description)


def replaced(rows: ArrayLike, index: int, one: ArrayLike, other: ArrayLike, description: str) -> Pair:
    """The pair of collections that have ``one`` and ``other`` at a position, and ``rows`` elsewhere."""
    first, second = np.array(rows, dtype=np.float32), np.array(rows, dtype=np.float32)
    first[index], second[index] = one, other
    return Pair(first, second, index, description)


@validate(kind=one_of(KINDS), index=whole_from(0))
def worst_pairs(n: int, d: int, kind: str, query: ArrayLike | None = None, *, index: int = 0) -> list[Pair]:
    """Collections of ``n`` records of length ``d`` that move a release as far as one record can.

    Parameters
    ----------
    kind : what is released: "scores", "row", "gram", "index", "matches", "top-k" or "histogram".
    query : the public query, where there is one, or for scores a batch, one a row; None takes the first axis.
    index : the place of the record that differs.
    """
    n, d = _validation.check_count(n, "n"), _validation.check_count(d, "d")
    if index >= n:
        _validation.reject("index", f"a position below {n}", index)
    queries = _units(query, d)
    if len(queries) > 1 and kind == "scores":
        return _of_batch(queries, n, index)
    q = queries[0]
    away = _orthogonal(q)
    alike, apart, at = np.tile(q, (n, 1)), np.tile(away, (n, 1)), _at(index, n)
    if kind in ("row", "gram"):
        return [replaced(alike, index, q, -q, f"all records equal, one of them against its opposite{at}")]
    if kind == "index":
        return [replaced(apart, index, q, -q, f"a record against its opposite{at}")]
    pairs = [replaced(apart, index, q, -q, f"{_EQUAL}; the others score 0{at}")]
    if kind == "top-k":
        tied = f"a record that ties for the first place against the last{at}"
        return [replaced(alike, index, q, -q, tied), *pairs]
    if d > 1:
        other = f"a record that scores 1 against one that scores 0, as the others do{at}"
        pairs.append(replaced(apart, index, q, away, other))
    if kind == "scores":
        pairs.append(replaced(apart, index, 3 * q, -3 * q, f"a record three times too long against its opposite{at}"))
    return pairs


def _of_batch(queries: NDArray[np.float64], n: int, index: int) -> list[Pair]:
    """For a batch: along the direction that moves all scores most, along sums of queries, and along single ones.

    Noise that two queries share shows where their scores move apart: in sums with random signs, and from one query to
    another. Of many queries, a few that are spread out stand for all in the latter.
    """
    _, _, axes = np.linalg.svd(queries)
    apart, at = np.tile(axes[-1], (n, 1)), _at(index, n)
    found = [(axes[0], -axes[0], "a record along the direction that moves all queries' scores most")]
    signs = np.random.default_rng(len(queries)).choice([-1.0, 1.0], (_SUMS, len(queries)))
    for total in signs @ queries:
        if (size := float(np.linalg.norm(total))) > 1e-6:
            found.append((total / size, -total / size, "a record along a sum of the queries with random signs"))
    some = np.unique(np.linspace(0, len(queries) - 1, _SINGLE).round().astype(int))
    for one, other in zip(some, np.roll(some, -1), strict=True):
        q, next_ = queries[one], queries[other]
        found.append((q, -q, f"a record equal to query {one} against its opposite"))
        if np.linalg.norm(q - next_) > 1e-6:
            found.append((q, next_, f"a record equal to query {one} against query {other}"))
    found.append((3 * axes[0], -3 * axes[0], "a record three times too long against its opposite"))
    return [replaced(apart, index, one, other, description + at) for one, other, description in found]


@validate()
def drift_pair(n: int, d: int, radius: float) -> Pair:
    """Equal records, one of which turns so far that the Gram matrix moves by ``radius`` in Frobenius norm.

    For claims whose adjacency is `GramRadius`. With a cosine c to the others, n - 1 similarities fall by 1 - c, which
    moves the matrix by sqrt(2 (n - 1)) (1 - c).
    """
    n, d = _validation.check_count(n, "n", least=2), _validation.check_count(d, "d", least=2)
    cosine = 1 - _validation.check_positive(radius, "radius") / math.sqrt(2 * (n - 1))
    if cosine < -1:
        _validation.reject("radius", f"at most {math.sqrt(8 * (n - 1)):.6g}, the replacement of a record", radius)
    start, side = np.eye(d)[:2]
    turned = cosine * start + math.sqrt(1 - cosine**2) * side
    description = f"equal records, one of which moves the Gram matrix by {radius:g}{_at(0, n)}"
    return replaced(np.tile(start, (n, 1)), 0, start, turned, description)


def places(n: int, seed: int) -> list[int]:
    """Where a record is tried: everywhere among few, else first, in the middle, last and at some random places."""
    if n <= _PLACES:
        return list(range(n))
    some = np.random.default_rng([seed, n]).permutation(n)[: _PLACES - 3]
    return list(dict.fromkeys([0, n // 2, n - 1, *some.tolist()]))


@validate()
def from_canaries(embeddings: ArrayLike, canaries: ArrayLike) -> list[Pair]:
    """One pair for each canary: a collection with the canary in a slot, against the collection as it is.

    Canaries take slots 0, 1, 2, ..., and go round where there are more of them than records.
    """
    rows, given = _rows(embeddings, "embeddings"), _rows(canaries, "canaries")
    if given.shape[1] != rows.shape[1]:
        _validation.reject("canaries", f"rows of length {rows.shape[1]}, as the embeddings are", given)
    slots = [number % len(rows) for number in range(len(given))]
    return [
        replaced(rows, slot, canary, rows[slot], f"canary {number} in place of record {slot}")
        for number, (slot, canary) in enumerate(zip(slots, given, strict=True))
    ]


def random_pair(n: int, d: int, seed: int, *, index: int = 0) -> Pair:
    """Random unit records, one of them against its opposite: where a climb can begin."""
    rows = np.random.default_rng(seed).standard_normal((n, d))
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    description = f"random records, one of them against its opposite{_at(index, n)}"
    return replaced(rows, index, rows[index], -rows[index], description)


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
    """Search for a pair that the release tells apart better than ``start``, by random steps that are kept if they help.

    A step turns the record, or another one, or goes on with the record at another place.

    Parameters
    ----------
    rounds : how many steps are tried; each takes ``releases`` outputs on either side.

    The best pair is judged by fresh outputs later: choosing it here costs an audit no confidence.
    """
    from scoreshield.audit.statistics import quick_advantage

    source = release if isinstance(release, Source) else Source(release, seed=seed, timeout=timeout)
    rng = np.random.default_rng(seed)

    def gain(pair: Pair) -> float:
        return quick_advantage(*source.both(pair.first, pair.second, releases, rng))

    best, height = start, gain(start)
    for step in range(rounds):
        trial = _stepped(best, rng, size=1.0 / (1 + step / 10))
        found = gain(trial)
        if found > height:
            best, height = trial, found
    if best is start:
        return start
    at = _at(best.index, len(best.first))
    return Pair(best.first, best.second, best.index, f"found by climbing{at}, from: {start.description}")


def _stepped(pair: Pair, rng: np.random.Generator, size: float) -> Pair:
    """A nearby pair: the record on one side or both, and at times another record, turned at random or exchanged."""
    rows = pair.first.astype(np.float64)
    one, other = rows[pair.index].copy(), pair.second[pair.index].astype(np.float64)
    which = rng.integers(4)
    if which in (0, 2):
        one = _turned(one, rng, size)
    if which in (1, 2):
        other = _turned(other, rng, size)
    if which == 3:
        one = _turned(one, rng, size)
        other = -one
    if len(rows) > 1 and rng.random() < 0.3:
        place = int(rng.choice(np.delete(np.arange(len(rows)), pair.index)))
        rows[place] = _turned(rows[place], rng, size)
    index = int(rng.integers(len(rows))) if rng.random() < 0.2 else pair.index
    rows[pair.index] = rows[index]
    return replaced(rows, index, one, other, pair.description)


def _turned(row: NDArray[np.float64], rng: np.random.Generator, size: float) -> NDArray[np.float64]:
    step = rng.standard_normal(len(row))
    turned = row + size * step / np.linalg.norm(step)
    length = float(np.linalg.norm(turned))
    return np.asarray(turned / length if length > 1e-6 else row)


def _rows(rows: Any, name: str) -> Rows:
    must = "an (n, d) array of finite numbers"
    array = _validation.check_array(rows, name, must)
    if array.ndim != 2 or 0 in array.shape or array.dtype.kind not in "fiu" or not np.isfinite(array).all():
        _validation.reject(name, must, array if array.ndim else rows)
    frozen = np.array(array, dtype=np.float32)
    frozen.flags.writeable = False
    return frozen


def _units(query: ArrayLike | None, d: int) -> NDArray[np.float64]:
    """The queries as unit rows, at least one."""
    if query is None:
        return np.asarray(np.eye(1, d), dtype=np.float64)
    must = f"a vector of {d} finite numbers that is not zero, or a batch of such, one a row"
    array = _validation.check_array(query, "query", must)
    rows = np.atleast_2d(array)
    if rows.ndim != 2 or not len(rows) or rows.shape[1] != d or array.dtype.kind not in "fiu":
        _validation.reject("query", must, array if array.ndim else query)
    lengths = np.linalg.norm(rows.astype(np.float64), axis=1, keepdims=True)
    if not np.isfinite(rows).all() or not lengths.all():
        _validation.reject("query", must, array)
    return np.asarray(rows / lengths)


def _at(index: int, n: int) -> str:
    """The place of the record, for the description."""
    return f" (record {index} of {n}, counted from 0)"


def _orthogonal(q: NDArray[np.float64]) -> NDArray[np.float64]:
    """A unit vector at a right angle to q; q itself in one dimension, where there is none."""
    if len(q) == 1:
        return q
    other = np.eye(len(q))[int(np.argmin(np.abs(q)))]
    other = other - (other @ q) * q
    return np.asarray(other / np.linalg.norm(other))
