"""Answers: each is charged once and stored, and every request for it gets the same bytes.

The steps of a fresh answer:

1. Under the lock of the ledger: if the answer is there, nothing is charged. Otherwise the caller's allowance and the
   collection's budget are checked, the entry is appended, and a row with a random seed is written. One commit.
2. The clean scores are computed; where one request is in work, another thread computes them during the charge. They
   are used when the charge is committed, and dropped otherwise. The noise comes from a key that the seed and the
   installation's secret give.
3. The bytes are stored and the seed is erased, in one statement. The first to store wins.

After a crash between 1 and 3 the next request finds the seed and computes the same noise. It never draws other noise
for the charge. If the records or the promise changed meanwhile, the answer is lost with its budget. An answer that is
being computed on older records is not lost, here or on another replica.
"""

from __future__ import annotations

import hmac
import logging
import secrets
import threading
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Literal, NamedTuple

from scoreshield._frames import clear_frames_on_error
from scoreshield.errors import BudgetExceeded, ScoreShieldError
from scoreshield.privacy.adjacency import Adjacency
from scoreshield.privacy.guarantee import Guarantee
from scoreshield.privacy.ledger import Ledger
from scoreshield.privacy.ledger.accounts import PendingCharge
from scoreshield.privacy.ledger.database import Session
from scoreshield.privacy.ledger.entries import Entry
from scoreshield.privacy.sampling.stream import ReleaseKey
from scoreshield.privacy.sampling.threads import count_threads
from scoreshield.releases.pipeline import PendingRelease
from scoreshield.service.heads import SeenHead
from scoreshield.service.installation import InstallationKey
from scoreshield.service.memory import SizedCache
from scoreshield.service.offers import PackedAnswer, Query, QueryOffer, StoredRanking, parse_ranking
from scoreshield.service.pending import PENDING
from scoreshield.service.policy import AllowancePolicy
from scoreshield.service.problems import ServiceProblem
from scoreshield.service.writes import GroupedWriter

LOG = logging.getLogger("scoreshield.service")
_ANSWERS = "scoreshield_service_answers"
_ALLOWANCES = "scoreshield_service_allowances"
_PENDING, _STORED, _LOST = "pending", "stored", "lost"
_LOSE = f"UPDATE {_ANSWERS} SET state = ?, seed = NULL, tag = 'lost ' || entry"
_IS_PENDING = "tag = ? AND entry = ? AND state = ?"
_Lost = list[tuple[str, str]]  # tags and entries
_ROUNDS = 50  # of reading and charging again, where others charge the same answers
#: The most bytes of answers that a process keeps in memory.
_CACHE_BYTES = 2**26
#: How many threads wait for clean scores. Those that wait share one pass over the records.
_COMPUTING_THREADS = 8


#: What has become of an answer that was charged.
AnswerState = Literal["stored", "pending"]


class Payer(NamedTuple):
    """Who is charged: the name of a caller, and the allowance, if it has one."""

    name: str
    allowance: AllowancePolicy | None = None


class Spending(NamedTuple):
    """What a caller has spent on a collection: queries, and the sum of their epsilons."""

    queries: int
    epsilon: Decimal


@dataclass(frozen=True, repr=False, eq=False)
class AnswerRequest:
    """One canonical query to one offer. Requests with the same tag have the same answer.

    Attributes:
        offer: What is asked for.
        query: The canonical query; None for the index.
        tag: The keyed hash of collection, snapshot, mechanism, parameters and query. The snapshot is a keyed hash of
            the vectors.
        base: The same without the snapshot: it finds an answer that a change of the data has lost.
        older: The tag of an index in earlier versions of the library; None for a query.
    """

    offer: QueryOffer
    query: Query | None
    tag: str
    base: str
    older: str | None = None


class StoredAnswer(NamedTuple):
    """A released answer.

    Attributes:
        content: The released values, as the offer packs them.
        entry: The hash of the ledger entry that charged it.
        signer: The public key that signs it.
        is_fresh: Whether this request has computed it.
        ranking: What the content holds, where this request has just written it.
    """

    content: bytes
    entry: str
    signer: str
    is_fresh: bool = False
    ranking: StoredRanking | None = None

    def read_ranking(self) -> StoredRanking:
        """Return the ranking of an answer to a query."""
        return parse_ranking(self.content) if self.ranking is None else self.ranking


class _AnswerRow(NamedTuple):
    tag: str
    state: str
    seed: str | None
    promise: str
    entry: str
    content: bytes | None
    signer: str | None
    proof: str | None = None

    def to_answer(self, key: InstallationKey) -> StoredAnswer:
        """Return the answer of a stored row.

        Raises:
            ServiceProblem: The answer was lost, or the row is not what the service has stored.
        """
        if self.state != _STORED or self.content is None or self.signer is None:
            raise ServiceProblem("answer_lost")
        self.check_proof(key)
        return StoredAnswer(bytes(self.content), self.entry, self.signer)

    def check_proof(self, key: InstallationKey) -> None:
        """Check that the row is as the service wrote it.

        Raises:
            ServiceProblem: It is not. A seed that someone else wrote would draw other noise for the same charge.
        """
        if not self._is_proved(key):
            LOG.error("an answer was changed outside of the service", extra={"facts": {"entry": self.entry}})
            raise ServiceProblem("ledger_unavailable")

    def _is_proved(self, key: InstallationKey) -> bool:
        texts = (self.proof, self.tag, self.entry, *((self.promise, self.seed) if self._is_pending else (self.signer,)))
        if not all(isinstance(text, str) for text in texts) or isinstance(self.content, str):
            return False  # SQLite keeps values of any type
        return hmac.compare_digest(str(self.proof).encode(), self.compute_proof(key).encode())

    def compute_proof(self, key: InstallationKey) -> str:
        """Compute the keyed hash of a charge with its seed, or of what is stored.

        It cannot be computed from the database alone.
        """
        if self._is_pending:
            return key.compute_tag("charged answer", self.tag, self.entry, self.promise, self.seed or "")
        return key.compute_tag("stored answer", self.tag, self.entry, self.signer or "", bytes(self.content or b""))

    @property
    def _is_pending(self) -> bool:
        return self.state == _PENDING


class _PreparedAnswer:
    """An answer that is not charged yet: its release, and its clean values where another thread computes them.

    Nothing returns the clean values before `finish` gets the key of a charge. An object that is dropped drops them.
    """

    def __init__(self, request: AnswerRequest) -> None:
        self.release: PendingRelease[Any, Any] = request.offer.prepare(request.query, None)
        self._help = request.offer.help
        self._clean: Future[Any] | None = None
        self._values: list[Any] = []

    def compute_in(self, threads: ThreadPoolExecutor) -> None:
        """Let another thread compute the clean values."""
        self._clean = threads.submit(self.release.compute)

    def drop(self) -> None:
        """Forget the clean values, computed or not."""
        if self._clean is not None:
            self._clean.cancel()
        self._clean = None
        self._values.clear()

    def wait(self) -> None:
        """Wait for the clean values, or compute them here."""
        clean, self._clean = self._clean, None
        if clean is not None:
            self._help()
        self._values = [self.release.compute() if clean is None else clean.result()]

    def finish(self, key: ReleaseKey) -> Any:
        """Make the release with the noise of a committed charge."""
        return self.release.use_key(key).finish(self._values.pop())


class _AnswersAppeared(ScoreShieldError):
    """Another request charged one of these answers between the look and the lock. Nothing was charged."""


class AnswerBook:
    """The answers of one collection in one state of its data."""

    def __init__(
        self,
        ledger: Ledger,
        name: str,
        version: int,
        snapshot: str,
        key: InstallationKey,
        *,
        older: str,
        head: SeenHead | None = None,
    ) -> None:
        self._ledger, self._name, self._version, self._snapshot, self._key = ledger, name, version, snapshot, key
        self._older, self._head = older, head or SeenHead()
        self._cache: SizedCache[StoredAnswer] = SizedCache(_CACHE_BYTES)
        self._writer = GroupedWriter(ledger)
        self._computing = ThreadPoolExecutor(_COMPUTING_THREADS, "scoreshield-compute")
        self._busy, self._counting = 0, threading.Lock()  # how many requests are in work
        # Threads that draw at once mostly wait for Python's lock, and switch at every step.
        self._drawing = threading.Semaphore(max(1, count_threads() // 2))
        self._reserved: dict[tuple[str, str], tuple[Guarantee, PendingCharge]] = {}  # by payer and action
        self._rejected: set[tuple[str, str]] = set()  # payers and actions whose last charge did not fit

    def make_request(self, offer: QueryOffer, query: Query | None) -> AnswerRequest:
        """Make a request with its tags."""
        content = b"" if query is None else query.astype("<f8").tobytes()
        tag, older = (
            self._key.compute_tag("answer", self._name, snapshot, offer.parameters, content)
            for snapshot in (self._snapshot, self._older)
        )
        base = self._key.compute_tag("request", self._name, offer.parameters, content)
        return AnswerRequest(offer, query, tag, base, older if query is None else None)

    @clear_frames_on_error
    def answer(self, requests: Sequence[AnswerRequest], payer: Payer) -> list[StoredAnswer]:
        """Answer requests. Those that are not stored yet are charged together, or none of them.

        Raises:
            ServiceProblem: The budget or the allowance does not cover them, or an answer was lost.
        """
        with self._counting:
            self._busy += 1
        left: set[str] = set()  # entries that were charged or found pending, and are not answered yet
        try:
            return self._answer(requests, payer, left)
        finally:
            for entry in left:
                PENDING.end(entry, is_left=True)
            with self._counting:
                self._busy -= 1

    def _answer(self, requests: Sequence[AnswerRequest], payer: Payer, left: set[str]) -> list[StoredAnswer]:
        wanted = {request.tag: request for request in requests}
        found = {tag: answer for tag in wanted if (answer := self._cache.get(tag)) is not None}
        for _ in range(_ROUNDS):
            missing = [request for tag, request in wanted.items() if tag not in found]
            if not missing:
                break
            rows = self._read_rows(missing)
            fresh = [request for request in missing if request.tag not in rows]
            prepared = {request.tag: _PreparedAnswer(request) for request in fresh}
            if fresh:
                try:
                    rows |= self._charge(fresh, prepared, payer, left)
                except _AnswersAppeared:
                    continue
            for request in missing:
                row = rows[request.tag]
                if row.state == _PENDING:
                    if row.entry not in left:  # it was found, and not charged here
                        PENDING.begin(row.entry)
                        left.add(row.entry)
                    answer = self._finish(request, row, prepared.pop(request.tag, None))
                    left.discard(row.entry)
                    PENDING.end(row.entry, is_left=False)
                else:
                    answer = row.to_answer(self._key)
                found[request.tag] = answer
                self._cache.put(request.tag, answer._replace(is_fresh=False, ranking=None), len(answer.content))
        else:
            raise ServiceProblem("ledger_unavailable")
        return [found[request.tag] for request in requests]

    def read_spending(self, caller: str) -> Spending:
        """Read what a caller has spent."""
        return self._ledger.read_beside(lambda session: _read_spending(session, caller))

    def find_state(self, request: AnswerRequest) -> AnswerState | None:
        """Find whether an answer is stored, or charged and not stored yet. None means that it would be charged."""

        def read(session: Session) -> AnswerState | None:
            for tag in (request.tag, request.older):
                where = f"SELECT state FROM {_ANSWERS} WHERE tag = ?"
                row = None if tag is None else session.execute(where, (tag,)).fetchone()
                if row is not None and (row[0] == _STORED or (row[0] == _PENDING and tag == request.tag)):
                    return "stored" if row[0] == _STORED else "pending"
            return None

        return self._ledger.read_beside(read)

    def prove_older(self) -> None:
        """Prove the answers that were stored before the library kept proofs."""

        def work(session: Session) -> None:
            where = "state = ? AND proof IS NULL"
            rows = session.execute(f"SELECT {_COLUMNS} FROM {_ANSWERS} WHERE {where}", (_STORED,)).fetchall()
            for row in (_AnswerRow(*one) for one in rows):
                session.execute(
                    f"UPDATE {_ANSWERS} SET proof = ? WHERE tag = ?", (row.compute_proof(self._key), row.tag)
                )

        self._ledger.write_beside(work)

    def _read_rows(self, requests: Sequence[AnswerRequest]) -> dict[str, _AnswerRow]:
        """Read the rows of requests. Report once if an answer on older data was charged and will never be computed."""
        tags = tuple(request.tag for request in requests)
        bases = tuple(request.base for request in requests)
        where = f"state = ? AND version < ? AND base IN ({_mark(bases)}) AND tag NOT IN ({_mark(tags)})"
        values = (_PENDING, self._version, *bases, *tags)

        def read(session: Session) -> tuple[dict[str, _AnswerRow], _Lost]:
            rows = _select_rows(session, tags)
            for request in requests:
                if request.older is not None and request.tag not in rows:
                    known = _select_rows(session, (request.older,)).get(request.older)
                    if known is not None and known.state == _STORED:
                        rows[request.tag] = known
            if len(rows) == len(tags):
                return rows, []
            found = session.execute(f"SELECT tag, entry, time FROM {_ANSWERS} WHERE {where}", values).fetchall()
            return rows, [(tag, entry) for tag, entry, time in found if PENDING.is_lost(entry, time)]

        def mark(session: Session) -> int:
            found = [session.execute(f"{_LOSE} WHERE {_IS_PENDING}", one).rowcount for one in marked]
            return sum(int(count) for count in found)

        rows, lost = self._ledger.read_beside(read)
        marked = [(_LOST, tag, entry, _PENDING) for tag, entry in lost]
        if marked and self._writer.run(mark) > 0:
            raise ServiceProblem("answer_lost")
        return rows

    def _charge(
        self,
        requests: Sequence[AnswerRequest],
        prepared: dict[str, _PreparedAnswer],
        payer: Payer,
        left: set[str],
    ) -> dict[str, _AnswerRow]:
        """Charge answers and write their rows, in one transaction.

        Meanwhile another thread computes the clean values of a single answer, unless the last charge of the same kind
        was rejected. Where other requests are in work, no core is free for that.
        """
        name = (payer.name, requests[0].offer.action)
        if len(requests) == 1 and self._busy == 1 and name not in self._rejected:
            prepared[requests[0].tag].compute_in(self._computing)
        is_charged = False
        begun: set[str] = set()  # before the commit, after which others see the rows
        try:
            rows = self._commit(requests, prepared, payer, begun)
            is_charged = True
            charged = {row.entry for row in rows.values()}
            left |= charged
            begun -= charged
        except ServiceProblem:
            self._rejected.add(name)
            raise
        finally:
            if not is_charged:
                for one in prepared.values():
                    one.drop()
            for entry in begun:  # of transactions that were undone
                PENDING.end(entry, is_left=False)
        self._rejected.discard(name)
        return rows

    def _commit(
        self,
        requests: Sequence[AnswerRequest],
        prepared: dict[str, _PreparedAnswer],
        payer: Payer,
        begun: set[str],
    ) -> dict[str, _AnswerRow]:
        guarantees: list[Guarantee] = [prepared[request.tag].release.guarantee for request in requests]
        adjacency = prepared[requests[0].tag].release.adjacency
        reserved = self._reserve((payer.name, requests[0].offer.action), guarantees, adjacency)
        rows: list[_AnswerRow] = []
        written: list[Entry] = []
        cost = sum((Decimal(repr(float(one.epsilon))) for one in guarantees), Decimal(0))

        def check(session: Session) -> None:
            if _select_rows(session, tuple(request.tag for request in requests)):
                raise _AnswersAppeared
            before = _read_spending(session, payer.name)
            after = Spending(before.queries + len(requests), before.epsilon + cost)
            if payer.allowance is not None and not payer.allowance.covers(*after):
                raise ServiceProblem("allowance_exhausted")
            _write_spending(session, payer.name, after)

        def record(session: Session, entries: list[Entry]) -> None:
            self._head.check_next(session, entries[0])
            rows.clear()  # a database may run the work again after a conflict
            written[:] = entries
            for new in {one.hash for one in entries} - begun:
                PENDING.begin(new)
                begun.add(new)
            for request, guarantee, entry in zip(requests, guarantees, entries, strict=True):
                promise = request.offer.hash_promise(guarantee)
                row = make_pending_row(request, promise, entry.hash, self._key)
                facts = (request.base, self._version, request.offer.action, payer.name, entry.time)
                session.execute(
                    f"INSERT INTO {_ANSWERS} ({_COLUMNS}, base, version, action, caller, time) "
                    "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                    (*row, *facts),
                )
                rows.append(row)

        is_covered = True
        try:
            self._writer.run(lambda session: reserved.write_in(session, check=check, record=record))
        except BudgetExceeded:
            is_covered = False
        if not is_covered:
            raise ServiceProblem("budget_exhausted")
        self._head.note(written[-1])
        return {row.tag: row for row in rows}

    def _reserve(self, name: tuple[str, str], guarantees: list[Guarantee], adjacency: Adjacency) -> PendingCharge:
        """Write the charge of answers as the ledger keeps it. Single answers of one payer and action share theirs."""
        known = self._reserved.get(name)
        if known is not None and guarantees == [known[0]]:
            return known[1]
        reserved = self._ledger.reserve(
            guarantees, dataset=self._name, who=name[0], why=f"service: {name[1]}", adjacency=adjacency, check=False
        )
        if len(guarantees) == 1:
            self._reserved[name] = (guarantees[0], reserved)
        return reserved

    def _finish(self, request: AnswerRequest, row: _AnswerRow, prepared: _PreparedAnswer | None) -> StoredAnswer:
        """Compute the answer of a charge from its seed, store it, and return what is stored."""
        packed = self._draw(request, row, prepared)
        stored = self._store(row, packed.content)
        ranking = packed.ranking if stored.content == packed.content else None  # another request may have been first
        return stored._replace(is_fresh=True, ranking=ranking)

    def _draw(self, request: AnswerRequest, row: _AnswerRow, prepared: _PreparedAnswer | None) -> PackedAnswer:
        """Draw the noise of a charge. The same row gives the same noise, and only for the same records and promise."""
        if row.proof is None:  # of a version of the library that kept none
            self._give_up(row)
            raise ServiceProblem("answer_lost")
        row.check_proof(self._key)
        assert row.seed is not None
        secret = self._key.derive_secret("release", self._name, bytes.fromhex(row.seed))
        key = ReleaseKey(secret, release=row.entry, snapshot=self._snapshot, mechanism=f"{row.promise} {row.tag}")
        prepared = prepared or _PreparedAnswer(request)
        if request.offer.hash_promise(prepared.release.guarantee) != row.promise:
            self._give_up(row)
            raise ServiceProblem("answer_lost")
        prepared.wait()
        with self._drawing:
            return request.offer.pack(prepared.finish(key))

    def _store(self, row: _AnswerRow, content: bytes) -> StoredAnswer:
        """Store an answer and erase its seed, unless another request was first; return what is stored."""

        signer = self._key.signer.public
        new = row._replace(state=_STORED, seed=None, content=content, signer=signer)
        proof = new.compute_proof(self._key)
        new = new._replace(proof=proof)

        def work(session: Session) -> _AnswerRow | None:
            changed = session.execute(
                f"UPDATE {_ANSWERS} SET state = ?, seed = NULL, content = ?, signer = ?, proof = ? WHERE {_IS_PENDING}",
                (_STORED, content, signer, proof, row.tag, row.entry, _PENDING),
            ).rowcount
            return new if changed == 1 else _select_rows(session, (row.tag,)).get(row.tag)

        stored = self._writer.run(work)
        if stored is None or stored.entry != row.entry:  # another request has given this charge up
            raise ServiceProblem("answer_lost")
        return stored.to_answer(self._key)

    def _give_up(self, row: _AnswerRow) -> None:
        """Erase the seed of a charge that will never be answered, and free its tag for a new charge."""
        values = (_LOST, row.tag, row.entry, _PENDING)
        self._writer.run(lambda session: session.execute(f"{_LOSE} WHERE {_IS_PENDING}", values).rowcount)


def make_pending_row(request: AnswerRequest, promise: str, entry: str, key: InstallationKey) -> _AnswerRow:
    """Make the row of a charge whose noise is not drawn yet, with a new seed."""
    row = _AnswerRow(request.tag, _PENDING, secrets.token_hex(32), promise, entry, None, None)
    return row._replace(proof=row.compute_proof(key))


_COLUMNS = ", ".join(_AnswerRow._fields)


def _select_rows(session: Session, tags: tuple[str, ...]) -> dict[str, _AnswerRow]:
    rows = session.execute(f"SELECT {_COLUMNS} FROM {_ANSWERS} WHERE tag IN ({_mark(tags)})", tags).fetchall()
    return {row[0]: _AnswerRow(*row) for row in rows}


def _read_spending(session: Session, caller: str) -> Spending:
    row = session.execute(f"SELECT queries, epsilon FROM {_ALLOWANCES} WHERE caller = ?", (caller,)).fetchone()
    if row is None:
        return Spending(0, Decimal(0))
    try:
        found = Spending(int(row[0]), Decimal(row[1]))
        is_sum = found.queries >= 0 and found.epsilon.is_finite() and found.epsilon >= 0
    except (ArithmeticError, TypeError, ValueError):
        is_sum = False
    if not is_sum:  # a problem of this caller alone: a LedgerError would undo the charges of others
        LOG.error("an allowance was changed outside of the service", extra={"facts": {"caller": caller}})
        raise ServiceProblem("ledger_unavailable")
    return found


def _write_spending(session: Session, caller: str, spending: Spending) -> None:
    session.execute(
        f"INSERT INTO {_ALLOWANCES} (caller, queries, epsilon) VALUES (?, ?, ?) ON CONFLICT (caller) "
        "DO UPDATE SET queries = excluded.queries, epsilon = excluded.epsilon",
        (caller, spending.queries, str(spending.epsilon)),
    )


def _mark(values: Sequence[Any]) -> str:
    return ", ".join("?" for _ in values)
