"""MCP: the tools ``search`` and ``budget`` over stateless streamable HTTP, for programs that drive language models."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Annotated, Any, get_args

from anyio import CapacityLimiter, to_thread
from fastapi.concurrency import run_in_threadpool
from mcp import types
from mcp.server import Server
from mcp.server.context import ServerRequestContext
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from pydantic import Field, ValidationError
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import Message, Receive, Scope, Send

from scoreshield._version import VERSION
from scoreshield.privacy.ledger.entries import write_canonical_json
from scoreshield.service.answers import Payer
from scoreshield.service.core import Caller, Service
from scoreshield.service.interfaces import find_problem, reject_form
from scoreshield.service.memory import hash_request
from scoreshield.service.problems import ServiceProblem
from scoreshield.service.rest import FILTER_TEXT, FieldFilter, RequestModel, Vector, describe_answer

LOG = logging.getLogger("scoreshield.service")
Context = ServerRequestContext[Any, Request]
_MALFORMED = {
    "jsonrpc": "2.0",
    "id": None,
    "error": {"code": types.INVALID_REQUEST, "message": "The body is no JSON-RPC message."},
}
#: The names of methods that the protocol knows. An error may repeat them, and no other name.
_METHODS = {
    method
    for one in (*get_args(types.ClientRequest), *get_args(types.ClientNotification))
    for method in get_args(one.model_fields["method"].annotation)
}
_SEARCH = (
    "Search a private collection. The answer is a differentially private release: scores are noisy, and so is the "
    "order. A new query spends privacy budget; the same query again gets the same answer and spends nothing."
)
_BUDGET = "Show how much privacy budget of a collection is spent, and how many queries are left. It spends nothing."


class SearchArguments(RequestModel):
    """The arguments of the tool search."""

    collection: Annotated[str, Field(max_length=40)]
    query: Annotated[
        Annotated[str, Field(min_length=1, max_length=65_536)] | Vector,
        Field(description="A text, where the collection has an embedder, or a vector."),
    ]
    k: Annotated[int, Field(ge=1, le=1_000_000, description="How many records.")] | None = None
    filter: FieldFilter | None = Field(default=None, description=FILTER_TEXT)


class BudgetArguments(RequestModel):
    """The arguments of the tool budget."""

    collection: Annotated[str, Field(max_length=40)]


class ToolEndpoint:
    """Answers MCP requests at one path. A key is asked for before anything else is read.

    Attributes:
        path: The path, which logs name.
    """

    path = "/mcp"

    def __init__(self, service: Service) -> None:
        self._service = service
        self._manager: StreamableHTTPSessionManager | None = None

    @asynccontextmanager
    async def run(self) -> AsyncIterator[None]:
        """Answer requests until the context ends."""
        server: Server[Any] = Server(
            "scoreshield", version=VERSION, on_list_tools=self._list_tools, on_call_tool=self._call_tool
        )
        # Whole answers instead of streams: an answer leaves at a coarse time, and no state is kept between requests.
        self._manager = StreamableHTTPSessionManager(server, json_response=True, stateless=True)
        async with self._manager.run():
            yield
        self._manager = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope["route"] = self  # as FastAPI does for its own routes
        if self._manager is None or not self._service.is_ready:
            raise ServiceProblem("not_ready")
        request = Request(scope, receive)
        scheme, _, bearer = request.headers.get("authorization", "").partition(" ")
        key = bearer.strip() if scheme.lower() == "bearer" else request.headers.get("api-key")
        caller = await run_in_threadpool(self._service.authenticate, key)
        request.state.caller, request.state.tool_caller = caller.name, caller
        body = await request.body()
        # The sentences of the library would repeat values of the request.
        try:
            message = types.jsonrpc_message_adapter.validate_json(body)
        except ValidationError:
            await JSONResponse(_MALFORMED, 400)(scope, receive, send)
            return
        if isinstance(message, types.JSONRPCRequest) and message.method not in _METHODS:
            error = {"code": types.METHOD_NOT_FOUND, "message": "Method not found"}
            await JSONResponse({"jsonrpc": "2.0", "id": message.id, "error": error}, 404)(scope, receive, send)
            return
        await self._manager.handle_request(scope, _repeat(body, receive), send)

    async def _list_tools(self, context: Context, _: types.PaginatedRequestParams | None) -> types.ListToolsResult:
        """List the tools, with the collections that the key opens as the values of an argument."""
        names = [served.name for served in self._service.list_collections(_find_caller(context))]
        tools = []
        for name, text, model in (("search", _SEARCH, SearchArguments), ("budget", _BUDGET, BudgetArguments)):
            schema = model.model_json_schema()
            schema["properties"]["collection"] = {"type": "string", "enum": names}
            # A repeated call has the effect of one, and no call changes a record.
            hints = types.ToolAnnotations(read_only_hint=name == "budget", idempotent_hint=True, open_world_hint=False)
            tools.append(types.Tool(name=name, description=text, input_schema=schema, annotations=hints))
        return types.ListToolsResult(tools=tools)

    async def _call_tool(self, context: Context, call: types.CallToolRequestParams) -> types.CallToolResult:
        try:
            arguments = call.arguments or {}
            answer = partial(self._answer, context, call.name, arguments)
            content = await to_thread.run_sync(answer, limiter=self._find_threads(context, call))
            is_error = False
        except Exception as error:
            # Neither the text nor the frames of an unforeseen error may reach a log or a caller.
            problem = find_problem(error)
            if problem.code == "internal_error":
                LOG.error("unforeseen error", extra={"facts": {"kind": type(error).__name__}})
            content, is_error = json.dumps(problem.to_dict(), sort_keys=True), True
        text = types.TextContent(type="text", text=content)
        return types.CallToolResult(content=[text], structured_content=json.loads(content), is_error=is_error)

    def _find_threads(self, context: Context, call: types.CallToolRequestParams) -> CapacityLimiter | None:
        """Find where a call runs: one with a text in those of its collection, if the caller may search it."""
        arguments = call.arguments or {}
        name, query = arguments.get("collection"), arguments.get("query")
        if call.name != "search" or not isinstance(name, str) or not isinstance(query, str):
            return None
        return self._service.find_text_threads(self._service.open(_find_caller(context), name, "search")[0])

    def _answer(self, context: Context, name: str, arguments: dict[str, Any]) -> str:
        caller, service = _find_caller(context), self._service
        try:
            if name == "search":
                return self._search(context, caller, SearchArguments.model_validate(arguments), arguments)
            if name == "budget":
                served, grant = service.open(caller, BudgetArguments.model_validate(arguments).collection)
                return write_canonical_json(served.describe_budget(caller, grant))
        except ValidationError:
            raise reject_form() from None
        raise ServiceProblem("not_offered")

    def _search(self, context: Context, caller: Caller, wanted: SearchArguments, arguments: dict[str, Any]) -> str:
        served, grant = self._service.open(caller, wanted.collection, "search")
        query = wanted.query
        canonical = served.read_text(query) if isinstance(query, str) else served.read_query(query)
        # As the path under /v1 would name the same request. What cannot be written is found before the charge.
        try:
            body = write_canonical_json({name: value for name, value in arguments.items() if name != "collection"})
        except ValueError:
            raise reject_form() from None
        request = hash_request(f"/v1/collections/{served.name}/search", body.encode("ascii"))
        payer = Payer(caller.name, grant.allowance)
        answer = served.search(payer, "search", [canonical], wanted.k, wanted.filter)[0]
        if context.request is not None:
            context.request.state.is_fresh = answer.is_fresh
        document = {**describe_answer(served, "search", answer), "request": request}
        return self._service.sign(document, answer.signer).decode("ascii")


def _repeat(body: bytes, receive: Receive) -> Receive:
    """Return a channel that gives a body which was read already, and then what follows it."""
    left = [body]

    async def repeat() -> Message:
        return {"type": "http.request", "body": left.pop(), "more_body": False} if left else await receive()

    return repeat


def _find_caller(context: Context) -> Caller:
    caller = None if context.request is None else getattr(context.request.state, "tool_caller", None)
    if not isinstance(caller, Caller):
        raise ServiceProblem("missing_key")
    return caller
