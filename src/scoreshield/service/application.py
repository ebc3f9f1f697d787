"""The FastAPI application: its paths, its limits, its headers and its errors."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from fastapi import APIRouter, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from starlette.exceptions import HTTPException
from starlette.routing import Route

from scoreshield._version import VERSION
from scoreshield.errors import InvalidInput, LedgerError, ScoreShieldError
from scoreshield.service import key_paths, metrics, qdrant, sign_in, vector_stores
from scoreshield.service.core import Service
from scoreshield.service.dashboard import password, routes
from scoreshield.service.interfaces import PROBLEM_STATUSES, FormRoute
from scoreshield.service.mcp_tools import ToolEndpoint
from scoreshield.service.observation import Observer, RequestFacts, read_facts
from scoreshield.service.policy import InstallationPolicy
from scoreshield.service.problems import MEDIA_TYPE, ServiceProblem, describe_faults
from scoreshield.service.rest import ProblemModel, router
from scoreshield.service.traces import RequestTraces, SpanProvider, open_provider

LOG = logging.getLogger("scoreshield.service")
_HEADERS = {
    "cache-control": "no-store",
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "cross-origin-resource-policy": "same-origin",
}
_HEADER_PAIRS = [(name.encode("ascii"), value.encode("ascii")) for name, value in _HEADERS.items()]
#: A response may bring its own instead, as pages and their files do.
_REPLACEABLE = {b"cache-control", b"content-security-policy"}
_STRICT_TRANSPORT = (b"strict-transport-security", b"max-age=31536000")
_PROBLEM = ProblemModel.model_json_schema()
#: The paths of other programs' clients, which show the sentence of an error only in their own form. OpenAI's client has
#: more paths than the service, and shows nothing of any other form.
_FORMS: dict[type[FormRoute], re.Pattern[str]] = {
    qdrant.QdrantRoute: re.compile("/collections(/|$)"),
    vector_stores.OpenAIRoute: re.compile(
        "/v1/(vector_stores|files|models|embeddings|responses|chat|completions)(/|$)"
    ),
}
#: It answers also when the service is busy, so that a busy process is not taken for a dead one.
_ALWAYS = "/livez"
#: A request that has waited for its body for so many seconds gives its place to a new one where there is no other.
_PLACE_SECONDS = 0.25

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


def create_app(service: Service, spans: SpanProvider | None = None) -> FastAPI:
    """Make the application of a service. Other interfaces are added with ``include_router``.

    Args:
        service: What is served.
        spans: Where spans go; by default to the collector that the policy names, or nowhere.
    """

    tools = ToolEndpoint(service)
    counts = metrics.RequestCounts()
    wanted = service.policy.installation.traces
    if spans is None and wanted is not None:
        spans = open_provider(wanted)
    observers: list[Observer] = [log_request, counts.observe]
    if spans is not None:
        observers.append(RequestTraces(spans).observe)

    @asynccontextmanager
    async def run(_: FastAPI) -> AsyncIterator[None]:
        async with tools.run():
            yield
        service.close()
        if spans is not None:
            spans.shutdown()

    app = FastAPI(
        title="ScoreShield",
        version=VERSION,
        summary="Private collections: every answer is a differentially private release.",
        docs_url=None,  # their pages fetch scripts from elsewhere
        redoc_url=None,
        redirect_slashes=False,  # the address of a redirect would come from headers of the request
        lifespan=run,
        responses={
            status: {"description": "A problem document", "content": {MEDIA_TYPE: {"schema": _PROBLEM}}}
            for status in PROBLEM_STATUSES
        },
    )
    app.state.service, app.state.counts = service, counts
    pages = (sign_in.router, password.router, routes.router)  # the last one has a page for every other path
    for one in (router, key_paths.router, metrics.router, qdrant.router, vector_stores.router, *pages):
        app.include_router(one)
    if service.policy.installation.oidc is not None:
        app.include_router(_make_oidc_router(service))
    app.router.routes.append(Route(tools.path, tools, methods=["POST"]))
    add_error_handlers(app)
    app.add_middleware(ServiceMiddleware, service=service, observers=observers)
    return app


def add_error_handlers(app: FastAPI) -> None:
    """Let every error become a problem document with one fixed sentence."""
    app.add_exception_handler(ServiceProblem, _answer_problem)
    app.add_exception_handler(LedgerError, lambda *_: make_response(ServiceProblem("ledger_unavailable")))
    app.add_exception_handler(ScoreShieldError, lambda *_: make_response(ServiceProblem("internal_error")))
    app.add_exception_handler(RequestValidationError, _answer_validation)
    app.add_exception_handler(HTTPException, _answer_http)
    app.add_exception_handler(sign_in.SignInNeeded, sign_in.answer_sign_in_needed)


def _make_oidc_router(service: Service) -> APIRouter:
    """Make the paths of OpenID Connect, which need another extra."""
    try:
        from scoreshield.service.oidc import OidcProvider, make_oidc_router
    except ImportError as error:
        if (error.name or "").partition(".")[0] not in ("httpx", "joserfc"):
            raise
        raise InvalidInput("OpenID Connect needs the 'oidc' extra: pip install 'scoreshield[oidc]'.") from None
    assert service.policy.installation.oidc is not None
    return make_oidc_router(service, OidcProvider(service.policy.installation.oidc, service.key))


def make_response(problem: ServiceProblem) -> Response:
    """Write a problem as application/problem+json."""
    content = json.dumps(problem.to_dict(), sort_keys=True).encode("ascii")
    return Response(content, problem.status, {**problem.headers, "x-problem-code": problem.code}, MEDIA_TYPE)


def make_response_in_form(path: str, problem: ServiceProblem) -> Response:
    """Write a problem that was found before or beside the routes, in the form that clients of a path read."""
    for form, pattern in _FORMS.items():
        if pattern.match(path):
            return form.make_response(problem)
    return make_response(problem)


def _answer_problem(_: Request, error: Exception) -> Response:
    assert isinstance(error, ServiceProblem)
    return make_response(error)


def _answer_validation(_: Request, error: Exception) -> Response:
    """Name the place of the fault, and no value."""
    assert isinstance(error, RequestValidationError)
    return make_response(describe_faults(error.errors(), error.body))


def _answer_http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    codes = {400: "invalid_json", 404: "not_found", 405: "method_not_allowed", 413: "body_too_large"}
    problem = ServiceProblem(codes.get(error.status_code, "invalid_request"))
    response = make_response_in_form(request.url.path, problem)
    for name, value in (error.headers or {}).items():
        response.headers[name] = value
    return response


class ServiceMiddleware:
    """Limits requests, adds the headers, delays answers to a coarse time, and reports the facts of each request."""

    def __init__(self, app: Any, service: Service, observers: Sequence[Observer]) -> None:
        self._app, self._service, self._observers = app, service, observers
        self._running = 0  # only the thread of the event loop counts
        self._arriving: dict[asyncio.Timeout, float] = {}  # since when bodies are awaited, the oldest first

    @property
    def _here(self) -> InstallationPolicy:
        return self._service.policy.installation

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begin = time.monotonic()
        status, code = 500, ""
        has_started = False

        async def send_with_headers(message: MutableMapping[str, Any]) -> None:
            nonlocal status, code, has_started
            if message["type"] == "http.response.start":
                status, has_started = message["status"], True
                code = dict(message["headers"]).get(b"x-problem-code", b"").decode("ascii")
                own = {name for name, _ in message["headers"]} & _REPLACEABLE
                message["headers"] = [
                    *(pair for pair in message["headers"] if pair[0] != b"x-problem-code"),
                    *(pair for pair in _HEADER_PAIRS if pair[0] not in own),
                    *([_STRICT_TRANSPORT] if scope["scheme"] == "https" else []),
                ]
                if scope.get("state", {}).get("is_fresh"):
                    await self._wait(begin)
            await send(message)

        self._running += 1
        try:
            self._check_load(scope)
            body = await self._read_body(receive)
            # The times of an answer count from the last byte. A caller who holds it back chooses nothing by it.
            begin = time.monotonic()
            known = self._recall(scope, body)
            if known is None:
                await self._app(scope, _replay(body, receive), send_with_headers)
            else:
                await _send_bytes(known, send_with_headers)
        except ServiceProblem as problem:
            await make_response_in_form(scope["path"], problem)(scope, receive, send_with_headers)
        except Exception as error:
            # Neither the text nor the frames of an unforeseen error may reach a log or a caller.
            LOG.error("unforeseen error", extra={"facts": {"kind": type(error).__name__}})
            if not has_started:
                response = make_response_in_form(scope["path"], ServiceProblem("internal_error"))
                await response(scope, receive, send_with_headers)
        finally:
            self._running -= 1
            facts = read_facts(scope, status, code, time.monotonic() - begin)
            for observe in self._observers:
                observe(facts)

    def _check_load(self, scope: Scope) -> None:
        """Reject a request beyond the number that is handled at a time, or with a head that is too large."""
        here = self._here
        if self._running > here.most_requests and scope["path"] != _ALWAYS and not self._make_room():
            raise ServiceProblem("too_busy", headers={"retry-after": "1", "connection": "close"})
        size = len(scope.get("raw_path") or scope["path"]) + len(scope["query_string"])
        if size + sum([len(name) + len(value) for name, value in scope["headers"]]) > here.largest_head:
            raise ServiceProblem("head_too_large", headers={"connection": "close"})

    def _make_room(self) -> bool:
        """End the request that has waited longest for its body, if it has waited long enough; return whether it did.

        Bodies arrive before keys are checked. Otherwise anyone could take all places with requests without a body.
        """
        now = time.monotonic()
        oldest = next(iter(self._arriving), None)
        if oldest is None or now - self._arriving[oldest] < _PLACE_SECONDS:
            return False
        del self._arriving[oldest]
        oldest.reschedule(asyncio.get_running_loop().time())
        return True

    def _recall(self, scope: Scope, body: bytes) -> bytes | None:
        """Find the answer that the same request got before, without the way through routes, models and threads."""
        if scope["method"] != "POST" or scope["query_string"]:
            return None
        headers = dict(scope["headers"])
        if b"idempotency-key" in headers or headers.get(b"content-type") != b"application/json":
            return None
        scheme, _, key = headers.get(b"authorization", b"").partition(b" ")
        if scheme.lower() != b"bearer":
            key = headers.get(b"api-key", b"")
        found = self._service.recall(key.decode("latin-1").strip(), scope["path"], body)
        if found is None:
            return None
        caller, known = found
        scope["route"] = known.route
        scope.setdefault("state", {}).update(caller=caller.name, is_fresh=False)
        return known.content

    async def _read_body(self, receive: Receive) -> bytes:
        """Read the whole body, and no more than the policy allows, in the time that it allows."""
        try:
            async with asyncio.timeout(self._here.request_seconds) as limit:
                self._arriving[limit] = time.monotonic()
                try:
                    return await self._read_parts(receive)
                finally:
                    self._arriving.pop(limit, None)
        except TimeoutError:
            raise ServiceProblem("body_too_slow", headers={"connection": "close"}) from None

    async def _read_parts(self, receive: Receive) -> bytes:
        parts, size = [], 0
        while True:
            message = await receive()
            if message["type"] != "http.request":
                raise ServiceProblem("body_incomplete")  # the client has gone; what arrived may look like a whole body
            part = message.get("body", b"")
            size += len(part)
            if size > self._here.largest_body:
                raise ServiceProblem("body_too_large")
            parts.append(part)
            if not message.get("more_body", False):
                break
        return b"".join(parts)

    async def _wait(self, begin: float) -> None:
        """Wait until a multiple of the time step has passed, so that the time says little about the computation."""
        step = self._here.time_step
        if step:
            passed = time.monotonic() - begin
            await asyncio.sleep(step - passed % step)


async def _send_bytes(content: bytes, send: Send) -> None:
    headers = [(b"content-length", str(len(content)).encode("ascii")), (b"content-type", b"application/json")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": content})


def _replay(body: bytes, receive: Receive) -> Receive:
    is_sent = False

    async def replay() -> MutableMapping[str, Any]:
        nonlocal is_sent
        if is_sent:
            return await receive()
        is_sent = True
        return {"type": "http.request", "body": body, "more_body": False}

    return replay


def log_request(facts: RequestFacts) -> None:
    """Write a line without queries, vectors, scores and exact times."""
    method, path, status, code, caller, duration, _ = facts
    line = {"method": method, "path": path, "status": status, "code": code, "caller": caller, "duration": duration}
    LOG.info("request", extra={"facts": line})
