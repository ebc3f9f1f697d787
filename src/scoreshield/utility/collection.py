"""Clean scores of a labelled collection, for research on public data or a curator's own eyes."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from scoreshield import _checks, embeddings
from scoreshield.errors import InvalidInput

Index = NDArray[np.intp]


def scores_of_collection(
    rows: ArrayLike, labels: ArrayLike, *, research: bool = False, pairs: int = 1_000_000, seed: int = 0
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Impostor and genuine cosines of a labelled collection, all of them or a random million pairs of each.

    They are clean scores, so this is for public collections, or for a curator's own eyes: ``research=True`` says so.
    """
    function = "scores_of_collection"
    if research is not True:
        raise InvalidInput(
            "Planning from a collection reads its clean scores, which nobody has paid for: pass research=True (on the "
            "command line --research) if the collection is public or the plan stays with the curator."
        )
    unit = embeddings.unit_rows(embeddings.as_rows(rows, function), function)
    names = _checks.array(labels, "labels", function, "one label a record")
    if names.shape != (len(unit),):
        _checks.reject("labels", function, f"one label a record ({len(unit)} of them)", labels)
    pairs = _checks.count(pairs, "pairs", function, least=2)
    rng = np.random.default_rng(_checks.count(seed, "seed", function, least=0))
    _, place = np.unique(names, return_inverse=True)
    return _cosines(unit, *_pairs(place, pairs, rng, same=False)), _cosines(unit, *_pairs(place, pairs, rng, same=True))


def _pairs(place: Index, pairs: int, rng: np.random.Generator, *, same: bool) -> tuple[Index, Index]:
    """Pairs of records of one label, or of two: all where they are few, else drawn at random."""
    n, sizes = len(place), np.bincount(place)
    of_one_label = int((sizes * (sizes - 1) // 2).sum())
    available = of_one_label if same else n * (n - 1) // 2 - of_one_label
    if available < 2:
        kind = "one label" if same else "two labels"
        raise InvalidInput(f"The labels leave {available} pairs of records of {kind}; a plan needs at least two.")
    if n <= 3000:
        first, second = np.triu_indices(n, 1)
        chosen = np.flatnonzero((place[first] == place[second]) == same)
        if len(chosen) > pairs:
            chosen = rng.choice(chosen, pairs, replace=False)
        return first[chosen], second[chosen]
    return _draw_same(place, sizes, pairs, rng) if same else _draw_other(place, pairs, rng)


def _draw_same(place: Index, sizes: Index, pairs: int, rng: np.random.Generator) -> tuple[Index, Index]:
    order, starts = np.argsort(place, kind="stable"), np.cumsum(sizes) - sizes
    weight = sizes * (sizes - 1.0)
    group = rng.choice(len(sizes), pairs, p=weight / weight.sum())
    size = sizes[group]
    first = rng.integers(0, size)
    second = (first + rng.integers(1, size)) % size
    return order[starts[group] + first], order[starts[group] + second]


def _draw_other(place: Index, pairs: int, rng: np.random.Generator) -> tuple[Index, Index]:
    kept: list[NDArray[np.intp]] = []
    while sum(part.shape[1] for part in kept) < pairs:
        drawn = rng.integers(0, len(place), (2, pairs))
        kept.append(drawn[:, place[drawn[0]] != place[drawn[1]]])
    first, second = np.concatenate(kept, axis=1)[:, :pairs]
    return first, second


def _cosines(unit: NDArray[np.float64], first: Index, second: Index) -> NDArray[np.float64]:
    scores = np.empty(len(first))
    for start in range(0, len(first), 65_536):
        part = slice(start, start + 65_536)
        scores[part] = np.vecdot(unit[first[part]], unit[second[part]])
    return np.clip(scores, -1.0, 1.0)
