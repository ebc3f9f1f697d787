"""The service without HTTP: who may ask, which release answers, and what the answer says.

Every interface (the paths under ``/v1``, and others beside it) authenticates with `Service.authenticate`, opens a
collection with `Service.open`, and asks with `ServedCollection.search`. So all of them share answers and charges.
"""

from __future__ import annotations

import itertools
import logging
import math
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple, NoReturn

import numpy as np
from anyio import CapacityLimiter

from scoreshield.errors import InvalidInput, LedgerError
from scoreshield.privacy.guarantee import Guarantee
from scoreshield.privacy.ledger import Account, Ledger
from scoreshield.privacy.ledger.entries import Entry, write_canonical_json
from scoreshield.releases.index import IndexRelease
from scoreshield.service.access import ApiKey, KeyTable, RateLimiter
from scoreshield.service.answers import AnswerBook, Payer, StoredAnswer
from scoreshield.service.collection import CollectionData, FieldValue, load_collection, register_version
from scoreshield.service.embedding import TextEmbedder, make_text_embedder
from scoreshield.service.events import EventTable
from scoreshield.service.heads import SeenHead
from scoreshield.service.installation import InstallationKey, hash_text, open_installation_key
from scoreshield.service.memory import KnownBody, SizedCache, hash_request
from scoreshield.service.offers import (
    MOST_LEFT,
    Query,
    QueryOffer,
    describe_promise,
    find_cost_faults,
    make_offers,
    parse_index,
)
from scoreshield.service.people import PeopleTable
from scoreshield.service.policy import (
    ROLE_ACTIONS,
    CallerPolicy,
    CollectionPolicy,
    GrantPolicy,
    Policy,
    find_contradictions,
)
from scoreshield.service.problems import ServiceProblem
from scoreshield.service.rates import SharedRateLimiter
from scoreshield.service.tables import (
    InstallationDatabase,
    StatementRunner,
    check_limit,
    explain_missing_ledger,
    find_collection_ledger,
    open_collection_ledger,
)

LOG = logging.getLogger("scoreshield.service")
#: How long an Idempotency-Key is remembered.
_REPEAT_TIME = timedelta(hours=24)
#: Who is charged for an index, which the service releases when it starts. No caller of a policy can have this name.
_SERVICE = Payer("(service)")
#: For how many seconds databases that could be read are not read again to say so.
_CHECK_SECONDS = 1.0
_KEY_FACT = "installation key"
#: The steps of a coordinate of a canonical query, between 0 and 1.
_QUERY_STEPS = 2**14
_SHARED_VECTORS = (
    "The vectors of collection {name} have been served under another name, so their budget would start again; "
    "two collections may not share records."
)
_OTHER_LEDGER = (
    "The ledger of collection {name} is not the one that it had before, so its budget would start again; "
    "restore the ledger."
)
_NO_INDEX = "The index of collection {name} cannot be released: {reason}"
#: Settings of the installation that a reload cannot change.
_FIXED = {"address", "behind_proxy", "database", "key_file", "largest_head", "oidc", "port", "request_seconds"} | {
    "shared_rates",
    "tls",
    "traces",
}
#: The most bytes of bodies that a process keeps for each collection.
_BODY_BYTES = 2**25
#: How many requests with a text each collection handles at a time. Others wait, without a thread.
_TEXT_THREADS = 16
#: The share of the requests at a time that may wait for the texts or the entries of one collection: one of so many.
_WAITING_SHARE = 4
#: What comes before the name of a collection in the paths of the interfaces.
_CONTAINERS = ("collections", "vector_stores")
#: A test of the public fields of a record.
RecordTest = Callable[[Mapping[str, FieldValue]], bool]
#: The values to keep of each public field, or a test.
Filter = Mapping[str, FieldValue | Sequence[FieldValue]] | RecordTest


@dataclass(frozen=True)
class Caller:
    """Who sent a request: the key, the name of the caller, and what the policy says about it."""

    key: ApiKey
    name: str
    policy: CallerPolicy


@dataclass(frozen=True)
class ServedHit:
    """One record of an answer: its public id, its released score if there is one, and its public fields."""

    id: str | int
    score: float | None
    fields: dict[str, FieldValue]

    def to_dict(self) -> dict[str, Any]:
        """Return the members of the record in an answer. Every record of one action has the same members."""
        score = {} if self.score is None else {"score": self.score}
        return {"id": self.id, **score, "fields": self.fields}


@dataclass(frozen=True)
class ServedAnswer:
    """The answer to one query: a function of released values and public facts.

    Attributes:
        hits: The records, best first.
        promise: Epsilon, delta and mechanism of the charge.
        entry: The hash of the ledger entry that charged the answer.
        signer: The public key that signs it.
        is_fresh: Whether it was computed for this request. It does not enter the body.
    """

    hits: list[ServedHit]
    promise: dict[str, Any]
    entry: str
    signer: str
    is_fresh: bool


@dataclass(frozen=True, repr=False, eq=False)
class CollectionCandidate:
    """A collection of a policy that was read and checked. Nothing was made or written for it yet.

    Attributes:
        name: Its name.
        policy: Its part of the policy.
        data: Its records.
        offers: What it answers, by action.
        embedder: What makes vectors of texts, if it has one.
        vectors: The keyed hashes that find the same records under another name.
        snapshot: The keyed hash of the state of its data.
        values: The keyed hash that answers are found by.
    """

    name: str
    policy: CollectionPolicy
    data: CollectionData
    offers: dict[str, QueryOffer]
    embedder: TextEmbedder | None
    vectors: tuple[str, ...]
    snapshot: str
    values: str

    @classmethod
    def read(cls, name: str, policy: CollectionPolicy, key: InstallationKey) -> CollectionCandidate:
        """Read the records of a collection, and check what the policy says about them."""
        data = load_collection(name, policy)
        offers = make_offers(name, policy, data)
        faults = find_cost_faults(name, policy, offers)
        if faults:
            raise InvalidInput(" ".join(faults))
        embedder = None if policy.embedder is None else make_text_embedder(name, policy.embedder, data.dimension)
        hashes = (data.hash_vectors(key), data.compute_snapshot(key), data.hash_values(key))
        return cls(name, policy, data, offers, embedder, *hashes)

    def open_book(self, ledger: Ledger, key: InstallationKey, version: int, head: SeenHead) -> AnswerBook:
        """Open the answers of this state of the data."""
        return AnswerBook(ledger, self.name, version, self.values, key, older=self.snapshot, head=head)

    def check_index(self, ledger: Ledger, key: InstallationKey) -> None:
        """Check that the budget covers the index if it is offered and was not charged for these vectors.

        Raises:
            InvalidInput: It does not. Nothing is charged.
        """
        offer = self.offers.get("index")
        if offer is None or ledger.account(self.name).count_fitting(offer.guarantee, most=1):
            return
        book = self.open_book(ledger, key, 1, SeenHead())
        if book.find_state(book.make_request(offer, None)) is None:
            reason = ServiceProblem("budget_exhausted").detail
            raise InvalidInput(_NO_INDEX.format(name=self.name, reason=reason))


class ServedCollection:
    """One collection, in the state of its data that was loaded.

    Attributes:
        name: Its name.
        policy: Its part of the policy.
        data: Its records.
        account: Its line in its ledger.
        version: The number of the state of the data.
        offers: What it answers, by action.
        bodies: Bodies of responses that were sent, by `hash_request`. Interfaces keep theirs here.
        text_threads: Where requests with a text run: an embedder that is slow holds up texts of its collection alone.
        entry_threads: Where requests that check all entries run, one at a time: a check of a long ledger takes seconds.
    """

    def __init__(self, candidate: CollectionCandidate, ledger: Ledger, key: InstallationKey, head: SeenHead) -> None:
        self.name, self.policy, self.data = candidate.name, candidate.policy, candidate.data
        self.offers, self._embedder = candidate.offers, candidate.embedder
        self.account: Account = ledger.account(self.name)
        self.version = register_version(ledger, candidate.snapshot)
        self._head = head
        self._book = candidate.open_book(ledger, key, self.version, head)
        self.bodies: SizedCache[KnownBody] = SizedCache(_BODY_BYTES)
        self.text_threads, self.entry_threads = CapacityLimiter(_TEXT_THREADS), CapacityLimiter(1)
        self._index: tuple[IndexRelease, StoredAnswer] | None = None
        self._lock = threading.Lock()

    def mark(self, document: dict[str, Any]) -> dict[str, Any]:
        """Say in a document of a dummy collection that it is one. Other documents keep their bytes."""
        return {**document, "dummy": True} if self.policy.dummy else document

    def find_offer(self, action: str) -> QueryOffer:
        """Find what answers an action. A search by the index is answered by the index."""
        policy = self.policy.search
        if action == "search" and policy is not None and policy.mechanism == "index":
            action = "index"
        if action not in self.offers:
            raise ServiceProblem("action_not_allowed")
        return self.offers[action]

    def check_ledger(self) -> None:
        """Check that the ledger can be read, and that it is not older than what was charged to it.

        Raises:
            ScoreShieldError: It cannot be read, or it is.
        """
        self._head.check(self.account.ledger)

    def release_index(self) -> None:
        """Release the index if it is offered and was not released for this version of the data."""
        if "index" in self.offers:
            self._open_index()

    def prove_older_answers(self) -> None:
        """Prove the answers that an earlier version of the library has stored, at its first start."""
        self._book.prove_older()

    def read_index(self) -> StoredAnswer:
        """Return the released index as a file."""
        self.find_offer("index")
        return self._open_index()[1]

    @property
    def index_file_name(self) -> str:
        """The name of the index as a file. That of a dummy collection says so."""
        return f"{'dummy-' if self.policy.dummy else ''}{self.name}.npz"

    def search(
        self, payer: Payer, action: str, queries: Sequence[Query], k: int | None = None, where: Filter | None = None
    ) -> list[ServedAnswer]:
        """Answer canonical queries by one action.

        Args:
            payer: Who is charged for answers that are not stored yet.
            action: "search", "matches" or "top_k".
            queries: Queries of `read_query`.
            k: How many records of the released ranking are shown; the policy's number by default.
            where: Conditions on public fields. They choose among the released records, after the release.
        """
        offer = self.find_offer(action)
        k = offer.default if k is None else k
        if k > offer.most:
            raise ServiceProblem("k_too_large", f"An answer of this collection names at most {offer.most} records.")
        self._check_filter(where)
        if offer.action == "index":
            return self._search_index(queries, k, where)
        stored = self._book.answer([self._book.make_request(offer, query) for query in queries], payer)
        answers = []
        is_wanted = None if where is None else self._make_test(where)
        for one in stored:
            ranking = one.read_ranking()
            scores = [None] * len(ranking.records) if ranking.scores is None else ranking.scores
            pairs = zip(ranking.records, scores, strict=True)
            chosen = (pair for pair in pairs if is_wanted is None or is_wanted(pair[0]))
            hits = [self._make_hit(*pair) for pair in itertools.islice(chosen, k)]
            answers.append(ServedAnswer(hits, ranking.promise, one.entry, one.signer, one.is_fresh))
        return answers

    def read_query(self, values: Sequence[float]) -> Query:
        """Make the canonical form of a query: its direction, rounded to a public grid.

        The same vector in other digits or in another length is then the same query in nearly all cases.

        Raises:
            ServiceProblem: It has another dimension than the collection, or no direction.
        """
        if len(values) != self.data.dimension:
            raise ServiceProblem("wrong_dimension", f"The query must have {self.data.dimension} numbers.")
        query = np.asarray(values, dtype=np.float64)
        largest = float(np.abs(query).max(initial=0.0))
        if not math.isfinite(largest):
            raise ServiceProblem("invalid_request")
        if largest == 0:
            raise ServiceProblem("zero_query")
        query = query / largest  # so that no square is too large or too small
        rounded: Query = np.rint(query / np.linalg.norm(query) * _QUERY_STEPS) / _QUERY_STEPS + 0.0  # no -0.0
        if not rounded.any():
            raise ServiceProblem("zero_query")
        return rounded

    def read_text(self, text: str) -> Query:
        """Make the canonical query of a text, by the embedder of the collection.

        Raises:
            ServiceProblem: The collection has no embedder, it failed, or the text has no direction.
        """
        if self._embedder is None:
            raise ServiceProblem("no_embedder")
        return self.read_query(self._embedder.embed(text))

    def describe_budget(self, caller: Caller, grant: GrantPolicy) -> dict[str, Any]:
        """Describe what is spent and left, of the collection and of the caller."""
        spending = self._book.read_spending(caller.name)
        allowance = grant.allowance
        document = {
            "collection": self.name,
            "budget": {"epsilon": self.account.ledger.epsilon, "delta": self.account.ledger.delta},
            "spent": {"epsilon": self.account.spent},
            "queries_left": {action: self.count_left(action) for action in self.list_actions(grant)},
            "caller": {
                "spent": {"queries": spending.queries, "epsilon": float(spending.epsilon)},
                "allowance": None if allowance is None else allowance.model_dump(),
                "queries_left": {action: self.count_left(action, caller, grant) for action in self.list_actions(grant)},
            },
        }
        return self.mark(document)

    def list_actions(self, grant: GrantPolicy) -> list[str]:
        """List the query actions of a grant."""
        return [action for action in self.policy.list_actions() if action in grant.actions]

    def count_left(self, action: str, caller: Caller | None = None, grant: GrantPolicy | None = None) -> int | None:
        """Count how many fresh answers the budget covers, and the allowance of a caller. None means no limit."""
        offer = self.find_offer(action)
        if offer.action == "index":
            return None
        left = self.account.count_fitting(offer.guarantee, most=MOST_LEFT)
        if caller is None or grant is None or grant.allowance is None:
            return left
        allowed = grant.allowance.count_left(*self._book.read_spending(caller.name), offer.guarantee.epsilon)
        return left if allowed is None else min(left, allowed)

    def find_entry(self, hash_: str) -> Entry:
        """Find an entry of this collection's ledger."""
        entry = self.account.ledger.entry(hash_)
        if entry is None:
            raise ServiceProblem("unknown_entry")
        self.check_entry(entry)
        return entry

    def check_entry(self, entry: Entry) -> None:
        """Check that an entry is as it was written, before it is shown or signed.

        Raises:
            ServiceProblem: It was changed outside of the service.
        """
        if not entry.hash or entry.compute_hash() != entry.hash:
            self._report_change(entry.id)

    def check_chain(self, kept: list[Entry] | None = None) -> str:
        """Check all entries, before something about all of them is signed; return the head of their chain.

        Args:
            kept: A list to which the entries are added, up to that head.

        Raises:
            ServiceProblem: An entry was changed, removed or inserted, or the ledger is older than its charges.
        """
        self.check_ledger()
        found = self.account.ledger.verify_in_use(kept)
        if not found:
            self._report_change(found.first_bad)
        return found.head

    def describe_entries(self) -> dict[str, Any]:
        """Describe all entries and the head of their chain, after `check_chain`."""
        entries: list[Entry] = []
        head = self.check_chain(entries)
        return self.mark({"collection": self.name, "head": head, "entries": [entry.to_dict() for entry in entries]})

    def _report_change(self, number: int | None) -> NoReturn:
        facts = {"collection": self.name, "entry": number}
        LOG.error("the ledger was changed outside of the service", extra={"facts": facts})
        raise ServiceProblem("ledger_unavailable")

    def find_guarantee(self, hash_: str) -> Guarantee:
        """Find the guarantee of an entry. Draws of an index, which another program charges, have none of their own."""
        try:
            return Guarantee.from_dict(self.find_entry(hash_).to_dict()["guarantee"])
        except InvalidInput:
            raise ServiceProblem("unknown_entry") from None

    def _open_index(self) -> tuple[IndexRelease, StoredAnswer]:
        with self._lock:
            if self._index is None:
                request = self._book.make_request(self.offers["index"], None)
                stored = self._book.answer([request], _SERVICE)[0]
                self._index = (parse_index(stored.content), stored)
            return self._index

    def _search_index(self, queries: Sequence[Query], k: int, where: Filter | None) -> list[ServedAnswer]:
        """Search the index. A filter is compared with each record one time for all queries, because they are free."""
        index, stored = self._open_index()
        promise, size = describe_promise(index.guarantee), self.data.size
        is_wanted = None if where is None else np.fromiter(map(self._make_test(where), range(size)), bool, size)
        answers = []
        for query in queries:
            found = index.search(query, k if is_wanted is None else size)
            chosen = slice(k) if is_wanted is None else np.flatnonzero(is_wanted[found.indices])[:k]
            pairs = zip(found.indices[chosen].tolist(), found.scores[chosen].tolist(), strict=True)
            hits = [self._make_hit(*pair) for pair in pairs]
            answers.append(ServedAnswer(hits, promise, stored.entry, stored.signer, is_fresh=False))
        return answers

    def _check_filter(self, where: Filter | None) -> None:
        if isinstance(where, Mapping) and not set(where) <= set(self.data.fields):
            raise ServiceProblem("unknown_field")

    def _make_test(self, where: Filter) -> Callable[[int], bool]:
        """Make the test of the places of records. A truth value is no number."""
        if not isinstance(where, Mapping):
            return lambda place: where(self.data.describe_record(place))
        wanted = []
        for name, given in where.items():
            options = [given] if isinstance(given, str | int | float | bool) or given is None else given
            wanted.append((self.data.fields[name], {(isinstance(one, bool), one) for one in options}))
        return lambda place: all(
            (isinstance(values[place], bool), values[place]) in options for values, options in wanted
        )

    def _make_hit(self, place: int, score: float | None) -> ServedHit:
        return ServedHit(self.data.ids[place], score, self.data.describe_record(place))


class ServedState(NamedTuple):
    """What is served: a policy and the collections that were opened for it. A reload replaces both at once."""

    policy: Policy
    collections: dict[str, ServedCollection]


class Service:
    """All collections of one installation, behind its keys and its policy."""

    def __init__(self, policy: Policy) -> None:
        _check_contradictions(policy)
        self._state = ServedState(policy, {})
        here = policy.installation
        self.is_ready = False
        self._dummies: tempfile.TemporaryDirectory[str] | None = None
        self.database = InstallationDatabase(here.database)
        try:
            self._start(policy)
        except BaseException:
            self.close()
            raise

    def _start(self, policy: Policy) -> None:
        here = policy.installation
        self.database.prepare()
        is_first = self._read_fact(_KEY_FACT) is None
        self.key = open_installation_key(here.key_file, is_made=is_first)
        self._pin(_KEY_FACT, self.key.fingerprint, "The installation key is not the one of this database.")
        self.keys = KeyTable(self.database)
        self.people, self.events = PeopleTable(self.database, self.key), EventTable(self.database)
        self.rates = SharedRateLimiter(self.database) if here.shared_rates else RateLimiter()
        self._reloading = threading.Lock()
        self._checked, self._check_threads = -math.inf, CapacityLimiter(1)
        self._heads: dict[str, SeenHead] = {}  # by the id of the ledger
        self.collections.update(self._open_collections(policy))
        self._record_policy(policy)
        self.forget_old_events()
        self.is_ready = True

    @property
    def policy(self) -> Policy:
        """The policy in force."""
        return self._state.policy

    @property
    def collections(self) -> dict[str, ServedCollection]:
        """The collections that are served, by name."""
        return self._state.collections

    def reload(self, policy: Policy) -> None:
        """Serve another policy, and read all records again. The old ones answer until the new ones are ready.

        Raises:
            ScoreShieldError: The policy contradicts itself, changes what needs a restart, or records cannot be read.
                The service goes on as before.
        """
        with self._reloading:
            _check_contradictions(policy)
            old, new = (one.model_dump(include=_FIXED) for one in (self.policy.installation, policy.installation))
            for setting in sorted(_FIXED):
                if old[setting] != new[setting]:
                    raise InvalidInput(f"The setting installation.{setting} changes with a restart alone.")
            opened = self._open_collections(policy)
            self._record_policy(policy)
            self.events.forget_old(policy.installation.event_days)
            self._state = ServedState(policy, opened)

    def forget_old_events(self) -> None:
        """Delete the events that are older than the policy keeps them."""
        self.events.forget_old(self.policy.installation.event_days)

    def check_databases(self) -> None:
        """Read from every database, unless this succeeded a moment ago. Anyone may ask for it.

        Raises:
            ScoreShieldError: One of them cannot be read.
        """
        now = time.monotonic()
        if now - self._checked < _CHECK_SECONDS:
            return
        self.database.read("SELECT COUNT(*) FROM scoreshield_service_facts")
        for served in self.collections.values():
            served.check_ledger()
        self._checked = now

    def close(self) -> None:
        """Close the database, and remove the databases of dummy collections."""
        self.is_ready = False
        self.database.close()
        if self._dummies is not None:
            self._dummies.cleanup()

    def is_known(self, text: str | None) -> bool:
        """Return whether a key was looked up just now, so that `authenticate` does not wait for the database."""
        return isinstance(self.rates, RateLimiter) and self.keys.is_remembered(text or "")

    def authenticate(self, text: str | None) -> Caller:
        """Find who sent a request, and count it against the rate of the key."""
        caller = self.identify(text)
        self.rates.count(caller.key.prefix, caller.policy.rate)
        return caller

    def identify(self, text: str | None) -> Caller:
        """Find who sent a request."""
        if not text:
            raise ServiceProblem("missing_key")
        key = self.keys.authenticate(text)
        policy = self.policy.callers.get(key.caller)
        if policy is None:
            raise ServiceProblem("invalid_key")
        if policy.expires is not None and policy.expires <= datetime.now(UTC):
            raise ServiceProblem("caller_expired")
        return Caller(key, key.caller, policy)

    def open(self, caller: Caller, name: str, action: str | None = None) -> tuple[ServedCollection, GrantPolicy]:
        """Open a collection for a caller. A collection that the caller may not see is as if it were not there.

        Args:
            caller: Who asks.
            name: The collection.
            action: What for; None for public facts, which every grant allows.
        """
        policy, collections = self._state
        grant = policy.find_grant(caller.name, name)
        if grant is None or not grant.actions or not caller.key.allows(name, None) or name not in collections:
            raise ServiceProblem("unknown_collection")
        if action is not None:
            is_of_role = action in ROLE_ACTIONS[caller.policy.role]
            if not is_of_role or action not in grant.actions or not caller.key.allows(name, action):
                raise ServiceProblem("action_not_allowed")
        return collections[name], grant

    def recall(self, key: str | None, path: str, body: bytes) -> tuple[Caller, KnownBody] | None:
        """Find the response that the same request got before, if its key was looked up just now and may get it.

        It waits for nothing, so it needs no thread. Whatever is wrong with a request is left to the path of the
        interface, which answers in its own form: None then, and nothing is counted.
        """
        parts = path.split("/", 4)
        name = next((after for before, after in itertools.pairwise(parts) if before in _CONTAINERS), "")
        served = self.collections.get(name)
        if served is None or not self.is_ready or not self.is_known(key):
            return None
        if self.policy.installation.shared_rates:  # the database counts them
            return None
        known = served.bodies.get(hash_request(path, body))
        if known is None:
            return None
        try:
            caller = self.identify(key)
            self.open(caller, name, known.action)
            self.rates.count(caller.key.prefix, caller.policy.rate)
        except ServiceProblem:
            return None
        return caller, known

    def find_text_threads(self, served: ServedCollection) -> CapacityLimiter:
        """Find where a request with a text runs. Only the thread of the event loop may ask.

        Raises:
            ServiceProblem: Too many requests wait for the embedder. They would take the places of all others.
        """
        return self._check_waiting(served.text_threads)

    def find_entry_threads(self, served: ServedCollection) -> CapacityLimiter:
        """Find where a request that checks all entries runs. Only the thread of the event loop may ask.

        Raises:
            ServiceProblem: Too many requests wait for such a check. They would take the places of all others.
        """
        return self._check_waiting(served.entry_threads)

    def find_check_threads(self) -> CapacityLimiter:
        """Find where `check_databases` runs, for anyone who asks: one at a time, since a database may not answer.

        Only the thread of the event loop may ask.

        Raises:
            ServiceProblem: Too many requests wait for such a check.
        """
        return self._check_waiting(self._check_threads)

    def _check_waiting(self, threads: CapacityLimiter) -> CapacityLimiter:
        most = max(1, self.policy.installation.most_requests // _WAITING_SHARE)
        if threads.statistics().tasks_waiting >= most:
            raise ServiceProblem("too_busy", headers={"retry-after": "1"})
        return threads

    def list_collections(self, caller: Caller) -> list[ServedCollection]:
        """List the collections that a caller may see."""
        return [self.open(caller, name)[0] for name in self.collections if self._may_see(caller, name)]

    def check_repeat(self, caller: Caller, repeat_key: str | None, request: bytes) -> None:
        """Remember an Idempotency-Key, and reject another request with the same one.

        The same request needs no memory: it gets the same answer anyway.
        """
        if repeat_key is None:
            return
        if not 1 <= len(repeat_key) <= 200 or not repeat_key.isascii() or not repeat_key.isprintable():
            raise ServiceProblem("invalid_idempotency_key")
        tag = self.key.compute_tag("repeat", caller.name, repeat_key)
        digest = self.key.compute_tag("repeated request", request)
        now = datetime.now(UTC)
        table = "scoreshield_service_repeats"

        def work(execute: StatementRunner) -> str:
            oldest = (now - _REPEAT_TIME).isoformat(timespec="seconds")
            execute(f"DELETE FROM {table} WHERE time < :oldest", oldest=oldest)
            execute(
                f"INSERT INTO {table} (tag, request, time) VALUES (:tag, :request, :time) ON CONFLICT (tag) DO NOTHING",
                tag=tag,
                request=digest,
                time=now.isoformat(timespec="seconds"),
            )
            return str(execute(f"SELECT request FROM {table} WHERE tag = :tag", tag=tag).scalar())

        if self.database.write(work) != digest:
            raise ServiceProblem("idempotency_conflict")

    def sign(self, document: Mapping[str, Any], signer: str | None = None) -> bytes:
        """Sign a document and write its bytes. The same document has the same bytes."""
        key = self.key.find_signer(signer)
        return write_canonical_json(key.sign_document(document)).encode("ascii")

    def sign_certificate(self, served: ServedCollection, guarantee: Guarantee, entry: str | None) -> bytes:
        """Sign the certificate of one action of a collection, or of one entry of its ledger.

        Args:
            served: The collection.
            guarantee: What the certificate states.
            entry: The hash of the entry; None for an action.
        """
        document = {"collection": served.name, "entry": entry, "certificate": str(guarantee)}
        return self.sign(served.mark({**document, "guarantee": guarantee.to_dict()}))

    def _may_see(self, caller: Caller, name: str) -> bool:
        try:
            self.open(caller, name)
        except ServiceProblem:
            return False
        return True

    def _open_collections(self, policy: Policy) -> dict[str, ServedCollection]:
        """Read and check all collections of a policy, then make what is missing, and then charge indexes that are new.

        A collection that cannot be served stops this before anything is made or charged for any of them.
        """
        candidates = [CollectionCandidate.read(name, one, self.key) for name, one in policy.collections.items()]
        self._check_vectors(candidates)
        for candidate in candidates:
            if not candidate.policy.dummy:
                self._check_ledger(candidate, policy)
        opened = {one.name: self._open_collection(one, policy) for one in candidates}
        for name, served in opened.items():
            try:
                served.release_index()
            except ServiceProblem as problem:
                raise InvalidInput(_NO_INDEX.format(name=name, reason=problem.detail)) from None
        return opened

    def _check_vectors(self, candidates: Sequence[CollectionCandidate]) -> None:
        """Check that no collection has the vectors of another one, of this policy or of an earlier one."""
        names: dict[str, str] = {}
        for one in candidates:
            if one.policy.dummy:
                continue
            for vectors in one.vectors:
                known = self._read_fact(f"vectors {vectors}") or names.setdefault(vectors, one.name)
                if known != one.name:
                    raise InvalidInput(_SHARED_VECTORS.format(name=one.name))

    def _check_ledger(self, candidate: CollectionCandidate, policy: Policy) -> None:
        """Check the ledger of a collection if there is one: its id, its limit, its head, and room for the index."""
        name, budget = candidate.name, candidate.policy.budget
        known = self._read_fact(f"ledger of {name}")
        try:
            ledger = find_collection_ledger(policy.installation.database, name)
        except LedgerError:
            if known is None:
                raise
            ledger = None
        if ledger is None:
            if known is not None:
                raise explain_missing_ledger(name)
            return
        check_limit(ledger, name, epsilon=budget.epsilon, delta=budget.delta)
        if known not in (None, ledger.id):
            raise InvalidInput(_OTHER_LEDGER.format(name=name))
        self._find_head(ledger).check(ledger)
        candidate.check_index(ledger, self.key)

    def _open_collection(self, candidate: CollectionCandidate, policy: Policy) -> ServedCollection:
        """Open a collection that was checked. Its ledger is made if it is new, and what must not change is pinned."""
        name, budget, is_dummy = candidate.name, candidate.policy.budget, candidate.policy.dummy
        fact = f"ledger of {name}"
        ledger = open_collection_ledger(
            self._find_dummy_database() if is_dummy else policy.installation.database,
            name,
            epsilon=budget.epsilon,
            delta=budget.delta,
            is_made=is_dummy or self._read_fact(fact) is None,
        )
        served = ServedCollection(candidate, ledger, self.key, self._find_head(ledger))
        served.check_ledger()
        if not is_dummy:
            self._pin(fact, ledger.id, _OTHER_LEDGER.format(name=name))
            for vectors in candidate.vectors:
                self._pin(f"vectors {vectors}", name, _SHARED_VECTORS.format(name=name))
            proved, fingerprint = f"proofs of {name}", self.key.compute_tag("proofs", ledger.id)
            if self._read_fact(proved) is None:  # later an answer without a proof was not stored by the service
                served.prove_older_answers()
            self._pin(proved, fingerprint, f"The facts about the answers of collection {name} were changed.")
        return served

    def _find_head(self, ledger: Ledger) -> SeenHead:
        """Find what was seen of a ledger, also by states that were served before a reload."""
        return self._heads.setdefault(ledger.id, SeenHead())

    def _find_dummy_database(self) -> str:
        """Return the address beside which the ledgers of dummy collections lie: a folder that ends with the service."""
        if self._dummies is None:
            self._dummies = tempfile.TemporaryDirectory(prefix="scoreshield-dummy-")
        return f"sqlite:///{self._dummies.name}/service.db"

    def _read_fact(self, name: str) -> str | None:
        rows = self.database.read("SELECT value FROM scoreshield_service_facts WHERE name = :name", name=name)
        return str(rows[0][0]) if rows else None

    def _pin(self, name: str, value: str, fault: str) -> None:
        """Remember a fact of the installation at its first start, and raise an error if it is another one later."""

        def work(execute: StatementRunner) -> str:
            table = "scoreshield_service_facts"
            execute(
                f"INSERT INTO {table} (name, value) VALUES (:name, :value) ON CONFLICT (name) DO NOTHING",
                name=name,
                value=value,
            )
            return str(execute(f"SELECT value FROM {table} WHERE name = :name", name=name).scalar())

        if self.database.write(work) != value:
            raise InvalidInput(fault)

    def _record_policy(self, policy: Policy) -> None:
        """Keep every policy that was in force, with its time."""
        text = write_canonical_json(policy.describe_public())
        now = datetime.now(UTC).isoformat(timespec="seconds")
        self.database.write(
            lambda execute: execute(
                "INSERT INTO scoreshield_service_policies (digest, time, policy) VALUES (:digest, :time, :policy) "
                "ON CONFLICT (digest) DO NOTHING",
                digest=hash_text(text),
                time=now,
                policy=text,
            )
        )


def _check_contradictions(policy: Policy) -> None:
    faults = list(find_contradictions(policy))
    if faults:
        raise InvalidInput(" ".join(faults))


def describe_guarantee(guarantee: Guarantee) -> dict[str, Any]:
    """Describe a guarantee in a few public numbers."""
    return {
        **describe_promise(guarantee),
        "sampler": guarantee.sampler,
        "adjacency": guarantee.adjacency.to_dict(),
        "sentence": guarantee.sentence,
    }
