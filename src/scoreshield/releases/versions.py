"""An index whose changes are public: an update draws only rows that are new or changed, and the others stay.

The ids of the records and the times of their changes are public, which the certificate states. Then neighbours are two
histories of one record, and only the draws of that record differ in law: its total is the number of its draws times
the cost of one. The guarantee of a version states the total of the record that was drawn most often, over all versions
so far. docs/proofs/updates.md has the proof.
"""

from __future__ import annotations

import secrets
import threading
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, Self, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from scoreshield import _validation
from scoreshield._frames import clear_frames_on_error
from scoreshield._types import AccountLike, Reservation, Rng
from scoreshield._validation import validate
from scoreshield.errors import InvalidInput
from scoreshield.geometry import embeddings as _embeddings
from scoreshield.geometry.arrays import Progress
from scoreshield.privacy.adjacency import Adjacency, Replacement
from scoreshield.privacy.draws import DrawCounts, DrawStep, RecordId, check_ids, state_draws
from scoreshield.privacy.guarantee import Guarantee
from scoreshield.privacy.profiles import PureProfile
from scoreshield.privacy.sampling.stream import Stream, name_sampler
from scoreshield.releases.codebook import CodebookRelease
from scoreshield.releases.index import IndexRelease, PrivateIndex, prepare_index
from scoreshield.releases.pipeline import PendingRelease, check_account

#: Whether ids and the times of changes are public, so that an update draws only what changed.
Changes = Literal["private", "public"]
CHANGES: tuple[str, ...] = get_args(Changes)

#: New or changed records: vectors by their ids, or a pair of ids and rows.
Rows = Mapping[Any, ArrayLike] | tuple[Sequence[Any], ArrayLike]

#: Histories and hashes of the counts that this process has continued, and whether a ledger counts the draws. Where none
#: does, a second update from the same counts would not count the draws of the first.
_continued_counts: dict[tuple[str, str], bool] = {}
_lock = threading.Lock()


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class IndexHistory(PrivateIndex):
    """One version of an index whose changes are public. `IndexVersion` explains the attributes."""

    ids: NDArray[Any]
    draws: NDArray[np.int64]
    past_ids: NDArray[Any]
    past_draws: NDArray[np.int64]
    history: str
    version: int
    is_charged: bool

    @property
    def largest_draws(self) -> int:
        """The draws of the record that was drawn most often, in all versions so far."""
        return int(self.guarantee.details["largest_draws"])

    @cached_property
    def counts(self) -> DrawCounts:
        """How often each record was drawn, by its id, with those that were removed."""
        ids = [*self.ids.tolist(), *self.past_ids.tolist()]
        return DrawCounts(dict(zip(ids, [*self.draws.tolist(), *self.past_draws.tolist()], strict=True)))

    def _has_intact_counts(self) -> bool:
        parts = (self.ids, self.past_ids)
        if self.ids.shape != self.draws.shape or self.past_ids.shape != self.past_draws.shape:
            return False
        if self.ids.shape != self.guarantee.shape[:1] or self.past_ids.ndim != 1:
            return False
        counts = self.counts
        return (
            len({part.dtype.kind for part in parts}) == 1
            and all(part.dtype.kind in "iU" for part in parts)
            and all(part.dtype == np.int64 for part in (self.draws, self.past_draws))
            and min(counts.counts.values()) >= 1
            and len(counts.counts) == len(self.ids) + len(self.past_ids)
            and counts.largest == self.largest_draws
            and isinstance(self.history, str)
            and len(self.history) == 32
            and type(self.version) is int
            and self.version >= 1
            and type(self.is_charged) is bool
        )

    @clear_frames_on_error
    @validate()
    def update(
        self,
        *,
        added: Rows | None = None,
        changed: Rows | None = None,
        removed: Iterable[Any] = (),
        rng: Rng = None,
        ledger: AccountLike | None = None,
        progress: Progress | None = None,
    ) -> Self:
        """Release the next version: draw the new and changed rows, and keep all others as they are.

        Which ids are added, changed or removed, and when, must not depend on the content of records, except through
        earlier releases: it is public. A removed row leaves the index; what was released of it stays spent.

        Args:
            added: New records: ``{id: vector}``, or a pair of ids and rows. They come after the other rows.
            changed: Records whose content has changed, in the same form. They keep their places.
            removed: The ids of records that leave the index.
            rng: As for `release_index`; an index in research mode stays in it.
            ledger: The account that the index was charged to; None if it was charged to none. It is charged one draw if
                the largest number of draws of any record rises, and nothing otherwise; it keeps the counts either way.
                A removal needs it too: it knows the draws of versions that this one did not come from.
            progress: Called with (rows done, rows in all) of the rows that are drawn.

        Returns:
            The next version, whose guarantee states the total of its most drawn record.
        """
        change = _Change.check(self, added, changed, removed)
        if name_sampler(rng) != self.guarantee.sampler:
            raise InvalidInput(f"This index is by the {self.guarantee.sampler} sampler, and so must its updates be.")
        if ledger is not None:
            check_account(ledger)
        if self.is_charged != (ledger is not None):
            raise InvalidInput(
                "This index was charged to a ledger: charge its updates to the same account."
                if self.is_charged
                else "A ledger has no charge for this version of the index: it was released without one."
            )
        counts, is_counted = self.counts, False
        if ledger is not None and hasattr(ledger, "read_draws"):
            counts, is_counted = ledger.read_draws(self.history, counts), True
        shape = (change.size, self.guarantee.shape[1])
        if not change.drawn:
            if rng is None:
                self._check_not_continued(is_counted)
            total = state_draws(self._state_one_draw(), counts.largest, shape)
            return self._make_next(change, total, counts, self._read_rows(self)[:0])
        inner = self._prepare_rows(change.rows, rng, progress)
        single = self._check_draw(inner.guarantee)
        after = counts.add(change.drawn)
        total = state_draws(single, after.largest, shape)
        step = DrawStep(self.history, single, total, counts, tuple(change.drawn))

        def draw(rows: _embeddings.Rows, stream: Stream) -> Any:
            return self._make_next(change, total, after, self._read_rows(inner.draw(rows, stream)))

        pending: PendingRelease[_embeddings.Rows, Self] = PendingRelease(
            total, inner.adjacency, rng, inner.compute, draw
        )
        with self._continue_counts(is_counted) if rng is None else nullcontext():
            return pending.release(None if ledger is None else _DrawAccount(ledger, step))

    @contextmanager
    def _continue_counts(self, is_counted: bool) -> Iterator[None]:
        """Mark the counts of this version as continued, unless the update fails, which shows nothing.

        Raises:
            InvalidInput: They were continued before, and no ledger counts the draws of both.
        """
        with _lock:
            state, before = self._check_not_continued(is_counted)
            _continued_counts[state] = is_counted
        try:
            yield
        except BaseException:
            if before is None and not is_counted:  # what a ledger counts stays charged
                with _lock:
                    del _continued_counts[state]
            raise

    def _check_not_continued(self, is_counted: bool) -> tuple[tuple[str, str], bool | None]:
        """Return the state of the counts, and whether a ledger counted the update that continued them, if any did.

        Raises:
            InvalidInput: They were continued before, and no ledger counts the draws of both.
        """
        state = (self.history, self.counts.compute_hash())
        before = _continued_counts.get(state)
        if before is not None and not (before and is_counted):
            raise InvalidInput(
                f"Version {self.version} of this index was updated before, and a second update would not count the "
                "draws of the first: update the newest version, or charge all to a ledger."
            )
        return state, before

    def _state_one_draw(self) -> Guarantee:
        """State the guarantee of one draw of each row."""
        epsilon = self.guarantee.details["epsilon_per_draw"]
        return replace(self.guarantee, epsilon=epsilon, profile=PureProfile(epsilon), details=self._drop_draws())

    def _check_draw(self, single: Guarantee) -> Guarantee:
        """Check that one draw is the one that this version was made by, and return it with the details of the version.

        The details differ in the reduction alone: a basis that was drawn for the first version is given to the others.
        """
        details = self._drop_draws()
        same = {name: value for name, value in details.items() if name == "reduction"}
        stated = (self.guarantee.mechanism, self.guarantee.grid, self.guarantee.scale, details)
        if (single.mechanism, single.grid, single.scale, {**single.details, **same}) != stated:
            raise InvalidInput("This version of ScoreShield calibrates the index otherwise; release a new one.")
        return replace(single, details=details)

    @abstractmethod
    def _prepare_rows(
        self, rows: ArrayLike, rng: Rng, progress: Progress | None
    ) -> PendingRelease[_embeddings.Rows, Any]:
        """Prepare a draw of some rows by the mechanism of the index, at the cost of one draw."""

    @abstractmethod
    def _read_rows(self, index: Any) -> NDArray[Any]:
        """Return what an index of this kind holds of each record."""

    @abstractmethod
    def _replace_rows(self, guarantee: Guarantee, rows: NDArray[Any], **fields: Any) -> Self:
        """Return a version with other rows."""

    def _drop_draws(self) -> dict[str, Any]:
        """Return the details of the guarantee without those that count draws."""
        counted = ("changes", "epsilon_per_draw", "largest_draws")
        return {name: value for name, value in self.guarantee.details.items() if name not in counted}

    def _make_next(self, change: _Change, guarantee: Guarantee, counts: DrawCounts, fresh: NDArray[Any]) -> Self:
        """Put the fresh rows into their places, and the removed ids to the past ones."""
        before = self._read_rows(self)
        rows = np.empty((change.size, before.shape[1]), dtype=before.dtype)
        rows[: len(change.places)] = before[change.places]
        rows[change.targets] = fresh
        ids = [*self.ids[change.places].tolist(), *change.new_ids]
        present = set(ids)
        past = [one for one in counts.counts if one not in present]
        return self._replace_rows(
            guarantee,
            rows,
            ids=_as_array(ids, self.ids),
            draws=np.array([counts.counts[one] for one in ids], dtype=np.int64),
            past_ids=_as_array(past, self.ids),
            past_draws=np.array([counts.counts[one] for one in past], dtype=np.int64),
            history=self.history,
            version=self.version + 1,
            is_charged=self.is_charged,
        )


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class IndexVersion(IndexHistory, IndexRelease):
    """One version of an index of vectors whose changes are public; `update` releases the next one.

    It has the attributes of an `IndexRelease`, and these:

    Attributes:
        ids: The public name of each row, (n,).
        draws: How often each record was drawn so far, (n,).
        past_ids: The ids that were removed. An id that comes back continues its count.
        past_draws: How often these were drawn.
        history: The name that all versions of this index share.
        version: 1, 2, 3, ...
        is_charged: Whether the index is charged to a ledger, as all its updates must then be.
    """

    kind = "index version"

    def is_intact(self) -> bool:
        return IndexRelease.is_intact(self) and self._has_intact_counts()

    def _prepare_rows(
        self, rows: ArrayLike, rng: Rng, progress: Progress | None
    ) -> PendingRelease[_embeddings.Rows, Any]:
        mechanism: Any = self.guarantee.mechanism
        return prepare_index(
            rows,
            epsilon=self.guarantee.details["epsilon_per_draw"],
            delta=self.guarantee.delta,
            mechanism=mechanism,
            reduction="random" if self.projection is None else self.projection,
            center="none" if self.center is None else self.center,
            rng=rng,
            progress=progress,
        )

    def _read_rows(self, index: Any) -> NDArray[Any]:
        rows: NDArray[np.float32] = index.vectors
        return rows

    def _replace_rows(self, guarantee: Guarantee, rows: NDArray[Any], **fields: Any) -> Self:
        return type(self)(guarantee, rows, self.projection, self.center, **fields)


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class CodebookVersion(IndexHistory, CodebookRelease):
    """One version of an index over a public codebook whose changes are public; `update` releases the next one.

    It has the attributes of a `CodebookRelease`, and those of an `IndexVersion` about ids and draws.
    """

    kind = "codebook version"

    def is_intact(self) -> bool:
        return CodebookRelease.is_intact(self) and self._has_intact_counts()

    def _prepare_rows(
        self, rows: ArrayLike, rng: Rng, progress: Progress | None
    ) -> PendingRelease[_embeddings.Rows, Any]:
        each = self.guarantee.details["epsilon_per_draw"]
        return prepare_index(rows, epsilon=each, codebook=self.codebook, rng=rng, progress=progress)

    def _read_rows(self, index: Any) -> NDArray[Any]:
        rows: NDArray[Any] = index.codes
        return rows

    def _replace_rows(self, guarantee: Guarantee, rows: NDArray[Any], **fields: Any) -> Self:
        return type(self)(guarantee, rows, self.codewords, self.center, **fields)


@dataclass(frozen=True)
class _Change:
    """A checked change of an index.

    Attributes:
        places: The old places of the rows that stay, in order.
        new_ids: The ids of the added rows, which come after them.
        drawn: The ids of the rows that are drawn.
        rows: Their vectors.
        targets: Their places in the new version.
    """

    places: NDArray[np.intp]
    new_ids: list[RecordId]
    drawn: list[RecordId]
    rows: NDArray[Any]
    targets: NDArray[np.intp]

    @property
    def size(self) -> int:
        return len(self.places) + len(self.new_ids)

    @classmethod
    def check(cls, index: IndexHistory, added: Any, changed: Any, removed: Any) -> _Change:
        new_ids, new_rows = _read_given_rows(added, "added", index)
        changed_ids, changed_rows = _read_given_rows(changed, "changed", index)
        removed_ids = check_ids(removed, "removed")
        if not (new_ids or changed_ids or removed_ids):
            raise InvalidInput("An update needs rows that were added, changed or removed; got none.")
        old = {one: place for place, one in enumerate(index.ids.tolist())}
        _reject_ids([one for one in new_ids if one in old], "is in the index: give it as changed")
        _reject_ids([one for one in changed_ids if one not in old], "is not in the index: give it as added")
        _reject_ids([one for one in removed_ids if one not in old], "is not in the index, and so cannot be removed")
        gone = set(removed_ids)
        _reject_ids([one for one in changed_ids if one in gone], "is both changed and removed")
        if any(isinstance(one, str) != (index.ids.dtype.kind == "U") for one in new_ids):
            _validation.reject("added", "ids of the same type as those of the index", new_ids)
        places = np.array([place for one, place in old.items() if one not in gone], dtype=np.intp)
        if not len(places) + len(new_ids):
            raise InvalidInput("An index keeps at least one record; this update would remove all.")
        targets = [*np.searchsorted(places, [old[one] for one in changed_ids]).tolist()]
        targets += range(len(places), len(places) + len(new_ids))
        rows = np.concatenate([part for part in (changed_rows, new_rows) if len(part)] or [changed_rows])
        return cls(places, new_ids, [*changed_ids, *new_ids], rows, np.array(targets, dtype=np.intp))


@dataclass(frozen=True)
class _DrawAccount:
    """Charges draws to an account that counts them, and a whole draw to one that does not."""

    account: Any
    step: DrawStep

    @property
    def dataset(self) -> str | None:
        found: str | None = getattr(self.account, "dataset", None)
        return found

    @property
    def who(self) -> str | None:
        found: str | None = getattr(self.account, "who", None)
        return found

    def reserve(
        self, items: Sequence[Guarantee], *, adjacency: Adjacency | None = None, same_people: bool = False
    ) -> Reservation:
        del items  # the guarantee of the version states the total; the step has what is new
        found: Reservation = (
            self.account.reserve_draws(self.step)
            if hasattr(self.account, "reserve_draws")
            else self.account.reserve([self._state_one_draw()], adjacency=adjacency, same_people=same_people)
        )
        return found

    def _state_one_draw(self) -> Guarantee:
        """State what the draws of this step alone promise."""
        return state_draws(self.step.single, 1, self.step.single.shape)


def prepare_version(
    ids: Any, first: PendingRelease[_embeddings.Rows, Any], *, is_charged: bool
) -> tuple[PendingRelease[_embeddings.Rows, IndexVersion | CodebookVersion], DrawStep]:
    """Prepare the first version of an index whose changes are public: every row is drawn once."""
    single = first.guarantee
    if not isinstance(first.adjacency, Replacement):
        raise InvalidInput("Public changes count the draws of each record: leave the adjacency at Replacement().")
    if single.details.get("reduction") == "pca" or single.details.get("center") == "private":
        raise InvalidInput(
            "A private PCA or a private center reads all records, so an index with public changes cannot have one."
        )
    names = check_ids(ids, "ids", single.shape[0])
    total, history = state_draws(single, 1, single.shape), secrets.token_hex(16)

    def draw(rows: _embeddings.Rows, stream: Stream) -> IndexVersion | CodebookVersion:
        index = first.draw(rows, stream)
        plain = _as_array(names, np.array(names))
        fields: dict[str, Any] = {
            "ids": plain,
            "draws": np.ones(len(names), dtype=np.int64),
            "past_ids": _as_array([], plain),
            "past_draws": np.empty(0, dtype=np.int64),
            "history": history,
            "version": 1,
            "is_charged": is_charged,
        }
        if isinstance(index, CodebookRelease):
            return CodebookVersion(total, index.codes, index.codewords, index.center, **fields)
        return IndexVersion(total, index.vectors, index.projection, index.center, **fields)

    pending = PendingRelease(total, first.adjacency, first.rng, first.compute, draw)
    return pending, DrawStep(history, single, total, DrawCounts({}), tuple(names))


def release_version(
    ids: Any, first: PendingRelease[_embeddings.Rows, Any], ledger: AccountLike | None
) -> IndexVersion | CodebookVersion:
    """Release the first version of an index whose changes are public."""
    if ledger is not None:
        check_account(ledger)
    pending, step = prepare_version(ids, first, is_charged=ledger is not None)
    return pending.release(None if ledger is None else _DrawAccount(ledger, step))


def _read_given_rows(given: Any, name: str, index: IndexHistory) -> tuple[list[RecordId], NDArray[Any]]:
    """Read ids and their rows; None is no row."""
    must = f"{{id: vector}} or a pair (ids, rows), with vectors of {index.dimension} dimensions"
    if given is None:
        return [], np.empty((0, index.dimension))
    if isinstance(given, Mapping):
        ids, values = list(given), list(given.values())
    elif isinstance(given, tuple) and len(given) == 2:
        ids, values = given
    else:
        _validation.reject(name, must, type(given))  # which may be a number of a row
    names = check_ids(ids, name)
    if not names:
        return [], np.empty((0, index.dimension))
    rows = _validation.check_array(values, name, must)
    if rows.ndim == 2 and len(rows) != len(names):
        raise InvalidInput(f"There are {len(names):,} ids for {len(rows):,} rows in {name!r}: give one id per row.")
    if rows.shape != (len(names), index.dimension) or rows.dtype.kind not in "fiu":
        _validation.reject(name, must, rows if rows.ndim else type(values))
    bad = ~np.isfinite(rows).all(axis=1)
    not_finite = [one for one, is_bad in zip(names, bad.tolist(), strict=True) if is_bad]
    _reject_ids(not_finite, f"has a vector in '{name}' that is not finite")
    return names, rows


def _reject_ids(ids: list[RecordId], why: str) -> None:
    if ids:
        more = f", and {len(ids) - 1:,} more" if len(ids) > 1 else ""
        raise InvalidInput(f"The id {str(ids[0])[:80]!r}{more} {why}.")


def _as_array(ids: list[RecordId], like: NDArray[Any]) -> NDArray[Any]:
    """Make an array of ids, of the type of the other ids even if there are none."""
    return np.array(ids) if ids else np.empty(0, dtype=np.int64 if like.dtype.kind == "i" else "U1")
