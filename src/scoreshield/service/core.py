"""The service without HTTP: who may ask, which release answers, and what the answer says.

Every interface (the paths under ``/v1``, and others beside it) authenticates with `Service.authenticate`, opens a
collection with `Service.open`, and asks with `ServedCollection.search`. So all of them share answers and charges.
"""

from __future__ import annotations

import itertools
import math
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import numpy as np

from scoreshield.errors import InvalidInput
from scoreshield.privacy.guarantee import Guarantee
from scoreshield.privacy.ledger import Account
from scoreshield.privacy.ledger.entries import Entry, write_canonical_json
from scoreshield.releases.index import IndexRelease
from scoreshield.service.access import ApiKey, KeyTable, RateLimiter
from scoreshield.service.answers import AnswerBook, Payer, StoredAnswer
from scoreshield.service.collection import CollectionData, FieldValue, load_collection, register_version
from scoreshield.service.embedding import make_text_embedder
from scoreshield.service.events import EventTable
from scoreshield.service.installation import InstallationKey, hash_text, open_installation_key
from scoreshield.service.memory import KnownBody, SizedCache, hash_request
from scoreshield.service.offers import (
    MOST_LEFT,
    Query,
    QueryOffer,
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
from scoreshield.service.tables import InstallationDatabase, open_collection_ledger

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
_NO_INDEX = "The index of collection {name} cannot be released: {reason}"
#: Settings of the installation that a reload cannot change.
_FIXED = {"address", "behind_proxy", "database", "key_file", "largest_head", "oidc", "port", "request_seconds"} | {
    "shared_rates",
    "tls",
    "traces",
}
#: The most bytes of bodies that a process keeps for each collection.
_BODY_BYTES = 2**25
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
    """

    def __init__(
        self,
        name: str,
        policy: CollectionPolicy,
        data: CollectionData,
        database: str,
        key: InstallationKey,
        *,
        is_made: bool = True,
    ) -> None:
        self.name, self.policy, self.data = name, policy, data
        budget = policy.budget
        ledger = open_collection_ledger(database, name, epsilon=budget.epsilon, delta=budget.delta, is_made=is_made)
        self.account: Account = ledger.account(name)
        snapshot = data.compute_snapshot(key)
        self.version = register_version(ledger, snapshot)
        self.offers: dict[str, QueryOffer] = make_offers(name, policy, data)
        kind = policy.embedder
        self._embedder = None if kind is None else make_text_embedder(name, kind, data.dimension)
        self._book = AnswerBook(ledger, name, self.version, data.hash_values(key), key, older=snapshot)
        self.bodies: SizedCache[KnownBody] = SizedCache(_BODY_BYTES)
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

    def check_index(self) -> None:
        """Check that the budget covers the index if it is offered and was not released for this version of the data.

        Raises:
            InvalidInput: It does not. Nothing is charged.
        """
        if "index" not in self.offers or self._index is not None:
            return
        offer = self.offers["index"]
        is_charged = self._book.find_state(self._book.make_request(offer, None)) is not None
        if not is_charged and not self.account.count_fitting(offer.guarantee, most=1):
            reason = ServiceProblem("budget_exhausted").detail
            raise InvalidInput(_NO_INDEX.format(name=self.name, reason=reason))

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
            return [self._search_index(query, k, where) for query in queries]
        stored = self._book.answer([self._book.make_request(offer, query) for query in queries], payer)
        answers = []
        for one in stored:
            ranking = one.read_ranking()
            scores = [None] * len(ranking.records) if ranking.scores is None else ranking.scores
            chosen = (
                pair
                for pair in zip(ranking.records, scores, strict=True)
                if where is None or self._matches(pair[0], where)
            )
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
        spending, allowance = self._book.read_spending(caller.name), grant.allowance
        if allowance.queries is not None:
            left = min(left, max(0, allowance.queries - spending.queries))
        if allowance.epsilon is not None:
            rest = max(0.0, allowance.epsilon - float(spending.epsilon))
            left = min(left, math.floor(rest / offer.guarantee.epsilon * (1 + 1e-12)))
        return left

    def find_entry(self, hash_: str) -> Entry:
        """Find an entry of this collection's ledger."""
        entry = self.account.ledger.entry(hash_)
        if entry is None:
            raise ServiceProblem("unknown_entry")
        return entry

    def _open_index(self) -> tuple[IndexRelease, StoredAnswer]:
        with self._lock:
            if self._index is None:
                request = self._book.make_request(self.offers["index"], None)
                stored = self._book.answer([request], _SERVICE)[0]
                self._index = (parse_index(stored.content), stored)
            return self._index

    def _search_index(self, query: Query, k: int, where: Filter | None) -> ServedAnswer:
        index, stored = self._open_index()
        found = index.search(query, self.data.size if where is not None else k)
        pairs = zip(found.indices.tolist(), found.scores.tolist(), strict=True)
        chosen = [pair for pair in pairs if where is None or self._matches(pair[0], where)]
        guarantee = index.guarantee
        promise = {"epsilon": guarantee.epsilon, "delta": guarantee.delta, "mechanism": guarantee.mechanism}
        hits = [self._make_hit(*pair) for pair in chosen[:k]]
        return ServedAnswer(hits, promise, stored.entry, stored.signer, is_fresh=False)

    def _check_filter(self, where: Filter | None) -> None:
        if isinstance(where, Mapping) and not set(where) <= set(self.data.fields):
            raise ServiceProblem("unknown_field")

    def _matches(self, place: int, where: Filter) -> bool:
        if not isinstance(where, Mapping):
            return where(self.data.describe_record(place))
        for name, wanted in where.items():
            value = self.data.fields[name][place]
            options = [wanted] if isinstance(wanted, str | int | float | bool) or wanted is None else list(wanted)
            if not any(value == one and isinstance(value, bool) == isinstance(one, bool) for one in options):
                return False
        return True

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
        self.database = InstallationDatabase(here.database)
        self.database.prepare()
        is_first = self._read_fact(_KEY_FACT) is None
        self.key = open_installation_key(here.key_file, is_made=is_first)
        self._pin(_KEY_FACT, self.key.fingerprint, "The installation key is not the one of this database.")
        self._record_policy(policy)
        self.keys = KeyTable(self.database)
        self.people, self.events = PeopleTable(self.database, self.key), EventTable(self.database)
        self.rates = SharedRateLimiter(self.database) if here.shared_rates else RateLimiter()
        self._dummies: tempfile.TemporaryDirectory[str] | None = None
        self._reloading = threading.Lock()
        self._checked = -math.inf
        self.collections.update(self._open_collections(policy))
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
            self._state = ServedState(policy, opened)

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
            served.account.ledger.head()
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

        def work(execute: Any) -> str:
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

    def _may_see(self, caller: Caller, name: str) -> bool:
        try:
            self.open(caller, name)
        except ServiceProblem:
            return False
        return True

    def _open_collections(self, policy: Policy) -> dict[str, ServedCollection]:
        """Read and check all collections of a policy, and then charge the indexes that are new.

        A collection that cannot be served stops this before anything is charged.
        """
        opened = {name: self._open_collection(name, one) for name, one in policy.collections.items()}
        for served in opened.values():
            served.check_index()
        for name, served in opened.items():
            try:
                served.release_index()
            except ServiceProblem as problem:
                raise InvalidInput(_NO_INDEX.format(name=name, reason=problem.detail)) from None
        return opened

    def _open_collection(self, name: str, policy: CollectionPolicy) -> ServedCollection:
        database = self._find_dummy_database() if policy.dummy else self.policy.installation.database
        data = load_collection(name, policy)
        fact = f"ledger of {name}"
        records = f"vectors {data.hash_vectors(self.key)}"
        if not policy.dummy and self._read_fact(records) not in (None, name):
            raise InvalidInput(_SHARED_VECTORS.format(name=name))  # before anything is made
        is_made = policy.dummy or self._read_fact(fact) is None
        served = ServedCollection(name, policy, data, database, self.key, is_made=is_made)
        if not policy.dummy:
            self._pin(
                fact,
                served.account.ledger.id,
                f"The ledger of collection {name} is not the one that it had before, so its budget would start again; "
                "restore the ledger.",
            )
        faults = find_cost_faults(name, policy, served.offers)
        if faults:
            raise InvalidInput(" ".join(faults))
        if not policy.dummy:
            self._pin(records, name, _SHARED_VECTORS.format(name=name))
            proved, fingerprint = f"proofs of {name}", self.key.compute_tag("proofs", served.account.ledger.id)
            if self._read_fact(proved) is None:  # later an answer without a proof was not stored by the service
                served.prove_older_answers()
            self._pin(proved, fingerprint, f"The facts about the answers of collection {name} were changed.")
        return served

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

        def work(execute: Any) -> str:
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
        "epsilon": guarantee.epsilon,
        "delta": guarantee.delta,
        "mechanism": guarantee.mechanism,
        "sampler": guarantee.sampler,
        "adjacency": guarantee.adjacency.to_dict(),
        "sentence": guarantee.sentence,
    }
