"""Whole outputs that come back: the mark of a generator with few states, or one that is seeded anew from a clock.

That an output came before is no fault in itself: counts, levels and corners of a projection recur. It is one where it
tells the collections apart. If noise repeats, what came before on one collection comes again on that one only; if
outputs recur because there are few, they do so on both, up to the factor e^epsilon that the claim allows. So "it came
before, on the first collection alone" is a test like any other, fixed before the outputs that it is counted on, and
bounds epsilon from below for outputs of any law, with entries that depend on each other in any way.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Float = NDArray[np.float64]
Keys = NDArray[np.uint64]

#: Odd numbers with well mixed bits, of the 64-bit finaliser by Stafford (his "mix 13").
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


@dataclass(frozen=True)
class Seen:
    """1 for an output that the first collection alone gave before, -1 for one of the second alone, 0 for others."""

    here: Keys
    there: Keys
    name: str = "outputs that came before"

    def __call__(self, outputs: Float) -> Float:
        keys = _keys(outputs)
        return _within(keys, self.here).astype(np.float64) - _within(keys, self.there)


#: Between 0 and 1, and between -1 and 0.
CUTS = (0.5, -0.5)


def seen(first: Float, second: Float) -> Seen:
    """What either collection gave, and the other did not."""
    here, there = np.sort(_keys(first)), np.sort(_keys(second))
    return Seen(here[~_within(here, there)], there[~_within(there, here)])


def _within(keys: Keys, known: Keys) -> NDArray[np.bool_]:
    """Which keys are among the known ones, which rise."""
    if not len(known):
        return np.zeros(len(keys), dtype=bool)
    return np.asarray(known[np.minimum(np.searchsorted(known, keys), len(known) - 1)] == keys)


def _keys(rows: Float) -> Keys:
    """A 64-bit key of each row: two different rows of a million share one with a probability of 3e-8."""
    bits = np.ascontiguousarray(rows + 0.0).view(np.uint64)  # adding 0 makes -0 and 0 equal
    keys = np.zeros(len(rows), dtype=np.uint64)
    for column in range(rows.shape[1]):
        keys = (keys ^ bits[:, column]) * _FIRST + np.uint64(column + 1)
        keys = (keys ^ (keys >> np.uint64(30))) * _SECOND
        keys ^= keys >> np.uint64(31)
    return keys
