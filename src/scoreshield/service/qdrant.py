"""The part of Qdrant's REST interface that searches need, so that its clients work after a change of URL and key.

Everything that would show more than released answers is rejected with one sentence: vectors, queries by id, scrolling,
counts, facets, and filters on fields that are not public. ``time`` and ``usage`` are constant.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Request
from fastapi.responses import RedirectResponse, Response
from pydantic import BaseModel, BeforeValidator, Field, FiniteFloat, StrictInt, TypeAdapter, ValidationError

from scoreshield.service.collection import FieldValue
from scoreshield.service.core import RecordTest, ServedAnswer, ServedCollection
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
    MOST_CONDITIONS,
    CallerArgument,
    CallerRequest,
    CollectionName,
    RequestArgument,
    RequestModel,
    ServiceArgument,
    SignatureModel,
    Vector,
    write_document,
)

#: The version of Qdrant whose forms are written, for clients that do not name theirs.
_VERSION = "1.20.0"
_CLIENT = re.compile(r"qdrant-client/(1\.\d{1,3}\.\d{1,3})\b")
_VECTOR = TypeAdapter(Vector)
#: The points of one query, in Qdrant's form.
Points = list[dict[str, Any]]
#: Each path is compared with each field of each record of an answer.
FieldPaths = Annotated[list[str], Field(max_length=MOST_CONDITIONS, fail_fast=True)]


def _check_choice(wanted: Any) -> Any:
    """Reject other members than those that choose fields, before each of them is an error of its own."""
    if isinstance(wanted, dict) and not wanted.keys() <= {"include", "exclude"}:
        raise ValueError("only include and exclude choose fields")
    return wanted


PayloadChoice = Annotated[bool | FieldPaths | dict[str, FieldPaths | None] | None, BeforeValidator(_check_choice)]
#: Members of a request that ask for something else than a search for one vector.
_NOT_OFFERED = ("prefetch", "lookup_from", "shard_key")
#: Paths below a collection that change records or the collection by POST. The others change by their method.
_CHANGES = re.compile(r"[^/]+/(points/(delete|batch|payload|vectors)|snapshots|index|shards|aliases)(/|$)")


class QdrantRoute(FormRoute):
    """A route whose errors have Qdrant's form."""

    @staticmethod
    def write_error(problem: ServiceProblem) -> dict[str, Any]:
        return {"result": None, "status": {"code": problem.code, "error": problem.detail}, "time": 0.0, "usage": None}


class QdrantStatus(BaseModel):
    """Why a request failed."""

    code: str
    error: str


class QdrantError(BaseModel):
    """An error in Qdrant's form."""

    result: None
    status: QdrantStatus
    time: float
    usage: None


class QdrantAnswer(BaseModel):
    """An answer in Qdrant's form, with the charges and the signature of the service."""

    result: dict[str, Any] | list[dict[str, Any]] | list[list[dict[str, Any]]]
    status: Literal["ok"]
    time: float
    usage: None
    scoreshield: dict[str, Any] | None = None
    request: str | None = None
    signature: SignatureModel | None = None


router = APIRouter(route_class=QdrantRoute, tags=["qdrant"], responses=describe_errors(QdrantError))
_ANSWER: dict[int | str, dict[str, Any]] = {200: {"model": QdrantAnswer}}


class QdrantQuery(RequestModel):
    """One query. Members that would show more than a released ranking have any form here, and are rejected later.

    Attributes:
        params: How Qdrant would approximate the search. Here every record is compared, so it has no effect.
    """

    query: Any = None
    using: str | None = None
    filter: dict[str, Any] | None = None
    params: dict[str, Any] | None = None
    score_threshold: FiniteFloat | None = None
    limit: Annotated[StrictInt, Field(ge=1, le=1_000_000)] = 10
    offset: Annotated[StrictInt, Field(ge=0, le=1_000_000)] | None = None
    with_vector: Any = None
    with_payload: PayloadChoice = None
    prefetch: Any = None
    lookup_from: Any = None
    shard_key: Any = None


class QdrantBatch(RequestModel):
    """Several queries, which are charged together or not at all."""

    searches: Annotated[list[QdrantQuery], Field(min_length=1, max_length=1000, fail_fast=True)]


class QdrantVectorQuery(RequestModel):
    """One query in the older form, of clients before 1.16, of JavaScript and of programs that write REST themselves."""

    vector: Any
    filter: dict[str, Any] | None = None
    params: dict[str, Any] | None = None
    score_threshold: FiniteFloat | None = None
    limit: Annotated[StrictInt, Field(ge=1, le=1_000_000)] = 10
    offset: Annotated[StrictInt, Field(ge=0, le=1_000_000)] | None = None
    with_vector: Any = None
    with_payload: PayloadChoice = None
    shard_key: Any = None

    def to_query(self) -> QdrantQuery:
        """Return the same query in the newer form. A vector may be written with its name."""
        vector, using = self.vector, None
        if isinstance(vector, dict) and set(vector) == {"name", "vector"} and isinstance(vector["name"], str):
            vector, using = vector["vector"], vector["name"]
        shared = self.model_dump(exclude={"vector"})
        return QdrantQuery.model_construct(**shared, query=vector, using=using)


class QdrantVectorBatch(RequestModel):
    """Several queries in the older form, which are charged together or not at all."""

    searches: Annotated[list[QdrantVectorQuery], Field(min_length=1, max_length=1000, fail_fast=True)]


@router.get("/")
async def show_version(request: Request) -> Response:
    """Say which version the forms are of. Clients warn where it is far from their own, so it is that of the client.

    A browser, which prefers HTML, is sent to the dashboard.
    """
    if request.headers.get("accept", "").startswith("text/html"):
        return RedirectResponse("/dashboard", 303)
    found = _CLIENT.match(request.headers.get("user-agent", ""))
    document = {"title": "scoreshield, with a part of Qdrant's interface", "version": found[1] if found else _VERSION}
    return write_document(document)


@router.get("/collections", responses=_ANSWER)
async def list_qdrant_collections(service: ServiceArgument, caller: CallerArgument) -> Response:
    """List the collections that the key opens."""
    return _write({"collections": [{"name": served.name} for served in service.list_collections(caller)]})


@router.get("/collections/{name}", responses=_ANSWER)
async def describe_points(name: CollectionName, service: ServiceArgument, caller: CallerArgument) -> Response:
    """Describe a collection: its size and its dimension, and constants that clients read."""
    data = service.open(caller, name)[0].data
    return _write(
        {
            "status": "green",
            "optimizer_status": "ok",
            "indexed_vectors_count": data.size,
            "points_count": data.size,
            "segments_count": 1,
            "config": {
                "params": {
                    "vectors": {"size": data.dimension, "distance": "Cosine"},
                    "shard_number": 1,
                    "replication_factor": 1,
                    "write_consistency_factor": 1,
                    "on_disk_payload": False,
                },
                "hnsw_config": {"m": 16, "ef_construct": 100, "full_scan_threshold": 10_000},
                "optimizer_config": {"default_segment_number": 1, "flush_interval_sec": 5},
                "wal_config": {"wal_capacity_mb": 32, "wal_segments_ahead": 0},
            },
            "payload_schema": {},
        }
    )


@router.get("/collections/{name}/exists", responses=_ANSWER)
async def check_collection(name: CollectionName, service: ServiceArgument, caller: CallerArgument) -> Response:
    """Say whether the key opens a collection of this name."""
    return _write({"exists": name in [served.name for served in service.list_collections(caller)]})


@router.post("/collections/{name}/points/query", responses=_ANSWER)
async def query_points(name: CollectionName, body: QdrantQuery, asked: RequestArgument) -> Response:
    """Find the best records of one query."""
    return await _respond(asked, name, [body], lambda results: {"points": results[0]})


@router.post("/collections/{name}/points/query/batch", responses=_ANSWER)
async def query_batch(name: CollectionName, body: QdrantBatch, asked: RequestArgument) -> Response:
    """Find the best records of several queries."""
    return await _respond(asked, name, body.searches, lambda results: [{"points": points} for points in results])


@router.post("/collections/{name}/points/search", responses=_ANSWER)
async def search_points(name: CollectionName, body: QdrantVectorQuery, asked: RequestArgument) -> Response:
    """Find the best records of one query, in the older form of Qdrant."""
    return await _respond(asked, name, [body.to_query()], lambda results: results[0])


@router.post("/collections/{name}/points/search/batch", responses=_ANSWER)
async def search_batch(name: CollectionName, body: QdrantVectorBatch, asked: RequestArgument) -> Response:
    """Find the best records of several queries, in the older form of Qdrant."""
    return await _respond(asked, name, [one.to_query() for one in body.searches], lambda results: results)


@router.api_route(
    "/collections/{rest:path}", methods=["GET", "POST", "PUT", "PATCH", "DELETE"], include_in_schema=False
)
async def reject_record_path(request: Request, rest: str, caller: CallerArgument) -> Response:
    """Reject every other path of Qdrant: it would read or change records. The sentence depends on the path alone."""
    del caller
    if request.method in ("PUT", "PATCH", "DELETE") or _CHANGES.match(rest):
        raise ServiceProblem.of_reason("change" if "/" in rest else "collection")
    if rest.endswith("/points/count"):
        raise ServiceProblem.of_reason("count")
    raise ServiceProblem("not_offered")


async def _respond(
    asked: CallerRequest,
    name: str,
    bodies: list[QdrantQuery],
    write: Callable[[list[Points]], Points | list[Points] | dict[str, Any]],
) -> Response:
    """Answer queries. The member "scoreshield" names the charges; clients ignore it.

    Args:
        asked: The request and its caller.
        name: The collection.
        bodies: The queries.
        write: Writes the points of all queries as the result of the path.
    """

    def describe(served: ServedCollection, answers: list[ServedAnswer]) -> dict[str, Any]:
        charges = [{"entry": one.entry, "guarantee": one.promise} for one in answers]
        return {
            "result": write([_list_points(*pair, served) for pair in zip(bodies, answers, strict=True)]),
            "status": "ok",
            "time": 0.0,
            "usage": None,
            "scoreshield": served.mark({"collection": served.name, "version": served.version, "charges": charges}),
        }

    return await respond(asked, name, lambda served: _read_parts(served, bodies), describe)


def _read_parts(served: ServedCollection, bodies: list[QdrantQuery]) -> list[RankingRequest]:
    conditions = _Conditions(FieldTests(served))
    return [_read_part(served, body, conditions) for body in bodies]


def _read_part(served: ServedCollection, body: QdrantQuery, conditions: _Conditions) -> RankingRequest:
    # Some clients, such as 1.12, send an empty list of prefetches with each query.
    if any(getattr(body, name) not in (None, []) for name in _NOT_OFFERED):
        raise ServiceProblem.of_reason("stages")
    if body.with_vector not in (None, False, []):
        raise ServiceProblem.of_reason("vectors")
    if body.using not in (None, ""):
        raise ServiceProblem.of_reason("vector name")
    query = served.read_query(_read_vector(body.query))
    # Qdrant answers with all its records where a request asks for more.
    k = min(body.limit + (body.offset or 0), served.data.size)
    where = None if body.filter is None else conditions.read_filter(body.filter)
    return RankingRequest(query, k, where)


def _read_vector(query: Any) -> list[float]:
    """Read a dense vector. A query by an id, by examples, by sparse vectors or by texts is something else."""
    if isinstance(query, dict) and set(query) <= {"nearest", "mmr"}:
        if query.get("mmr") is not None:
            raise ServiceProblem.of_reason("vectors")
        query = query.get("nearest")
    if not isinstance(query, list) or not query or not isinstance(query[0], int | float | str | None):
        raise ServiceProblem.of_reason("query")
    try:
        vector: list[float] = _VECTOR.validate_python(query)
    except ValidationError:
        raise reject_form() from None
    return vector


class _Conditions:
    """Reads the filters of one request of Qdrant as tests of public fields."""

    def __init__(self, tests: FieldTests) -> None:
        self._tests = tests

    def read_filter(self, content: Any, depth: int = 0) -> RecordTest:
        """Read a filter: conditions that must, must not or should hold, or of which a number should."""
        clauses = _drop_nulls(content)
        if depth > MOST_DEPTH or not set(clauses) <= {"must", "must_not", "should", "min_should"}:
            raise reject_form()
        must = self._read_list(clauses.get("must"), depth)
        must_not = self._read_list(clauses.get("must_not"), depth)
        should = self._read_list(clauses.get("should"), depth)
        enough: list[RecordTest] = []
        least = 0
        if "min_should" in clauses:
            part = _drop_nulls(clauses["min_should"])
            if set(part) != {"conditions", "min_count"} or type(part["min_count"]) is not int:
                raise reject_form()
            enough, least = self._read_list(part["conditions"], depth), part["min_count"]
        return lambda record: (
            all(test(record) for test in must)
            and not any(test(record) for test in must_not)
            and (not should or any(test(record) for test in should))
            and sum(test(record) for test in enough) >= least
        )

    def _read_list(self, content: Any, depth: int) -> list[RecordTest]:
        if content is None:
            return []
        listed = content if isinstance(content, list) else [content]
        return [self._read_condition(_drop_nulls(one), depth) for one in listed]

    def _read_condition(self, content: dict[str, Any], depth: int) -> RecordTest:
        self._tests.count_condition()
        if set(content) & {"must", "must_not", "should", "min_should"}:
            return self.read_filter(content, depth + 1)
        for kind in ("is_null", "is_empty"):
            if set(content) == {kind} and isinstance(content[kind], dict):
                return self._tests.is_null(content[kind].get("key"))
        if not content:
            raise reject_form()
        # Ids, vectors, places on earth and nested lists.
        if "key" not in content or not set(content) <= {"key", "match", "range", "is_null", "is_empty"}:
            raise ServiceProblem.of_reason("filter")
        name = self._tests.find(content.pop("key"))
        tests = [test for kind, value in content.items() for test in self._read_field(name, kind, value)]
        if not tests:
            raise reject_form()
        return lambda record: all(test(record) for test in tests)

    def _read_field(self, name: str, kind: str, value: Any) -> list[RecordTest]:
        if kind in ("is_null", "is_empty"):
            if not isinstance(value, bool):
                raise reject_form()
            is_null = self._tests.is_null(name)
            return [lambda record: is_null(record) == value]
        members = _drop_nulls(value)
        if kind == "range":
            return [self._tests.compare(name, bound, members[bound]) for bound in members]
        if set(members) == {"value"}:
            return [self._tests.is_one_of(name, [members["value"]])]
        if set(members) == {"any"}:
            return [self._tests.is_one_of(name, members["any"])]
        if set(members) == {"except"}:
            excluded, is_null = self._tests.is_one_of(name, members["except"]), self._tests.is_null(name)
            return [lambda record: not excluded(record) and not is_null(record)]
        raise ServiceProblem.of_reason("filter")  # a search in the text of a field


def _drop_nulls(content: Any) -> dict[str, Any]:
    if not isinstance(content, dict):
        raise reject_form()
    return {name: value for name, value in content.items() if value is not None}


def _list_points(body: QdrantQuery, answer: ServedAnswer, served: ServedCollection) -> Points:
    choose = _read_payload(body.with_payload)
    least = body.score_threshold
    return [
        {
            "id": hit.id,
            "version": served.version,
            "score": hit.score,
            "payload": None if choose is None else nest_fields({n: v for n, v in hit.fields.items() if choose(n)}),
        }
        for hit in answer.hits[body.offset or 0 :]
        if least is None or (hit.score is not None and hit.score >= least)
    ]


def _read_payload(wanted: bool | list[str] | dict[str, list[str] | None] | None) -> Callable[[str], bool] | None:
    """Return which fields are shown; None for no payload at all."""
    if wanted is None or wanted is False:
        return None
    if wanted is True:
        return lambda _: True
    include = wanted if isinstance(wanted, list) else wanted.get("include")
    exclude = [] if isinstance(wanted, list) else wanted.get("exclude") or []
    return lambda name: (include is None or _is_below(name, include)) and not _is_below(name, exclude)


def _is_below(name: str, paths: list[str]) -> bool:
    return any(name == path or name.startswith(f"{path}.") for path in paths)


def nest_fields(fields: Mapping[str, FieldValue]) -> dict[str, Any]:
    """Write a field ``metadata.year`` as ``{"metadata": {"year": ...}}``. Filters of Qdrant use the first name."""
    nested: dict[str, Any] = {}
    for name, value in fields.items():
        *parents, last = name.split(".")
        if any(".".join(parents[: end + 1]) in fields for end in range(len(parents))):
            parents, last = [], name  # the parent is a field itself, which has a value and no members
        inner = nested
        for parent in parents:
            inner = inner.setdefault(parent, {})
        inner[last] = value
    return nested


def _write(result: dict[str, Any]) -> Response:
    return write_document({"result": result, "status": "ok", "time": 0.0, "usage": None})
