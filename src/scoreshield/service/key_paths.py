"""The paths under ``/v1/keys``: admins make, list, replace and end API keys.

A new key belongs to a caller of the policy and is never wider than what the policy grants this caller. It is not wider
than its author either: an admin of some collections makes keys for those, and a key that ends makes no key that lasts
longer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Path, Request, Security
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import Response
from fastapi.security import HTTPAuthorizationCredentials
from pydantic import BaseModel, Field, FiniteFloat

from scoreshield.errors import InvalidInput
from scoreshield.service.access import ApiKey
from scoreshield.service.core import Service
from scoreshield.service.events import Author
from scoreshield.service.policy import Action, Name
from scoreshield.service.problems import MEDIA_TYPE, ServiceProblem
from scoreshield.service.rest import BEARER, ProblemModel, RequestModel, ServiceArgument, authenticate
from scoreshield.service.sign_in import check_form_token, find_address, find_person

router = APIRouter(tags=["keys"])
Prefix = Annotated[str, Path(pattern=r"^[0-9a-f]{8}$")]


class NewKeyBody(RequestModel):
    """A key for a caller of the policy, and how much narrower than the caller it is."""

    caller: Name
    collections: Annotated[list[Name], Field(min_length=1, max_length=1000, fail_fast=True)] | None = None
    actions: Annotated[list[Action], Field(min_length=1, max_length=10, fail_fast=True)] | None = None
    days: Annotated[FiniteFloat, Field(gt=0, lt=36_500)] | None = None


class RotationBody(RequestModel):
    """For how many hours both keys are valid."""

    overlap_hours: Annotated[FiniteFloat, Field(ge=0, le=24 * 365)] = 24.0


class KeyModel(BaseModel):
    """The public facts of a key."""

    prefix: str
    caller: str
    collections: list[str] | None
    actions: list[str] | None
    state: str
    created: str
    expires: str | None
    successor: str | None


class NewKeyModel(KeyModel):
    """A new key with its text, which is shown once."""

    key: str


class KeyListModel(BaseModel):
    """The keys that the caller may manage, the oldest first."""

    keys: list[KeyModel]


@dataclass(frozen=True)
class KeyManager:
    """Who manages keys: an API key or a person of role admin.

    Attributes:
        author: The name in events.
        collections: The collections whose keys may be managed; None for all.
        expires: The latest end of keys that may be made; None for no limit.
    """

    author: Author
    collections: frozenset[str] | None
    expires: datetime | None

    def may_manage(self, key: ApiKey) -> bool:
        """Return whether a key opens no other collection than those of this manager."""
        is_within = key.collections is not None and set(key.collections) <= (self.collections or frozenset())
        return self.collections is None or is_within

    def may_outlast(self, expires: datetime | None) -> bool:
        """Return whether a key of this end may be made."""
        return self.expires is None or (expires is not None and expires <= self.expires)


async def find_manager(
    request: Request,
    service: ServiceArgument,
    bearer: Annotated[HTTPAuthorizationCredentials | None, Security(BEARER)],
) -> KeyManager:
    """Find who manages keys: by an API key, or by a session with its form token.

    Raises:
        ServiceProblem: There is neither, or its role is not admin.
    """
    if "authorization" in request.headers or "api-key" in request.headers:
        caller = await authenticate(request, service, bearer)
        key = caller.key
        if caller.policy.role != "admin" or key.actions is not None:  # a key for some actions manages nothing
            raise ServiceProblem("role_not_allowed")
        ends = [end for end in (key.expires, caller.policy.expires) if end is not None]
        # An admin of the policy that names collections is an admin of those alone.
        held = frozenset(caller.policy.collections) or frozenset(service.policy.collections)
        is_of_all = key.collections is None and held >= set(service.policy.collections)
        scope = None if is_of_all else held if key.collections is None else held & set(key.collections)
        return KeyManager(Author(f"key:{key.prefix}", find_address(request)), scope, min(ends, default=None))
    person = await run_in_threadpool(find_person, request)
    if person is None:
        raise ServiceProblem("missing_key")
    if request.method != "GET":
        check_form_token(request)
    if person.role != "admin":
        raise ServiceProblem("role_not_allowed")
    scope = None if person.has_all_collections else frozenset(person.collections)
    return KeyManager(Author(f"person:{person.name}", find_address(request)), scope, None)


ManagerArgument = Annotated[KeyManager, Depends(find_manager)]


@router.get("/v1/keys")
async def list_keys(service: ServiceArgument, manager: ManagerArgument) -> KeyListModel:
    """List the API keys that you may manage, without secrets."""
    found = await run_in_threadpool(service.keys.list_keys)
    return KeyListModel(keys=[KeyModel(**key.describe()) for key in found if manager.may_manage(key)])


@router.post("/v1/keys", status_code=201)
async def create_key(body: NewKeyBody, service: ServiceArgument, manager: ManagerArgument) -> NewKeyModel:
    """Create an API key for a caller of the policy. Its text is shown once."""
    key, text = await run_in_threadpool(
        make_key, service, manager, body.caller, body.collections, body.actions, body.days
    )
    return _show_new_key(key, text)


@router.post(
    "/v1/keys/{prefix}/rotate",
    status_code=201,
    responses={
        409: {
            "description": "A problem document",
            "content": {MEDIA_TYPE: {"schema": ProblemModel.model_json_schema()}},
        }
    },
)
async def rotate_key(
    prefix: Prefix, service: ServiceArgument, manager: ManagerArgument, body: RotationBody | None = None
) -> NewKeyModel:
    """Make the successor of an API key. Both are valid for a while. The text of the new one is shown once."""
    overlap = timedelta(hours=(body or RotationBody()).overlap_hours)
    return _show_new_key(*await run_in_threadpool(replace_key, service, manager, prefix, overlap))


@router.delete("/v1/keys/{prefix}", status_code=204, response_class=Response)
async def revoke_key(prefix: Prefix, service: ServiceArgument, manager: ManagerArgument) -> Response:
    """Revoke an API key, now and forever. It takes effect within a second on every replica."""
    await run_in_threadpool(end_key, service, manager, prefix)
    return Response(status_code=204)


def make_key(
    service: Service,
    manager: KeyManager,
    caller: str,
    collections: Sequence[str] | None,
    actions: Sequence[str] | None,
    days: float | None,
) -> tuple[ApiKey, str]:
    """Make a key that is neither wider than its caller nor than its author; return its facts and its text.

    Raises:
        ServiceProblem: The policy has no such caller, or does not grant this.
    """
    policy = service.policy.callers.get(caller)
    if policy is None:
        raise ServiceProblem("unknown_caller")
    scope = set(policy.collections if collections is None else collections)
    granted = {action for name in scope & set(policy.collections) for action in policy.collections[name].actions}
    expires = manager.expires if days is None else datetime.now(UTC) + timedelta(days=days)
    # Without names of collections, a key would grow with the policy, beyond what a narrow author manages.
    is_within = manager.collections is None or (collections is not None and scope <= manager.collections)
    is_granted = scope <= set(policy.collections) and set(actions or ()) <= granted
    if not (is_within and is_granted and manager.may_outlast(expires)):
        raise ServiceProblem("grant_too_wide")
    return service.keys.create(caller, collections=collections, actions=actions, expires=expires, author=manager.author)


def replace_key(service: Service, manager: KeyManager, prefix: str, overlap: timedelta) -> tuple[ApiKey, str]:
    """Make the successor of a key; return its facts and its text.

    Raises:
        ServiceProblem: There is no such key, it has ended, or its successor would be wider than the author.
    """
    key = _find_key(service, manager, prefix)
    if key.caller not in service.policy.callers:
        raise ServiceProblem("unknown_caller")
    if not manager.may_outlast(key.expires):
        raise ServiceProblem("grant_too_wide")
    try:
        return service.keys.rotate(prefix, overlap=overlap, author=manager.author)
    except InvalidInput:
        raise ServiceProblem("key_ended") from None


def end_key(service: Service, manager: KeyManager, prefix: str) -> None:
    """Revoke a key.

    Raises:
        ServiceProblem: There is no such key.
    """
    _find_key(service, manager, prefix)
    service.keys.revoke(prefix, author=manager.author)


def _find_key(service: Service, manager: KeyManager, prefix: str) -> ApiKey:
    key = service.keys.find(prefix)
    if key is None or not manager.may_manage(key):
        raise ServiceProblem("unknown_key")
    return key


def _show_new_key(key: ApiKey, text: str) -> NewKeyModel:
    facts: dict[str, Any] = key.describe()
    return NewKeyModel(**facts, key=text)
