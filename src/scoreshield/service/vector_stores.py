"""The search of OpenAI's vector stores: a text goes in, and the records of a released ranking come out.

A vector store here is a collection with an embedder. Its client retries a request by itself; a retry gets the same
bytes and costs nothing.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Request
from fastapi import Query as Parameter
from fastapi.responses import Response
from pydantic import BaseModel, Field, FiniteFloat, StrictInt

from scoreshield.service.core import RecordTest, ServedAnswer, ServedCollection, ServedHit
from scoreshield.service.interfaces import (
    MOST_DEPTH,
    FieldTests,
    FormRoute,
    RankingRequest,
    describe_errors,
    reject_form,
    respond,
)
from scoreshield.service.problems import ServiceProblem
from scoreshield.service.rest import (
    REQUEST,
    CallerArgument,
    CollectionName,
    RequestArgument,
    RequestModel,
    ServiceArgument,
    SignatureModel,
    write_document,
)

Text = Annotated[str, Field(min_length=1, max_length=65_536)]
StoreName = Annotated[str | None, Parameter(max_length=40)]


class OpenAIRoute(FormRoute):
    """A route whose errors have OpenAI's form."""

    @staticmethod
    def write_error(problem: ServiceProblem) -> dict[str, Any]:
        kind = "invalid_request_error" if problem.status < 500 else "server_error"
        return {"error": {"code": problem.code, "message": problem.detail, "param": None, "type": kind}}


class OpenAIFault(BaseModel):
    """Why a request failed."""

    code: str
    message: str
    param: None
    type: Literal["invalid_request_error", "server_error"]


class OpenAIError(BaseModel):
    """An error in OpenAI's form."""

    error: OpenAIFault


class OpenAIResults(BaseModel):
    """The results of a search in OpenAI's form, with the charge and the signature of the service."""

    object: Literal["vector_store.search_results.page"]
    search_query: list[str]
    data: list[dict[str, Any]]
    has_more: Literal[False]
    next_page: None
    scoreshield: dict[str, Any]
    request: str = REQUEST
    signature: SignatureModel


router = APIRouter(route_class=OpenAIRoute, tags=["openai"], responses=describe_errors(OpenAIError))


class OpenAIRanking(RequestModel):
    """How to rank. Records are ranked by their released scores, so a ranker has no effect."""

    ranker: str | None = None
    score_threshold: FiniteFloat | None = None


class TextQuery(RequestModel):
    """One search for a text."""

    query: Text | Annotated[list[Text], Field(min_length=1, max_length=1)]
    filters: dict[str, Any] | None = None
    max_num_results: Annotated[StrictInt, Field(ge=1, le=1_000_000)] | None = None
    ranking_options: OpenAIRanking | None = None
    rewrite_query: Literal[False] | None = None

    @property
    def text(self) -> str:
        return self.query if isinstance(self.query, str) else self.query[0]


@router.post("/v1/vector_stores/{name}/search", responses={200: {"model": OpenAIResults}})
async def search_texts(name: CollectionName, body: TextQuery, asked: RequestArgument) -> Response:
    """Find the best records of a text."""
    return await respond(
        asked,
        name,
        lambda served: [_read_part(served, body)],
        lambda served, answers: _describe(body, served, answers[0]),
        is_text=True,
    )


@router.get("/v1/vector_stores")
async def list_stores(
    service: ServiceArgument,
    caller: CallerArgument,
    limit: Annotated[int, Parameter(ge=1, le=100)] = 20,
    order: Literal["asc", "desc"] = "desc",
    after: StoreName = None,
    before: StoreName = None,
) -> Response:
    """List the collections with an embedder that the key opens, by name. All were created at the constant time 0."""
    found = sorted(one.name for one in service.list_collections(caller) if one.policy.embedder is not None)
    names = found if order == "asc" else found[::-1]
    begin = names.index(after) + 1 if after in names else 0
    end = names.index(before) if before in names else len(names)
    page = names[begin:end][:limit]
    document = {
        "object": "list",
        "data": [_describe_store(service.open(caller, name)[0]) for name in page],
        "first_id": page[0] if page else None,
        "last_id": page[-1] if page else None,
        "has_more": len(names[begin:end]) > limit,
    }
    return write_document(document)


@router.get("/v1/vector_stores/{name}")
async def describe_store(name: CollectionName, service: ServiceArgument, caller: CallerArgument) -> Response:
    """Describe a collection with an embedder: its number of records, and constants that clients read."""
    return write_document(_describe_store(service.open(caller, name)[0]))


_CHANGES = ["POST", "PUT", "PATCH", "DELETE"]


@router.api_route("/v1/vector_stores", methods=_CHANGES, include_in_schema=False)
@router.api_route("/v1/vector_stores/{rest:path}", methods=["GET", *_CHANGES], include_in_schema=False)
async def reject_store_path(request: Request, caller: CallerArgument, rest: str = "") -> Response:
    """Reject every other path of vector stores: it would read or change records."""
    del caller
    if request.method == "GET":
        raise ServiceProblem("not_offered")
    raise ServiceProblem.of_reason("change" if "/" in rest else "collection")


def _describe_store(served: ServedCollection) -> dict[str, Any]:
    """Write the public facts of a collection in OpenAI's form."""
    if served.policy.embedder is None:
        raise ServiceProblem("no_embedder")
    counts = {"completed": served.data.size, "total": served.data.size}
    store = {
        "object": "vector_store",
        "id": served.name,
        "name": served.name,
        "created_at": 0,
        "last_active_at": None,
        "expires_at": None,
        "status": "completed",
        "usage_bytes": 0,
        "file_counts": {"in_progress": 0, "failed": 0, "cancelled": 0, **counts},
        "metadata": {},
    }
    return served.mark(store)


def _read_part(served: ServedCollection, body: TextQuery) -> RankingRequest:
    k = None if body.max_num_results is None else min(body.max_num_results, served.data.size)
    where = None if body.filters is None else _read_filter(FieldTests(served), body.filters)
    return RankingRequest(served.read_text(body.text), k, where)


def _read_filter(tests: FieldTests, content: Any, depth: int = 0) -> RecordTest:
    """Read a comparison of a public field, or several that are joined by "and" or "or"."""
    tests.count_condition()
    if depth > MOST_DEPTH or not isinstance(content, dict) or not isinstance(content.get("type"), str):
        raise reject_form()
    kind = content["type"]
    if set(content) == {"type", "filters"} and kind in ("and", "or") and isinstance(content["filters"], list):
        inner = [_read_filter(tests, one, depth + 1) for one in content["filters"]]
        join = all if kind == "and" else any
        return lambda record: join(test(record) for test in inner)
    if set(content) != {"type", "key", "value"}:
        raise reject_form()
    name, value = content["key"], content["value"]
    if kind in ("eq", "ne", "in", "nin"):
        test = tests.is_one_of(name, [value] if kind in ("eq", "ne") else value)
        return test if kind in ("eq", "in") else lambda record: not test(record)
    return tests.compare(name, kind, value)


def _describe(body: TextQuery, served: ServedCollection, answer: ServedAnswer) -> dict[str, Any]:
    """Write an answer in OpenAI's form. The member "scoreshield" names the charge; clients ignore it."""
    least = None if body.ranking_options is None else body.ranking_options.score_threshold
    hits = [hit for hit in answer.hits if least is None or (hit.score is not None and hit.score >= least)]
    charges = [{"entry": answer.entry, "guarantee": answer.promise}]
    return {
        "object": "vector_store.search_results.page",
        "search_query": [body.text],
        "data": [_describe_hit(served, hit) for hit in hits],
        "has_more": False,
        "next_page": None,
        "scoreshield": served.mark({"collection": served.name, "version": served.version, "charges": charges}),
    }


def _describe_hit(served: ServedCollection, hit: ServedHit) -> dict[str, Any]:
    text = None if served.policy.text is None else hit.fields[served.policy.text]
    shown = {name: value for name, value in hit.fields.items() if name != served.policy.text and value is not None}
    return {
        "file_id": str(hit.id),
        "filename": str(hit.fields.get("filename", hit.id)),
        "score": hit.score,
        "attributes": shown,
        "content": [] if text is None else [{"type": "text", "text": str(text)}],
    }
