"""The policy file: which collections are served, by which mechanism, and who may ask what.

Nothing is allowed by default.
The models check each value by itself. `find_contradictions` checks what must fit together, from public facts, and
writes one sentence for each fault.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from datetime import UTC, date, datetime, time
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import parse_qs, urlsplit

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    FiniteFloat,
    StrictInt,
    StringConstraints,
    ValidationError,
    field_validator,
)

from scoreshield._loading import read_bytes
from scoreshield.errors import InvalidInput
from scoreshield.service.policy_text import PolicyTextError, parse_policy_text
from scoreshield.stores.opening import StoreAddress, StoreKind, find_address_fault, identify_records

Role = Literal["reader", "curator", "officer", "admin"]
#: What a caller may do with a collection. The first four answer queries.
Action = Literal["search", "matches", "top_k", "index", "entries", "metrics"]
#: What each role may be granted.
ROLE_ACTIONS: dict[str, tuple[str, ...]] = {
    "reader": ("search", "matches", "top_k", "index"),
    "curator": ("search", "matches", "top_k", "index", "entries"),
    "officer": ("entries", "metrics"),
    "admin": ("search", "matches", "top_k", "index", "entries", "metrics"),
}
SearchMechanism = Literal["auto", "anchored", "staircase", "laplace", "gaussian", "optimal", "index"]

NAME_PATTERN = r"^[a-z0-9][a-z0-9_-]{0,39}$"
Name = Annotated[str, StringConstraints(pattern=NAME_PATTERN)]
NAME_FORM = "a name has small letters, digits, - and _, at most 40, and begins with a letter or a digit"
ClaimName = Annotated[str, StringConstraints(min_length=1, max_length=100)]
#: A number of a policy or of a request is written as a number, and neither as a truth value nor as a text.
Number = Annotated[FiniteFloat, Field(strict=True)]
#: A larger epsilon limits no attacker in practice.
MOST_EPSILON = 1000
Epsilon = Annotated[Number, Field(gt=0, le=MOST_EPSILON)]
Delta = Annotated[Number, Field(ge=0, lt=1)]
Count = Annotated[StrictInt, Field(ge=1)]
#: The bytes of a number in JSON with few digits, such as "-0.0123,".
_NUMBER_BYTES = 8
_DAY = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")


class PolicyModel(BaseModel):
    """A part of a policy. Unknown settings are errors, and a policy does not change."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=False)


class BudgetPolicy(PolicyModel):
    """The budget of a collection. It is set when its ledger is made, and cannot be changed."""

    epsilon: Epsilon
    delta: Delta = 0.0


class SearchPolicy(PolicyModel):
    """How a search is answered: by noisy scores of each query, or by the private index.

    Attributes:
        mechanism: "auto" chooses for a ranking of ``k`` records, as `release_scores(for_="ranking")` does.
        epsilon: The cost of one query. A search by the index costs nothing more.
        delta: For Gaussian noise.
        k: How many records a query asks for where it does not say.
        most: The most records that one answer names.
        keep: How many of the best records of an answer are stored. Filters choose among them.
        score_range: The public range that clean scores are clamped to.
    """

    mechanism: SearchMechanism = "auto"
    epsilon: Epsilon | None = None
    delta: Delta = 0.0
    k: Count = 10
    most: Count = 100
    keep: Count = 1000
    score_range: tuple[Number, Number] = (-1.0, 1.0)


class MatchesPolicy(PolicyModel):
    """How matches with a public threshold are answered.

    Attributes:
        threshold: Public, and chosen without a look at the collection.
        epsilon: The cost of one query.
        refine: The share of epsilon that scores the records which pass.
        most: The most records that one answer names.
        score_range: The public range of refined scores.
    """

    threshold: Number
    epsilon: Epsilon
    refine: Annotated[Number, Field(ge=0, lt=1)] = 0.0
    most: Count = 10_000
    score_range: tuple[Number, Number] = (-1.0, 1.0)


class TopKPolicy(PolicyModel):
    """How the k best records are selected, without scores.

    Attributes:
        epsilon: The cost of one query, for all of its records.
        k: How many records each answer names. It is part of the mechanism, so callers cannot change it.
        mechanism: The selection.
        score_range: The public range that clean scores are clamped to.
    """

    epsilon: Epsilon
    k: Count = 10
    mechanism: Literal["permute-and-flip", "gumbel"] = "permute-and-flip"
    score_range: tuple[Number, Number] = (-1.0, 1.0)


class IndexPolicy(PolicyModel):
    """The private index. It is released and charged once for each version of the data, when the service starts."""

    epsilon: Epsilon
    delta: Delta = 0.0
    mechanism: Literal["privunit", "gaussian"] = "privunit"
    components: Count | None = None


class StorePolicy(PolicyModel):
    """A store that holds the records. It is read when the service starts or reloads, and not in between.

    Attributes:
        kind: Which store.
        path: A file or folder, for a store without a server.
        url: The address of a server.
        url_variable: The environment variable that holds the address, where it has a password.
        key_variable: The environment variable that holds the API key of the server.
        name: The collection or the table.
        id_column: The column of the ids, in a table.
        vector_column: The column of the vectors, in a table; in Qdrant the name of the vectors.
        namespace: The schema of a table.
    """

    kind: StoreKind
    path: Path | None = None
    url: str | None = None
    url_variable: str | None = None
    key_variable: str | None = None
    name: str | None = None
    id_column: str | None = None
    vector_column: str | None = None
    namespace: str | None = None

    def find_address(self) -> StoreAddress:
        """Return where the store is, with what the environment holds.

        Raises:
            InvalidInput: An environment variable is not set.
        """
        for variable in (self.url_variable, self.key_variable):
            if variable is not None and not os.environ.get(variable):
                raise InvalidInput(f"The environment variable {variable}, which the policy names, is not set.")
        url = self.url if self.url_variable is None else os.environ[self.url_variable]
        key = None if self.key_variable is None else os.environ[self.key_variable]
        columns = (self.id_column, self.vector_column, self.namespace)
        return StoreAddress(self.kind, self.path, url, key, self.name, *columns)


class CollectionPolicy(PolicyModel):
    """One private collection.

    Attributes:
        file: A .npy, .npz or .parquet file with one vector per record.
        store: A store that holds the records, instead of a file.
        public_file: A .npz or .parquet file with the ids and the public fields of the records of a store.
        dummy: Whether synthetic records of the same shape are served, with a throw-away budget.
        records: The number of synthetic records; by default that of the file.
        dimension: The dimension of synthetic records; by default that of the file.
        array: The array or column of the vectors, where the file holds several.
        ids: The array or column of the public ids. Without it, a record is named by its place.
        fields: Arrays or columns that are public: answers show them, and callers may filter on them.
        text: The public field that holds the text of a record, for interfaces that answer with texts.
        embedder: Makes vectors of text queries: "hashing", or "module:function".
        budget: The most that may ever be spent on the collection.
        expected_queries: How many queries are planned. A budget that does not cover them is a contradiction.
    """

    file: Path | None = None
    store: StorePolicy | None = None
    public_file: Path | None = None
    dummy: bool = False
    records: Annotated[StrictInt, Field(ge=1, le=100_000_000)] | None = None
    dimension: Annotated[StrictInt, Field(ge=2, le=65_536)] | None = None
    array: str | None = None
    ids: str | None = None
    fields: tuple[str, ...] = ()
    text: str | None = None
    embedder: Annotated[str, StringConstraints(pattern=r"^(hashing|[\w.]+:\w+)$")] | None = None
    budget: BudgetPolicy
    search: SearchPolicy | None = None
    matches: MatchesPolicy | None = None
    top_k: TopKPolicy | None = None
    index: IndexPolicy | None = None
    expected_queries: Count | None = None

    def list_actions(self) -> list[str]:
        """List the query actions that the collection offers."""
        return [name for name in ("search", "matches", "top_k", "index") if getattr(self, name) is not None]


class AllowancePolicy(PolicyModel):
    """The share of a collection's budget that one caller may spend: an epsilon, a number of queries, or both.

    Epsilons are added as they are written. Stored answers cost nothing.
    """

    epsilon: Epsilon | None = None
    queries: Annotated[StrictInt, Field(ge=0)] | None = None

    def covers(self, queries: int, epsilon: Decimal) -> bool:
        """Return whether these totals are within the allowance."""
        is_within = self.queries is None or queries <= self.queries
        return is_within and (self.epsilon is None or epsilon <= Decimal(repr(self.epsilon)))

    def count_left(self, queries: int, epsilon: Decimal, cost: float) -> int | None:
        """Count how many more queries of one cost it covers after these totals; None where it has no limit."""
        counts = []
        if self.queries is not None:
            counts.append(max(0, self.queries - queries))
        if self.epsilon is not None:
            rest = max(Decimal(0), Decimal(repr(self.epsilon)) - epsilon)
            counts.append(Fraction(rest) // Fraction(Decimal(repr(cost))))  # exact, as in `covers`
        return min(counts, default=None)


class GrantPolicy(PolicyModel):
    """What one caller may do with one collection."""

    actions: tuple[Action, ...]
    allowance: AllowancePolicy | None = None


class RatePolicy(PolicyModel):
    """How many requests a key may send in how many seconds: on each replica, or with ``shared_rates`` on all."""

    requests: Count = 50
    seconds: Annotated[Number, Field(gt=0)] = 1.0


class CallerPolicy(PolicyModel):
    """Who asks: a program or a team, which holds API keys.

    Attributes:
        role: Limits the actions that may be granted.
        collections: The granted actions by collection. What is not here is not allowed.
        rate: The limit of requests for each key.
        expires: After this time no key of the caller is valid. A day means its end, in UTC.
        people: The names of people who ask as this caller on the dashboard.
    """

    role: Role
    collections: dict[Name, GrantPolicy] = Field(default_factory=dict)
    rate: RatePolicy = RatePolicy()
    expires: datetime | None = None
    people: tuple[str, ...] = ()

    @field_validator("expires", mode="before")
    @classmethod
    def _end_day(cls, value: Any) -> Any:
        """Read a day as its end. A plain number is no time."""
        if isinstance(value, str) and _DAY.fullmatch(value):
            value = date.fromisoformat(value)
        if isinstance(value, date) and not isinstance(value, datetime):
            return datetime.combine(value, time.max, UTC)
        if (isinstance(value, str) and "-" not in value) or isinstance(value, int | float):
            raise ValueError("it must be a day, such as 2027-06-30, or a time of ISO 8601")
        return value

    @field_validator("expires", mode="after")
    @classmethod
    def _add_zone(cls, value: datetime | None) -> datetime | None:
        return value.replace(tzinfo=UTC) if value is not None and value.tzinfo is None else value


class TlsPolicy(PolicyModel):
    """The certificate and the private key, as PEM files."""

    certificate: Path
    key: Path


class OidcGrantPolicy(PolicyModel):
    """What people may do whose claim has a value, such as the members of a group.

    Attributes:
        claim: The claim. It is a text, or a list of texts.
        value: The value.
        role: The role.
        collections: The collections that they may see.
    """

    claim: ClaimName
    value: Annotated[str, StringConstraints(min_length=1, max_length=500)]
    role: Role
    collections: tuple[Name, ...] = ()


class OidcPolicy(PolicyModel):
    """Sign-in of people by OpenID Connect. Without it, no one may sign in by a provider.

    Attributes:
        issuer: The address of the provider, exactly as it names itself.
        client_id: The name of the service at the provider.
        client_secret_file: The file that holds the client secret; None for a public client.
        public_url: The address of the service as browsers see it. The provider sends them back there.
        title: The name of the provider on the page of the sign-in.
        scopes: What the provider is asked for.
        person_claim: The claim that names a person. "email" must be verified by the provider.
        grants: Roles for people who are not in the table of people. The first one that fits counts.
    """

    issuer: Annotated[str, StringConstraints(pattern=r"^https?://[!-~]+$", max_length=500)]
    client_id: Annotated[str, StringConstraints(pattern=r"^[!-~]+$", max_length=500)]
    client_secret_file: Path | None = None
    public_url: Annotated[str, StringConstraints(pattern=r"^https?://[!-~]+$", max_length=500)]
    title: Annotated[str, StringConstraints(min_length=1, max_length=60)] = "OpenID Connect"
    scopes: tuple[Annotated[str, StringConstraints(pattern=r"^[!-~]+$")], ...] = ("openid", "email")
    person_claim: ClaimName = "email"
    grants: tuple[OidcGrantPolicy, ...] = ()


class TracesPolicy(PolicyModel):
    """Where traces are sent: a collector of OpenTelemetry that takes OTLP over gRPC."""

    endpoint: Annotated[str, StringConstraints(pattern=r"^https?://[^\s@]+$")]


class InstallationPolicy(PolicyModel):
    """Where the service runs and keeps its state.

    Attributes:
        database: ``sqlite:///PATH`` or ``postgresql://...``. Ledgers of collections lie beside it.
        key_file: The secrets of the installation. All replicas share it.
        address: The address to listen on.
        port: The port to listen on; 0 takes a free one.
        tls: Certificate files. Without them, only this computer may connect, or a proxy.
        behind_proxy: Says that a proxy in front of the service ends TLS.
        oidc: A provider of identities where people may sign in; None for passwords alone.
        largest_body: The most bytes of a request.
        largest_head: The most bytes of the path and the headers of a request.
        request_seconds: How long a client may take to send a request, and take nothing of its answer.
        most_requests: How many requests are handled at a time.
        shared_rates: Whether all replicas count the rate of a key together, in the database.
        traces: Where traces are sent; None for nowhere.
        most_queries: The most queries of a batch.
        time_step: Answers that are computed leave at a multiple of this many seconds after their arrival.
        reports: A folder whose HTML pages of plans and audits the dashboard shows.
        event_days: For how many days events are kept; None for as long as the database.
    """

    database: str = "sqlite:///scoreshield-service.db"
    key_file: Path = Path("scoreshield-installation.key")
    address: str = "127.0.0.1"
    port: Annotated[StrictInt, Field(ge=0, le=65535)] = 8741
    tls: TlsPolicy | None = None
    behind_proxy: bool = False
    oidc: OidcPolicy | None = None
    largest_body: Annotated[StrictInt, Field(ge=1024, le=2**28)] = 2**20
    largest_head: Annotated[StrictInt, Field(ge=1024, le=2**20)] = 2**15
    request_seconds: Annotated[Number, Field(gt=0, le=3600)] = 10.0
    most_requests: Annotated[StrictInt, Field(ge=1, le=100_000)] = 1024
    shared_rates: bool = False
    traces: TracesPolicy | None = None
    most_queries: Annotated[StrictInt, Field(ge=1, le=1000)] = 100
    time_step: Annotated[Number, Field(ge=0, le=10)] = 0.02
    reports: Path | None = None
    event_days: Annotated[StrictInt, Field(ge=1, le=36_500)] | None = None


class Policy(PolicyModel):
    """A whole policy file."""

    installation: InstallationPolicy = InstallationPolicy()
    collections: dict[Name, CollectionPolicy]
    callers: dict[Name, CallerPolicy] = Field(default_factory=dict)

    def find_grant(self, caller: str, collection: str) -> GrantPolicy | None:
        """Find what a caller may do with a collection; None for nothing."""
        known = self.callers.get(caller)
        return None if known is None or collection not in self.collections else known.collections.get(collection)

    def describe_public(self) -> dict[str, Any]:
        """Return the policy for the record of policies, without addresses that may hold a password."""
        hidden: Any = {"installation": {"database"}, "collections": {"__all__": {"store": {"url"}}}}
        return self.model_dump(mode="json", exclude=hidden)


#: Words for what pydantic says to programmers.
_REASONS = {"extra_forbidden": "there is no such setting", "missing": "it must be given"}


def read_policy(path: Path) -> Policy:
    """Read a policy file. Relative paths in it start at its folder.

    Raises:
        InvalidInput: It cannot be read, or a setting has a wrong value. One sentence names the setting.
    """
    try:
        content = parse_policy_text(read_bytes(path, most=2**22).decode("utf-8"))
    except UnicodeDecodeError:
        raise InvalidInput(f"{path} is not a readable YAML file: it is not UTF-8.") from None
    except PolicyTextError as error:
        raise InvalidInput(f"{path} is not a readable YAML file: {error}.") from None
    if not isinstance(content, dict):
        raise InvalidInput(f"{path} must hold the sections installation, collections and callers.")
    return place_files(check_policy(content), path.parent)


def check_policy(content: dict[str, Any]) -> Policy:
    """Check the content of a policy; one sentence names the first wrong setting."""
    try:
        return Policy.model_validate(content)
    except ValidationError as error:
        faults = error.errors(include_url=False, include_input=False, include_context=False)
        # A misspelled name is also a missing setting: the name says more.
        first = next((one for one in faults if one["type"] == "extra_forbidden"), faults[0])
        if first["loc"][-1:] == ("[key]",) and first["type"] == "string_pattern_mismatch":
            place = ".".join(str(part) for part in first["loc"][:-1])
            raise InvalidInput(f"The setting {place} of the policy is wrong: {NAME_FORM}.") from None
        where = ".".join(str(part) for part in first["loc"]) or "policy"
        reason = _REASONS.get(first["type"], first["msg"].removeprefix("Value error, "))
        raise InvalidInput(f"The setting {where} of the policy is wrong: {reason}.") from None


def place_files(policy: Policy, folder: Path) -> Policy:
    """Return the policy with its relative paths below a folder."""
    folder = folder.absolute()
    here = policy.installation
    changes: dict[str, Any] = {"key_file": folder / here.key_file}
    if here.database.startswith("sqlite:///"):
        changes["database"] = f"sqlite:///{folder / here.database.removeprefix('sqlite:///')}"
    if here.reports is not None:
        changes["reports"] = folder / here.reports
    if here.tls is not None:
        files = {"certificate": folder / here.tls.certificate, "key": folder / here.tls.key}
        changes["tls"] = here.tls.model_copy(update=files)
    if here.oidc is not None and here.oidc.client_secret_file is not None:
        changes["oidc"] = here.oidc.model_copy(update={"client_secret_file": folder / here.oidc.client_secret_file})
    collections = {name: _place_collection(one, folder) for name, one in policy.collections.items()}
    return policy.model_copy(update={"installation": here.model_copy(update=changes), "collections": collections})


def _place_collection(collection: CollectionPolicy, folder: Path) -> CollectionPolicy:
    files = {"file": collection.file, "public_file": collection.public_file}
    changes: dict[str, Any] = {name: None if file is None else folder / file for name, file in files.items()}
    store = collection.store
    if store is not None and store.path is not None:
        changes["store"] = store.model_copy(update={"path": folder / store.path})
    return collection.model_copy(update=changes)


def find_contradictions(policy: Policy, *, now: datetime | None = None) -> Iterator[str]:
    """Find what does not fit together in a policy, without reading a collection; one sentence for each fault."""
    now = datetime.now(UTC) if now is None else now
    if not policy.collections:
        yield "The policy serves no collection."
    yield from _check_installation(policy.installation)
    yield from _check_files(policy)
    if policy.installation.oidc is not None:
        yield from _check_oidc(policy.installation.oidc, policy)
    sources: dict[Any, str] = {}
    schemas: dict[str, str] = {}
    for name, collection in policy.collections.items():
        source = _identify_source(collection)
        same = name if collection.dummy or source is None else sources.setdefault(source, name)
        if same != name:
            kind = "store" if collection.file is None else "file"
            yield (
                f"Collections {same} and {name} read the same {kind}, so two budgets would count the same records; "
                "offer both actions in one collection."
            )
        alike = schemas.setdefault(name.replace("-", "_"), name)
        if alike != name:
            yield f"The names {alike} and {name} differ only by - and _, and would share one ledger."
        yield from _check_collection(name, collection)
    asking: dict[str, str] = {}
    for name, caller in policy.callers.items():
        yield from _check_caller(name, caller, policy, now)
        for person in caller.people:
            first = asking.setdefault(person, name)
            if first != name:
                yield f"The person {person} is named by the callers {first} and {name}, and asks as one of them only."


def _identify_source(collection: CollectionPolicy) -> Any:
    """Return what is equal for two collections of the same file or store; None for neither."""
    if collection.file is not None:
        return collection.file.resolve()
    if collection.store is None:
        return None
    try:
        return identify_records(collection.store.find_address())
    except InvalidInput:  # the variable is not set, which is a fault of its own
        return collection.store


def _check_installation(here: InstallationPolicy) -> Iterator[str]:
    is_local = here.address in ("127.0.0.1", "::1", "localhost")
    if not is_local and here.tls is None and not here.behind_proxy:
        yield (
            f"The service would listen on {here.address} without TLS; in a policy file, give installation.tls, or say "
            "behind_proxy: true where a proxy ends TLS."
        )
    if here.reports is not None and not here.reports.is_dir():
        yield f"The folder {here.reports} of installation.reports does not exist."
    if here.tls is not None:
        for file in (here.tls.certificate, here.tls.key):
            if not file.is_file():
                yield f"The TLS file {file} does not exist."


def find_open_secrets(policy: Policy, file: Path | None) -> Iterator[str]:
    """Find files with secrets that everyone on this computer may read; one sentence for each.

    The installation key is not among them: its file is rejected where others may read it.

    Args:
        policy: The policy.
        file: The policy file, which may hold the password of the database; None if there is none.
    """
    here = policy.installation
    secrets: dict[str, Path | None] = {"private key of TLS": None if here.tls is None else here.tls.key}
    secrets["client secret"] = None if here.oidc is None else here.oidc.client_secret_file
    secrets["policy file with the password of the database"] = file if _has_password(here.database) else None
    for kind, path in secrets.items():
        if path is not None and os.name == "posix" and path.is_file() and path.stat().st_mode & stat.S_IROTH:
            yield f"Everyone on this computer may read the {kind}, {path}: chmod o= removes this access."


def _has_password(address: str) -> bool:
    try:
        parts = urlsplit(address)
        return bool(parts.password) or "password" in parse_qs(parts.query)
    except ValueError:
        return True  # it cannot be told


def _check_files(policy: Policy) -> Iterator[str]:
    """Check where the state of the service is kept. No message shows the address of a database with its password."""
    here = policy.installation
    state = {"key file": here.key_file}
    if here.database.startswith("sqlite:///"):
        state["database"] = Path(here.database.removeprefix("sqlite:///"))
    elif not here.database.startswith(("postgresql://", "postgres://")):
        yield "The setting installation.database must be sqlite:///PATH or postgresql://..."
    for kind, path in state.items():
        if not path.absolute().parent.is_dir():
            yield f"The folder {path.absolute().parent} of the {kind} does not exist."
    named = {f"{kind} of the service": path for kind, path in state.items()}
    if here.tls is not None:
        named |= {"TLS certificate": here.tls.certificate, "TLS key": here.tls.key}
    for name, one in policy.collections.items():
        files = {"file": one.file, "public file": one.public_file}
        named |= {f"{kind} of collection {name}": file for kind, file in files.items() if file is not None}
    written = list(named)[: len(state)]
    for place, first in enumerate(written):
        for second in list(named)[place + 1 :]:
            if named[first].resolve() == named[second].resolve():
                yield f"The {first} and the {second} are the same file {named[first]}."


def _check_oidc(oidc: OidcPolicy, policy: Policy) -> Iterator[str]:
    for setting, address in (("issuer", oidc.issuer), ("public_url", oidc.public_url)):
        parts = urlsplit(address)
        if parts.scheme != "https" and parts.hostname not in ("127.0.0.1", "::1", "localhost"):
            yield f"The setting installation.oidc.{setting} must begin with https://."
        if parts.query or parts.fragment:
            yield f"The setting installation.oidc.{setting} must have no ? and no #."
    if oidc.client_secret_file is not None and not oidc.client_secret_file.is_file():
        yield f"The client secret {oidc.client_secret_file} does not exist."
    if "openid" not in oidc.scopes:
        yield "The setting installation.oidc.scopes must hold openid."
    for grant in oidc.grants:
        for name in grant.collections:
            if name not in policy.collections:
                yield f"A grant of installation.oidc names collection {name}, which the policy does not serve."


def _check_collection(name: str, collection: CollectionPolicy) -> Iterator[str]:
    yield from find_source_faults(name, collection)
    if not collection.list_actions():
        yield f"Collection {name} offers no action; give search, matches, top_k or index."
    if len(set(collection.fields)) != len(collection.fields):
        yield f"Collection {name} lists a public field twice."
    if reserved := {"id", "score"} & set(collection.fields):
        yield f"Collection {name} has a public field {min(reserved)}, which answers use for something else."
    if collection.text is not None and collection.text not in collection.fields:
        yield f"The text of collection {name} is not one of its public fields."
    search = collection.search
    if search is not None:
        if search.mechanism == "index":
            if collection.index is None:
                yield f"Collection {name} searches by an index and has no section index."
            if search.epsilon is not None:
                yield f"Collection {name} searches by an index, which costs nothing per query; omit search.epsilon."
        elif search.epsilon is None:
            yield f"Collection {name} has no epsilon for a search."
        if search.mechanism == "gaussian" and search.delta == 0:
            yield f"Collection {name} searches with Gaussian noise, which needs a delta above 0, such as 1e-6."
        if search.k > search.most:
            yield f"Collection {name} asks for {search.k} records by default and allows at most {search.most}."
        if search.keep < search.most:
            yield f"Collection {name} keeps {search.keep} records of an answer and allows {search.most} in one."
    costs = {one: getattr(collection, one).epsilon for one in collection.list_actions()}
    for action, epsilon in costs.items():
        if epsilon is not None and epsilon > collection.budget.epsilon:
            yield (
                f"One {action} on collection {name} costs epsilon {epsilon:g}, and its budget is "
                f"{collection.budget.epsilon:g}."
            )


def find_source_faults(name: str, collection: CollectionPolicy) -> Iterator[str]:
    """Find what is wrong with where the records come from."""
    has_shape = collection.records is not None and collection.dimension is not None
    if collection.dummy and has_shape:
        return
    for file in (collection.file, collection.public_file):
        if file is not None and not file.is_file():
            yield f"The file {file} of collection {name} does not exist."
    if collection.dummy:
        if collection.file is None:
            yield f"The dummy collection {name} needs records and dimension, or a file."
        return
    if (collection.file is None) == (collection.store is None):
        yield f"Collection {name} needs a file or a store, and not both."
    if collection.records is not None or collection.dimension is not None:
        yield f"Collection {name} states records or dimension, which only a dummy collection does."
    if collection.store is None:
        if collection.public_file is not None:
            yield f"Collection {name} has a public_file, which only a collection in a store needs."
        return
    if collection.array is not None:
        yield f"Collection {name} is in a store and names an array, which is for files."
    if (collection.fields or collection.ids) and collection.public_file is None:
        yield f"Collection {name} is in a store: its fields and their ids need a public_file."
    if collection.public_file is not None and collection.ids is None:
        yield f"Collection {name} has a public_file, so it needs the column of its ids."
    try:
        fault = find_address_fault(collection.store.find_address())
    except InvalidInput as error:
        fault = str(error)
    if fault is not None:
        yield f"The store of collection {name} is incomplete: {fault}"


def _check_caller(name: str, caller: CallerPolicy, policy: Policy, now: datetime) -> Iterator[str]:
    if caller.expires is not None and caller.expires <= now:
        yield f"The access of caller {name} has expired already."
    if not caller.collections and caller.role != "admin":
        yield f"Caller {name} may do nothing; grant actions on a collection, or remove the caller."
    for collection, grant in caller.collections.items():
        offered = policy.collections.get(collection)
        if offered is None:
            yield f"Caller {name} is granted collection {collection}, which the policy does not serve."
            continue
        if not grant.actions:
            yield f"Caller {name} is granted no action on collection {collection}."
        for action in grant.actions:
            if action not in ROLE_ACTIONS[caller.role]:
                yield f"Caller {name} is granted {action} on {collection}, which the role {caller.role} does not have."
            elif action not in ("entries", "metrics") and action not in offered.list_actions():
                yield f"Caller {name} is granted {action} on {collection}, which does not offer it."
        costs = {} if grant.allowance is None else _find_costs(offered, grant)
        for charged, epsilon in costs.items():
            if grant.allowance is not None and not grant.allowance.covers(0, Decimal(repr(epsilon))):
                yield (
                    f"One {charged} on collection {collection} costs epsilon {epsilon:g}, and caller {name} is allowed "
                    f"{grant.allowance.epsilon:g} in all."
                )
        allowed = grant.allowance
        if allowed is not None and allowed.epsilon is not None and allowed.epsilon > offered.budget.epsilon:
            yield (
                f"Caller {name} is allowed epsilon {allowed.epsilon:g} of collection {collection}, whose whole budget "
                f"is {offered.budget.epsilon:g}."
            )


def _find_costs(collection: CollectionPolicy, grant: GrantPolicy) -> dict[str, float]:
    """Find the epsilon of one answer for the granted actions that are charged to their caller."""
    offered = [action for action in ("search", "matches", "top_k") if action in grant.actions]
    parts = {action: getattr(collection, action) for action in offered}
    return {action: part.epsilon for action, part in parts.items() if part is not None and part.epsilon is not None}


def find_size_fault(name: str, dimension: int, here: InstallationPolicy) -> str | None:
    """Find whether a request can hold the queries that the policy allows; None if it can.

    Args:
        name: The collection.
        dimension: The dimension of its queries.
        here: The limits. A batch counts where the policy states one of them.
    """
    is_stated = bool({"largest_body", "most_queries"} & here.model_fields_set)
    queries = here.most_queries if is_stated else 1
    needed = queries * dimension * _NUMBER_BYTES
    if needed <= here.largest_body:
        return None
    return (
        f"A request of {here.largest_body:,} bytes cannot hold {queries:,} queries of {dimension:,} numbers on "
        f"collection {name}, which take {needed:,} bytes or more; change largest_body or most_queries."
    )
