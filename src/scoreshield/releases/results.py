"""The results of release functions: frozen arrays with their guarantee, to rank, save and load."""

from __future__ import annotations

import dataclasses
import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import isotonic_regression

from scoreshield import _files, _loading, _validation
from scoreshield._formatting import choose_words
from scoreshield._validation import check_count, check_inside_unit, check_real, check_text, optional, validate
from scoreshield._views import SHOWN_ROWS, Columns, NotebookObject, ObjectSummary, cut_columns
from scoreshield.errors import InvalidInput
from scoreshield.geometry.elliptope import factor_gram, multiply_factor, reduce_rows
from scoreshield.privacy.guarantee import Guarantee

Float = NDArray[np.float64]
#: How many records of a Gram matrix a notebook shows.
_SHOWN_PAIRS = 6


@dataclass(frozen=True, eq=False, repr=False)
class Release(NotebookObject, ABC):
    """A private object and its guarantee. Everything derived from it is private too, at no further cost.

    ``np.asarray(release)`` gives the released values that are valid: scores clipped to the public range, the projected
    Gram matrix, the private vectors of an index, the counts of a histogram. A release that only names records raises an
    error.

    Attributes:
        guarantee: The promise; ``str(release.guarantee)`` is the certificate.
    """

    kind: ClassVar[str]

    guarantee: Guarantee

    def __post_init__(self) -> None:
        for array in self._fields().values():
            while isinstance(array, np.ndarray):  # and what it is a view of
                array.flags.writeable = False
                array = array.base

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self.__post_init__()

    @validate(dataset=optional(check_text), who=optional(check_text), why=optional(check_text))
    def annotate(self, *, dataset: str | None = None, who: str | None = None, why: str | None = None) -> Self:
        """Return this release with texts for its certificate. Files keep them, and nothing proves them.

        A release that was charged to a ledger has the texts of its account already. None keeps a text, and an empty
        text removes it.

        Args:
            dataset: The name of the collection. It is public from then on, as the other texts are.
            who: Who made the release.
            why: For what purpose.

        Example:
            >>> release = release.annotate(dataset="patient letters", who="ada", why="pilot of the search")
        """
        return self.change_guarantee(self.guarantee.annotate(dataset=dataset, who=who, why=why))

    def change_guarantee(self, guarantee: Guarantee) -> Self:
        """Return this release with another account of its promise, such as one with the entry of its charge."""
        return dataclasses.replace(self, guarantee=guarantee)

    def save(self, path: str | Path) -> None:
        """Write the release, guarantee included, to one .npz file, completely or not at all."""
        _files.write_whole({Path(path): self.writer()})

    def writer(self) -> Callable[[BinaryIO], None]:
        """What writes the .npz file, for callers that write more beside it."""
        fields = {name: value for name, value in self._fields().items() if not self._is_default(name, value)}
        arrays = {name: value for name, value in fields.items() if isinstance(value, np.ndarray)}
        facts = {name: value for name, value in fields.items() if name not in arrays and name != "guarantee"}
        return _files.release_writer(self.kind, self.guarantee.to_dict(), facts, arrays)

    def _fields(self) -> dict[str, Any]:
        """Return the values of the release, without what was computed from them."""
        return {field.name: vars(self)[field.name] for field in dataclasses.fields(self)}

    @classmethod
    def _is_default(cls, name: str, value: Any) -> bool:
        """Whether a value is left out of the file, as in files of versions without this field."""
        field = next(field for field in dataclasses.fields(cls) if field.name == name)
        return value is None and field.default is None

    @abstractmethod
    def is_intact(self) -> bool:
        """Whether the values have the kind, shape and grid that the guarantee states."""

    def __eq__(self, other: object) -> bool:
        if type(self) is not type(other):
            return NotImplemented
        mine, theirs = self._fields(), other._fields()
        return all(
            np.array_equal(value, theirs[name]) if isinstance(value, np.ndarray) else value == theirs[name]
            for name, value in mine.items()
        )

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        g = self.guarantee
        return (
            f"<{type(self).__name__} {self._describe_size()}: ({g.epsilon:g}, {g.delta:g})-DP, {g.verdict}, "
            + f"{g.mechanism}, "
            + ("" if g.noise is None else f"noise sd {g.noise_std:.4g}, ")
            + f"{g.sampler} sampler>"
        )

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        return np.array(self._list_values(), dtype=dtype, copy=copy)

    def _list_values(self) -> NDArray[Any]:
        """Return the values of `np.asarray`."""
        raise InvalidInput(f"A {type(self).__name__} names records and holds no scores to make an array of.")

    def _describe_size(self) -> str:
        """Say how much was released."""
        return " x ".join(f"{length:,}" for length in self.guarantee.shape)

    def _summarise(self) -> ObjectSummary:
        columns, caption = self._preview()
        return ObjectSummary(
            f"{type(self).__name__} {self._describe_size()}",
            self.guarantee.sentence,
            self.guarantee.list_facts(),
            columns,
            caption,
            self.guarantee.warnings,
        )

    def _preview(self) -> tuple[dict[str, Any], str]:
        """Return the short table that a notebook shows, and its caption."""
        return {}, ""


@dataclass(frozen=True, eq=False, repr=False)
class ScoreRelease(Release):
    """Private scores of one query, shape (n,), or of a batch of m queries, shape (m, n).

    Attributes:
        noisy: The clean scores plus noise, float64, every entry a multiple of ``guarantee.grid``. Rank on this.
    """

    kind = "scores"

    noisy: Float
    tie_break: int

    def is_intact(self) -> bool:
        return is_seed(self.tie_break) and _on_grid(self.noisy, self.guarantee, self.kind)

    @property
    def scores(self) -> Float:
        """The nearest feasible scores: the noisy ones clipped to the public range. For display, not for ranking."""
        return np.clip(self.noisy, *self.guarantee.score_range)

    @validate(k=check_count, threshold=optional(check_real))
    def top_k(self, k: int, threshold: float | None = None) -> NDArray[np.intp]:
        """Return the indices of the `k` largest noisy scores, best first, at or above `threshold` if it is given.

        Fewer than k are returned if fewer pass. A batch gives one row per query, padded with -1. Ties are broken
        by a random order that belongs to the release, so that the same call gives the same answer.
        """
        if self.noisy.ndim == 1:
            return self._top(self.noisy, k, threshold, 0)
        rows = [self._top(row, k, threshold, place) for place, row in enumerate(self.noisy)]
        out = np.full((len(rows), max(map(len, rows))), -1, dtype=np.intp)
        for place, row in enumerate(rows):
            out[place, : len(row)] = row
        return out

    def _top(self, noisy: Float, k: int, threshold: float | None, place: int) -> NDArray[np.intp]:
        chosen = np.arange(len(noisy)) if threshold is None else np.flatnonzero(noisy >= threshold)
        if k < len(chosen):
            values = noisy if len(chosen) == len(noisy) else noisy[chosen]
            least = np.partition(values, len(values) - k)[len(values) - k]
            chosen = chosen[values >= least]  # more than k where the last place is tied
        order = np.random.default_rng([self.tie_break, place]).random(len(noisy))
        return chosen[np.lexsort((order[chosen], -noisy[chosen]))][:k]

    def _list_values(self) -> NDArray[Any]:
        return self.scores

    def _list_columns(self) -> Columns:
        queries, records = (1, len(self.noisy)) if self.noisy.ndim == 1 else self.noisy.shape
        columns: Columns = {"query": np.repeat(np.arange(queries), records)} if self.noisy.ndim == 2 else {}
        columns |= {"id": np.tile(np.arange(records), queries), "score": self.scores.ravel()}
        columns["noisy"] = self.noisy.ravel()
        outputs = getattr(self.guarantee.noise, "outputs", None)
        if outputs is not None:
            columns["level"] = np.searchsorted(outputs, columns["noisy"], side="left")
        return columns

    def _preview(self) -> tuple[dict[str, Any], str]:
        is_batch = self.noisy.ndim == 2
        noisy, scores = (self.noisy[0], self.scores[0]) if is_batch else (self.noisy, self.scores)
        best = self._top(noisy, SHOWN_ROWS, None, 0)
        columns = {"id": best.tolist(), "score": scores[best].tolist(), "noisy": noisy[best].tolist()}
        return columns, f"The best {len(best):,} of {len(noisy):,} records{' of query 0' * is_batch}, by noisy score"


@dataclass(frozen=True, eq=False, repr=False)
class RowRelease(ScoreRelease):
    """Private similarities of the record at a public ``index`` with all records; its own is the public constant 1."""

    kind = "row"

    index: int

    def is_intact(self) -> bool:
        return super().is_intact() and isinstance(self.index, int) and 0 <= self.index < len(self.noisy)

    @property
    def scores(self) -> Float:
        """The nearest feasible scores; the record's own is 1 for every public range."""
        scores = np.clip(self.noisy, *self.guarantee.score_range)
        scores[self.index] = 1.0
        return scores


@dataclass(frozen=True, eq=False, repr=False)
class GramRelease(Release):
    """A private Gram matrix.

    Attributes:
        gram: A valid cosine matrix (unit diagonal, positive semidefinite) made of the noisy one.
        noisy: The symmetric noisy matrix; its diagonal is the public constant 1.
        projection: The name of the projection.
        denoise: The name of the denoiser; for ``denoise="sure"`` the one it chose.
        risks: The risk that "sure" estimated for each choice, in mean squared error per entry.
        iterations: The number of iterations of the projection.
        residual: The stopping measure of the projection at its end.
        converged: Whether the projection reached its tolerance.
    """

    kind = "gram"

    noisy: Float
    gram: Float
    projection: str
    denoise: str
    risks: dict[str, float]
    iterations: int
    residual: float
    converged: bool

    def is_intact(self) -> bool:
        return _on_grid(self.noisy, self.guarantee, self.kind) and self.gram.shape == self.noisy.shape

    @validate(rank=optional(check_count))
    def embeddings(self, rank: int | None = None) -> Float:
        """Compute unit vectors, one per record, whose cosines are the release, as post-processing.

        `rank` None keeps the numerical rank, and the cosines to rounding; fewer dimensions approximate them. A release
        that was projected by its positive eigenvectors, or denoised to a rank, still holds such vectors; one that was
        loaded from a file decomposes the matrix. No vectors have the values of a noisy matrix that was not projected
        as their cosines; those of its positive eigenvectors, scaled to unit length, are then the result.
        """
        rows = vars(self).get("_rows")
        return factor_gram(self.gram, rank) if rows is None else reduce_rows(rows, rank)

    def keep_rows(self, rows: Float) -> Self:
        """Keep unit rows whose cosines are `gram`, so that `embeddings` need not find them. Return the release."""
        rows.flags.writeable = False
        object.__setattr__(self, "_rows", rows)
        return self

    def change_guarantee(self, guarantee: Guarantee) -> Self:
        changed = super().change_guarantee(guarantee)
        rows = vars(self).get("_rows")
        return changed if rows is None else changed.keep_rows(rows)

    def factored(self, rank: int | None = None) -> FactoredGramRelease:
        """Return the same release as an (n, r) factor instead of two (n, n) matrices, without the noisy matrix."""
        return FactoredGramRelease(guarantee=self.guarantee, factor=self.embeddings(rank), projection=self.projection)

    def _list_values(self) -> NDArray[Any]:
        return self.gram

    def _list_columns(self) -> Columns:
        return _list_matrix_columns(self.gram)

    def _preview(self) -> tuple[dict[str, Any], str]:
        return _preview_matrix(self.gram)


@dataclass(frozen=True, eq=False, repr=False)
class FactoredGramRelease(Release):
    """A private Gram matrix of low rank, kept and saved as unit vectors whose cosines it is."""

    kind = "factored gram"

    factor: Float
    projection: str

    def is_intact(self) -> bool:
        lengths = np.linalg.norm(self.factor, axis=1)
        return self.guarantee.regime == "gram" and bool(np.abs(lengths - 1).max() < 1e-9)

    @property
    def gram(self) -> Float:
        """The cosine matrix, unit diagonal exactly."""
        return multiply_factor(self.factor)

    @validate(rank=optional(check_count))
    def embeddings(self, rank: int | None = None) -> Float:
        """Unit vectors whose cosines are the release, of ``rank`` dimensions or as many as there are."""
        if rank is None or rank >= self.factor.shape[1]:
            return self.factor
        return reduce_rows(self.factor, rank)

    def _list_values(self) -> NDArray[Any]:
        return self.gram

    def _list_columns(self) -> Columns:
        return _list_matrix_columns(self.gram)

    def _preview(self) -> tuple[dict[str, Any], str]:
        return _preview_matrix(multiply_factor(self.factor[:_SHOWN_PAIRS]), len(self.factor))


@dataclass(frozen=True, eq=False, repr=False)
class MatchRelease(Release):
    """The records that passed a public threshold, by randomised response; with their private scores if refined.

    Attributes:
        candidates: The records whose randomised bit is one, in their own order.
        noisy: Their noisy scores; empty if the release only names them.
    """

    kind = "matches"

    candidates: NDArray[np.intp]
    noisy: Float
    tie_break: int

    def is_intact(self) -> bool:
        n, steps = self.guarantee.shape[0], self.noisy / self.guarantee.grid
        return (
            self.guarantee.regime == self.kind
            and is_seed(self.tie_break)
            and self.candidates.dtype.kind in "iu"
            and self.noisy.dtype == np.float64
            and self.candidates.ndim == self.noisy.ndim == 1
            and len(self.noisy) in (0, len(self.candidates))
            and bool(np.all((self.candidates >= 0) & (self.candidates < n)) and np.all(np.diff(self.candidates) > 0))
            and np.array_equal(steps, np.rint(steps))
        )

    @property
    def indices(self) -> NDArray[np.intp]:
        """The released records: best first where they have scores, in a random order where they have none."""
        order = np.random.default_rng(self.tie_break).permutation(len(self.candidates))
        if len(self.noisy):
            order = order[np.argsort(-self.noisy[order], kind="stable")]
        chosen: NDArray[np.intp] = self.candidates[order]
        return chosen

    @property
    def keep(self) -> float:
        """The probability that a released bit is the true one."""
        return 1 / (1 + math.exp(-self.guarantee.details["screening_epsilon"]))

    @property
    def expected_false(self) -> float:
        """How many records are expected to be named although they do not pass, at most: n (1 - keep)."""
        return self.guarantee.shape[0] * (1 - self.keep)

    @property
    def count(self) -> float:
        """An unbiased estimate of how many records pass; it may lie below 0 or above n."""
        return (len(self.candidates) - self.expected_false) / (2 * self.keep - 1)

    @validate(confidence=check_inside_unit)
    def count_interval(self, confidence: float = 0.95) -> tuple[float, float]:
        """An interval that covers the true count with at least this probability (Bernstein's inequality)."""
        n, level = self.guarantee.shape[0], math.log(2 / (1 - confidence))
        reach = math.sqrt(2 * n * self.keep * (1 - self.keep) * level) + level / 3
        half = reach / (2 * self.keep - 1)
        return max(0.0, self.count - half), min(float(n), self.count + half)

    def _list_values(self) -> NDArray[Any]:
        if not len(self.noisy):
            return super()._list_values()
        return np.clip(self.noisy, *self.guarantee.score_range)

    def _list_columns(self) -> Columns:
        columns: Columns = {"id": self.indices}
        if len(self.noisy):
            noisy = self.noisy[np.searchsorted(self.candidates, self.indices)]
            columns |= {"score": np.clip(noisy, *self.guarantee.score_range), "noisy": noisy}
        return columns

    def _preview(self) -> tuple[dict[str, Any], str]:
        columns = cut_columns(self._list_columns())
        order = "best first" if len(self.noisy) else "in a random order"
        return columns, f"{len(columns['id']):,} of the {len(self.candidates):,} named records, {order}"


@dataclass(frozen=True, eq=False, repr=False)
class TopKRelease(Release):
    """The k best records by a private selection, best first; their scores are not released."""

    kind = "top-k"

    indices: NDArray[np.intp]

    def is_intact(self) -> bool:
        n = self.guarantee.details["records"]
        return (
            self.guarantee.regime == self.kind
            and self.indices.dtype.kind in "iu"
            and self.indices.shape == self.guarantee.shape
            and len(np.unique(self.indices)) == len(self.indices)
            and bool(np.all((self.indices >= 0) & (self.indices < n)))
        )

    def _list_columns(self) -> Columns:
        return {"rank": np.arange(1, len(self.indices) + 1), "id": self.indices}

    def _preview(self) -> tuple[dict[str, Any], str]:
        return cut_columns(self._list_columns()), f"The best {min(SHOWN_ROWS, len(self.indices)):,} records"


@dataclass(frozen=True, eq=False, repr=False)
class HistogramRelease(Release):
    """Private counts of scores in public bins, and the false-match curve they give.

    Attributes:
        counts: Noisy whole numbers, some perhaps negative; bin i holds scores in (edges[i], edges[i + 1]].
    """

    kind = "histogram"

    counts: NDArray[np.int64]
    edges: Float

    def is_intact(self) -> bool:
        return (
            self.guarantee.regime == self.kind
            and self.counts.shape == self.guarantee.shape
            and self.counts.dtype == np.int64
            and self.edges.dtype == np.float64
            and self.total > 0
            and len(self.edges) == len(self.counts) + 1
            and bool(np.all(np.diff(self.edges) > 0))
        )

    @property
    def total(self) -> int:
        """How many scores were counted, which is public."""
        return int(self.guarantee.details["scores"])

    @property
    def rates(self) -> Float:
        """The share of scores above each edge: the nearest falling curve from 1 to 0, since the total is public."""
        above = np.cumsum(self.counts[::-1])[::-1].astype(np.float64)
        below = np.cumsum(self.counts).astype(np.float64)
        inner = (above[1:] + self.total - below[:-1]) / 2  # the two ways of counting, averaged
        falling = isotonic_regression(inner / self.total, increasing=False).x
        rates: Float = np.clip(np.concatenate([[1.0], falling, [0.0]]), 0.0, 1.0)
        return rates

    @validate()
    def rate(self, threshold: ArrayLike) -> Any:
        """The private estimate of P[score > threshold], straight between edges."""
        t = _validation.check_array(threshold, "threshold", "a number or an array of them")
        if t.dtype.kind not in "fiu":
            _validation.reject("threshold", "a number or an array of them", threshold)
        found = np.interp(t, self.edges, self.rates)
        return float(found) if found.ndim == 0 else found

    @validate(confidence=check_inside_unit)
    def error(self, confidence: float = 0.95) -> float:
        """What noise adds to every rate at an edge at once, at most, with this probability.

        Sums of symmetric noise have their maximum below x with twice the tail of the last sum (Levy's inequality), and
        that has Chernoff's bound. Averaging the two ways of counting and the monotone fit only help.
        """
        level = math.log(4 / (1 - confidence))
        bins, scale = len(self.counts), self.guarantee.scale
        if self.guarantee.mechanism == "gaussian":
            return math.sqrt(2 * level * bins * (scale**2 + 1)) / self.total
        # ln E e^(s L) = -ln(1 - s^2 b^2) bounds the geometric law's too; minimise (level + m psi(s)) / s.
        s = np.linspace(1e-4, 0.9999, 20_000) / scale
        return float(np.min((level - bins * np.log1p(-((s * scale) ** 2))) / s)) / self.total

    @validate(target=check_inside_unit)
    def threshold(self, target: float) -> float:
        """The least threshold at which the private rate is at most ``target``."""
        rates = self.rates
        place = int(np.argmax(rates <= target))
        if place == 0 or rates[place] == rates[place - 1]:
            return float(self.edges[place])
        share = (rates[place - 1] - target) / (rates[place - 1] - rates[place])
        return float(self.edges[place - 1] + share * (self.edges[place] - self.edges[place - 1]))

    def distribution(self) -> Any:
        """The same as scores for `decisions` and `plan`, with ``source="released"``: each bin spread evenly."""
        from scoreshield.decisions.scores import Sample

        quantiles = (np.arange(20_000) + 0.5) / 20_000
        rates, edges = self.rates[::-1], self.edges[::-1]
        return Sample(np.interp(quantiles, rates, edges))

    def _list_values(self) -> NDArray[Any]:
        return self.counts

    def _list_columns(self) -> Columns:
        return {"low": self.edges[:-1], "high": self.edges[1:], "count": self.counts, "rate": self.rates[:-1]}

    def _preview(self) -> tuple[dict[str, Any], str]:
        places = np.unique(np.linspace(0, len(self.counts) - 1, SHOWN_ROWS).astype(int))
        columns = {name: values[places].tolist() for name, values in self._list_columns().items()}
        return columns, f"{len(places):,} of {len(self.counts):,} bins; 'rate' is the share of scores above 'low'"


def _list_matrix_columns(gram: Float) -> Columns:
    """List the columns of a matrix: the number of each record, and its score with every record."""
    return {"id": np.arange(len(gram)), **{str(place): column for place, column in enumerate(gram.T)}}


def _preview_matrix(gram: Float, records: int | None = None) -> tuple[dict[str, Any], str]:
    corner = gram[:_SHOWN_PAIRS, :_SHOWN_PAIRS]
    columns = {name: values.tolist() for name, values in _list_matrix_columns(corner).items()}
    return columns, f"The scores of the first {len(corner)} of {records or len(gram):,} records with each other"


def is_seed(value: object) -> bool:
    """Whether this can be the seed of an order of ties."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _on_grid(noisy: Float, guarantee: Guarantee, regime: str) -> bool:
    steps = noisy / guarantee.grid
    return (
        guarantee.regime == regime
        and noisy.dtype == np.float64
        and noisy.shape == guarantee.shape
        and np.array_equal(steps, np.rint(steps))
    )


def _kinds() -> dict[str, type[Release]]:
    from scoreshield.releases.batch import BatchRelease  # which builds on this module, as the next three do
    from scoreshield.releases.codebook import CodebookRelease
    from scoreshield.releases.index import IndexRelease
    from scoreshield.releases.versions import CodebookVersion, IndexVersion

    kinds: tuple[type[Release], ...] = (
        ScoreRelease,
        RowRelease,
        GramRelease,
        FactoredGramRelease,
        MatchRelease,
        TopKRelease,
        HistogramRelease,
        IndexRelease,
        BatchRelease,
        CodebookRelease,
        IndexVersion,
        CodebookVersion,
    )
    return {cls.kind: cls for cls in kinds}


def load(path: str | Path) -> Any:
    """Read back a release that ``save`` wrote, equal to what was saved."""
    kind, guarantee_data, facts, arrays = _files.read_release(path)
    kinds = _kinds()
    if kind == "public codebook":
        use = choose_words("read it with PublicCodebook.load", "give it as --codebook of `scoreshield release index`")
        raise InvalidInput(f"{path} holds a public codebook and no release: {use}.")
    if kind not in kinds:
        raise InvalidInput(f"{path} holds a release of kind {kind[:40]!r}, which this version does not know.")
    with _loading.explain_read_errors(path):
        guarantee = Guarantee.from_dict(guarantee_data)
    if kind == MatchRelease.kind and "told" in arrays:  # its name in files of earlier versions
        arrays["candidates"] = arrays.pop("told")
    fields = {field.name for field in dataclasses.fields(kinds[kind])} - {"guarantee"}
    optional = {name for name in fields if kinds[kind]._is_default(name, None)}
    given = set(arrays) | set(facts)
    if not fields - optional <= given <= fields or set(arrays) & set(facts):
        raise InvalidInput(f"{path} is not a whole release: it lacks or adds parts of a {kind} release.")
    try:
        release = kinds[kind](**arrays, **facts, guarantee=guarantee)
        sound = release.is_intact()
    except Exception:  # whatever values of other kinds make of it
        sound = False
    if not sound:
        raise InvalidInput(f"{path} does not hold together: its values are not those its guarantee speaks of.")
    return release
