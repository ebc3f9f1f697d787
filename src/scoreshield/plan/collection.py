"""Clean scores of a labelled collection, for research on public data or for the curator alone."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from scoreshield import _validation
from scoreshield._validation import validate, whole_from
from scoreshield.errors import InvalidInput
from scoreshield.geometry import embeddings

Index = NDArray[np.intp]


@validate(pairs=whole_from(2), seed=whole_from(0))
def scores_of_collection(
    rows: ArrayLike, labels: ArrayLike, *, research: bool = False, pairs: int = 1_000_000, seed: int = 0
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Compute impostor and genuine cosines of a labelled collection.

    The cosines are clean scores. Use them on public collections, or let only the curator see them.

    Args:
        rows: The embeddings, one row per record.
        labels: One label per record. Records of one label match.
        research: True confirms that the clean scores may be read.
        pairs: The largest number of pairs of each kind. Where there are more, a random choice is made.
        seed: The seed of that choice.

    Returns:
        The cosines of pairs of two labels, and those of pairs of one label.
    """
    if research is not True:
        raise InvalidInput(
            "Planning from a collection reads its clean scores, and no budget is charged for them: pass research=True "
            "(on the command line --research) if the collection is public or the plan stays with the curator."
        )
    unit = embeddings.normalise_rows(embeddings.as_rows(rows))
    names = _validation.check_array(labels, "labels", "one label per record")
    if names.shape != (len(unit),):
        _validation.reject("labels", f"one label per record ({len(unit)} of them)", labels)
    rng = np.random.default_rng(seed)
    _, place = np.unique(names, return_inverse=True)
    different = _compute_pair_cosines(unit, *_choose_pairs(place, pairs, rng, same=False))
    return different, _compute_pair_cosines(unit, *_choose_pairs(place, pairs, rng, same=True))


def _choose_pairs(place: Index, pairs: int, rng: np.random.Generator, *, same: bool) -> tuple[Index, Index]:
    """Choose pairs of records of one label, or of two: all where they are few, else at random without repeats."""
    n, sizes = len(place), np.bincount(place)
    of_one_label = int((sizes * (sizes - 1) // 2).sum())
    available = of_one_label if same else n * (n - 1) // 2 - of_one_label
    if available < 2:
        kind = "one label" if same else "two labels"
        raise InvalidInput(f"The labels leave {available} pairs of records of {kind}; a plan needs at least two.")
    if available <= 4 * pairs:
        first, second = _list_same_pairs(place, sizes) if same else _list_other_pairs(place, sizes)
        chosen = rng.choice(available, pairs, replace=False) if available > pairs else slice(None)
        return first[chosen], second[chosen]
    return _draw_pairs(place, sizes, pairs, rng, same)


def _list_same_pairs(place: Index, sizes: Index) -> tuple[Index, Index]:
    """List all pairs of one label, with all groups of one size at once."""
    order, starts = np.argsort(place, kind="stable"), np.cumsum(sizes) - sizes
    first, second = [], []
    for size in np.unique(sizes[sizes > 1]):
        members = order[starts[sizes == size][:, None] + np.arange(size)]
        one, two = np.triu_indices(size, 1)
        first.append(members[:, one].ravel())
        second.append(members[:, two].ravel())
    return np.concatenate(first), np.concatenate(second)


def _list_other_pairs(place: Index, sizes: Index) -> tuple[Index, Index]:
    """List every record outside the largest group with every record of another label, each pair once."""
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


def _draw_pairs(place: Index, sizes: Index, pairs: int, rng: np.random.Generator, same: bool) -> tuple[Index, Index]:
    """Draw uniform pairs of one kind, and draw again for repeats."""
    n = len(place)
    order, starts = np.argsort(place, kind="stable"), np.cumsum(sizes) - sizes
    partners = (sizes[place] - 1 if same else n - sizes[place]).astype(np.float64)
    drawn = np.empty(0, dtype=np.int64)
    while len(drawn) < pairs:
        one = rng.choice(n, pairs, p=partners / partners.sum())
        group = place[one]
        if same:
            where = np.empty(n, dtype=np.intp)
            where[order] = np.arange(n) - np.repeat(starts, sizes)
            step = rng.integers(1, sizes[group])
            two = order[starts[group] + (where[one] + step) % sizes[group]]
        else:  # a place outside the block of the same label
            step = rng.integers(0, n - sizes[group])
            two = order[(starts[group] + sizes[group] + step) % n]
        low, high = np.minimum(one, two), np.maximum(one, two)
        drawn = np.unique(np.concatenate([drawn, low * n + high]))
    chosen = rng.permutation(drawn)[:pairs]
    return chosen // n, chosen % n


def _compute_pair_cosines(unit: NDArray[np.float64], first: Index, second: Index) -> NDArray[np.float64]:
    scores = np.empty(len(first))
    for start in range(0, len(first), 65_536):
        part = slice(start, start + 65_536)
        scores[part] = np.vecdot(unit[first[part]], unit[second[part]])
    return np.clip(scores, -1.0, 1.0)
