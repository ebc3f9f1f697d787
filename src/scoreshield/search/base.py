"""What every kind of search shares: its options, its answers, and the base class of the kinds."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple, TypeVar, cast, get_args, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from scoreshield._locks import ThreadLock
from scoreshield._types import AccountLike, Rng
from scoreshield._views import SHOWN_ROWS, Columns, NotebookObject, ObjectSummary, cut_columns
from scoreshield.decisions.estimates import ScoreEstimate
from scoreshield.decisions.laws import find_noise_range, find_noise_std, find_score_law, has_unknown_law
from scoreshield.decisions.queries import QueryScores
from scoreshield.decisions.scores import AdditiveLaw, Channel
from scoreshield.decisions.worth import Worth, find_population
from scoreshield.errors import InvalidInput
from scoreshield.geometry.arrays import Progress
from scoreshield.privacy.adjacency import FULL_RANGE, Adjacency
from scoreshield.privacy.guarantee import Guarantee
from scoreshield.privacy.levels.tables import LevelChannel
from scoreshield.privacy.noise import CustomNoise
from scoreshield.privacy.tails import AnchoredWindows
from scoreshield.releases.batch import PublicLevels
from scoreshield.releases.codebook import PublicCodebook
from scoreshield.releases.index_plan import IndexMechanism
from scoreshield.releases.scores import ScoreMechanism
from scoreshield.releases.versions import Changes
from scoreshield.search.sources import IdentityMap, Names, read_records
from scoreshield.stores.pinned import PinnedStore
from scoreshield.stores.protocol import read_store

T = TypeVar("T")

Float = NDArray[np.float64]
#: A kind of search.
Mode = Literal["index", "query", "screening", "hits", "batch"]
#: A kind of search, or the choice of one by its predicted worth.
ModeOption = Literal["index", "query", "screening", "hits", "batch", "auto"]
MODES: tuple[str, ...] = get_args(ModeOption)
#: Of an index, or of the scores of a query.
SearchMechanism = IndexMechanism | ScoreMechanism | LevelChannel | AnchoredWindows | CustomNoise
#: What the table of hits says of levels and windows.
_PLACES = "A place is where a released level, window or code lies: it ranks the hit, and the cosine may be another."
#: What it says where the law of the scores is unknown.
_UNKNOWN_ERROR = (
    "The error of these scores is unknown: a basis or a center changed the records before noise. They rank the hits."
)


class Hit(NamedTuple):
    """One record that a query found.

    Attributes:
        id: The id of the record.
        score: Its score, as in `Hits.scores`; None where only names were released.
    """

    id: Any
    score: float | None


@dataclass(frozen=True)
class Hits(NotebookObject):
    """What a query found, best first. Printing hits shows a table.

    ``for id, score in hits`` and ``hits[0]`` give each `Hit`. ``hits[:3]`` gives fewer hits, and ``np.asarray(hits)``
    the scores.

    Attributes:
        ids: The ids of the records, as the store names them, or of the identities, with centroids.
        scores: For people: the expected clean cosine, given the released one and public scores (`ScoreReader`). It is
            within the public range. Where levels or windows were released, as for the default mechanism of mode
            "query", it is the middle of the level or window, noise included, and no estimate of the cosine. An index
            with a PCA, a public basis or a center has a cautious estimate, whose error is unknown. None where only
            names were released.
        noisy: The released cosines. Hits are ranked by them, and a threshold cuts them. They may lie outside the range.
            None where scores is None.
        guarantee: Of this query's release, or of the index that answered it. None where a public filter accepts no
            record, so that nothing was released or charged.
        version: Of the collection.
        noise_std: The standard deviation of `noisy` from the clean cosines, clamped to the public range
            (``guarantee.score_range``) where there is one; a screening clamps to its threshold and above. None where
            names, levels or windows were released, which have none, and for an index with a PCA, a public basis or a
            center, where it is unknown.
        worth: What the search was predicted to find, from public facts; None where nothing was predicted.
    """

    ids: Names
    scores: Float | None
    noisy: Float | None
    guarantee: Guarantee | None
    version: int
    noise_std: float | None = None
    worth: Worth | None = None

    def __len__(self) -> int:
        return len(self.ids)

    def __iter__(self) -> Iterator[Hit]:
        scores = [None] * len(self.ids) if self.scores is None else self.scores.tolist()
        return map(Hit, self.ids, scores)

    @overload
    def __getitem__(self, place: int) -> Hit: ...

    @overload
    def __getitem__(self, place: slice) -> Hits: ...

    def __getitem__(self, place: int | slice) -> Hit | Hits:
        if isinstance(place, slice):
            scores, noisy = (None if one is None else one[place] for one in (self.scores, self.noisy))
            return replace(self, ids=self.ids[place], scores=scores, noisy=noisy)
        return Hit(self.ids[place], None if self.scores is None else float(self.scores[place]))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Float:
        if self.scores is None:
            raise InvalidInput("These hits have no scores: only names were released.")
        return np.array(self.scores, dtype=dtype, copy=copy)

    def __repr__(self) -> str:
        g = self.guarantee
        promise = "nothing was released" if g is None else f"({g.epsilon:g}, {g.delta:g})-DP, {g.verdict}"
        return f"<Hits: {len(self)} {'record' if len(self) == 1 else 'records'}, version {self.version}, {promise}>"

    def _summarise(self) -> ObjectSummary:
        columns = {"rank": list(range(1, min(len(self), SHOWN_ROWS) + 1)), **cut_columns(self._list_columns())}
        has_places = self.scores is not None and self.noise_std is None
        sentences = [] if self.guarantee is None else [self.guarantee.sentence]
        sentences += [self.worth.sentence] if self.worth is not None else []
        facts = {} if self.guarantee is None else self.guarantee.list_facts()
        if self.noise_std is not None:
            facts["Noise of a released score"] = f"standard deviation {self.noise_std:.3g}"
        return ObjectSummary(
            f"Hits: {len(self):,} {'record' if len(self) == 1 else 'records'}",
            " ".join(sentences),
            facts,
            columns if len(self) else {},
            _PLACES if has_places else "",
            () if self.guarantee is None else self.guarantee.warnings,
        )

    def _list_columns(self) -> Columns:
        columns: Columns = {"id": list(self.ids)}
        if self.scores is not None and self.noisy is not None:
            columns |= {"score": self.scores, "noisy": self.noisy}
        return columns

    def __str__(self) -> str:
        """Write a table: the rank, the id, the score and the released value of each hit.

        Levels and windows have one column, for the place that was released, and a line that says what it is. Scores
        whose error is unknown have one column too. A further line states a range that scores were clamped to.
        """
        if not self.ids:
            return "No hits."
        names = [str(one) for one in self.ids]
        width = max(2, *map(len, names))
        rows = [f"{'':>4}  {'id':<{width}}"]
        rows += [f"{rank:>4}  {name:<{width}}" for rank, name in enumerate(names, start=1)]
        if self.scores is not None and self.noisy is not None:
            for rank, text in enumerate(self._write_columns(self.scores, self.noisy)):
                rows[rank] += f"  {text}"
            rows += self._explain_columns()
        if self.worth is not None:
            rows.append(self.worth.sentence)
        return "\n".join(row.rstrip() for row in rows)

    @property
    def _has_unknown_error(self) -> bool:
        return self.guarantee is not None and has_unknown_law(self.guarantee)

    def _write_columns(self, scores: Float, noisy: Float) -> list[str]:
        """Write the title of the columns of scores, and what they say of each hit."""
        if self.noise_std is not None:
            pairs = zip(scores.tolist(), noisy.tolist(), strict=True)
            return ["score  released", *(f"{shown:>5.2f}  {one:.2f} ± {self.noise_std:.2f}" for shown, one in pairs)]
        title, values = ("score", scores) if self._has_unknown_error else ("place", noisy)
        return [title, *(f"{one:>5.2f}" for one in values.tolist())]

    def _explain_columns(self) -> list[str]:
        """Write what a reader must know about the columns."""
        if self.noise_std is None:
            return [_UNKNOWN_ERROR if self._has_unknown_error else _PLACES]
        within = FULL_RANGE if self.guarantee is None else find_noise_range(self.guarantee)
        if within == FULL_RANGE:
            return []
        low, high = within
        return [f"Scores are those of cosines clamped to the range from {low:g} to {high:g}, before noise."]


class ScoreReader:
    """Turn released scores into scores for people.

    Noise moves the best of many scores far above their clean values. So a score is shown as its expected clean value,
    given the released one, under a public distribution of scores: the caller's public scores, or those that ship for
    the model that they were measured with. Without either, all scores of the range are equally likely. This is
    post-processing: it costs nothing and keeps the order. Where the law of the noise is unknown, it is taken as that of
    a random subspace, so that a released 1 is not shown as a cosine of 1. Levels, windows and codes lie in the range by
    themselves, and are shown as they are: they rank, and are no estimates of cosines.

    Args:
        guarantee: Of the release.
        public_scores: The caller's public scores.
        dimension: Of the embeddings.

    Attributes:
        noise_std: The standard deviation of a released score; None where there is none, or it is unknown
            (`find_noise_std`).
    """

    def __init__(self, guarantee: Guarantee, public_scores: QueryScores | None, dimension: int) -> None:
        self.noise_std = find_noise_std(guarantee)
        self._range = guarantee.score_range
        law = find_score_law(guarantee)
        self._estimate: ScoreEstimate | None = None
        if isinstance(law, AdditiveLaw) and not isinstance(law, Channel):
            population = find_population(public_scores, dimension)
            scores = population.scores if population.is_known else None
            self._estimate = _make_estimate(cast("Any", law), self._range, guarantee.shape[0], scores)

    def read(self, noisy: Float) -> Float:
        """Compute the scores that are shown."""
        return np.clip(noisy, *self._range) if self._estimate is None else self._estimate.estimate(noisy)


@lru_cache(maxsize=64)
def _make_estimate(
    law: AdditiveLaw, score_range: tuple[float, float], records: int, scores: QueryScores | None
) -> ScoreEstimate:
    """Make the estimate of one law, once: its table takes tens of milliseconds, and each new release has a reader."""
    return ScoreEstimate(law, score_range, records, *((None, None) if scores is None else scores.marginal))


class HitFilter(NamedTuple):
    """What a caller wants to see of a ranking."""

    k: int
    threshold: float | None
    where: Callable[[Any], bool] | None
    hidden: frozenset[Any]

    @property
    def accepts_all(self) -> bool:
        return self.where is None and not self.hidden

    def accepts(self, name: Any) -> bool:
        return name not in self.hidden and (self.where is None or bool(self.where(name)))


@dataclass(frozen=True)
class Reading:
    """What all hits of one release share.

    Attributes:
        guarantee: Of the release.
        version: Of the collection.
        reader: Turns released scores into scores for people.
        worth: What was predicted.
        worths: What was predicted for fewer hits, by their number.
    """

    guarantee: Guarantee
    version: int
    reader: ScoreReader
    worth: Worth | None = None
    worths: dict[int, Worth] = field(default_factory=dict)

    def read_for(self, k: int, predict: Callable[[int], Worth]) -> Reading:
        """Return the same reading with the worth of a search for fewer records than were predicted before."""
        if self.worth is None or k >= self.worth.k:
            return self
        if k not in self.worths:
            self.worths[k] = predict(k)
        return replace(self, worth=self.worths[k])

    def make_hits(self, ids: Names, noisy: Float | None) -> Hits:
        """Make hits of records and their released scores, best first."""
        shown = None if noisy is None else self.reader.read(noisy)
        std = None if noisy is None else self.reader.noise_std
        return Hits(ids, shown, noisy, self.guarantee, self.version, std, self.worth)


@dataclass(frozen=True)
class SearchOptions:
    """The arguments of `PrivateSearch` that a kind of search accepts or rejects."""

    epsilon: float
    delta: float
    ledger: AccountLike | None
    mechanism: SearchMechanism | None
    threshold: float | None
    refine: float
    score_range: tuple[float, float]
    components: int | None
    reduction: str | ArrayLike
    rng: Rng
    max_epsilon: float | None
    file: str | Path | None
    progress: Progress | None
    hits: int | None = None
    cuts: ArrayLike | PublicLevels | None = None
    names: int | None = None
    adjacency: Adjacency | None = None
    center: str | ArrayLike = "none"
    codebook: PublicCodebook | None = None
    changes: Changes = "private"
    k: int = 10
    queries: Float | int | None = None
    public_scores: QueryScores | None = None
    require_recall: float | None = None
    #: Whether ``mode="auto"`` picked the mode.
    is_picked: bool = False

    @property
    def may_suggest_queries(self) -> bool:
        """Whether a release per query may be suggested: it was not compared, or lacked a ledger only."""
        return not self.is_picked or (self.ledger is None and self.rng is None)

    def reject_batch(self) -> None:
        """Raise an error for the queries of a batch."""
        if self.queries is not None:
            raise InvalidInput("'queries' is for mode='batch' and mode='auto'.")

    def reject_screening(self) -> None:
        """Raise an error for an option of screening."""
        if self.threshold is not None:
            raise InvalidInput("A 'threshold' is for mode='screening' alone; search() takes one in every mode.")
        if self.refine:
            raise InvalidInput("'refine' is for mode='screening'.")

    def reject_hits(self) -> None:
        """Raise an error for an option of a hit budget."""
        if any(value is not None for value in (self.hits, self.cuts, self.names, self.adjacency)):
            raise InvalidInput("'hits', 'cuts', 'names' and 'adjacency' are for mode='hits'.")

    def reject_codebook(self) -> None:
        """Raise an error for a codebook or a center."""
        if self.codebook is not None or not isinstance(self.center, str) or self.center != "none":
            raise InvalidInput("'codebook' and 'center' are for mode='index'.")

    def reject_index(self) -> None:
        """Raise an error for an option of an index."""
        if self.components is not None or self.file is not None:
            raise InvalidInput("'components' and 'file' are for mode='index'.")
        self.reject_codebook()
        if self.max_epsilon is not None:
            raise InvalidInput(
                "'max_epsilon' is for mode='index' without a ledger; here each query is charged to a ledger."
            )


class BaseSearch(ABC):
    """Answer queries in one mode.

    The methods are those of `PrivateSearch`, which chooses the class, checks the arguments
    and clears the frames of errors.

    Attributes:
        mode: The word that chooses the class.
        coverage: What one guarantee covers.
        version: Of the collection that answered last; 0 before the first answer.
        hidden: The records that are never part of an answer.
    """

    mode: ClassVar[Mode]
    coverage: ClassVar[str]

    def __init__(self) -> None:
        self.version = 0
        self.hidden: frozenset[Any] = frozenset()
        self._lock = ThreadLock()

    def __reduce__(self) -> Any:
        raise InvalidInput("A private search may hold private vectors and is not pickled; save() an index instead.")

    @property
    @abstractmethod
    def source_name(self) -> str:
        """What answers, for people."""

    @property
    @abstractmethod
    def ids(self) -> Names: ...

    @property
    @abstractmethod
    def dimension(self) -> int: ...

    @property
    @abstractmethod
    def guarantee(self) -> Guarantee: ...

    @property
    @abstractmethod
    def spent(self) -> float: ...

    @property
    def worth(self) -> Worth | None:
        """What the search is predicted to find, from public facts; None where nothing could be predicted yet."""
        return None

    @property
    @abstractmethod
    def releases_scores(self) -> bool: ...

    @abstractmethod
    def is_stale(self) -> bool | None: ...

    @abstractmethod
    def refresh(self) -> None: ...

    def refresh_rows(self, changed: frozenset[Any]) -> None:
        del changed
        raise InvalidInput("'changed' is for an index with changes='public'.")

    def save(self, path: Path) -> None:
        del path
        raise InvalidInput(f"Only an index is saved; in mode {self.mode!r} there is nothing private to keep.")

    @abstractmethod
    def answer(self, queries: Float, hit_filter: HitFilter) -> list[Hits]:
        """Find the hits of each query, given as unit rows."""

    def check_before_refresh(self, check: Callable[[Names], None]) -> None:
        """Remember a check for each refresh. What is never refreshed needs none."""
        del check

    def hide(self, ids: frozenset[Any]) -> None:
        with self._lock.hold("hide()"):
            self.hidden |= ids

    def summarize(self) -> str:
        """Describe the search in a few words, without a number that depends on a record."""
        return f"{self.source_name}: mode {self.mode!r}, version {self.version}"

    def describe(self, hits: Hits) -> dict[str, Any]:
        """Collect the public facts about the guarantee of some hits."""
        guarantee = hits.guarantee
        if guarantee is None:
            return {"mode": self.mode, "covers": "nothing, as nothing was released", "version": hits.version}
        return {
            "mode": self.mode,
            "covers": self.coverage,
            "epsilon": guarantee.epsilon,
            "delta": guarantee.delta,
            "mechanism": guarantee.mechanism,
            "adjacency": guarantee.adjacency.to_dict()["kind"],
            "sampler": guarantee.sampler,
            "version": hits.version,
            **({} if hits.worth is None else {"worth": hits.worth.summarise()}),
        }


class BaseStoreSearch(BaseSearch):
    """Answer from releases of the records of a store. `BaseIndexSearch` may have no store."""

    def __init__(self, options: SearchOptions, records: PinnedStore, identities: IdentityMap) -> None:
        super().__init__()
        self._options, self._records, self._identities = options, records, identities

    @property
    def source_name(self) -> str:
        return self._records.store.name

    @property
    def dimension(self) -> int:
        store = self._records.store
        return read_store(store, "giving its dimension", lambda: store.dimension)

    def _read(self, work: Callable[[], T]) -> T:
        return read_records(self._records.store, work)
