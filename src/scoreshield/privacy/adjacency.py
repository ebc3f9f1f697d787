r"""Which collections are neighbours, and how far one neighbour can move a release.

A guarantee protects the difference between two *neighbouring* collections. Each class here defines one kind of
neighbour, and computes for each regime how far the released object can move (its sensitivity). Every bound holds
for the numbers that the code computes. Clean scores are first clamped to the public range [a, b], so a coordinate moves
by at most b - a for every float error. A bound that uses more structure than that includes the float error.
docs/sensitivity.md has the derivations. Nothing here reads an embedding.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from scoreshield import _validation
from scoreshield._validation import check_count, check_positive, one_of, validate
from scoreshield.errors import InvalidInput, InvalidParameter

REGIMES = ("scores", "row", "gram")
FULL_RANGE = (-1.0, 1.0)


@dataclass(frozen=True)
class Sensitivity:
    """How far one neighbour can move a released object.

    Attributes:
        l2: In Euclidean (for Gram matrices, Frobenius) norm.
        l1: In l1 norm, over the scores or over the whole matrix.
        moved: How many entries can move at all.
    """

    l2: float
    l1: float
    moved: int


@dataclass(frozen=True)
class ReleaseShape:
    """The public facts about a release that its sensitivity depends on.

    Attributes:
        regime: "scores", "row" or "gram".
        records: n, the number of rows of the collection.
        width: b - a, the length of the public score range.
        queries: m, how many queries are answered at once.
        query_norm: The spectral norm of the m unit queries stacked, between 1 and sqrt(m).
        rounding: A bound on the float error of one computed score.
    """

    regime: str
    records: int
    width: float = 2.0
    queries: int = 1
    query_norm: float = 1.0
    rounding: float = 0.0


class Adjacency(ABC):
    """A notion of neighbouring collections."""

    kind: ClassVar[str]

    @validate(regime=one_of(REGIMES), records=check_count)
    def sensitivity(
        self,
        regime: str,
        records: int,
        *,
        score_range: tuple[float, float] = FULL_RANGE,
        queries: ArrayLike | None = None,
    ) -> Sensitivity:
        """Compute how far a neighbour can move a release of ``records`` rows, in exact arithmetic.

        ``queries`` are the public queries of a batch, one per row (they are normalised here); None is one query.
        """
        low, high = check_score_range(score_range)
        shape = ReleaseShape(regime, records, high - low)
        if queries is not None:
            must = "a vector or a matrix of real numbers without zero rows"
            stack = np.atleast_2d(_validation.check_array(queries, "queries", must))
            if stack.ndim != 2 or stack.size == 0 or stack.dtype.kind not in "fiu" or not np.isfinite(stack).all():
                _validation.reject("queries", must, stack)
            lengths = np.linalg.norm(stack.astype(np.float64), axis=1, keepdims=True)
            if lengths.min() == 0:
                _validation.reject("queries", must, stack)
            stack = stack / lengths
            shape = ReleaseShape(regime, records, high - low, len(stack), spectral_norm(stack))
        return self.bound_sensitivity(shape)

    def bound_sensitivity(self, shape: ReleaseShape) -> Sensitivity:
        """Compute the sensitivity of a release of this shape, with float error."""
        match shape.regime:
            case "scores":
                return self._scores(shape)
            case "row":
                return self._row(shape)
            case _:
                return self._gram(shape)

    @abstractmethod
    def _scores(self, shape: ReleaseShape) -> Sensitivity: ...

    @abstractmethod
    def _row(self, shape: ReleaseShape) -> Sensitivity: ...

    @abstractmethod
    def _gram(self, shape: ReleaseShape) -> Sensitivity: ...

    def drop_labels(self) -> Adjacency:
        """Return the adjacency that a guarantee stores: this one without labels."""
        return self

    @abstractmethod
    def describe(self) -> str:
        """Describe the change that the release hides, in words that follow "whether"."""

    @abstractmethod
    def to_dict(self) -> dict[str, Any]: ...


@dataclass(frozen=True)
class Replacement(Adjacency):
    """Neighbours differ in one record, which may be replaced by any other: the strongest promise here."""

    kind = "replacement"

    def _scores(self, shape: ReleaseShape) -> Sensitivity:
        return _bound_moved_rows(1, shape)

    def _row(self, shape: ReleaseShape) -> Sensitivity:
        # The worst case replaces the row's own record: every other similarity moves.
        return _bound_moved_entries(shape.records - 1, shape.width)

    def _gram(self, shape: ReleaseShape) -> Sensitivity:
        return _bound_moved_entries(2 * (shape.records - 1), shape.width)

    def describe(self) -> str:
        return "any one record was replaced by any other record, real or made up"

    def to_dict(self) -> dict[str, Any]:
        return {"kind": self.kind}


@dataclass(frozen=True, init=False)
class Identity(Adjacency):
    """Neighbours differ in all records of one identity, for example a person with several photographs.

    Args:
        labels: One public label per record, which says which records belong together.
        centroids: Release one unit-norm centroid per identity instead of every record. One identity is then one row,
            and its size costs nothing.

    Attributes:
        identities: The number of different labels.
        largest: The number of records of the largest identity; 1 with centroids, where sizes do not matter and stay
            private.
    """

    kind = "identity"

    labels: NDArray[Any] | None = field(repr=False, compare=False)
    centroids: bool = False
    identities: int = field(init=False)
    largest: int = field(init=False)

    @validate()
    def __init__(self, labels: ArrayLike, centroids: bool = False) -> None:
        must = "a one-dimensional array of integers or strings, one per record"
        array = _validation.check_array(labels, "labels", must)
        if array.dtype.kind in "OT" and all(isinstance(label, str) for label in array.ravel()):
            array = array.astype(str)
        if array.ndim != 1 or array.size == 0 or array.dtype.kind not in "iuUSb":
            _validation.reject("labels", must, array)
        if not isinstance(centroids, bool | np.bool_):
            _validation.reject("centroids", "True or False", centroids)
        array = array.copy()
        array.flags.writeable = False
        sizes = np.unique(array, return_counts=True)[1]
        self._set(array, bool(centroids), len(sizes), 1 if centroids else int(sizes.max()))

    def _set(self, labels: NDArray[Any] | None, centroids: bool, identities: int, largest: int) -> None:
        for name, value in zip(
            ("labels", "centroids", "identities", "largest"),
            (labels, centroids, identities, largest),
            strict=True,
        ):
            object.__setattr__(self, name, value)

    def _scores(self, shape: ReleaseShape) -> Sensitivity:
        return _bound_moved_rows(self._group(shape), shape)

    def _row(self, shape: ReleaseShape) -> Sensitivity:
        # If the row's own identity is replaced every other similarity may move, as for one record.
        return _bound_moved_entries(shape.records - 1, shape.width)

    def _gram(self, shape: ReleaseShape) -> Sensitivity:
        n, g = shape.records, self._group(shape)
        moved = 2 * g * (n - g) + g * (g - 1)
        by_entries = _bound_moved_entries(moved, shape.width)
        if g == 1:
            return by_entries
        # The geometry of the elliptope does better than counting entries: docs/sensitivity.md, theorem 3.
        flipped = min(g, n / 2)
        geometric = math.sqrt(8 * flipped * (n - flipped)) + 2 * math.sqrt(moved) * shape.rounding
        return Sensitivity(min(by_entries.l2, geometric), by_entries.l1, moved)

    def _group(self, shape: ReleaseShape) -> int:
        return min(self.largest, shape.records)

    def drop_labels(self) -> Identity:
        return self._from_counts(self.centroids, self.identities, self.largest)

    @classmethod
    def _from_counts(cls, centroids: bool, identities: int, largest: int) -> Identity:
        """Make an identity adjacency from the counts of its labels, without the labels."""
        bare = cls.__new__(cls)
        bare._set(None, centroids, identities, largest)
        return bare

    def describe(self) -> str:
        if self.centroids:
            return (
                f"the records of any one of {self.identities:,} identities were all replaced, or changed in number but "
                "not to none (one centroid per identity is released; the list of identities is public)"
            )
        return (
            f"the records of any one of {self.identities:,} identities, at most {self.largest:,} of them, were all "
            "replaced (who belongs to whom is taken as public)"
        )

    def to_dict(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "centroids": self.centroids,
            "identities": self.identities,
            "largest": self.largest,
        }


@dataclass(frozen=True)
class GramRadius(Adjacency):
    """Neighbours are collections whose Gram matrices lie within ``radius`` of each other in Frobenius norm.

    This is a promise about the output, not about a person: below 2 sqrt(2 (n - 1)) it does *not* cover the replacement
    of a record. The class methods compute the radius for a kind of change.
    """

    kind = "gram-radius"

    radius: float

    @validate()
    def __post_init__(self) -> None:
        object.__setattr__(self, "radius", _validation.check_positive(self.radius, "radius"))

    @classmethod
    @validate(m=check_count)
    def from_pairs(cls, m: int, t: float) -> GramRadius:
        """Make the radius for ``m`` undirected pairs whose similarities change by at most ``t`` each: t sqrt(2 m)."""
        return cls(_validation.check_positive(t, "t") * math.sqrt(2 * m))

    @classmethod
    def from_record(cls, m: int, t: float) -> GramRadius:
        """Make the radius for one record that changes ``m`` of its similarities by at most ``t`` each: t sqrt(2 m)."""
        return cls.from_pairs(m, t)

    @classmethod
    @validate(n=check_count, k=check_count, h=check_positive)
    def from_drift(cls, n: int, k: int, h: float) -> GramRadius:
        """Make the radius for ``k`` of ``n`` embeddings that drift by at most ``h`` in l2: 2 h sqrt(n k) + h^2 k."""
        if k > n:
            _validation.reject("k", f"at most n = {n}", k)
        return cls(2 * h * math.sqrt(n * k) + h * h * k)

    @validate(n=check_count)
    def dominates_replacement(self, n: int) -> bool:
        """Whether this radius covers the replacement of any one of ``n`` records."""
        return self.radius >= Replacement().sensitivity("gram", n).l2

    def _scores(self, shape: ReleaseShape) -> Sensitivity:
        raise InvalidInput(
            f"GramRadius is an adjacency on Gram matrices and says nothing about a release of {shape.regime}; use "
            "Replacement() or Identity(labels), or release_gram."
        )

    _row = _scores

    def _gram(self, shape: ReleaseShape) -> Sensitivity:
        moved = shape.records * (shape.records - 1)
        l2 = self.radius + 2 * math.sqrt(moved) * shape.rounding
        return Sensitivity(l2, l2 * math.sqrt(moved), moved)

    def describe(self) -> str:
        return f"the collection was changed so as to move its Gram matrix by at most {self.radius:g} (Frobenius norm)"

    def to_dict(self) -> dict[str, Any]:
        return {"kind": self.kind, "radius": self.radius}


@dataclass(frozen=True)
class NullRecord(Adjacency):
    """Neighbours differ in one record, which is replaced by a null record.

    A null record never scores above the bottom level. This is the adjacency of a search with a hit budget
    (``PrivateSearch(mode="hits")``), which states how far the answers reveal that a record ever answered at all. Two
    different records are two such changes apart.
    """

    kind = "null-record"

    def _scores(self, shape: ReleaseShape) -> Sensitivity:
        raise InvalidInput(
            f"NullRecord is the adjacency of a search with a hit budget and says nothing about a release of "
            f"{shape.regime}; use Replacement() or Identity(labels)."
        )

    _row = _gram = _scores

    def describe(self) -> str:
        return "any one record was replaced by a null record, which never scores above the bottom level"

    def to_dict(self) -> dict[str, Any]:
        return {"kind": self.kind}


ADJACENCIES: tuple[type[Adjacency], ...] = (Replacement, Identity, GramRadius, NullRecord)


def adjacency_from_dict(data: dict[str, Any]) -> Adjacency:
    """Read back what ``to_dict`` wrote; the labels of an identity are not kept, only their counts."""
    match data:
        case {"kind": Replacement.kind}:
            return Replacement()
        case {"kind": NullRecord.kind}:
            return NullRecord()
        case {"kind": GramRadius.kind, "radius": radius}:
            return GramRadius(radius)
        case {"kind": Identity.kind, "centroids": centroids, "identities": identities, "largest": largest}:
            if not isinstance(centroids, bool):
                _validation.reject("centroids", "true or false", centroids)
            identities = _validation.check_count(identities, "identities")
            return Identity._from_counts(centroids, identities, _validation.check_count(largest, "largest"))
    raise InvalidInput(f"The file has an adjacency that this version does not support: {data.get('kind')!r}.")


def check_score_range(score_range: Any, name: str = "score_range") -> tuple[float, float]:
    """Check for a public range [a, b], -1 <= a < b <= 1, that clean scores are clamped to."""
    must = "a pair (a, b) with -1 <= a < b <= 1"
    if not isinstance(score_range, tuple | list | np.ndarray) or len(score_range) != 2:
        _validation.reject(name, must, score_range)
    low, high = (_validation.check_real(end, name, must) for end in score_range)
    if not -1 <= low < high <= 1:
        raise InvalidParameter(name, f"must be {must}. Got ({low:g}, {high:g}) instead.")
    return low, high


def spectral_norm(queries: NDArray[np.float64]) -> float:
    """Compute the largest singular value of the stacked unit queries, rounded up; at most sqrt(m)."""
    if len(queries) == 1:
        return 1.0
    return min(float(np.linalg.norm(queries, 2)) * (1 + 1e-9), math.sqrt(len(queries)))


def _bound_moved_entries(moved: int, width: float) -> Sensitivity:
    """Bound the sensitivity if ``moved`` entries each move across the whole public range."""
    return Sensitivity(width * math.sqrt(moved), width * moved, moved)


def _bound_moved_rows(rows: int, shape: ReleaseShape) -> Sensitivity:
    """Bound the sensitivity if ``rows`` records each move their scores for all queries."""
    by_entries = _bound_moved_entries(rows * shape.queries, shape.width)
    if shape.queries == 1:
        return by_entries
    # |(e - e') Q^T| <= |e - e'| |Q|_2 <= 2 |Q|_2 for each record, plus float error on both sides.
    one = 2 * shape.query_norm + 2 * math.sqrt(shape.queries) * shape.rounding
    return Sensitivity(min(by_entries.l2, one * math.sqrt(rows)), by_entries.l1, by_entries.moved)
