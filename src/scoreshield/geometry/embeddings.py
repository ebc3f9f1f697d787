"""Compute clean cosines from embeddings: validation, normalisation and products, in one pass over the data.

Nothing here is private. The functions return clean scores to `releases`, which clamps them, adds noise in the same
memory and returns nothing else. Each score is computed from its own row (or pair of rows) only. So replacing one
record changes only the scores of that record.

Every finite row has a direction, so that an error never distinguishes two neighbouring collections: a zero row and an
identity whose records cancel out are taken as the first basis vector. A NaN or an infinity raises an error that names
the row. This error is for the curator who holds the collection, and must not reach a client.
"""

from __future__ import annotations

import numbers
from typing import Any, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse

from scoreshield import _validation
from scoreshield._types import Norm
from scoreshield.errors import InvalidInput, InvalidRow

Rows = NDArray[np.floating[Any]]  # float32 or float64, as as_rows returns them

NORMS: tuple[str, ...] = get_args(Norm)
# A block of rows stays in the second-level cache while its norms and its scores are taken.
_BLOCK_BYTES = 1 << 20
#: Squared lengths between these need no scaling, by the bytes of a number.
SAFE_SQUARES = {4: (1e-25, 1e30), 8: (1e-250, 1e250)}
#: A sum or projection of unit rows that is shorter than this has no direction: it is rounding error, which is about
#: 1e-16 for each row and dimension.
_VANISHES = 1e-9
_PANEL = 256  # rows of a Gram matrix that are computed at once


def as_rows(embeddings: ArrayLike, name: str = "embeddings") -> Rows:
    """Convert the collection to a two-dimensional float32 or float64 array, without a copy where it is one."""
    must = "a two-dimensional array of real numbers with at least one row and one column"
    array = _validation.check_array(embeddings, name, must)
    if array.dtype.kind in "Obf" and not has_own_dtype(embeddings):
        array = _as_doubles(array)
    if array.ndim != 2 or 0 in array.shape or array.dtype.kind not in "fiu" or array.dtype.itemsize > 8:
        _validation.reject(name, must, array if array.ndim else embeddings)
    if array.dtype.kind == "f" and array.dtype.itemsize <= 4 and has_own_dtype(embeddings):
        return array.astype(np.float32, copy=False)
    return array.astype(np.float64, copy=False)


def find_shape(embeddings: ArrayLike) -> tuple[int, int]:
    """Return the number of records and the dimension of a collection that `as_rows` accepts."""
    shape = getattr(embeddings, "shape", ())
    records, dimension = shape if len(shape) == 2 else _validation.to_array(embeddings).shape
    return int(records), int(dimension)


def _as_doubles(array: NDArray[Any]) -> NDArray[Any]:
    """Convert real numbers of any type to doubles, so that no record decides whether the others are accepted."""
    if array.dtype.kind == "O" and not all(isinstance(value, numbers.Real) for value in array.flat):
        return array
    try:
        with np.errstate(all="ignore"):
            return array.astype(np.float64)
    except (TypeError, ValueError, OverflowError):  # too large for a double, which is no finite number here
        return array


def has_own_dtype(embeddings: Any) -> bool:
    """Return whether NumPy reads this as an array of one type, rather than record by record.

    A list, a deque or any other sequence gets the widest type in it, so that one record could change the precision of
    all the others. Sequences are therefore always converted to double.
    """
    if any(hasattr(embeddings, name) for name in ("__array__", "__array_interface__", "__array_struct__")):
        return True
    try:
        memoryview(embeddings).release()
    except TypeError:
        return False
    return True


def as_queries(query: ArrayLike, dimension: int, name: str = "query") -> tuple[NDArray[np.float64], bool]:
    """Convert the public queries to unit rows; also return whether there is one (a vector) or a batch (a matrix)."""
    must = f"a vector of {dimension} real numbers, as long as the embeddings are, or a matrix of such rows"
    array = _validation.check_array(query, name, must)
    if array.ndim not in (1, 2) or array.shape[-1] != dimension or array.dtype.kind not in "fiu" or not len(array):
        _validation.reject(name, must, array if array.ndim else query)
    rows = as_rows(np.atleast_2d(array), name)
    return normalise_public_rows(rows, name), array.ndim == 1


def bound_rounding_error(dimension: int, dtype: Any) -> float:
    """Bound the float error of one cosine of two vectors of this dimension, for any order of summation.

    The error has three inner products of length d (two for the norms, which enter by their square roots), the rounding
    of the query and that of the quotient. With unit roundoff u, (2 d + 8) u is above their sum while d u is small.
    """
    return (2 * dimension + 8) * float(np.finfo(dtype).eps) / 2


def compute_scores(
    rows: Rows, queries: NDArray[np.float64], norm: str, *, repeats: bool = False
) -> NDArray[np.float64]:
    """Compute the clean cosines of every query with every row, shape (m, n), before clamping.

    Args:
        rows: The records.
        queries: Public unit rows.
        norm: "unit" divides by the row's length, and takes a zero row as the first basis vector. "ball" divides only
            rows longer than one: x / max(1, |x|).
        repeats: Multiply each query by itself. A product of matrices is faster, and the number of threads that BLAS
            takes for it changes its last bits.
    """
    n, d = rows.shape
    public = queries.astype(rows.dtype)
    out = np.empty((len(queries), n))
    safe_low, safe_high = SAFE_SQUARES[rows.dtype.itemsize]
    block = max(1, _BLOCK_BYTES // (d * rows.itemsize))
    for start in range(0, n, block):
        part, here = np.ascontiguousarray(rows[start : start + block]), out[:, start : start + block]
        with np.errstate(all="ignore"):
            squares = np.vecdot(part, part)
            if repeats or len(public) == 1:
                products = np.stack([np.vecdot(part, one) for one in public])
            else:
                products = (part @ public.T).T
            lengths = np.sqrt(squares)
            if norm == "ball":
                np.maximum(lengths, 1, out=lengths)
            np.divide(products, lengths, out=here, casting="same_kind")
        if not (safe_low < squares.min() and squares.max() < safe_high):  # also where a square is NaN
            # Recompute only these rows: no other row's score may depend on them, not even in its last bit.
            odd = np.flatnonzero(~((squares > safe_low) & (squares < safe_high)))
            here[:, odd] = compute_odd_scores(part[odd], start + odd, queries, norm)
    return out


def compute_row_scores(part: Rows, public: Rows, queries: NDArray[np.float64], norm: str, first: int = 0) -> Rows:
    """Compute the clean cosines of a block of rows with every query, (rows, queries), in the precision of the rows.

    The order of summation depends on the shapes and on the place of the row in the block, not on the other rows.

    Args:
        part: A block of records.
        public: The queries in the precision of the rows.
        queries: The same in double precision.
        norm: As in `compute_scores`.
        first: The number of the first row, for errors.
    """
    part = np.ascontiguousarray(part)
    safe_low, safe_high = SAFE_SQUARES[part.dtype.itemsize]
    with np.errstate(all="ignore"):
        squares = np.vecdot(part, part)
        scores: Rows = part @ public.T
        lengths = np.sqrt(squares)
        if norm == "ball":
            np.maximum(lengths, 1, out=lengths)
        scores /= lengths[:, None]
    odd = np.flatnonzero(~((squares > safe_low) & (squares < safe_high)))  # also where a square is NaN
    if len(odd):
        values = compute_odd_scores(part[odd], first + odd, queries, norm).T
        with np.errstate(all="ignore"):  # also the cast to single precision
            scores[odd] = values
    return scores


def compute_upper_gram(rows: Rows, score_range: tuple[float, float]) -> NDArray[np.float64]:
    """Compute the clean cosines of all pairs of rows in double precision, clamped, on and above the diagonal.

    What is below the diagonal has no meaning. By panels, because NumPy's symmetric product copies one triangle to the
    other in a single thread, and the noise is mirrored anyway.

    Returns:
        An (n, n) matrix.
    """
    unit = normalise_rows(rows)
    n = len(unit)
    upper = np.zeros((n, n))
    for start in range(0, n, _PANEL):
        panel = upper[start : start + _PANEL, start:]
        np.matmul(unit[start : start + _PANEL], unit[start:].T, out=panel)
        np.clip(panel, *score_range, out=panel)
    return upper


def normalise_rows(rows: Rows, name: str = "embeddings", first: int = 0) -> NDArray[np.float64]:
    """Return a double-precision copy of the rows, each of length one. A zero row becomes the first basis vector.

    Args:
        rows: The rows to normalise.
        name: The parameter that errors name.
        first: The number of the first row, for errors.
    """
    out = rows.astype(np.float64)
    largest = _scale_to_one(out, first + np.arange(len(out)), name)
    out[largest == 0, 0] = 1.0
    with np.errstate(all="ignore"):
        out /= np.sqrt(np.vecdot(out, out))[:, None]
    return out


def normalise_public_rows(rows: Rows, name: str) -> NDArray[np.float64]:
    """Normalise rows that are not records of the collection, such as queries. A zero row raises an error."""
    empty = ~rows.any(axis=1)
    if empty.any():
        raise InvalidInput(f"Row {int(np.argmax(empty))} of '{name}' is zero and has no direction; remove it.")
    return normalise_rows(rows, name)


def normalise_directions(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """Scale sums or projections of unit rows to length one in place. A vanishing row becomes the first basis vector."""
    with np.errstate(all="ignore"):
        lengths = np.sqrt(np.vecdot(rows, rows))
        vanished = lengths < _VANISHES
        rows[vanished] = 0.0
        rows[vanished, 0] = lengths[vanished] = 1.0
        rows /= lengths[:, None]
    return rows


def check_finite(rows: Rows, name: str = "embeddings") -> None:
    """Raise an error for the first row that holds a NaN or an infinity."""
    block = max(1, _BLOCK_BYTES // (rows.shape[1] * rows.itemsize))
    for start in range(0, len(rows), block):
        part = rows[start : start + block]
        _check_largest(np.abs(part).max(axis=1), start + np.arange(len(part)), name)


def compute_centroids(rows: Rows, labels: NDArray[Any]) -> NDArray[np.float64]:
    """Compute the direction of each identity's mean unit row, one row per label in sorted order.

    Each sum includes only the rows of its identity. Rows that cancel out have the first basis vector as centroid.
    """
    unit = normalise_rows(rows)
    index = np.unique(labels, return_inverse=True)[1]
    members = sparse.csr_matrix((np.ones(len(rows)), (index, np.arange(len(rows)))))
    with np.errstate(all="ignore"):
        return normalise_directions(members @ unit)


def compute_odd_scores(
    part: Rows, numbers: NDArray[np.intp], queries: NDArray[np.float64], norm: str
) -> NDArray[np.float64]:
    """Compute the scores of rows with zero, huge or tiny entries. Raise an error for NaN and infinite entries."""
    out = part.astype(np.float64)
    largest = _scale_to_one(out, numbers, "embeddings")
    if norm == "unit":
        out[largest == 0, 0] = 1.0
    with np.errstate(all="ignore"):  # an underflow must not raise, whatever the caller set for NumPy
        lengths = np.sqrt(np.vecdot(out, out))
        if norm == "ball":
            longer = lengths * largest > 1
            out *= np.where(longer, 1 / np.maximum(lengths, 1), largest)[:, None]
        else:
            out /= lengths[:, None]
        # One inner product at a time: a matrix product may round a row differently with other rows beside it.
        products: NDArray[np.float64] = np.vecdot(queries[:, None, :], out[None, :, :])
    return products


def _scale_to_one(rows: NDArray[np.float64], numbers: NDArray[np.intp], name: str) -> NDArray[np.float64]:
    """Divide each nonzero row by its largest entry, in place, so that no square overflows or vanishes."""
    largest: NDArray[np.float64] = np.abs(rows).max(axis=1)
    _check_largest(largest, numbers, name)
    with np.errstate(all="ignore"):
        rows /= np.where(largest == 0, 1.0, largest)[:, None]
    return largest


def _check_largest(largest: NDArray[Any], numbers: NDArray[np.intp], name: str) -> None:
    bad = ~np.isfinite(largest)
    if bad.any():
        raise InvalidRow(name, int(numbers[np.argmax(bad)]))


def turn_queries(queries: NDArray[np.float64], center: NDArray[np.float64]) -> NDArray[np.float64]:
    """Remove the component along the center from unit queries, and normalise them again.

    Centred records differ little along the center, so this component would bring noise and no signal.
    """
    length = float(np.linalg.norm(center))
    if length == 0:
        return queries
    axis = center / length
    rest: NDArray[np.float64] = queries - np.outer(queries @ axis, axis)
    lengths = np.sqrt(np.vecdot(rest, rest))
    if (lengths < 1e-9).any():
        raise InvalidInput(f"Query {int(np.argmin(lengths))} points along the center and has no direction from it.")
    rest /= lengths[:, None]
    return rest
