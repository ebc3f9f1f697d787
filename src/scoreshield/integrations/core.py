"""The retrieval core of all frameworks: fetch records, filter them, charge, release, and annotate the answers.

An adapter gives a `RecordSource`, which reads documents or nodes by their ids, and translates each
`Answer`. The order of steps is the same for all frameworks and is part of the privacy guarantee:

1. One record is read before a charge, so that a store which cannot give records costs nothing. Under a filter, all
   records are read and tested then, in their public order, because a filter must not see an uncharged ranking.
2. The search reserves, commits and releases (`PrivateSearch`).
3. The records of the released ranking are read. If that fails, the charged ranking is kept: the same query, asked
   again, is answered without another charge.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Generic, NoReturn, Protocol, TypeVar

from numpy.typing import NDArray

from scoreshield.errors import DocumentsNotRead, InvalidInput, InvalidParameter, ScoreShieldError, StoreError
from scoreshield.integrations.fields import GUARANTEE_FIELD, PublicFields
from scoreshield.search import Hits, PrivateSearch
from scoreshield.search.index_files import has_saved_index
from scoreshield.search.sources import pin_store
from scoreshield.stores.pinned import PinnedStore
from scoreshield.stores.protocol import strip_frames

Record = TypeVar("Record")
Result = TypeVar("Result")
Contra = TypeVar("Contra", contravariant=True)

#: Records that are read at once.
_PAGE = 256
#: Hits beyond k that are released with them. They replace records that were deleted meanwhile.
_SPARE_HITS = 16
#: The most charged rankings that are kept because their records could not be read.
_MOST_KEPT = 256
#: The most released ids that an error message shows.
_MOST_SHOWN = 10
#: Above this many records a look at a store in memory takes more than a few per cent of a release.
_MANY_RECORDS = 20_000

SEARCH_OPTIONS = frozenset(inspect.signature(PrivateSearch).parameters) - {"store", "epsilon"}


class RecordsUnreadable(StoreError):
    """Records could not be read by their ids. The message names the type of the failure and holds no data."""


class RecordSource(ABC, Generic[Record]):
    """Reads the documents or nodes of a framework by the ids of their records."""

    @abstractmethod
    def fetch(self, ids: Sequence[Any]) -> Mapping[Any, Record]:
        """Fetch the records of these ids that are there now. Any exception is allowed."""

    @abstractmethod
    def get_metadata(self, record: Record) -> Mapping[str, Any] | None:
        """Return the metadata of a record, as it is stored."""

    @abstractmethod
    def describe_failure(self, error: Exception) -> str:
        """Say in one sentence that reading failed, by the type of the error alone: its text may hold data."""

    @abstractmethod
    def describe_mismatch(self, ids: Sequence[Any], *, has_records: bool) -> str:
        """Say in one sentence that no record can be answered with.

        Args:
            ids: The ids that were tried.
            has_records: Whether some of them have records without a text.
        """

    def has_text(self, record: Record) -> bool:  # noqa: ARG002
        """Return whether a record can be answered with."""
        return True

    def read(self, ids: Iterable[Any]) -> dict[Any, Record]:
        """Read the records of these ids that are there and have a text, in the order of the ids.

        Raises:
            RecordsUnreadable: If the store fails.
        """
        return {one: record for one, record in self._load(ids).items() if self.has_text(record)}

    def survey(self, ids: Sequence[Any]) -> dict[Any, Record]:
        """Read all records for a filter, before a charge.

        Raises:
            InvalidInput: If there is no record to answer with.
        """
        records = self.read(ids)
        if not records:
            self.find_readable(ids)
        return records

    def find_readable(self, ids: Sequence[Any]) -> Any:
        """Return the id of some record that can be read.

        Raises:
            InvalidInput: If there is none. Every answer would then be empty, and charged.
        """
        has_records = False
        for page in split_growing(ids):
            for one, record in self._load(page).items():
                if self.has_text(record):
                    return one
                has_records = True
        raise InvalidInput(self.describe_mismatch(ids, has_records=has_records))

    def _load(self, ids: Iterable[Any]) -> dict[Any, Record]:
        """Fetch records in pages. An error leaves without the frames that raised it, which hold records."""
        unique = list(dict.fromkeys(ids))
        records: dict[Any, Record] = {}
        try:
            for start in range(0, len(unique), _PAGE):
                page = unique[start : start + _PAGE]
                fetched = self.fetch(page)
                records.update((one, fetched[one]) for one in page if one in fetched)
            return records
        except ScoreShieldError as known:
            failure: Exception = known
        except Exception as error:
            failure = RecordsUnreadable(self.describe_failure(error))
        raise strip_frames(failure)


class RecordFilter(Protocol[Contra]):
    """A test that every record of an answer passes, on fields that are declared filterable.

    Attributes:
        key: Equal for filters that let the same records pass. None for a filter that cannot be compared with another,
            such as a function.
    """

    @property
    def key(self) -> Hashable | None: ...

    def allows(self, one: Any, record: Contra) -> bool:
        """Return whether the record of this id passes."""


@dataclass(frozen=True)
class Answer(Generic[Record]):
    """One record of an answer.

    Attributes:
        id: The id of the record in the search.
        record: The record as the source read it.
        metadata: The visible metadata of the record, with the guarantee in the field ``"scoreshield"``.
        score: The score for people (`Hits.scores`); None where only names were released.
    """

    id: Any
    record: Record
    metadata: dict[str, Any]
    score: float | None


class RetrievalCore(Generic[Record]):
    """Answers query vectors with records. Every query of every adapter ends here.

    Args:
        search: The search that releases.
        source: The records by id.
        fields: The fields that filters may name and that answers carry.
        pinned: The store that the search reads, where this package made the search.
        readable: The id of a record that was read, if one is known.
    """

    def __init__(
        self,
        search: PrivateSearch,
        source: RecordSource[Record],
        fields: PublicFields,
        *,
        pinned: PinnedStore | None = None,
        readable: Any = None,
    ) -> None:
        self.search, self.source, self.fields = search, source, fields
        self._pinned, self._readable = pinned, readable
        self._kept: dict[Hashable, list[Hits]] = {}

    def find(
        self,
        queries: NDArray[Any],
        k: int,
        record_filter: RecordFilter[Record] | None = None,
        *,
        translate: Callable[[Answer[Record]], Any] = lambda answer: answer,
    ) -> list[list[Any]]:
        """Find the k best records of each query that pass the filter, by released scores.

        All queries are charged together, where queries are charged.

        Args:
            queries: The query vectors, (m, d).
            k: How many records to return for each query.
            record_filter: Which records may be returned; None for all.
            translate: Makes the framework's object of an answer. It runs here, because a charged ranking is kept also
                where it fails.

        Returns:
            The translated answers of each query; those of this module by default.

        Raises:
            DocumentsNotRead: If the query was charged and its records could not be read.
        """
        if self.search.mode in ("index", "batch"):  # which charge no query
            return _translate_all(self._find_in_index(queries, k, record_filter), translate)
        if record_filter is not None and record_filter.key is None:
            return _translate_all(self._find_unrepeatable(queries, k, record_filter), translate)
        filter_key = None if record_filter is None else record_filter.key
        key = queries.shape, queries.tobytes(), k, filter_key
        hits = self._take_kept(key) or self._release(queries, k, record_filter)
        try:
            return _translate_all(self._answer(hits, k, record_filter, {})[0], translate)
        except BaseException as error:  # an interrupt does not lose a charged ranking either
            self._kept = dict([*self._kept.items(), (key, hits)][-_MOST_KEPT:])
            if not isinstance(error, StoreError | InvalidInput):
                raise
            failure = _describe_loss(error, hits, k)
        raise failure

    def check_readable(self, ids: Sequence[Any] | None = None) -> None:
        """Read one record, so that a store which cannot give records is found before a charge.

        Args:
            ids: The records that are about to be released; by default those of the search.

        Raises:
            StoreError: If the store fails. Nothing was released.
            InvalidInput: If none of the ids has a record.
        """
        _run_before_charge(lambda: self._find_readable(ids))

    def refresh(self) -> None:
        """Make a new index. One record of the new version is read before it is charged."""
        self.search.check_before_refresh(self.check_readable)
        self.search.refresh()

    def report_change(self) -> None:
        """Have the store looked at before the next query, whatever ``check_every`` says.

        A store that does not see every change has a method ``mark_changed``, which is called.
        """
        if self._pinned is not None:
            report = getattr(self._pinned.store, "mark_changed", None)
            if callable(report):
                report()
            self._pinned.forget()

    def _find_readable(self, ids: Sequence[Any] | None) -> None:
        if ids is None and self._readable is not None and self.source.read([self._readable]):
            return
        self._readable = self.source.find_readable(self.search.ids if ids is None else ids)

    def _find_in_index(
        self, queries: NDArray[Any], k: int, record_filter: RecordFilter[Record] | None
    ) -> list[list[Answer[Record]]]:
        """Ask the index for more hits, which costs nothing, until enough of their records pass."""
        size, records = k, dict[Any, Record]()
        while True:
            hits = self.search.search_batch(queries, size)
            answers, is_complete = self._answer(hits, k, record_filter, records)
            if is_complete or all(len(one) < size for one in hits):
                return answers
            size *= 4

    def _find_unrepeatable(
        self, queries: NDArray[Any], k: int, record_filter: RecordFilter[Record]
    ) -> list[list[Answer[Record]]]:
        """Answer with the records that were read before the charge.

        A ranking under a filter without a key cannot be asked for again. So nothing may fail after the charge.
        """
        records = self._survey()
        hits = self.search.search_batch(queries, k, where=_build_test(record_filter, records))
        return self._answer(hits, k, record_filter, records)[0]

    def _release(self, queries: NDArray[Any], k: int, record_filter: RecordFilter[Record] | None) -> list[Hits]:
        """Charge and release. Records and filters are tried before, on no ranking."""
        if record_filter is None:
            self.check_readable()
            return self.search.search_batch(queries, k + _SPARE_HITS)
        test = _build_test(record_filter, self._survey())
        return self.search.search_batch(queries, k + _SPARE_HITS, where=test)

    def _survey(self) -> dict[Any, Record]:
        return _run_before_charge(lambda: self.source.survey(self.search.ids))

    def _answer(
        self,
        hits: list[Hits],
        k: int,
        record_filter: RecordFilter[Record] | None,
        records: dict[Any, Record],
    ) -> tuple[list[list[Answer[Record]]], bool]:
        """Build answers from the first k of each ranking whose records are there and pass.

        Args:
            hits: The released rankings.
            k: How many records each answer has at most.
            record_filter: Which records may be returned; None for all.
            records: Records that were read already. Those that are read here are added.

        Returns:
            The answers, and whether each of them has k records.
        """

        def passes(one: Any) -> bool:
            return one in records and (record_filter is None or record_filter.allows(one, records[one]))

        def read(ids: Iterable[Any]) -> None:
            records.update(self.source.read(one for one in ids if one not in records))

        first = [one for ranking in hits for one in ranking.ids[:k]]
        read(first)
        if not all(map(passes, first)):
            read(one for ranking in hits for one in ranking.ids[k:])
        answers = []
        for ranking in hits:
            places = (place for place, one in enumerate(ranking.ids) if passes(one))
            answers.append([self._build_answer(ranking, place, records) for place in islice(places, k)])
        return answers, all(len(one) == k for one in answers)

    def _build_answer(self, hits: Hits, place: int, records: Mapping[Any, Record]) -> Answer[Record]:
        one = hits.ids[place]
        visible = self.fields.select(self.source.get_metadata(records[one]))
        score = None if hits.scores is None else float(hits.scores[place])
        return Answer(one, records[one], annotate(visible, self.search, hits, place), score)

    def _take_kept(self, key: Hashable) -> list[Hits] | None:
        """Take a charged ranking whose records could not be read, without the records that were hidden since."""
        hits = self._kept.pop(key, None)
        return None if hits is None else [self.search.without_hidden(one) for one in hits]


def open_retrieval(
    store: Any,
    source: RecordSource[Record],
    fields: PublicFields,
    *,
    epsilon: float,
    options: Mapping[str, Any],
    reads_now: bool,
) -> RetrievalCore[Record]:
    """Make the private search of a framework's store. One record is read before an index is charged.

    Args:
        store: The vectors: a store, a pinned one, or an array.
        source: The records by id.
        fields: The public fields.
        epsilon: Of the index, or of each query.
        options: Options of `PrivateSearch`, checked by `check_search_options`.
        reads_now: Whether one record is read at once in the modes that charge each query. Otherwise one is read before
            each charge only.
    """
    options = dict(options)
    mode, file = options.get("mode", "index"), options.get("file")
    may_charge = mode in ("index", "batch", "auto")  # when the search is made
    is_saved = mode == "index" and file is not None and has_saved_index(file)
    pinned = pin_store(store, options.pop("pin", "auto"), options.pop("check_every", None))
    try:
        readable = None
        if may_charge and not is_saved:
            readable = _run_before_charge(lambda: source.find_readable(pinned.take_snapshot().ids))
        search = PrivateSearch(pinned, epsilon=epsilon, **options)
        if is_saved or (reads_now and not may_charge):
            readable = _run_before_charge(lambda: source.find_readable(search.ids))
    except BaseException:
        pinned.forget()
        raise
    if search.mode == "index":
        pinned.forget()
    core = RetrievalCore(search, source, fields, pinned=pinned, readable=readable)
    search.check_before_refresh(core.check_readable)
    return core


def annotate(metadata: Mapping[str, Any], search: PrivateSearch, hits: Hits, place: int) -> dict[str, Any]:
    """Add to metadata the guarantee and the worth of the score at this place, the released score and its noise."""
    facts = search.facts(hits)
    if hits.noisy is not None:
        facts["noisy_score"] = float(hits.noisy[place])
    if hits.noise_std is not None:
        facts["noise_std"] = hits.noise_std
    elif hits.noisy is not None:
        facts["score_is"] = "a place in the ranking, no cosine"
    return {**metadata, GUARANTEE_FIELD: facts}


def check_search_options(options: Mapping[str, Any]) -> None:
    """Raise an error for an option that `PrivateSearch` does not have.

    An option that is ignored may be one that leaks. Centroids are rejected, since answers name records.
    """
    for name in sorted(options.keys() - SEARCH_OPTIONS):
        raise InvalidParameter(name, "is unknown.")
    if options.get("centroids"):
        why = "an answer names one record, and a centroid is of several; use PrivateSearch"
        raise InvalidParameter("centroids", f"is rejected: {why}.")


def reject_bypass(what: str, why: str) -> NoReturn:
    """Raise the error for a request that would go around the noise."""
    raise InvalidInput(f"{what} is rejected: {why}.")


def split_growing(ids: Sequence[Any]) -> Iterator[Sequence[Any]]:
    """Split ids into pages of 1, 2, 4, ... of them: the first page nearly always shows that records can be read."""
    start, size = 0, 1
    while start < len(ids):
        yield ids[start : start + size]
        start, size = start + size, min(2 * size, _PAGE)


def choose_look_interval(records: int) -> float:
    """Return the default seconds between two looks at whether a framework's store in memory changed."""
    return 1.0 if records > _MANY_RECORDS else 0.0


class ChangeCounter:
    """Counts the states of a mapping in memory whose values are looked at before every query.

    The values are held until the next look. Comparing them is many times faster than to note their addresses. A value
    that was changed in place is not seen.
    """

    def __init__(self) -> None:
        self._count = 0
        self._values: list[Any] = []

    def count(self, values: dict[Any, Any]) -> int:
        """Return the number of the current state."""
        # A record that gets another id moves to the end, so that the last id stands for all.
        now = [*islice(reversed(values), 1), *values.values()]
        if not _are_equal(now, self._values):
            self._count += 1
        self._values = now
        return self._count


def hash_addresses(values: Mapping[Any, Any], first: Callable[[Any], Any]) -> int:
    """Hash the ids and addresses of values, without holding them, with the first number of each vector.

    An address alone may be that of a value that was deleted.
    """
    objects = list(values.values())
    return hash((tuple(values), tuple(map(id, objects)), tuple(map(first, objects))))


def _are_equal(now: list[Any], before: list[Any]) -> bool:
    try:
        return now == before
    except Exception:  # arrays do not compare as a whole
        return False


def _run_before_charge(read: Callable[[], Result]) -> Result:
    """Read records before a charge. An error then says that nothing was released."""
    try:
        return read()
    except RecordsUnreadable as error:
        failure = StoreError(f"{error} Nothing was released.")
    raise failure


def _build_test(record_filter: RecordFilter[Record], records: Mapping[Any, Record]) -> Callable[[Any], bool]:
    return lambda one: one in records and record_filter.allows(one, records[one])


def _translate_all(answers: list[list[Answer[Record]]], translate: Callable[[Answer[Record]], Any]) -> list[list[Any]]:
    return [list(map(translate, answer)) for answer in answers]


def _describe_loss(error: Exception, hits: Sequence[Hits], k: int) -> DocumentsNotRead:
    """Build the error of a query that was charged and whose records could not be read: it names what was released."""
    ids = tuple(tuple(ranking.ids[:k]) for ranking in hits)
    names = [repr(one) for ranking in ids for one in ranking]
    few = ", ".join(names[:_MOST_SHOWN]) + (", ..." if len(names) > _MOST_SHOWN else "")
    # Another error of a store may say that nothing was released, which is not true here.
    is_known = isinstance(error, RecordsUnreadable | InvalidInput)
    cause = str(error) if is_known else f"The documents could not be read ({type(error).__name__})."
    return DocumentsNotRead(
        f"{cause} The query was charged and released the records {few or 'none'}. The same query, asked again, costs "
        "nothing.",
        ids=ids,
    )
