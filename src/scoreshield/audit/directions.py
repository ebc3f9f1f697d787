"""Directions in which outputs move from one collection to the other: the most telling, and those without noise.

Entries are put on one scale first, each divided by its own spread, so that outputs of any size can be compared.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Float = NDArray[np.float64]
#: An eigenvalue of the correlations below this is a direction without noise.
_NOISELESS = 1e-9
#: Entries that move most, whose companions are looked for where there are too many entries for all.
_LEADING = 8


@dataclass(frozen=True)
class Weighted:
    """A weighted sum of some entries."""

    name: str
    weights: Float
    columns: NDArray[np.intp]

    def __call__(self, outputs: Float) -> Float:
        # Row by row: equal outputs must give equal numbers, whatever stands beside them.
        return np.asarray(np.vecdot(outputs[:, self.columns], self.weights))


@dataclass(frozen=True)
class _Standardised:
    """Entries that vary or move.

    Attributes
    ----------
    columns, scale : which they are, and what each is divided by.
    moves : how far each moves from one side to the other, in that scale.
    rows : all outputs less the mean of their side, in that scale.
    """

    columns: NDArray[np.intp]
    scale: Float
    moves: Float
    rows: Float

    @property
    def correlations(self) -> Float:
        return np.asarray(self.rows.T @ self.rows / len(self.rows))


def linear(first: Float, second: Float) -> Weighted | None:
    """Fisher's discriminant on standardised entries, its correlations drawn towards none where rows are few."""
    parts = _standardised(first, second)
    if parts is None:
        return None
    share = len(parts.columns) / (len(parts.columns) + len(first) + len(second))
    values, vectors = np.linalg.eigh((1 - share) * parts.correlations + share * np.eye(len(parts.columns)))
    weights = vectors @ ((vectors.T @ parts.moves) / np.maximum(values, _NOISELESS))
    return Weighted("linear", weights / parts.scale, parts.columns)


def noiseless(first: Float, second: Float) -> Weighted | None:
    """The move within the directions without noise; None where nothing moves there.

    With few rows every large set of entries has a direction without noise by chance: of more than `most_entries`, only
    those are looked at that move most, and those that go along with them.
    """
    parts = _standardised(first, second)
    if parts is None:
        return None
    most = most_entries(len(first))
    if len(parts.columns) > most:
        parts = _leading(parts, most)
    values, vectors = np.linalg.eigh(parts.correlations)
    silent = vectors[:, values < _NOISELESS]
    weights = silent @ (silent.T @ parts.moves)
    size = float(np.linalg.norm(weights))
    # Rounding in the correlations moves things a little in any direction.
    return Weighted("noiseless", weights / size / parts.scale, parts.columns) if size > 1e-6 else None


def most_entries(rows: int) -> int:
    """How many entries so many rows on each side can be searched in for a direction without noise."""
    return max(2, rows // 4)


def relative_moves(first: Float, second: Float) -> Float:
    """How far each entry moves, in its own spread; 0 for one that neither moves nor varies."""
    moves = np.zeros(first.shape[1])
    if (parts := _standardised(first, second)) is not None:
        moves[parts.columns] = np.abs(parts.moves)
    return moves


def _leading(parts: _Standardised, most: int) -> _Standardised:
    order = np.argsort(-np.abs(parts.moves), kind="stable")
    lead = order[: min(_LEADING, most)]
    with_lead = np.abs(parts.rows[:, lead].T @ parts.rows).max(axis=0)
    # Half of the room for companions of those that move most, the rest for whatever moves.
    kept = np.concatenate([lead, np.argsort(-with_lead, kind="stable")[: most // 2], order])
    chosen = np.sort(np.array(list(dict.fromkeys(kept.tolist()))[:most]))
    return _Standardised(parts.columns[chosen], parts.scale[chosen], parts.moves[chosen], parts.rows[:, chosen])


def _standardised(first: Float, second: Float) -> _Standardised | None:
    """None where nothing moves."""
    peak = np.maximum(np.abs(first).max(axis=0), np.abs(second).max(axis=0))
    peak = np.where(peak > 0, peak, 1.0)  # so that squares neither overflow nor vanish
    one, other = first / peak, second / peak
    move = one.mean(axis=0) - other.mean(axis=0)
    spread = np.sqrt((one.var(axis=0) + other.var(axis=0)) / 2)
    quiet = spread <= 1e-12
    spread = np.where(quiet, 0.0, spread)
    move = np.where(quiet & (np.abs(move) <= 1e-12), 0.0, move)
    columns = np.flatnonzero((spread > 0) | (move != 0))
    if not len(columns) or not move.any():
        return None
    scale = np.where(quiet, np.abs(move), spread)[columns]
    rows = np.concatenate([side[:, columns] - side[:, columns].mean(axis=0) for side in (one, other)]) / scale
    return _Standardised(columns, scale * peak[columns], move[columns] / scale, rows)
