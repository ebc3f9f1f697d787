"""Sign-in of people over HTTP: cookies, form tokens, and the paths ``/sign-in`` and ``/sign-out``.

Pages for people use four functions. `require_person` is a dependency that names the roles which may see a page.
`find_person` finds who is signed in. `make_form_token` makes the token that each form and each request of a script
carries, and `check_form_token` checks it, so that no other site can send requests in a person's name.
"""

from __future__ import annotations

import hmac
import re
import secrets
from collections.abc import Callable
from typing import Annotated, Literal
from urllib.parse import parse_qsl, quote

from anyio import CapacityLimiter, to_thread
from fastapi import APIRouter, Depends, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import RedirectResponse, Response

from scoreshield.service.core import Service
from scoreshield.service.pages import make_page
from scoreshield.service.people import LONGEST_TIME, Person
from scoreshield.service.policy import Role
from scoreshield.service.problems import ServiceProblem
from scoreshield.service.rest import get_service

router = APIRouter(include_in_schema=False)
SIGN_IN = "/sign-in"
#: The two paths of a sign-in by OpenID Connect.
OIDC_START, OIDC_CALLBACK = f"{SIGN_IN}/oidc", f"{SIGN_IN}/oidc/callback"
#: Where people arrive after they have signed in.
HOME = "/dashboard"
#: The header and the field that carry the form token.
TOKEN_HEADER, TOKEN_FIELD = "X-CSRF-Token", "form_token"
_SESSION, _VISITOR = "scoreshield-session", "scoreshield-visitor"
_SECRET = re.compile(r"[A-Za-z0-9_-]{43}")
#: Only pages of the dashboard, by plain characters: no other host, no other scheme, no line break.
_NEXT = re.compile(r"/dashboard(/[A-Za-z0-9_.~-]+)*/?(\?[A-Za-z0-9_.~=&%+-]*)?")
_FORM = "application/x-www-form-urlencoded"
#: How many passwords are hashed at the same time. Each hash takes 64 MiB.
_HASHES = 2


class SignInNeeded(Exception):
    """A page that needs a person, asked for by a browser that is not signed in.

    Attributes:
        next: The page.
    """

    def __init__(self, next_: str) -> None:
        self.next = next_
        super().__init__("A person must sign in first.")


def find_person(request: Request) -> Person | None:
    """Find who is signed in; None for no one. It reads the database, so call it in a thread."""
    state = request.state
    if not hasattr(state, "person"):
        service: Service = request.app.state.service
        token = read_cookie(request, _SESSION)
        facts = None if token is None else service.people.find_session(token)
        if facts is None:
            state.person = None
        else:
            seen = [name for name in service.collections if facts.collections is None or name in facts.collections]
            has_all = facts.collections is None
            state.person = Person(facts.name, facts.role, tuple(seen), has_all, facts.has_password)
            state.caller = f"person:{facts.name}"
    found: Person | None = state.person
    return found


def require_person(*roles: Role) -> Callable[[Request], Person]:
    """Make a dependency that returns who is signed in.

    Args:
        *roles: The roles that may pass; all if none is given.

    Returns:
        A dependency. A browser that opens a page without a session is sent to ``/sign-in``. Any other request gets 401
        without a session, and 403 for another role.
    """

    def require(request: Request) -> Person:
        person = find_person(request)
        if person is None:
            is_script = "hx-request" in request.headers
            if request.method == "GET" and "text/html" in request.headers.get("accept", "") and not is_script:
                query = f"?{request.url.query}" if request.url.query else ""
                raise SignInNeeded(request.url.path + query)
            raise ServiceProblem("not_signed_in", headers={"hx-redirect": SIGN_IN} if is_script else None)
        if roles and person.role not in roles:
            raise ServiceProblem("role_not_allowed")
        return person

    return require


def make_form_token(request: Request) -> str:
    """Make the token that forms of a signed-in person carry. It is bound to the session.

    Raises:
        ServiceProblem: There is no session.
    """
    token = read_cookie(request, _SESSION)
    if token is None:
        raise ServiceProblem("not_signed_in")
    return _compute_form_token(request.app.state.service, "session", token)


def check_form_token(request: Request, token: str | None = None) -> None:
    """Check the token of a form, or of the header ``X-CSRF-Token`` where none is given.

    Raises:
        ServiceProblem: The token is missing, or belongs to another session, or another site sent the request.
    """
    token = request.headers.get(TOKEN_HEADER, "") if token is None else token
    _compare_tokens(request, make_form_token(request), token)


async def read_form(request: Request) -> dict[str, str]:
    """Read the fields of a form. A field that comes twice is an error."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != _FORM:
        raise ServiceProblem("invalid_form")
    try:
        pairs = parse_qsl(
            (await request.body()).decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=100
        )
    except ValueError:
        raise ServiceProblem("invalid_form") from None
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise ServiceProblem("invalid_form")
    return fields


async def read_checked_form(request: Request) -> dict[str, str]:
    """Read the fields of a form of a signed-in person, and check its token. It is a dependency."""
    fields = await read_form(request)
    check_form_token(request, fields.get(TOKEN_FIELD) or None)
    return fields


async def run_hashing(request: Request, work: Callable[..., str], *args: str) -> str:
    """Run what hashes a password in a thread. Few run at the same time, because each takes much memory."""
    return await to_thread.run_sync(work, *args, limiter=_find_limiter(request))


async def begin_session(request: Request, service: Service, token: str, page: str) -> Response:
    """Give the browser its new session, end the one that it had before, and show a page."""
    old = read_cookie(request, _SESSION)
    if old is not None:
        await run_in_threadpool(service.people.end_session, old, find_address(request))
    response = RedirectResponse(page, 303)
    write_cookie(response, service, _SESSION, token, int(LONGEST_TIME.total_seconds()))
    return response


def name_session_cookie(service: Service) -> str:
    """Return the name of the cookie that holds the session."""
    return _name_cookie(service, _SESSION)


def check_next(text: str) -> str:
    """Return the page to show after a sign-in: the one that was asked for if it is of the dashboard."""
    is_plain = len(text) <= 500 and _NEXT.fullmatch(text) is not None and "/.." not in text
    return text if is_plain else HOME


def find_address(request: Request) -> str:
    """Find the address that a request came from. Only the nearest proxy is trusted, where the policy names one."""
    service: Service = request.app.state.service
    if service.policy.installation.behind_proxy:
        forwarded = ",".join(request.headers.getlist("x-forwarded-for")).rpartition(",")[2].strip()
        if forwarded:
            return forwarded
    return request.client.host if request.client is not None else ""


def answer_sign_in_needed(_: Request, error: Exception) -> Response:
    """Send a browser to the page where people sign in."""
    assert isinstance(error, SignInNeeded)
    page = check_next(error.next)
    return RedirectResponse(SIGN_IN if page == HOME else f"{SIGN_IN}?next={quote(page, safe='')}", 303)


@router.get(SIGN_IN)
def show_sign_in(request: Request, service: Annotated[Service, Depends(get_service)], next: str = "") -> Response:
    """Show the form, or the dashboard to those who are signed in."""
    page = check_next(next)
    if find_person(request) is not None:
        return RedirectResponse(page, 303)
    return make_sign_in_page(request, service, page)


@router.post(SIGN_IN)
async def sign_in(request: Request, service: Annotated[Service, Depends(get_service)]) -> Response:
    """Check a name and a password, and begin a new session, whatever session the browser had before."""
    fields = await read_form(request)
    page = check_next(fields.get("next", ""))
    visitor = read_cookie(request, _VISITOR)
    try:
        if visitor is None:
            raise ServiceProblem("invalid_form_token")
        _compare_tokens(request, _compute_form_token(service, "visitor", visitor), fields.get(TOKEN_FIELD, ""))
        name, password = fields.get("name", "").strip().lower(), fields.get("password", "")
        address = find_address(request)
        token = await run_hashing(request, service.people.sign_in, name, password, address)
    except ServiceProblem as problem:
        if problem.code not in ("invalid_form_token", "sign_in_failed", "too_many_attempts"):
            raise
        return make_sign_in_page(request, service, page, problem)
    response = await begin_session(request, service, token, page)
    write_cookie(response, service, _VISITOR, "", 0)
    return response


@router.post("/sign-out")
async def sign_out(request: Request, service: Annotated[Service, Depends(get_service)]) -> Response:
    """End the session, on every replica."""
    await read_checked_form(request)
    token = read_cookie(request, _SESSION)
    assert token is not None  # its form token was checked
    await run_in_threadpool(service.people.end_session, token, find_address(request))
    response = RedirectResponse(SIGN_IN, 303)
    write_cookie(response, service, _SESSION, "", 0)
    return response


def make_sign_in_page(request: Request, service: Service, page: str, problem: ServiceProblem | None = None) -> Response:
    """Make the page with the form, and with the reason if a sign-in failed."""
    visitor = read_cookie(request, _VISITOR) or secrets.token_urlsafe(32)
    oidc = service.policy.installation.oidc
    response = make_page(
        "sign_in.html",
        200 if problem is None else problem.status,
        form_token=_compute_form_token(service, "visitor", visitor),
        next=page,
        sentence="" if problem is None else problem.detail,
        provider="" if oidc is None else oidc.title,
    )
    if problem is not None:
        response.headers["x-problem-code"] = problem.code
        if "retry-after" in problem.headers:
            response.headers["retry-after"] = problem.headers["retry-after"]
    write_cookie(response, service, _VISITOR, visitor, int(LONGEST_TIME.total_seconds()))
    return response


def _compute_form_token(service: Service, kind: Literal["session", "visitor"], secret: str) -> str:
    return service.key.compute_tag(f"form token of a {kind}", secret)


def _compare_tokens(request: Request, right: str, token: str) -> None:
    is_foreign = request.headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none")
    if is_foreign or not hmac.compare_digest(right.encode("ascii"), token.encode("utf-8", "replace")):
        raise ServiceProblem("invalid_form_token")


def _find_limiter(request: Request) -> CapacityLimiter:
    state = request.app.state
    if not hasattr(state, "hash_limiter"):
        state.hash_limiter = CapacityLimiter(_HASHES)
    limiter: CapacityLimiter = state.hash_limiter
    return limiter


def _is_secure(service: Service) -> bool:
    here = service.policy.installation
    return here.tls is not None or here.behind_proxy


def _name_cookie(service: Service, name: str) -> str:
    """Name a cookie. Browsers keep the prefix for cookies of exactly this host that come over TLS."""
    return f"__Host-{name}" if _is_secure(service) else name


def read_cookie(request: Request, name: str) -> str | None:
    """Read a secret that the service gave to the browser; None if there is none."""
    value = request.cookies.get(_name_cookie(request.app.state.service, name), "")
    return value if _SECRET.fullmatch(value) else None


def write_cookie(response: Response, service: Service, name: str, value: str, seconds: int) -> None:
    """Give the browser a secret for some seconds, or take it away with 0 seconds."""
    # A browser that comes back from a provider sends no strict cookie: the page before was of another site.
    has_provider = service.policy.installation.oidc is not None
    response.set_cookie(
        _name_cookie(service, name),
        value,
        max_age=seconds,
        path="/",
        secure=_is_secure(service),
        httponly=True,
        samesite="lax" if has_provider else "strict",
    )
