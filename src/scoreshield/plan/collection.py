"""Clean scores of a labelled collection, for research on public data or a curator's own eyes."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from scoreshield import _validation
from scoreshield._validation import validate, whole_from
from scoreshield.errors import InvalidInput
from scoreshield.geometry import embeddings

Index = NDArray[np.intp]


@validate(pairs=whole_from(2))
def scores_of_collection(
    rows: ArrayLike, labels: ArrayLike, *, research: bool = False, pairs: int = 1_000_000, seed: int = 0
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Impostor and genuine cosines of a labelled collection, all of them or a random million pairs of each.

    They are clean scores, so this is for public collections, or for a curator's own eyes: ``research=True`` says so.
    """
    if research is not True:
        raise InvalidInput(
            "Planning from a collection reads its clean scores, which nobody has paid for: pass research=True (on the "
            "command line --research) if the collection is public or the plan stays with the curator."
        )
    unit = embeddings.normalise_rows(embeddings.as_rows(rows))
    names = _validation.check_array(labels, "labels", "one label a record")
    if names.shape != (len(unit),):
        _validation.reject("labels", f"one label a record ({len(unit)} of them)", labels)
    rng = np.random.default_rng(_validation.check_count(seed, "seed", least=0))
    _, place = np.unique(names, return_inverse=True)
    return _cosines(unit, *_pairs(place, pairs, rng, same=False)), _cosines(unit, *_pairs(place, pairs, rng, same=True))


def _pairs(place: Index, pairs: int, rng: np.random.Generator, *, same: bool) -> tuple[Index, Index]:
    """Pairs of records of one label, or of two: all where they are few, else a random choice without repeats."""
    n, sizes = len(place), np.bincount(place)
    of_one_label = int((sizes * (sizes - 1) // 2).sum())
    available = of_one_label if same else n * (n - 1) // 2 - of_one_label
    if available < 2:
        kind = "one label" if same else "two labels"
        raise InvalidInput(f"The labels leave {available} pairs of records of {kind}; a plan needs at least two.")
    if available <= 4 * pairs:
        first, second = _all_same(place, sizes) if same else _all_other(place, sizes)
        chosen = rng.choice(available, pairs, replace=False) if available > pairs else slice(None)
        return first[chosen], second[chosen]
    return _draw(place, sizes, pairs, rng, same)


def _all_same(place: Index, sizes: Index) -> tuple[Index, Index]:
    """Group by group, all groups of one size at once."""
    order, starts = np.argsort(place, kind="stable"), np.cumsum(sizes) - sizes
    first, second = [], []
    for size in np.unique(sizes[sizes > 1]):
        members = order[starts[sizes == size][:, None] + np.arange(size)]
        one, two = np.triu_indices(size, 1)
        first.append(members[:, one].ravel())
        second.append(members[:, two].ravel())
    return np.concatenate(first), np.concatenate(second)


def _all_other(place: Index, sizes: Index) -> tuple[Index, Index]:
    """Every record outside the largest group with every record of another label, each pair once."""
    outside = np.flatnonzero(place != np.argmax(sizes))
    rank = np.full(len(place), -1)
    rank[outside] = np.arange(len(outside))
    first, second = [], []
    for rows in np.array_split(outside, max(1, len(outside) * len(place) // 10_000_000)):
        fits = (place[rows][:, None] != place) & (rank < rank[rows][:, None])
        one, two = np.nonzero(fits)
        first.append(rows[one])
        second.append(two)
    return np.concatenate(first), np.concatenate(second)


def _draw(place: Index, sizes: Index, pairs: int, rng: np.random.Generator, same: bool) -> tuple[Index, Index]:
    """Uniform pairs of the wanted kind, repeats thrown out and made up for."""
    n = len(place)
    order, starts = np.argsort(place, kind="stable"), np.cumsum(sizes) - sizes
    partners = (sizes[place] - 1 if same else n - sizes[place]).astype(np.float64)
    found = np.empty(0, dtype=np.int64)
    while len(found) < pairs:
        one = rng.choice(n, pairs, p=partners / partners.sum())
        group = place[one]
        if same:
            where = np.empty(n, dtype=np.intp)
            where[order] = np.arange(n) - np.repeat(starts, sizes)
            step = rng.integers(1, sizes[group])
            two = order[starts[group] + (where[one] + step) % sizes[group]]
        else:  # a place outside the record's own block
            step = rng.integers(0, n - sizes[group])
            two = order[(starts[group] + sizes[group] + step) % n]
        low, high = np.minimum(one, two), np.maximum(one, two)
        found = np.unique(np.concatenate([found, low * n + high]))
    chosen = rng.permutation(found)[:pairs]
    return chosen // n, chosen % n


def _cosines(unit: NDArray[np.float64], first: Index, second: Index) -> NDArray[np.float64]:
    scores = np.empty(len(first))
    for start in range(0, len(first), 65_536):
        part = slice(start, start + 65_536)
        scores[part] = np.vecdot(unit[first[part]], unit[second[part]])
    return np.clip(scores, -1.0, 1.0)
