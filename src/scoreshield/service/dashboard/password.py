"""The page where people change their own password: ``/dashboard/password``."""

from __future__ import annotations

from fastapi import APIRouter, Request
from fastapi.responses import Response

from scoreshield.errors import InvalidInput
from scoreshield.service.dashboard.routes import FormArgument, PageRoute, PersonArgument, render_page
from scoreshield.service.people import LONGEST_PASSWORD, SHORTEST_PASSWORD
from scoreshield.service.problems import ServiceProblem
from scoreshield.service.rest import ServiceArgument
from scoreshield.service.sign_in import begin_session, find_address, run_hashing

PAGE = "/dashboard/password"
router = APIRouter(route_class=PageRoute, include_in_schema=False)


@router.get(PAGE)
def show_password_form(request: Request, person: PersonArgument, changed: str = "") -> Response:
    """Show the form, and after a change that it was made."""
    _check_person(person)
    return _render(request, is_changed=bool(changed))


@router.post(PAGE)
async def change_password(
    request: Request, service: ServiceArgument, person: PersonArgument, fields: FormArgument
) -> Response:
    """Change the password. All sessions of the person end, and this browser gets a new one."""
    _check_person(person)
    old, new = fields.get("old", ""), fields.get("new", "")
    try:
        if new != fields.get("again", ""):
            raise InvalidInput("The new password and its repetition differ.")
        address = find_address(request)
        token = await run_hashing(request, service.people.change_password, person.name, old, new, address)
    except InvalidInput as error:  # its sentences hold no password
        return _render(request, ServiceProblem("invalid_request", str(error)))
    except ServiceProblem as problem:
        if problem.code not in ("sign_in_failed", "too_many_attempts"):
            raise
        return _render(request, problem)
    return await begin_session(request, service, token, f"{PAGE}?changed=yes")


def _check_person(person: PersonArgument) -> None:
    """Raise the error of a missing page for someone who signs in by a provider of identities."""
    if not person.has_password:
        raise ServiceProblem("not_found")


def _render(request: Request, failure: ServiceProblem | None = None, *, is_changed: bool = False) -> Response:
    status = 200 if failure is None else failure.status
    limits = {"shortest": SHORTEST_PASSWORD, "longest": LONGEST_PASSWORD}
    response = render_page(request, "password.html", status, failure=failure, is_changed=is_changed, **limits)
    if failure is not None:
        response.headers["x-problem-code"] = failure.code
        if "retry-after" in failure.headers:
            response.headers["retry-after"] = failure.headers["retry-after"]
    return response
