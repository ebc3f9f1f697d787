"""Neighbouring collections that an audit tells apart: worst cases by construction, found by climbing, or given.

The constructions move the released object as far as `scoreshield.privacy.adjacency` says it can be moved:
scores by a record that is the query against its opposite; a row and a Gram matrix by a record e against -e among
records that all equal e, 2 sqrt(n - 1) and 2 sqrt(2 (n - 1)) apart; an index by any v against -v; a selection by a
record that passes, or comes first, against one that does not; a histogram by a score in the first bin against one in
the last. A score of 1 against a score of 0 is there for noise that leaks through its low bits and for ranges read off
the data, and a record that is too long for collections that nobody normalises.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from scoreshield import _checks
from scoreshield.audit.outputs import Source
from scoreshield.privacy.guarantee import REGIMES as KINDS

Rows = NDArray[np.float32]


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

    def __post_init__(self) -> None:
        first, second = _rows(self.first, "first"), _rows(self.second, "second")
        if first.shape != second.shape:
            _checks.reject("second", "Pair", f"of the first collection's shape {first.shape}", second)
        index = _checks.count(self.index, "index", "Pair", least=0)
        if index >= len(first):
            _checks.reject("index", "Pair", f"a position below {len(first)}", index)
        moved = np.flatnonzero((first != second).any(axis=1))
        if len(moved) and moved.tolist() != [index]:
            must = f"equal to the first collection but for record {index}: neighbours differ in one record"
            _checks.reject("second", "Pair", must, f"{len(moved)} records that differ")
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


def worst_pairs(n: int, d: int, kind: str, query: ArrayLike | None = None) -> list[Pair]:
    """Collections of ``n`` records of length ``d`` that move a release as far as one record can.

    Parameters
    ----------
    kind : what is released: "scores", "row", "gram", "index", "matches", "top-k" or "histogram".
    query : the public query, where there is one; None takes the first axis.
    """
    function = "worst_pairs"
    n, d = _checks.count(n, "n", function), _checks.count(d, "d", function)
    kind = _checks.one_of(kind, "kind", function, KINDS)
    q = _unit(query, d, function)
    away = _orthogonal(q)
    alike, apart = np.tile(q, (n, 1)), np.tile(away, (n, 1))
    if kind in ("row", "gram"):
        return [replaced(alike, 0, q, -q, "all records equal, one of them against its opposite")]
    if kind == "index":
        return [replaced(apart, 0, q, -q, "a record against its opposite")]
    pairs = [replaced(apart, 0, q, -q, "a record equal to the query against its opposite; the others score 0")]
    if kind == "top-k":
        return [replaced(alike, 0, q, -q, "a record that ties for the first place against the last"), *pairs]
    if d > 1:
        pairs.append(replaced(apart, 0, q, away, "a record that scores 1 against one that scores 0, as the others do"))
    if kind == "scores":
        pairs.append(replaced(apart, 0, 3 * q, -3 * q, "a record three times too long against its opposite"))
    return pairs


def from_canaries(embeddings: ArrayLike, canaries: ArrayLike) -> list[Pair]:
    """One pair for each canary: a collection with the canary in a slot, against the collection as it is.

    Canaries take slots 0, 1, 2, ..., and go round where there are more of them than records.
    """
    rows, given = _rows(embeddings, "embeddings", "from_canaries"), _rows(canaries, "canaries", "from_canaries")
    if given.shape[1] != rows.shape[1]:
        _checks.reject("canaries", "from_canaries", f"rows of length {rows.shape[1]}, as the embeddings are", given)
    slots = [number % len(rows) for number in range(len(given))]
    return [
        replaced(rows, slot, canary, rows[slot], f"canary {number} in place of record {slot}")
        for number, (slot, canary) in enumerate(zip(slots, given, strict=True))
    ]


def random_pair(n: int, d: int, seed: int) -> Pair:
    """Random unit records, one of them against its opposite: where a climb can begin."""
    rows = np.random.default_rng(seed).standard_normal((n, d))
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    return replaced(rows, 0, rows[0], -rows[0], "random records, one of them against its opposite")


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

    Parameters
    ----------
    rounds : how many steps are tried; each takes ``releases`` outputs on either side.

    The best pair is judged by fresh outputs later: choosing it here costs an audit no confidence.
    """
    from scoreshield.audit.statistics import quick_advantage

    rounds = _checks.count(rounds, "rounds", "climb")
    releases = _checks.count(releases, "releases", "climb", least=8)
    source = release if isinstance(release, Source) else Source(release, seed=seed, timeout=timeout)
    rng = np.random.default_rng(seed)

    def gain(pair: Pair) -> float:
        return quick_advantage(source.draw(pair.first, releases), source.draw(pair.second, releases))

    best, height = start, gain(start)
    for step in range(rounds):
        trial = _stepped(best, rng, size=1.0 / (1 + step / 10))
        found = gain(trial)
        if found > height:
            best, height = trial, found
    if best is start:
        return start
    return Pair(best.first, best.second, best.index, f"found by climbing from: {start.description}")


def _stepped(pair: Pair, rng: np.random.Generator, size: float) -> Pair:
    """A nearby pair: the record on one side or both, and at times another record, turned at random."""
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
    return replaced(rows, pair.index, one, other, pair.description)


def _turned(row: NDArray[np.float64], rng: np.random.Generator, size: float) -> NDArray[np.float64]:
    step = rng.standard_normal(len(row))
    turned = row + size * step / np.linalg.norm(step)
    length = float(np.linalg.norm(turned))
    return np.asarray(turned / length if length > 1e-6 else row)


def _rows(rows: Any, name: str, function: str = "Pair") -> Rows:
    must = "an (n, d) array of finite numbers"
    array = _checks.array(rows, name, function, must)
    if array.ndim != 2 or 0 in array.shape or array.dtype.kind not in "fiu" or not np.isfinite(array).all():
        _checks.reject(name, function, must, array if array.ndim else rows)
    frozen = np.array(array, dtype=np.float32)
    frozen.flags.writeable = False
    return frozen


def _unit(query: ArrayLike | None, d: int, function: str) -> NDArray[np.float64]:
    if query is None:
        return np.asarray(np.eye(1, d)[0], dtype=np.float64)
    must = f"a vector of {d} finite numbers that is not zero"
    array = _checks.array(query, "query", function, must)
    if array.shape != (d,) or array.dtype.kind not in "fiu" or not np.isfinite(array).all() or not array.any():
        _checks.reject("query", function, must, array if array.ndim else query)
    return np.asarray(array / np.linalg.norm(array.astype(np.float64)))


def _orthogonal(q: NDArray[np.float64]) -> NDArray[np.float64]:
    """A unit vector at a right angle to q; q itself in one dimension, where there is none."""
    if len(q) == 1:
        return q
    other = np.eye(len(q))[int(np.argmin(np.abs(q)))]
    other = other - (other @ q) * q
    return np.asarray(other / np.linalg.norm(other))
