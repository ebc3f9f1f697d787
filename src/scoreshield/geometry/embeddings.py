"""Compute clean cosines from embeddings: validation, normalisation and the products, in one pass over the data.

Nothing here is private. The functions return clean scores to `releases`, which clamps them, adds noise in the same
memory and returns nothing else. Each score is computed from its own row (or pair of rows) alone, never from the
rest of the collection. So replacing one record moves only that record's scores.

Every finite row has a direction, so that no error of a release can distinguish two neighbouring collections: a zero row
and an identity whose records cancel out become the first basis vector. A NaN or an infinity raises an error that
names the row. This error is for the curator who holds the collection, and must not be forwarded to a client.
"""

from __future__ import annotations

import numbers
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse

from scoreshield import _validation
from scoreshield.errors import InvalidInput, InvalidRow

Rows = NDArray[np.floating[Any]]  # float32 or float64; see as_rows

Norm = Literal["unit", "ball"]
NORMS: tuple[str, ...] = get_args(Norm)
# A block of rows stays in the second-level cache while its norms and its scores are computed.
_BLOCK_BYTES = 1 << 20
#: Unit rows that cancel out, or that a projection shortens below this length, have no direction: the rest is
#: rounding error, which is about 1e-16 per row and dimension.
_VANISHES = 1e-9


def as_rows(embeddings: ArrayLike, name: str = "embeddings") -> Rows:
    """Return the collection as a two-dimensional float32 or float64 array, without a copy if it already is one."""
    must = "a two-dimensional array of real numbers with at least one row and one column"
    array = _validation.check_array(embeddings, name, must)
    if array.dtype.kind in "Obf" and not has_own_dtype(embeddings):
        array = _as_doubles(array)
    if array.ndim != 2 or 0 in array.shape or array.dtype.kind not in "fiu" or array.dtype.itemsize > 8:
        _validation.reject(name, must, array if array.ndim else embeddings)
    if array.dtype.kind == "f" and array.dtype.itemsize <= 4 and has_own_dtype(embeddings):
        return array.astype(np.float32, copy=False)
    return array.astype(np.float64, copy=False)


def _as_doubles(array: NDArray[Any]) -> NDArray[Any]:
    """Convert a sequence of real numbers of any type to doubles, so that no record decides for the others."""
    if array.dtype.kind == "O" and not all(isinstance(value, numbers.Real) for value in array.flat):
        return array
    try:
        with np.errstate(all="ignore"):
            return array.astype(np.float64)
    except (TypeError, ValueError, OverflowError):  # too large for a double, which is no finite number here
        return array


def has_own_dtype(embeddings: Any) -> bool:
    """Return whether NumPy reads this as an array of one type, rather than record by record.

    A list, a deque or any other sequence takes the widest type in it, so one record could change the precision of
    all the others. Sequences are therefore always converted to double.
    """
    if any(hasattr(embeddings, name) for name in ("__array__", "__array_interface__", "__array_struct__")):
        return True
    try:
        memoryview(embeddings).release()
    except TypeError:
        return False
    return True


def as_queries(query: ArrayLike, dimension: int) -> tuple[NDArray[np.float64], bool]:
    """Return the public queries as unit rows, and whether there was one (a vector) or a batch (a matrix)."""
    must = f"a vector of {dimension} real numbers, as long as the embeddings are, or a matrix of such rows"
    array = _validation.check_array(query, "query", must)
    if array.ndim not in (1, 2) or array.shape[-1] != dimension or array.dtype.kind not in "fiu" or not len(array):
        _validation.reject("query", must, array if array.ndim else query)
    rows = as_rows(np.atleast_2d(array), "query")
    return public_unit_rows(rows, "query"), array.ndim == 1


def rounding_error(dimension: int, dtype: Any) -> float:
    """Bound the float error of one cosine of two vectors of this length, in any order of summation.

    There are three inner products of length d (two for the norms, which enter by their square roots), and the rounding
    of the query and of the quotient. With unit roundoff u, (2 d + 8) u covers them with a margin while d u is small.
    """
    return (2 * dimension + 8) * float(np.finfo(dtype).eps) / 2


def scores(rows: Rows, queries: NDArray[np.float64], norm: str) -> NDArray[np.float64]:
    """Compute the clean cosines of every query with every row, shape (m, n), before clamping.

    `norm` "unit" divides by the row's length, and replaces a zero row by the first basis vector. "ball" divides only
    rows longer than one (x / max(1, |x|)).
    """
    n, d = rows.shape
    public = queries.astype(rows.dtype)
    out = np.empty((len(queries), n))
    safe_low, safe_high = (1e-25, 1e30) if rows.dtype == np.float32 else (1e-250, 1e250)
    block = max(1, _BLOCK_BYTES // (d * rows.itemsize))
    for start in range(0, n, block):
        part, here = np.ascontiguousarray(rows[start : start + block]), out[:, start : start + block]
        with np.errstate(all="ignore"):
            squares = np.vecdot(part, part)
            products = np.vecdot(part, public[0])[None] if len(public) == 1 else (part @ public.T).T
            lengths = np.sqrt(squares)
            if norm == "ball":
                np.maximum(lengths, 1, out=lengths)
            np.divide(products, lengths, out=here, casting="same_kind")
        if not (safe_low < squares.min() and squares.max() < safe_high):  # also where a square is NaN
            # Only the rows concerned: another row's score must not depend on this one, not even in its last bit.
            odd = np.flatnonzero(~((squares > safe_low) & (squares < safe_high)))
            here[:, odd] = _careful_scores(part[odd], start + odd, queries, norm)
    return out


def gram(rows: Rows) -> NDArray[np.float64]:
    """Compute the clean cosines of every pair of rows, (n, n), in double precision, before clamping.

    The result is exactly symmetric.
    """
    unit = unit_rows(rows)
    return unit @ unit.T  # one symmetric rank-k product


def unit_rows(rows: Rows, name: str = "embeddings", first: int = 0) -> NDArray[np.float64]:
    """Copy the rows in double precision, each scaled to length one; a zero row becomes the first basis vector.

    `first` is the number of the first row, for errors.
    """
    out = rows.astype(np.float64)
    largest = _scale_to_one(out, first + np.arange(len(out)), name)
    out[largest == 0, 0] = 1.0
    with np.errstate(all="ignore"):
        out /= np.sqrt(np.vecdot(out, out))[:, None]
    return out


def public_unit_rows(rows: Rows, name: str) -> NDArray[np.float64]:
    """Do the same for rows that are no records of the collection, such as queries: a zero row raises an error."""
    empty = ~rows.any(axis=1)
    if empty.any():
        raise InvalidInput(f"Row {int(np.argmax(empty))} of '{name}' is zero and has no direction; remove it.")
    return unit_rows(rows, name)


def directions(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """Scale sums or projections of unit rows to length one, in place; zero rows become the first basis vector."""
    with np.errstate(all="ignore"):
        lengths = np.sqrt(np.vecdot(rows, rows))
        vanished = lengths < _VANISHES
        rows[vanished] = 0.0
        rows[vanished, 0] = lengths[vanished] = 1.0
        rows /= lengths[:, None]
    return rows


def check_finite(rows: Rows, name: str = "embeddings") -> None:
    """Raise the error about the first row that holds a NaN or an infinity, if there is one."""
    block = max(1, _BLOCK_BYTES // (rows.shape[1] * rows.itemsize))
    for start in range(0, len(rows), block):
        part = rows[start : start + block]
        _check_largest(np.abs(part).max(axis=1), start + np.arange(len(part)), name)


def centroids(rows: Rows, labels: NDArray[Any]) -> NDArray[np.float64]:
    """Compute the direction of each identity's mean unit row, one row per label in sorted order.

    Each sum uses only its own identity's rows. Rows that cancel out have the first basis vector as centroid.
    """
    unit = unit_rows(rows)
    index = np.unique(labels, return_inverse=True)[1]
    members = sparse.csr_matrix((np.ones(len(rows)), (index, np.arange(len(rows)))))
    with np.errstate(all="ignore"):
        return directions(members @ unit)


def _careful_scores(
    part: Rows, numbers: NDArray[np.intp], queries: NDArray[np.float64], norm: str
) -> NDArray[np.float64]:
    """Compute the scores of rows with zero, huge or tiny entries; raise an error for NaN or infinite entries."""
    out = part.astype(np.float64)
    largest = _scale_to_one(out, numbers, "embeddings")
    if norm == "unit":
        out[largest == 0, 0] = 1.0
    with np.errstate(all="ignore"):  # an underflow must not raise, even if the caller configured NumPy to raise
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
    """Divide each row that is not zero, in place, by its largest entry, so that no square overflows or vanishes."""
    largest: NDArray[np.float64] = np.abs(rows).max(axis=1)
    _check_largest(largest, numbers, name)
    with np.errstate(all="ignore"):
        rows /= np.where(largest == 0, 1.0, largest)[:, None]
    return largest


def _check_largest(largest: NDArray[Any], numbers: NDArray[np.intp], name: str) -> None:
    bad = ~np.isfinite(largest)
    if bad.any():
        raise InvalidRow(name, int(numbers[np.argmax(bad)]))
