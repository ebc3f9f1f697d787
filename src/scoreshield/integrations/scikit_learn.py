"""scikit-learn: nearest neighbours from an index that is released once, in the style of ``NearestNeighbors``.

``PrivateNearestNeighbors(epsilon=20).fit(X)`` releases one private vector per row, and charges once. After that the
estimator holds the released vectors only. ``kneighbors`` answers any number of public queries at no further cost.
"""

from __future__ import annotations

import copy
import numbers
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from scoreshield.stores.protocol import explain_missing_extra

try:
    from sklearn.base import BaseEstimator, clone
    from sklearn.utils.validation import check_is_fitted, validate_data
except ImportError:
    raise explain_missing_extra("sklearn", "scoreshield.integrations.scikit_learn") from None

from scoreshield import _validation
from scoreshield._frames import clear_frames_on_error
from scoreshield._types import AccountLike, Rng
from scoreshield._validation import check_count, optional, validate
from scoreshield.decisions.queries import QueryScores
from scoreshield.decisions.worth import Worth
from scoreshield.errors import InvalidInput
from scoreshield.privacy.adjacency import Adjacency, Replacement
from scoreshield.privacy.guarantee import Guarantee
from scoreshield.releases.index import IndexRelease, release_index
from scoreshield.releases.index_plan import IndexMechanism

__all__ = ["CHECK_EXCEPTIONS", "PrivateNearestNeighbors"]

Float = NDArray[np.float64]

#: Checks of scikit-learn (`check_estimator`) that do not pass, each with its reason. The page and the tests use it.
CHECK_EXCEPTIONS: dict[str, str] = {
    "check_pipeline_consistency": (
        "It compares two fits, and two fits draw different noise. It is skipped unless a random_state is given, and "
        "passes with one, which is not private."
    ),
}


class PrivateNearestNeighbors(BaseEstimator):  # type: ignore[misc]
    """Nearest neighbours by cosine, from a private index that `fit` releases once.

    The rows of ``X`` are private and the queries are public. Each call of `fit` is a release of its own and is charged,
    so a search over parameters or a cross-validation spends epsilon many times.

    Args:
        n_neighbors: How many neighbours `kneighbors` returns where the call does not say.
        epsilon: The epsilon that `fit` spends. It must be given: `fit` raises an error without it.
        delta: The delta that `fit` spends; 0 for PrivUnit, above 0 for Gaussian noise and a private PCA.
        mechanism: ``"privunit"`` or ``"gaussian"``, as for `release_index`.
        components: The number of dimensions to keep; None keeps all.
        reduction: ``"random"``, ``"pca"`` or a public matrix, as for `release_index`.
        center: ``"none"``, ``"private"`` or a public vector, as for `release_index`.
        adjacency: Who is protected; None is ``Replacement()``, one row.
        public_scores: Public scores of the same model, for the prediction `worth_`.
        require_recall: Raise an error before the charge unless the predicted recall is at least this.
        ledger: ``ledger.account(name)`` of a `Ledger`, which `fit` charges. A clone and a copy share it. A pickle does
            not hold it: `fit` of an unpickled estimator raises an error until ``set_params(ledger=...)``.
        random_state: None for the secure sampler. A seed, a ``RandomState`` or a ``Generator`` is research mode: it
            repeats, and it is NOT PRIVATE.

    Attributes:
        index_: The released index. The estimator holds nothing else of the rows.
        guarantee_: The guarantee of the release.
        worth_: What a query is predicted to find, from public facts.
        n_samples_fit_: The number of indexed rows, or of identities with centroids.
        n_features_in_: The number of features.
        feature_names_in_: The names of the features, if ``X`` had names.
        effective_metric_: ``"cosine"``.

    Example:
        >>> rows = np.random.default_rng(0).standard_normal((500, 32))
        >>> neighbours = PrivateNearestNeighbors(n_neighbors=3, epsilon=40).fit(rows)
        >>> distances, places = neighbours.kneighbors(rows[:2])
        >>> places.shape
        (2, 3)
    """

    effective_metric_ = "cosine"

    def __init__(
        self,
        n_neighbors: int = 5,
        *,
        epsilon: float | None = None,
        delta: float = 0.0,
        mechanism: IndexMechanism = "privunit",
        components: int | None = None,
        reduction: str | ArrayLike = "random",
        center: str | ArrayLike = "none",
        adjacency: Adjacency | None = None,
        public_scores: QueryScores | None = None,
        require_recall: float | None = None,
        ledger: AccountLike | None = None,
        random_state: Rng | np.random.RandomState = None,
    ) -> None:
        self.n_neighbors = n_neighbors
        self.epsilon = epsilon
        self.delta = delta
        self.mechanism = mechanism
        self.components = components
        self.reduction = reduction
        self.center = center
        self.adjacency = adjacency
        self.public_scores = public_scores
        self.require_recall = require_recall
        self.ledger = ledger
        self.random_state = random_state

    @clear_frames_on_error
    @validate()
    def fit(self, X: ArrayLike, y: Any = None) -> PrivateNearestNeighbors:
        """Release the index of the rows, and charge the ledger once.

        Args:
            X: The private rows, (n, d), d at least 2. They are not kept.
            y: Not used; for the interface of scikit-learn.

        Returns:
            The estimator itself.

        Raises:
            InvalidInput: The epsilon is missing, or another argument is not valid. Nothing is charged.
            BudgetExceeded: The ledger does not cover the release.
        """
        del y
        if self.epsilon is None:
            _validation.reject("epsilon", "given: there is no default, because fit spends it", None)
        if isinstance(self.ledger, PickledLedger):
            raise InvalidInput(
                "The ledger of this estimator was not pickled, so fit could not charge it: call set_params(ledger=...) "
                "first, and use n_jobs=1 in place of worker processes."
            )
        count = _validation.check_count(self.n_neighbors, "n_neighbors")
        rows = self._read_rows(X, is_fit=True)
        self.index_: IndexRelease = release_index(
            rows,
            epsilon=self.epsilon,
            delta=self.delta,
            mechanism=self.mechanism,
            components=self.components,
            reduction=self.reduction,
            center=self.center,
            adjacency=Replacement() if self.adjacency is None else self.adjacency,
            k=count,
            public_scores=self.public_scores,
            require_recall=self.require_recall,
            rng=_read_random_state(self.random_state),
            ledger=self.ledger,
        )
        self.n_samples_fit_ = int(self.index_.guarantee.shape[0])
        return self

    @property
    def guarantee_(self) -> Guarantee:
        """The guarantee of the release."""
        check_is_fitted(self)
        return self.index_.guarantee

    @property
    @clear_frames_on_error
    def worth_(self) -> Worth:
        """What a query for `n_neighbors` rows is predicted to find, from public facts."""
        check_is_fitted(self)
        return self.index_.worth(self.n_neighbors, public_scores=self.public_scores)

    @clear_frames_on_error
    @validate(n_neighbors=optional(check_count))
    def kneighbors(
        self,
        X: ArrayLike | None = None,
        n_neighbors: int | None = None,
        return_distance: bool = True,
    ) -> Any:
        """Find the nearest rows of public queries, from the released vectors. It reads no private row.

        Args:
            X: The public queries, (m, d). None asks for the neighbours of every indexed row, without itself. These
                compare two noisy vectors, so they are noisier.
            n_neighbors: How many neighbours; None takes the parameter of the estimator.
            return_distance: Whether to return distances too.

        Returns:
            ``(distances, indices)``, each (m, n_neighbors), nearest first; ``indices`` alone without distances. A
            distance is 1 minus the released cosine, cut to [0, 2]. ``index_.scores`` gives cosines that are not cut.
        """
        check_is_fitted(self)
        count = self.n_neighbors if n_neighbors is None else n_neighbors
        most = self.n_samples_fit_ - (X is None)
        if count > most:
            raise InvalidInput(f"Expected n_neighbors <= {most:,}, the number of indexed rows. Got {count:,} instead.")
        if X is None:
            scores = self.index_.gram()
            np.fill_diagonal(scores, -np.inf)
            places = np.argsort(-scores, axis=1, kind="stable")[:, :count]
            scores = np.take_along_axis(scores, places, 1)
        else:
            queries = self._read_rows(X, is_fit=False)
            scores, places = self.index_.search(queries, count)
        return (np.clip(1 - scores, 0.0, 2.0), places) if return_distance else places

    @clear_frames_on_error
    @validate(n_neighbors=optional(check_count), mode=_validation.one_of(("connectivity", "distance")))
    def kneighbors_graph(
        self,
        X: ArrayLike | None = None,
        n_neighbors: int | None = None,
        mode: Literal["connectivity", "distance"] = "connectivity",
    ) -> Any:
        """Compute the graph of nearest rows as a sparse matrix, (m, n).

        Args:
            X: The public queries, as for `kneighbors`.
            n_neighbors: How many neighbours; None takes the parameter of the estimator.
            mode: ``"connectivity"`` has ones; ``"distance"`` has the released cosine distances.

        Returns:
            A ``scipy.sparse.csr_matrix``.
        """
        from scipy.sparse import csr_matrix

        distances, places = self.kneighbors(X, n_neighbors)
        values = np.ones(places.size) if mode == "connectivity" else distances.ravel()
        starts = np.arange(0, places.size + 1, places.shape[1])
        return csr_matrix((values, places.ravel(), starts), shape=(len(places), self.n_samples_fit_))

    def __sklearn_clone__(self) -> PrivateNearestNeighbors:
        """Copy the parameters; the ledger is shared, because a copy of it would have a budget of its own."""
        values = self.get_params(deep=False)
        ledger = values.pop("ledger")
        return type(self)(**{name: clone(value, safe=False) for name, value in values.items()}, ledger=ledger)

    def __copy__(self) -> PrivateNearestNeighbors:
        """Copy the estimator; the ledger is shared, as in a clone."""
        copied = type(self).__new__(type(self))
        copied.__dict__.update(vars(self))
        return copied

    def __deepcopy__(self, memo: dict[int, Any]) -> PrivateNearestNeighbors:
        """Copy the estimator and its parameters; the ledger is shared, as in a clone."""
        copied = type(self).__new__(type(self))
        memo |= {id(self): copied, id(self.ledger): self.ledger}
        copied.__dict__.update(copy.deepcopy(vars(self), memo))
        return copied

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for a pickle: parameters and released vectors, and a mark in place of a ledger."""
        state: dict[str, Any] = super().__getstate__()
        return state if self.ledger is None else state | {"ledger": PickledLedger()}

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.non_deterministic = self.random_state is None
        return tags

    def _read_rows(self, X: Any, *, is_fit: bool) -> NDArray[Any]:
        """Convert rows to numbers, and record or compare the number and the names of the features.

        The checks are those of scikit-learn, whose messages would show values of the rows.
        """
        rows = _convert_rows(X)
        if is_fit and (0 in rows.shape or rows.shape[1] < 2):
            few = "0 sample(s)" if len(rows) == 0 else f"{rows.shape[1]} feature(s)"
            least = 1 if len(rows) == 0 else 2
            raise InvalidInput(f"X has {few} (shape={rows.shape}) while a minimum of {least} is required.")
        if not np.isfinite(rows).all():
            raise InvalidInput("X contains NaN or infinity.")
        validate_data(self, X if hasattr(X, "columns") else rows, reset=is_fit, skip_check_array=True)
        return rows


class PickledLedger:
    """Stands in an unpickled estimator for the ledger of the original. `fit` raises an error while it is there."""

    def __repr__(self) -> str:
        return "PickledLedger()"


def _convert_rows(values: Any) -> NDArray[Any]:
    """Convert a dense array, frame or list of real numbers to floats. No message shows a value of it."""
    if hasattr(values, "tocsr"):
        raise TypeError("X is sparse, and dense data are required: use X.toarray().")
    must = "a two-dimensional array of real numbers"
    array = _validation.check_array(values, "X", must)
    if array.dtype.kind == "c":
        raise InvalidInput("Complex data not supported: X must hold real numbers.")
    if array.dtype.kind == "O" and array.ndim == 2:
        others = [value for value in array.flat if not isinstance(value, numbers.Real)]
        if any(isinstance(value, str) for value in others):
            _validation.reject("X", must, array)
        if others:
            # scikit-learn's checks expect a TypeError with words such as these.
            raise TypeError("Every entry of the X argument must be neither a string nor an object, but a real number.")
        array = array.astype(np.float64)
    if array.ndim != 2 or array.dtype.kind not in "fiub":
        _validation.reject("X", must, array if array.ndim else values)
    return array if array.dtype == np.float32 else array.astype(np.float64, copy=False)


def _read_random_state(random_state: Any) -> Rng:
    """Make what `release_index` takes of what scikit-learn takes; None stays the secure sampler."""
    if isinstance(random_state, np.random.RandomState):
        return int(random_state.randint(2**31 - 1))
    rng: Rng = random_state
    return rng
