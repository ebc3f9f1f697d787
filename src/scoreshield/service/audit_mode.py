"""A service for auditors: each request brings its own collection and gets one fresh release of it.

An audit compares two collections, so it must be able to choose them (`scoreshield audit http://...`). Here the same
code as in the real service makes the query canonical, prepares the release, draws its noise, rounds, ranks, and writes
and signs the answer. There are no records, no ledger, no keys and no stored answers: nothing private can leave, and
nothing is charged. It listens on this computer only, unless the policy says otherwise.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Sequence
from typing import Annotated, Any, Literal

import numpy as np
from fastapi import APIRouter, FastAPI, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import Response
from pydantic import Field

from scoreshield._version import VERSION
from scoreshield.errors import InvalidInput
from scoreshield.privacy.ledger.entries import write_canonical_json
from scoreshield.service.answers import AnswerBook, AnswerRequest, Payer, StoredAnswer, make_pending_row
from scoreshield.service.application import ServiceMiddleware, add_error_handlers, log_request
from scoreshield.service.collection import CollectionData
from scoreshield.service.core import ServedCollection
from scoreshield.service.installation import InstallationKey
from scoreshield.service.memory import SizedCache, hash_request
from scoreshield.service.offers import make_offers
from scoreshield.service.policy import CollectionPolicy, Policy
from scoreshield.service.problems import ServiceProblem
from scoreshield.service.rest import JSON, CollectionName, RequestModel, Vector, describe_answer

router = APIRouter()
_PAYER = Payer("auditor")
_ACTIONS = {"search": "search", "matches": "matches", "top-k": "top_k"}


class AuditBody(RequestModel):
    """A collection of an auditor, and a query to it."""

    embeddings: Annotated[list[Vector], Field(min_length=1, max_length=100_000)]
    query: Vector
    k: Annotated[int, Field(ge=1, le=1_000_000)] | None = None


class UnchargedBook(AnswerBook):
    """Draws every answer anew, from a seed of its own, and stores none."""

    def __init__(self, name: str, key: InstallationKey) -> None:
        self._name, self._version, self._snapshot, self._key = name, 1, secrets.token_hex(32), key
        self._older, self._drawing = self._snapshot, threading.Semaphore()

    def answer(self, requests: Sequence[AnswerRequest], payer: Payer) -> list[StoredAnswer]:
        del payer
        answers = []
        for request in requests:
            offer = request.offer
            row = make_pending_row(request, offer.hash_promise(offer.guarantee), secrets.token_hex(32), self._key)
            content = self._draw(request, row, None).content
            answers.append(StoredAnswer(content, row.entry, self._key.signer.public, is_fresh=True))
        return answers


class AuditedCollection(ServedCollection):
    """A collection of an auditor, under the policy of a served one. It has no ledger."""

    def __init__(self, name: str, policy: CollectionPolicy, data: CollectionData, key: InstallationKey) -> None:
        self.name, self.policy, self.data, self.version = name, policy, data, 1
        self.offers = make_offers(name, policy, data)
        self.bodies = SizedCache(0)
        self._book = UnchargedBook(name, key)
        self._embedder, self._index, self._lock = None, None, threading.Lock()


class AuditService:
    """The policies of the collections, and a signing key of its own.

    Attributes:
        policy: The policy, whose collections lend their mechanisms.
        key: Secrets that last as long as the process.
    """

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.key = InstallationKey(secrets.token_bytes(32), [secrets.token_bytes(32)])

    def recall(self, key: str | None, path: str, body: bytes) -> None:
        """Remember nothing: every request is a release of its own."""

    def answer(self, name: str, action: str, body: AuditBody, request: str) -> bytes:
        """Release one answer about the auditor's collection, as bytes of the real service.

        Args:
            name: The collection whose policy answers.
            action: What is asked of it.
            body: The collection of the auditor, and the query.
            request: The hash of path and body, which the answer names.

        Raises:
            ServiceProblem: There is no such collection or action, or the body does not fit.
        """
        policy = self.policy.collections.get(name)
        if policy is None:
            raise ServiceProblem("unknown_collection")
        if action not in policy.list_actions() or (policy.search is not None and policy.search.mechanism == "index"):
            raise ServiceProblem("action_not_allowed")
        if len({len(row) for row in body.embeddings}) != 1:
            raise ServiceProblem("invalid_request")
        with np.errstate(over="ignore"):
            vectors = np.array(body.embeddings, dtype=np.float32)
        if not np.isfinite(vectors).all():
            raise ServiceProblem("invalid_request")
        try:
            served = AuditedCollection(name, policy, CollectionData(vectors, range(len(vectors)), {}), self.key)
            answer = served.search(_PAYER, action, [served.read_query(body.query)], body.k)[0]
        except InvalidInput:  # such as fewer records than the policy asks for
            raise ServiceProblem("invalid_request") from None
        signed = self.key.signer.sign_document({**describe_answer(served, action, answer), "request": request})
        return write_canonical_json(signed).encode("ascii")


@router.post("/v1/audit/{name}/{action}")
async def release_for_audit(
    name: CollectionName, action: Literal["search", "matches", "top-k"], body: AuditBody, request: Request
) -> Response:
    """Release one answer about a collection that the request brings. Every request draws fresh noise."""
    service: AuditService = request.app.state.service
    place = hash_request(request.scope["path"], await request.body())
    return Response(await run_in_threadpool(service.answer, name, _ACTIONS[action], body, place), media_type=JSON)


def create_audit_app(service: AuditService) -> FastAPI:
    """Make the application of an audit, with the limits, headers and errors of the real one."""
    app = FastAPI(title="ScoreShield, for an audit", version=VERSION, docs_url=None, redoc_url=None)
    app.state.service = service
    app.include_router(router)
    add_error_handlers(app)
    middleware: Any = ServiceMiddleware
    app.add_middleware(middleware, service=service, observers=[log_request])
    return app
