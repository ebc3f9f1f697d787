"""The paths under ``/v1``, and the two that say whether the service lives."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

from anyio import to_thread
from fastapi import APIRouter, Depends, Header, Path, Query, Request, Security
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import Response
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StrictBool,
    StrictFloat,
    StrictInt,
    StrictStr,
    model_validator,
)
from pydantic_core import PydanticKnownError

from scoreshield.privacy.ledger.entries import write_canonical_json
from scoreshield.service.answers import Payer
from scoreshield.service.attackers import describe_charges
from scoreshield.service.core import Caller, Filter, ServedAnswer, ServedCollection, Service, describe_guarantee
from scoreshield.service.memory import KnownBody, hash_request
from scoreshield.service.policy import Number
from scoreshield.service.problems import ServiceProblem

router = APIRouter()
JSON = "application/json"
#: A document before it is signed, and the answers in it.
Document = tuple[dict[str, Any], list[ServedAnswer]]
FieldOption = StrictStr | StrictInt | Annotated[StrictFloat, Field(allow_inf_nan=False)] | StrictBool | None
#: The most conditions of the filters of one request. A value of a list counts as one.
MOST_CONDITIONS = 100


def _check_filter(where: Any) -> Any:
    """Limit the values of a filter: a filter is free, and each value is compared with each released record.

    They are counted first, because each wrong value would be several errors, which take seconds to write.
    """
    if isinstance(where, dict):
        counts = (len(wanted) if isinstance(wanted, list) and wanted else 1 for wanted in where.values())
        if sum(counts) > MOST_CONDITIONS:
            raise ValueError("the filter has too many values")
    return where


FieldFilter = Annotated[dict[str, FieldOption | list[FieldOption]], BeforeValidator(_check_filter)]
FILTER_TEXT = "Public fields and the values to keep, at most 100 in all. It chooses among the released records."
#: The first wrong number ends the check: an error for each of them would take seconds to write.
Vector = Annotated[list[Number], Field(min_length=1, max_length=65_536, fail_fast=True)]
RepeatKey = Annotated[str | None, Header(alias="Idempotency-Key")]
CollectionName = Annotated[str, Path(max_length=40)]
#: The hash of a ledger entry. Databases differ in which other texts they can look for.
EntryName = Annotated[str | None, Query(pattern=r"^([0-9a-f]{64}|all)$")]


#: The member of every signed answer that says what it answers.
REQUEST = Field(description="The SHA-256 of the request: the length of its path, its path and its body, in lines.")


class RequestModel(BaseModel):
    """A body of a request. Unknown members are errors: a filter or a flag that does nothing would mislead."""

    model_config = ConfigDict(extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _count_members(cls, content: Any) -> Any:
        """Find unknown members by their number. An error for each of them would take seconds to write."""
        if isinstance(content, dict) and len(content) > len(cls.model_fields):
            raise PydanticKnownError("extra_forbidden")
        return content


class SearchBody(RequestModel):
    """One query, or several that are answered and charged together or not at all."""

    query: Vector | None = None
    queries: Annotated[list[Vector], Field(min_length=1, max_length=1000, fail_fast=True)] | None = None
    k: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    filter: FieldFilter | None = Field(default=None, description=FILTER_TEXT)


class QueryBody(RequestModel):
    """One query."""

    query: Vector


class EstimateBody(RequestModel):
    """What an estimate is about. It needs no query: the cost depends on public facts."""

    action: str = "search"
    k: Annotated[int, Field(ge=1, le=1_000_000)] | None = None


class HitModel(BaseModel):
    """One record: its public id, its released score where there is one, and its public fields."""

    id: str | int
    score: float | None = None
    fields: dict[str, str | int | float | bool | None]


class PromiseModel(BaseModel):
    """The charge of an answer."""

    epsilon: float
    delta: float
    mechanism: str


class SignatureModel(BaseModel):
    """The Ed25519 signature of the installation over the canonical JSON of the other members."""

    algorithm: str
    key: str
    value: str


class AnswerModel(BaseModel):
    """The answer to one query."""

    collection: str
    version: int
    action: str
    hits: list[HitModel]
    guarantee: PromiseModel
    entry: str
    dummy: bool = Field(default=False, description="Present where the records are synthetic.")


class SignedAnswerModel(AnswerModel):
    """A signed answer. The same request gets the same bytes."""

    request: str = REQUEST
    signature: SignatureModel


class TotalModel(BaseModel):
    """The sum of charges."""

    epsilon: float
    delta: float


class SignedBatchModel(BaseModel):
    """Signed answers, in the order of the queries, and the sum of their charges."""

    answers: list[AnswerModel]
    total: TotalModel
    request: str = REQUEST
    signature: SignatureModel


class ProblemModel(BaseModel):
    """A problem document (RFC 9457) with a stable code."""

    type: str
    title: str
    status: int
    detail: str
    code: str


_ONE: dict[int | str, dict[str, Any]] = {200: {"model": SignedAnswerModel}}
_ONE_OR_MANY: dict[int | str, dict[str, Any]] = {200: {"model": SignedAnswerModel | SignedBatchModel}}
#: It adds the scheme to the OpenAPI description; `authenticate` answers for a missing key itself.
BEARER = HTTPBearer(auto_error=False, description="An API key: ss_...")


async def get_service(request: Request) -> Service:
    """Return the service of an application."""
    service: Service = request.app.state.service
    if not service.is_ready:
        raise ServiceProblem("not_ready")
    return service


async def authenticate(
    request: Request,
    service: Annotated[Service, Depends(get_service)],
    bearer: Annotated[HTTPAuthorizationCredentials | None, Security(BEARER)],
) -> Caller:
    """Find the caller by ``Authorization: Bearer ss_...``, or by ``api-key``, which some clients send."""
    key = request.headers.get("api-key") if bearer is None else bearer.credentials.strip()
    if service.is_known(key):
        caller = service.authenticate(key)  # without a database, so without a thread
    else:
        caller = await run_in_threadpool(service.authenticate, key)
    request.state.caller = caller.name
    return caller


ServiceArgument = Annotated[Service, Depends(get_service)]
CallerArgument = Annotated[Caller, Depends(authenticate)]


@dataclass(frozen=True)
class CallerRequest:
    """A request for answers, with its caller.

    Attributes:
        request: The request. Its path and its body name the answer.
        service: What is served.
        caller: Who asks.
        repeat_key: The Idempotency-Key, if there is one.
    """

    request: Request
    service: Service
    caller: Caller
    repeat_key: str | None


async def read_request(
    request: Request,
    bearer: Annotated[HTTPAuthorizationCredentials | None, Security(BEARER)],
    repeat_key: RepeatKey = None,
) -> CallerRequest:
    """Read the parts of a request that every interface needs to answer queries.

    It calls the others itself: FastAPI takes a millisecond for the dependencies of dependencies.
    """
    service = await get_service(request)
    return CallerRequest(request, service, await authenticate(request, service, bearer), repeat_key)


RequestArgument = Annotated[CallerRequest, Depends(read_request)]


@router.get("/livez", tags=["operations"])
async def report_life() -> dict[str, str]:
    """Say that the process answers."""
    return {"status": "alive"}


@router.get("/readyz", tags=["operations"])
async def report_readiness(service: ServiceArgument) -> dict[str, str]:
    """Say whether the service can answer queries: its databases can be read."""
    await to_thread.run_sync(service.check_databases, limiter=service.find_check_threads())
    return {"status": "ready"}


@router.get("/v1/collections", tags=["collections"])
async def list_collections(service: ServiceArgument, caller: CallerArgument) -> Response:
    """List the collections that the key opens."""
    found = [_describe(served) for served in service.list_collections(caller)]
    return write_document({"collections": found})


@router.get("/v1/collections/{name}", tags=["collections"])
async def describe_collection(name: CollectionName, service: ServiceArgument, caller: CallerArgument) -> Response:
    """Describe the public facts of a collection."""
    return write_document(_describe(service.open(caller, name)[0]))


@router.post("/v1/collections/{name}/search", tags=["queries"], responses=_ONE_OR_MANY)
async def search_collection(name: CollectionName, body: SearchBody, asked: RequestArgument) -> Response:
    """Find the best records of one query or several. The same request gets the same bytes and costs nothing."""
    if (body.query is None) == (body.queries is None):
        raise ServiceProblem("invalid_request")
    queries = [body.query] if body.query is not None else body.queries or []
    return await _answer(asked, name, "search", queries, body.k, body.filter, is_batch=body.query is None)


@router.post("/v1/collections/{name}/matches", tags=["queries"], responses=_ONE)
async def match_collection(name: CollectionName, body: QueryBody, asked: RequestArgument) -> Response:
    """Name the records above the public threshold of the policy, some of them by chance."""
    return await _answer(asked, name, "matches", [body.query])


@router.post("/v1/collections/{name}/top-k", tags=["queries"], responses=_ONE)
async def select_best(name: CollectionName, body: QueryBody, asked: RequestArgument) -> Response:
    """Name the best records of one query by a private selection, without scores."""
    return await _answer(asked, name, "top_k", [body.query])


@router.get("/v1/collections/{name}/index", tags=["queries"], response_class=Response)
async def download_index(name: CollectionName, service: ServiceArgument, caller: CallerArgument) -> Response:
    """Download the private index, which answers any number of queries offline (`scoreshield search`)."""
    served, _ = service.open(caller, name, "index")
    stored = await run_in_threadpool(served.read_index)
    headers = {"content-disposition": f'attachment; filename="{served.index_file_name}"'}
    return Response(stored.content, 200, headers, "application/octet-stream")


@router.get("/v1/collections/{name}/certificate", tags=["privacy"])
async def show_certificate(
    name: CollectionName,
    service: ServiceArgument,
    caller: CallerArgument,
    action: str = "search",
    entry: EntryName = None,
) -> Response:
    """Show the certificate of one action, of the ledger entry that an answer names, or of ``all`` charges.

    The certificate of all charges is for callers who may read entries.
    """
    served, _ = service.open(caller, name, "entries" if entry == "all" else None)

    def find() -> bytes:
        if entry == "all":
            offered = next(iter(served.offers.values())).guarantee
            composed = describe_charges(served.name, served.account.ledger, offered, served.check_chain())
            return service.sign(served.mark({"collection": served.name, "entry": entry, **composed}))
        guarantee = served.find_offer(action).guarantee if entry is None else served.find_guarantee(entry)
        return service.sign_certificate(served, guarantee, entry)

    limiter = service.find_entry_threads(served) if entry == "all" else None
    return Response(await to_thread.run_sync(find, limiter=limiter), media_type=JSON)


@router.post("/v1/collections/{name}/estimate", tags=["privacy"])
async def estimate_cost(
    name: CollectionName, body: EstimateBody, service: ServiceArgument, caller: CallerArgument
) -> Response:
    """Say what a fresh answer costs, how many are left and what it is predicted to find. It costs nothing."""
    served, grant = service.open(caller, name)

    def estimate() -> dict[str, Any]:
        offer = served.find_offer(body.action)
        k = min(offer.default if body.k is None else body.k, offer.most)
        worth = offer.predict(k)
        is_free = offer.action == "index"
        document = {
            "collection": served.name,
            "action": body.action,
            "k": k,
            "cost": {
                "epsilon": 0.0 if is_free else offer.guarantee.epsilon,
                "delta": 0.0 if is_free else offer.guarantee.delta,
            },
            "queries_left": served.count_left(body.action, caller, grant),
            "guarantee": describe_guarantee(offer.guarantee),
            "worth": worth.to_dict(),
            "sentence": str(worth),
        }
        return served.mark(document)

    return write_document(await run_in_threadpool(estimate))


@router.get("/v1/collections/{name}/budget", tags=["privacy"])
async def show_budget(name: CollectionName, service: ServiceArgument, caller: CallerArgument) -> Response:
    """Show what is spent and how many queries are left, of the collection and of the caller."""
    served, grant = service.open(caller, name)
    return write_document(await run_in_threadpool(served.describe_budget, caller, grant))


@router.get("/v1/collections/{name}/entries", tags=["privacy"])
async def list_entries(name: CollectionName, service: ServiceArgument, caller: CallerArgument) -> Response:
    """List the ledger entries of a collection, with the head of the chain, signed. It is for officers."""
    served, _ = service.open(caller, name, "entries")

    def read() -> bytes:
        return service.sign(served.describe_entries())

    return Response(await to_thread.run_sync(read, limiter=service.find_entry_threads(served)), media_type=JSON)


@router.get("/v1/signing-keys", tags=["privacy"])
async def list_signing_keys(service: ServiceArgument, caller: CallerArgument) -> Response:
    """List the public keys of the installation, the newest first."""
    del caller
    return write_document({"keys": [key.public for key in service.key.signing_keys]})


async def _answer(
    asked: CallerRequest,
    name: str,
    action: str,
    queries: list[list[float]],
    k: int | None = None,
    where: Filter | None = None,
    *,
    is_batch: bool = False,
) -> Response:
    """Answer queries in the form of this interface."""

    def work(served: ServedCollection, payer: Payer, remember: Callable[[], None]) -> Document:
        if len(queries) > asked.service.policy.installation.most_queries:
            raise ServiceProblem("too_many_queries")
        canonical = [served.read_query(query) for query in queries]
        remember()
        answers = served.search(payer, action, canonical, k, where)
        listed = [describe_answer(served, action, one) for one in answers]
        return {"answers": listed, "total": _add_up(answers)} if is_batch else listed[0], answers

    return await answer_once(asked, name, action, work)


async def answer_once(
    asked: CallerRequest,
    name: str,
    action: str,
    work: Callable[[ServedCollection, Payer, Callable[[], None]], Document],
    *,
    is_text: bool = False,
) -> Response:
    """Answer a request in a thread, with a signed document that is kept: the same request gets the same bytes.

    Args:
        asked: The request and its caller.
        name: The collection.
        action: What is asked of it.
        work: Checks the form of the request, calls the function that it gets, which remembers an Idempotency-Key, and
            returns the document with its answers. It runs in a thread, since it computes and waits for the database.
        is_text: Whether the work embeds a text.
    """
    request, service, caller, repeat_key = asked.request, asked.service, asked.caller, asked.repeat_key
    # The path of the scope: older versions of Starlette build that of the URL from the Host header.
    body, path = await request.body(), request.scope["path"]
    served, grant = service.open(caller, name, action)
    place = hash_request(path, body)
    known = served.bodies.get(place) if repeat_key is None else None
    if known is not None and known.action == action:
        request.state.is_fresh = False
        return Response(known.content, media_type=JSON)

    def run() -> bytes:
        request_bytes = f"{path}\n".encode() + body
        payer = Payer(caller.name, grant.allowance)
        document, answers = work(served, payer, lambda: service.check_repeat(caller, repeat_key, request_bytes))
        request.state.is_fresh = any(one.is_fresh for one in answers)
        content = service.sign({**document, "request": place}, answers[0].signer)
        served.bodies.put(place, KnownBody(action, content, request.scope.get("route")), len(content))
        return content

    limiter = service.find_text_threads(served) if is_text else None
    return Response(await to_thread.run_sync(run, limiter=limiter), media_type=JSON)


def describe_answer(served: ServedCollection, action: str, answer: ServedAnswer) -> dict[str, Any]:
    """Write the members of an answer, without its signature."""
    document = {
        "collection": served.name,
        "version": served.version,
        "action": action,
        "hits": [hit.to_dict() for hit in answer.hits],
        "guarantee": answer.promise,
        "entry": answer.entry,
    }
    return served.mark(document)


def _add_up(answers: list[ServedAnswer]) -> dict[str, float]:
    """Add up the charges of answers, each once: all of them together have this epsilon and delta."""
    promises = {answer.entry: answer.promise for answer in answers}.values()
    return {name: math.fsum(promise[name] for promise in promises) for name in ("epsilon", "delta")}


def _describe(served: ServedCollection) -> dict[str, Any]:
    document = {
        "name": served.name,
        "version": served.version,
        "records": served.data.size,
        "dimension": served.data.dimension,
        "fields": sorted(served.data.fields),
        "actions": {
            action: {"k": offer.default, "most": offer.most, "guarantee": describe_guarantee(offer.guarantee)}
            for action in served.policy.list_actions()
            for offer in [served.find_offer(action)]
        },
    }
    return served.mark(document)


def write_document(document: dict[str, Any]) -> Response:
    """Answer with a document that is not signed. The same document has the same bytes."""
    return Response(write_canonical_json(document).encode("ascii"), media_type=JSON)
