"""The paths under ``/dashboard``. Each finds the person first, and shows only what this person may see."""

from __future__ import annotations

import hashlib
import json
import re
import secrets
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from importlib.resources import files
from typing import Annotated, Any

import numpy as np
from anyio import to_thread
from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response

from scoreshield._formatting import format_bound, format_number, typeset_delta, typeset_power
from scoreshield.errors import ScoreShieldError
from scoreshield.privacy.certificate import list_statements, list_warnings
from scoreshield.privacy.guarantee import Guarantee
from scoreshield.privacy.ledger.entries import Entry
from scoreshield.report.pages import render_template
from scoreshield.service.access import ApiKey
from scoreshield.service.attackers import bound_rates, describe_rates
from scoreshield.service.core import ServedAnswer, ServedCollection, Service
from scoreshield.service.dashboard.charts import draw_spending
from scoreshield.service.dashboard.facts import (
    MOST_CARDS,
    RATE_DAYS,
    collect_facts,
    describe_entry,
    describe_offer,
    list_allowances,
    list_newest_entries,
    list_versions,
)
from scoreshield.service.dashboard.reports import REPORT_POLICY, list_reports, read_report
from scoreshield.service.dashboard.viewers import (
    EVENT_READERS,
    REPORT_READERS,
    Asker,
    check_role,
    find_asker,
    has_entries,
    list_askers,
    list_managed_callers,
    list_seen,
    open_seen,
)
from scoreshield.service.events import Author, Event
from scoreshield.service.interfaces import ProblemRoute, find_problem
from scoreshield.service.key_paths import KeyManager, Prefix, end_key, make_key, replace_key
from scoreshield.service.memory import SizedCache
from scoreshield.service.offers import Query as CanonicalQuery
from scoreshield.service.pages import PAGE_POLICY
from scoreshield.service.people import Person
from scoreshield.service.problems import ServiceProblem
from scoreshield.service.rest import CollectionName, ServiceArgument
from scoreshield.service.sign_in import find_address, find_person, make_form_token, read_checked_form, require_person

_PACKAGE = "scoreshield.service.dashboard"
_JSON, _TEXT = "application/json", "text/plain; charset=utf-8"
_HASH = re.compile("[0-9a-f]{64}")
#: How long a browser keeps the style sheet and the scripts.
_STATIC_SECONDS = 300
_LONGEST_QUERY = 2**18
#: The most records that a page shows where the person does not say. Matches have no number of their own.
_SHOWN = 20
#: The names of the pages that ask.
_QUESTIONS = {"search": "Search", "matches": "Matches", "top_k": "Top k"}
_MOST_DAYS, _MOST_HOURS = 3650, 24 * 365
#: The fields of a form that name a collection begin with this.
_TICK = "collection."
#: The files beside the pages, with their types.
_STATIC = {
    "dashboard.js": "text/javascript; charset=utf-8",
    "icon.svg": "image/svg+xml",
    "htmx.min.js": "text/javascript; charset=utf-8",
    "htmx-LICENSE.txt": _TEXT,
}


class PageRoute(ProblemRoute):
    """A route whose errors are pages."""

    @classmethod
    def answer_problem(cls, request: Request, problem: ServiceProblem) -> Response:
        """Show a page with the sentence of the problem."""
        return _show_problem(request, problem)


router = APIRouter(prefix="/dashboard", route_class=PageRoute, include_in_schema=False)
PersonArgument = Annotated[Person, Depends(require_person())]
FormArgument = Annotated[dict[str, str], Depends(read_checked_form)]


def render_page(request: Request, template: str, status: int = 200, **values: Any) -> Response:
    """Fill a template of the dashboard for the person who is signed in."""
    person, service = find_person(request), request.app.state.service
    content = render_template(
        template,
        package=_PACKAGE,
        person=person,
        form_token="" if person is None else make_form_token(request),
        path=request.url.path,
        dummies=[] if person is None else [one.name for one in list_seen(service, person) if one.policy.dummy],
        has_reports=service.policy.installation.reports is not None and person and person.role in REPORT_READERS,
        has_events=person is not None and person.role in EVENT_READERS and person.has_all_collections,
        format_bound=format_bound,
        format_number=format_number,
        typeset_delta=typeset_delta,
        typeset_power=typeset_power,
        **values,
    )
    return HTMLResponse(content, status, {"content-security-policy": PAGE_POLICY})


def _show_problem(request: Request, problem: ServiceProblem) -> Response:
    if problem.status == 404:  # what is forbidden and what is not there look alike
        problem = ServiceProblem("not_found")
    person = getattr(request.state, "person", None)
    request.state.person = person  # an error needs no second look at the database
    response = render_page(request, "problem.html", problem.status, problem=problem)
    response.headers.update({**problem.headers, "x-problem-code": problem.code})
    return response


# ---- Files.


@router.get("/static/dashboard.css")
def send_style() -> Response:
    """Send the style sheet, with the colours of all pages."""
    return _send_static(render_template("dashboard.css", package=_PACKAGE).encode(), "text/css; charset=utf-8")


@router.get("/static/{name}")
def send_static(name: str) -> Response:
    """Send a script, or the licence of one that others wrote."""
    if name not in _STATIC:
        raise ServiceProblem("not_found")
    return _send_static(files(_PACKAGE).joinpath("static", name).read_bytes(), _STATIC[name])


def _send_static(content: bytes, kind: str) -> Response:
    return Response(content, 200, {"cache-control": f"max-age={_STATIC_SECONDS}", "content-type": kind})


def _send_file(content: bytes, name: str, kind: str) -> Response:
    headers = {"content-disposition": f'attachment; filename="{name}"', "content-type": kind}
    return Response(content, 200, headers)


# ---- Collections.


@router.get("")
def show_overview(request: Request, service: ServiceArgument, person: PersonArgument) -> Response:
    """Show all collections of a person with what is left."""
    rows = []
    for served in list_seen(service, person):
        rows.append((collect_facts(served), bool(list_askers(service, person, served))))
    values = {"has_head": has_entries(person), "rate_days": RATE_DAYS, "most_cards": MOST_CARDS}
    return render_page(request, "overview.html", collections=rows, **values)


@router.get("/collections/{name}")
def show_collection(
    request: Request,
    name: CollectionName,
    service: ServiceArgument,
    person: PersonArgument,
    before: Annotated[int | None, Query(ge=1, le=2**62)] = None,
) -> Response:
    """Show one collection: its budget, what it means, who spent it and when."""
    served = open_seen(service, person, name)
    facts = collect_facts(served)
    today = datetime.now(UTC).date()
    is_reader = not has_entries(person)
    entries, older = ([], None) if is_reader else list_newest_entries(served, before)
    allowances = list_allowances(served, service.policy)
    index = find_asker(service, person, served, "index")
    return render_page(
        request,
        "collection.html",
        facts=facts,
        rates=[(offer, describe_rates(offer.guarantee)) for offer in facts.offers],
        spent_rates=bound_rates(facts.spent, facts.delta if facts.spent else 0.0),
        whole_rates=bound_rates(facts.epsilon, facts.delta),
        chart="" if is_reader or not facts.history.days else draw_spending(facts.history.days, facts.epsilon, today),
        entries=entries,
        before=before,
        older=older,
        versions=list_versions(served),
        allowances=[one for one in allowances if not is_reader or person.name in _list_people(service, one.caller)],
        has_ledger=not is_reader,
        has_index="index" in served.offers and index is not None,
        is_asked=bool(list_askers(service, person, served)),
        rate_days=RATE_DAYS,
    )


def _list_people(service: Service, caller: str) -> tuple[str, ...]:
    known = service.policy.callers.get(caller)
    return () if known is None else known.people


@router.get("/collections/{name}/index")
def send_index(name: CollectionName, service: ServiceArgument, person: PersonArgument) -> Response:
    """Send the released index to a person whose caller may have it."""
    served = open_seen(service, person, name)
    if "index" not in served.offers or find_asker(service, person, served, "index") is None:
        raise ServiceProblem("not_found")
    return _send_file(served.read_index().content, served.index_file_name, "application/octet-stream")


@router.get("/collections/{name}/certificates/{file}")
def send_offer_certificate(
    name: CollectionName, file: str, service: ServiceArgument, person: PersonArgument
) -> Response:
    """Send the certificate of one action, as signed JSON or as text."""
    served = open_seen(service, person, name)
    action, _, kind = file.partition(".")
    if action not in served.policy.list_actions():
        raise ServiceProblem("not_found")
    return _send_certificate(service, served, served.find_offer(action).guarantee, None, f"{name}-{action}", kind)


@router.get("/collections/{name}/entries.json")
async def send_entries(name: CollectionName, service: ServiceArgument, person: PersonArgument) -> Response:
    """Send all entries of the ledger with its head, signed."""
    served = open_seen(service, person, name)
    if not has_entries(person):
        raise ServiceProblem("not_found")

    def read() -> bytes:
        return service.sign(served.describe_entries())

    content = await to_thread.run_sync(read, limiter=service.find_entry_threads(served))
    return _send_file(content, f"{name}-entries.json", _JSON)


@router.get("/collections/{name}/entries/{hash_}")
def show_entry(
    request: Request, name: CollectionName, hash_: str, service: ServiceArgument, person: PersonArgument
) -> Response:
    """Show one entry with its certificate. A reader, who knows it from an answer, sees the certificate alone."""
    served = open_seen(service, person, name)
    entry, guarantee = _find_entry(served, hash_)
    signed = json.loads(service.sign_certificate(served, guarantee, hash_))
    return render_page(
        request,
        "entry.html",
        collection=served.name,
        hash=hash_,
        entry=describe_entry(entry) if has_entries(person) else None,
        guarantee=guarantee,
        rates=describe_rates(guarantee),
        warnings=list_warnings(guarantee),
        statements=[(one.label, one.text) for one in list_statements(guarantee)],
        signature=signed["signature"],
    )


@router.get("/collections/{name}/entries/{hash_}/{file}")
def send_entry_certificate(
    name: CollectionName, hash_: str, file: str, service: ServiceArgument, person: PersonArgument
) -> Response:
    """Send the certificate of one entry, as signed JSON or as text."""
    served = open_seen(service, person, name)
    guarantee = _find_entry(served, hash_)[1]
    stem, _, kind = file.partition(".")
    if stem != "certificate":
        raise ServiceProblem("not_found")
    return _send_certificate(service, served, guarantee, hash_, f"{name}-{hash_[:12]}", kind)


def _find_entry(served: ServedCollection, hash_: str) -> tuple[Entry, Guarantee]:
    """Find an entry of a collection with its guarantee."""
    if not _HASH.fullmatch(hash_):
        raise ServiceProblem("unknown_entry")
    return served.find_entry(hash_), served.find_guarantee(hash_)


def _send_certificate(
    service: Service, served: ServedCollection, guarantee: Guarantee, entry: str | None, stem: str, kind: str
) -> Response:
    if kind == "json":
        return _send_file(service.sign_certificate(served, guarantee, entry), f"{stem}.json", _JSON)
    if kind == "txt":
        return _send_file(f"{guarantee}\n".encode(), f"{stem}.txt", _TEXT)
    raise ServiceProblem("not_found")


# ---- Questions.

#: The vectors of texts that this process has embedded, so that a repeated form is the same query.
_VECTORS: SizedCache[CanonicalQuery] = SizedCache(2**24)
#: One lock for each name of a collection, so that a slow embedder delays its own collection alone.
_EMBEDDING: dict[str, threading.Lock] = {}


@router.get("/collections/{name}/search")
def show_question(
    request: Request, name: CollectionName, service: ServiceArgument, person: PersonArgument, action: str = ""
) -> Response:
    """Show the box for a question, with what an answer costs and how many are left."""
    served = open_seen(service, person, name)
    askers = list_askers(service, person, served)
    return _show_question(request, service, served, askers, _choose_action(askers, action))


@router.post("/collections/{name}/search")
async def answer_question(
    request: Request, name: CollectionName, service: ServiceArgument, person: PersonArgument, fields: FormArgument
) -> Response:
    """Answer a question. The same question again, as by a reload or a double click, costs nothing."""
    served = open_seen(service, person, name)
    askers = list_askers(service, person, served)
    limiter = None if served.policy.embedder is None else service.find_text_threads(served)
    return await to_thread.run_sync(_answer_question, request, service, person, served, askers, fields, limiter=limiter)


def _answer_question(
    request: Request,
    service: Service,
    person: Person,
    served: ServedCollection,
    askers: dict[str, Asker],
    fields: dict[str, str],
) -> Response:
    """Answer a question in a thread, since an embedder and the database take their time."""
    action = _choose_action(askers, fields.get("action", ""))
    answer, failure = None, None
    try:
        service.rates.count(f"person:{person.name}", askers[action].caller.rate)
        if fields.get("offer") != _name_offer(service, served, action):
            raise ServiceProblem("page_too_old")
        k = _parse_count(fields.get("k", ""), served.find_offer(action).most)
        query = _read_question(service, served, fields.get("query", ""))
        answer = served.search(askers[action].payer, action, [query], k)[0]
        request.state.is_fresh = answer.is_fresh
        if answer.is_fresh:  # the entry names the caller; other callers may see it, and must not learn the person
            author = Author(f"person:{person.name}", find_address(request))
            service.events.record(Event("question charged", author, f"{served.name} {answer.entry}"))
    except ScoreShieldError as error:
        failure = find_problem(error)
    return _show_question(request, service, served, askers, action, fields, answer, failure)


def _choose_action(askers: dict[str, Asker], action: str) -> str:
    """Return the action that is asked for, or the first one where none is named."""
    if action in askers or (askers and not action):
        return action or next(iter(askers))
    raise ServiceProblem("not_found")


def _name_offer(service: Service, served: ServedCollection, action: str) -> str:
    """Name what a page offers. A form of an older page, with another cost or other data, is not charged."""
    offer = served.find_offer(action)
    return service.key.compute_tag("dashboard offer", served.name, str(served.version), offer.parameters)[:32]


def _read_question(service: Service, served: ServedCollection, text: str) -> CanonicalQuery:
    """Read a text or a vector as a canonical query. A text is embedded once, so that a repeat is the same query."""
    if not text.strip() or len(text) > _LONGEST_QUERY:
        raise ServiceProblem("invalid_request", "Write a question first.")
    if served.policy.embedder is None:
        return served.read_query(_parse_vector(text, served.data.dimension))
    facts = served.name, str(served.policy.embedder), str(served.data.dimension)
    place = service.key.compute_tag("dashboard text", *facts, hashlib.sha256(text.encode()).digest())
    # The second click of a double click waits for the vector of the first.
    with _EMBEDDING.setdefault(served.name, threading.Lock()):
        known = _VECTORS.get(place)
        if known is None:
            known = served.read_text(text)
            _VECTORS.put(place, known, known.nbytes)
    return known


def _parse_vector(text: str, dimension: int) -> list[float]:
    wrong = ServiceProblem("invalid_request", f"The vector must be a JSON list of {dimension} numbers.")
    try:
        values = json.loads(text)
    except (ValueError, RecursionError):
        raise wrong from None
    if not isinstance(values, list) or not all(
        isinstance(one, int | float) and not isinstance(one, bool) for one in values
    ):
        raise wrong
    try:
        is_finite = bool(np.isfinite(np.asarray(values, dtype=np.float64)).all())
    except (ValueError, OverflowError):
        is_finite = False
    if not is_finite or len(values) != dimension:
        raise wrong
    return values


def _parse_count(text: str, most: int) -> int:
    if not text.isascii() or not text.isdecimal() or not 1 <= int(text[:9]) <= most:
        raise ServiceProblem("k_too_large", f"Ask for 1 to {most} records.")
    return int(text[:9])


def _show_question(
    request: Request,
    service: Service,
    served: ServedCollection,
    askers: dict[str, Asker],
    action: str,
    fields: dict[str, str] | None = None,
    answer: ServedAnswer | None = None,
    failure: ServiceProblem | None = None,
) -> Response:
    asker, offer, facts = askers[action], served.find_offer(action), describe_offer(served, action)
    spent = next((one for one in list_allowances(served, service.policy) if one.caller == asker.name), None)
    allowed = None if spent is None or facts.is_free else spent.count_left(facts.guarantee.epsilon)
    left = [count for count in (facts.left, allowed) if count is not None]
    shown = min(offer.default, _SHOWN)
    k = shown if answer is None else max(1, len(answer.hits))
    response = render_page(
        request,
        "search.html",
        200 if failure is None else failure.status,
        collection=served.name,
        action=action,
        questions={one: _QUESTIONS[one] for one in askers},
        threshold=None if served.policy.matches is None else served.policy.matches.threshold,
        records=served.data.size,
        dimension=served.data.dimension,
        has_text=served.policy.embedder is not None,
        offer_name=_name_offer(service, served, action),
        offer=facts,
        most=offer.most,
        left=min(left, default=None),
        asker=asker,
        rates=describe_rates(facts.guarantee),
        worth=offer.predict(k),
        typed=(fields or {}).get("query", ""),
        k=(fields or {}).get("k", str(shown)),
        answer=answer,
        names=sorted(served.data.fields),
        failure=failure,
    )
    if failure is not None:
        response.headers.update({**failure.headers, "x-problem-code": failure.code})
    return response


# ---- Keys.


@router.get("/keys")
def show_keys(request: Request, service: ServiceArgument, person: PersonArgument) -> Response:
    """List callers and keys, with forms for admins."""
    return _show_keys(request, service, person)


@router.post("/keys")
def create_key_on_page(
    request: Request, service: ServiceArgument, person: PersonArgument, fields: FormArgument
) -> Response:
    """Create a key, and show it once."""
    manager = _find_manager(request, person)

    def make() -> tuple[ApiKey, str]:
        caller = fields.get("caller", "")
        if caller not in list_managed_callers(service, person):
            raise ServiceProblem("invalid_request", "Choose a caller.")
        chosen = [name.removeprefix(_TICK) for name in fields if name.startswith(_TICK)]
        days = _parse_number(fields.get("days", ""), "days", _MOST_DAYS)
        _use_form_once(service, person, fields)
        return make_key(service, manager, caller, chosen or None, None, days)

    return _show_new_key(request, service, person, make)


@router.post("/keys/{prefix}/rotate")
def rotate_key_on_page(
    request: Request, prefix: Prefix, service: ServiceArgument, person: PersonArgument, fields: FormArgument
) -> Response:
    """Replace a key, and show the new one once."""
    manager = _find_manager(request, person)

    def make() -> tuple[ApiKey, str]:
        hours = _parse_number(fields.get("hours", ""), "hours", _MOST_HOURS)
        _use_form_once(service, person, fields)
        return replace_key(service, manager, prefix, timedelta(hours=hours or 0))

    return _show_new_key(request, service, person, make)


def _show_new_key(
    request: Request, service: Service, person: Person, make: Callable[[], tuple[ApiKey, str]]
) -> Response:
    """Make a key, and show it once, or say why there is none."""
    failure, made = None, None
    try:
        made = make()
    except ScoreShieldError as error:
        failure = find_problem(error)
    return _show_keys(request, service, person, made, failure)


@router.post("/keys/{prefix}/revoke")
def revoke_key_on_page(
    request: Request, prefix: Prefix, service: ServiceArgument, person: PersonArgument, fields: FormArgument
) -> Response:
    """Revoke a key, now and forever."""
    del fields  # its token was checked
    end_key(service, _find_manager(request, person), prefix)
    return RedirectResponse("/dashboard/keys", 303)


def _find_manager(request: Request, person: Person) -> KeyManager:
    check_role(person, "admin")
    scope = None if person.has_all_collections else frozenset(person.collections)
    return KeyManager(Author(f"person:{person.name}", find_address(request)), scope, None)


def _show_keys(
    request: Request,
    service: Service,
    person: Person,
    made: tuple[ApiKey, str] | None = None,
    failure: ServiceProblem | None = None,
) -> Response:
    if failure is not None and failure.status == 404:
        raise failure
    manager, callers = _find_manager(request, person), list_managed_callers(service, person)
    keys = [key for key in reversed(service.keys.list_keys()) if manager.may_manage(key)]
    return render_page(
        request,
        "keys.html",
        200 if failure is None else failure.status,
        callers=[(name, service.policy.callers[name], grants) for name, grants in callers.items()],
        collections=sorted({one for grants in callers.values() for one in grants}),
        has_all=person.has_all_collections,
        people=service.people.list_people() if person.has_all_collections else [],
        keys=[(key, key.describe()["state"]) for key in keys],
        made=made,
        failure=failure,
        once=secrets.token_hex(16),
        most_days=_MOST_DAYS,
        most_hours=_MOST_HOURS,
    )


def _parse_number(text: str, name: str, most: int) -> int | None:
    if not text:
        return None
    if not text.isascii() or not text.isdecimal() or not 0 <= int(text[:9]) <= most:
        raise ServiceProblem("invalid_request", f"The number of {name} must be a whole number up to {most}.")
    return int(text[:9])


def _use_form_once(service: Service, person: Person, fields: dict[str, str]) -> None:
    """Remember a form, so that a reload does not do the same thing again."""
    tag = service.key.compute_tag("dashboard form", person.name, fields.get("once", ""))
    now = datetime.now(UTC).isoformat(timespec="seconds")
    statement = (
        "INSERT INTO scoreshield_service_repeats (tag, request, time) VALUES (:tag, '', :time) "
        "ON CONFLICT (tag) DO NOTHING"
    )
    if not service.database.write(lambda execute: execute(statement, tag=tag, time=now).rowcount):
        raise ServiceProblem("form_sent_before")


# ---- Reports and events.


@router.get("/reports")
def show_reports(request: Request, service: ServiceArgument, person: PersonArgument) -> Response:
    """List the pages of plans and audits."""
    check_role(person, *REPORT_READERS)
    folder = service.policy.installation.reports
    if folder is None:
        raise ServiceProblem("not_found")
    found = list_reports(folder, list(person.collections), sees_all=person.has_all_collections)
    return render_page(request, "reports.html", reports=found)


@router.get("/reports/{name:path}")
def send_report(name: str, service: ServiceArgument, person: PersonArgument) -> Response:
    """Send one page of a plan or an audit, which may run nothing."""
    check_role(person, *REPORT_READERS)
    folder = service.policy.installation.reports
    content = read_report(folder, name, list(person.collections), sees_all=person.has_all_collections)
    return HTMLResponse(content, 200, {"content-security-policy": REPORT_POLICY})


@router.get("/events")
def show_events(request: Request, service: ServiceArgument, person: PersonArgument) -> Response:
    """List who signed in, and who made or ended keys."""
    check_role(person, *EVENT_READERS)
    if not person.has_all_collections:
        raise ServiceProblem("not_found")
    service.forget_old_events()
    found = service.events.list_events(most=200)
    return render_page(request, "events.html", events=[(one, _find_charged(service, one)) for one in found])


def _find_charged(service: Service, event: Event) -> tuple[str, str] | None:
    """Find the collection and the hash of the entry that an event is about; None where it names none that is served."""
    name, _, hash_ = event.subject.partition(" ")
    is_charge = event.kind == "question charged" and name in service.collections
    return (name, hash_) if is_charge and _HASH.fullmatch(hash_) else None


@router.get("/{path:path}")
def show_nothing(path: str, person: PersonArgument) -> Response:
    """Show that there is no such page."""
    del path, person
    raise ServiceProblem("not_found")
