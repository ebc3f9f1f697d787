"""Read a release for a task: choose its array, check labels and pairs against it, and order equal values.

Score vectors are read from `.noisy`: clipping ties many scores at the ends of the range, and ranks need the order
that it loses. Matrices are read in one of two views: the valid cosine matrix, or the noisy one.
"""

from __future__ import annotations

import importlib
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from scoreshield import _validation
from scoreshield.errors import InvalidInput
from scoreshield.releases.index import PrivateIndex
from scoreshield.releases.results import FactoredGramRelease, GramRelease, Release, ScoreRelease

Float = NDArray[np.float64]
Whole = NDArray[np.intp]

View = Literal["feasible", "noisy"]
VIEWS: tuple[str, ...] = get_args(View)
_MATRIX = "a Gram, factored Gram or index release, or a symmetric matrix of finite numbers, of at least two records"
_SCORES = "a score or row release, or finite scores: a vector, or a matrix with one row per query"
_SYMMETRY = 1e-5  # single-precision products of a matrix with itself differ by less across the diagonal


def read_similarities(release: Any, view: View) -> Float:
    """Return the pairwise similarities in a release, (n, n), n at least 2. Do not write to them."""
    _validation.check_option(view, "view", VIEWS)
    if isinstance(release, FactoredGramRelease) and view == "noisy":
        raise InvalidInput("A factored release has no noisy matrix: use view='feasible'.")
    if isinstance(release, PrivateIndex):
        matrix = release.gram()
    elif isinstance(release, GramRelease) and view == "noisy":
        matrix = release.noisy
    elif isinstance(release, GramRelease | FactoredGramRelease):
        matrix = release.gram
    else:
        matrix = _read_plain_array(release, _MATRIX)
        if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1]:
            _validation.reject("release", _MATRIX, release)
        if np.abs(matrix - matrix.T).max() > _SYMMETRY * max(1.0, float(np.abs(matrix).max())):
            _validation.reject("release", _MATRIX, release)
    if len(matrix) < 2:
        _validation.reject("release", _MATRIX, release)
    return matrix


def mask_diagonal(matrix: Float) -> Float:
    """Copy a matrix with the diagonal below all values, so that no record is its own neighbour."""
    others = matrix.copy()
    np.fill_diagonal(others, -np.inf)
    return others


def read_scores(release: Any) -> Float:
    """Return the noisy scores in a release, of one query (n,) or of a batch (m, n)."""
    if isinstance(release, ScoreRelease):
        return release.noisy
    values = _read_plain_array(release, _SCORES)
    if values.ndim not in (1, 2):
        _validation.reject("release", _SCORES, release)
    return values


def _read_plain_array(release: Any, must: str) -> Float:
    """Return a plain array as it is, without a promise."""
    if isinstance(release, Release):
        _validation.reject("release", must, release)
    return read_numbers(release, "release", must)


def read_numbers(values: Any, name: str, must: str) -> Float:
    """Return finite real numbers, at least one, as float64."""
    array = _validation.check_array(values, name, must)
    if array.dtype.kind not in "fiu" or not array.size or not np.isfinite(array).all():
        _validation.reject(name, must, values)
    return array.astype(np.float64, copy=False)


def read_whole_numbers(values: Any, name: str, must: str) -> Whole:
    """Return whole numbers, at least one, none negative."""
    array = _validation.check_array(values, name, must)
    if array.dtype.kind not in "iu" or not array.size or int(array.min()) < 0 or int(array.max()) >= 2**53:
        _validation.reject(name, must, values)
    return array.astype(np.intp, copy=False)


def read_classes(labels: Any, length: int, name: str = "labels") -> NDArray[Any]:
    """Return one public class label per record: whole or real numbers, bools or strings."""
    must = f"a list of {length} class labels, one per record: numbers, bools or strings, none missing"
    array = _validation.check_array(labels, name, must)
    if array.shape != (length,) or array.dtype.kind not in "biufU":
        _validation.reject(name, must, labels)
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        _validation.reject(name, must, labels)
    return array


def read_outcomes(labels: Any, shape: tuple[int, ...]) -> NDArray[np.bool_]:
    """Return True or False for each score: whether its pair is genuine. Both must occur."""
    must = f"True or False for each of the scores, an array of shape {shape}, with at least one of each"
    array = _validation.check_array(labels, "labels", must)
    if array.shape != shape or array.dtype.kind not in "biu" or not np.isin(array, (0, 1)).all():
        _validation.reject("labels", must, labels)
    same = array.astype(np.bool_)
    if same.all() or not same.any():
        _validation.reject("labels", must, labels)
    return same


def read_pair_numbers(pairs: Any, records: int) -> Whole:
    """Return pairs of different records, (m, 2)."""
    must = f"an array of shape (m, 2): pairs of different record numbers below {records}"
    array = read_whole_numbers(pairs, "pairs", must)
    if array.ndim != 2 or array.shape[1] != 2 or array.max() >= records or (array[:, 0] == array[:, 1]).any():
        _validation.reject("pairs", must, pairs)
    return array


def sort_descending(values: Float, seed: int) -> Whole:
    """Return the places in each row from the largest value down; the seed fixes a random order of equal values."""
    order = np.random.default_rng(seed).random(values.shape)
    return np.lexsort((order, -values), axis=-1)


def find_largest(values: Float, k: int, seed: int) -> Whole:
    """Return the places of the k largest values of each row, in no order, with ties at the k-th place at random."""
    if k == values.shape[1]:
        return np.broadcast_to(np.arange(k), values.shape)
    chosen = np.argpartition(-values, k - 1, axis=1)[:, :k]
    least = np.take_along_axis(values, chosen, 1).min(axis=1)
    tied = np.flatnonzero((values >= least[:, None]).sum(axis=1) > k)
    if len(tied):
        chosen[tied] = sort_descending(values[tied], seed)[:, :k]
    return chosen


def import_sklearn(part: str, what: str) -> Any:
    """Import a part of scikit-learn at its first use."""
    try:
        return importlib.import_module(f"sklearn.{part}")
    except ImportError:
        raise InvalidInput(f"{what} needs the 'tasks' extra: pip install 'scoreshield[tasks]'.") from None
