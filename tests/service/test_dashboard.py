"""The dashboard: who sees what, every form is protected, hostile texts stay texts, and a question is charged once."""

from __future__ import annotations

import html
import json
import math
import os
import re
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("fastapi", reason="the 'service' extra is not installed")

from service_support import (
    RECORDS,
    TestClient,
    make_headers,
    make_query,
    make_rows,
    open_service,
    sign_in,
    write_collection,
    write_policy,
)

from scoreshield.errors import BudgetExceeded
from scoreshield.privacy.filters import PrivacyFilter
from scoreshield.privacy.ledger import accounts
from scoreshield.privacy.profiles import PureProfile
from scoreshield.privacy.signatures import find_signature_fault
from scoreshield.privacy.verdicts import format_right_guesses
from scoreshield.service.answers import Payer
from scoreshield.service.application import create_app
from scoreshield.service.attackers import bound_rates
from scoreshield.service.core import Service
from scoreshield.service.dashboard import facts, password, reports, routes
from scoreshield.service.policy import find_contradictions

POLICY = (
    "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; font-src 'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
HOSTILE = "<script>alert('x')</script>\"><img src=x onerror=alert(1)>"
HTML = {"accept": "text/html"}
DOCS = "/dashboard/collections/docs"
SEARCH = f"{DOCS}/search"


def write_hostile_collection(path: Path) -> None:
    """Write records whose ids, fields and names of fields try to leave their place in a page."""
    ids = np.array([f"{place} {HOSTILE}" for place in range(RECORDS)])
    values = {"embeddings": make_rows(3), "ids": ids, "<u>field": np.array([HOSTILE] * RECORDS)}
    np.savez(path, **values)  # type: ignore[arg-type]


def write_dashboard_policy(folder: Path, **changes: Any) -> dict[str, Any]:
    """Write a policy with two collections, in which ada and rex ask as the caller app."""
    write_collection(folder / "docs.npz")
    write_hostile_collection(folder / "secret.npz")
    (folder / "reports").mkdir(exist_ok=True)
    content = write_policy(**changes)
    content["installation"]["reports"] = "reports"
    content["collections"]["secret"] = {
        "file": "secret.npz",
        "ids": "ids",
        "fields": ["<u>field"],
        "budget": {"epsilon": 50.0},
        "search": {"mechanism": "staircase", "epsilon": 1.0},
        "index": {"epsilon": 5.0},
    }
    content["callers"]["app"]["people"] = ["ada", "rex", "olga"]
    content["callers"]["app"]["collections"]["secret"] = {"actions": ["search", "index"], "allowance": {"queries": 3}}
    return content


@pytest.fixture
def service(tmp_path: Path) -> Service:
    return open_service(tmp_path, write_dashboard_policy(tmp_path))


@pytest.fixture
def client(service: Service) -> Iterator[TestClient]:
    with TestClient(create_app(service), headers=HTML, follow_redirects=False) as client:
        yield client


def spent(service: Service, name: str = "docs") -> float:
    return service.collections[name].account.spent


def ask(client: TestClient, token: str, query: str, path: str = SEARCH, **changes: str) -> Any:
    """Send the form of a search as a browser does: with the fields that its page has."""
    page = client.get(path).text
    offer = re.search(r'name="offer" value="(\w+)"', page)
    assert offer is not None, page
    fields = {"form_token": token, "offer": offer[1], "query": query, "k": "5", **changes}
    return client.post(path, data=fields)


def charge(service: Service, name: str, number: int, caller: str = "app") -> None:
    served = service.collections[name]
    for seed in range(number):
        served.search(Payer(caller), "search", [served.read_query(make_query(1000 + seed))])


# ---- Who sees what.


def list_pages() -> list[str]:
    """List the paths of pages that need a person, with an example for each part in braces."""
    examples = {"name": "docs", "hash_": "0" * 64, "file": "search.txt", "prefix": "01234567", "name:path": "a.html"}
    examples |= {"path:path": "anything"}
    found = []
    for route in (*routes.router.routes, *password.router.routes):
        path = getattr(route, "path", "")
        if "/static/" not in path and "GET" in getattr(route, "methods", ()):
            found.append(re.sub(r"\{([^}]+)\}", lambda part: examples[part[1]], path))
    return found


@pytest.mark.parametrize("path", list_pages())
def test_every_page_needs_a_person(path: str, client: TestClient) -> None:
    """A browser without a session is sent to the form, and any other client gets 401."""
    answer = client.get(path)
    assert answer.status_code == 303
    assert answer.headers["location"].startswith("/sign-in")
    assert client.get(path, headers={"accept": "*/*"}).status_code == 401


def test_list_of_pages_is_complete() -> None:
    assert len(list_pages()) >= 12


def test_a_browser_at_the_root_is_sent_to_the_dashboard(client: TestClient) -> None:
    """Other clients get the version document of Qdrant there."""
    browser = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"
    answer = client.get("/", headers={"accept": browser})
    assert (answer.status_code, answer.headers["location"]) == (303, "/dashboard")
    for accept in ("*/*", "application/json", "application/json, text/html"):
        assert "version" in client.get("/", headers={"accept": accept}).json()


def test_unknown_and_forbidden_look_alike(client: TestClient, service: Service) -> None:
    """A reader of docs finds no trace of the collection secret, and every page of it is a 404 like any other."""
    entry = list_hashes(service, "secret")[0]
    sign_in(client, service, "rex", "reader", collections=["docs"])
    overview = client.get("/dashboard").text
    assert "docs" in overview
    assert "secret" not in overview
    parts = ("", "/search", "/index", "/entries.json", f"/entries/{entry}", "/certificates/search.txt")
    for part in (*parts, f"/entries/{entry}/certificate.json"):
        forbidden = client.get(f"/dashboard/collections/secret{part}")
        unknown = client.get(f"/dashboard/collections/nothing{part}")
        assert forbidden.status_code == unknown.status_code == 404
        assert forbidden.text == unknown.text
    for path in ("keys", "reports", "reports/x.html", "events", "no-such-page"):
        answer = client.get(f"/dashboard/{path}")
        assert answer.status_code == 404
        assert answer.text.replace(path, "") == client.get("/dashboard/nothing").text.replace("nothing", "")


def list_hashes(service: Service, name: str) -> list[str]:
    return [entry.hash for entry in service.collections[name].account.ledger.entries()]


def test_entry_of_another_collection(client: TestClient, service: Service) -> None:
    """The entry of one collection is not found under another."""
    sign_in(client, service, "ada", "admin")
    for wrong in (list_hashes(service, "secret")[0], "0" * 64, "%00", "x"):
        assert client.get(f"{DOCS}/entries/{wrong}").status_code == 404


@pytest.mark.parametrize(
    ("role", "sees_ledger", "sees_keys", "sees_events"),
    [
        ("reader", False, False, False),
        ("curator", True, False, False),
        ("officer", True, False, True),
        ("admin", True, True, True),
    ],
)
def test_roles(
    role: Any, sees_ledger: bool, sees_keys: bool, sees_events: bool, client: TestClient, service: Service
) -> None:
    """Each role sees its pages, and no link to the others."""
    charge(service, "docs", 2)
    sign_in(client, service, role, role)
    page, overview = client.get(DOCS).text, client.get("/dashboard").text
    head = service.collections["docs"].account.ledger.head()
    for text in ("Spent over time", "Allowances of callers", list_hashes(service, "docs")[0]):
        assert (text in page) == sees_ledger, text
    assert (head in page) == (head in overview) == sees_ledger
    assert (client.get(f"{DOCS}/entries.json").status_code == 200) == sees_ledger
    assert (client.get("/dashboard/keys").status_code == 200) == sees_keys
    assert (client.get("/dashboard/reports").status_code == 200) == sees_ledger
    assert (client.get("/dashboard/events").status_code == 200) == sees_events
    assert ("/dashboard/keys" in overview) == sees_keys
    entry = client.get(f"{DOCS}/entries/{list_hashes(service, 'docs')[0]}")
    assert entry.status_code == 200  # an answer names it, so who has the hash may read the certificate
    assert ("Caller" in entry.text) == sees_ledger


def test_events_are_for_those_who_see_everything(client: TestClient, service: Service) -> None:
    sign_in(client, service, "narrow", "officer", collections=["docs"])
    assert client.get("/dashboard/events").status_code == 404


def test_an_officer_sees_who_asked_a_question(client: TestClient, service: Service) -> None:
    """The entry names the caller, which other callers may see; an event names the person, once for each charge."""
    token = sign_in(client, service, "ada", "admin")
    for _ in range(2):  # the second one costs nothing
        assert ask(client, token, json.dumps(make_query(1))).status_code == 200
    entry = list_hashes(service, "docs")[-1]
    found = [one for one in service.events.list_events() if one.kind == "question charged"]
    assert [(one.author.name, one.subject) for one in found] == [("person:ada", f"docs {entry}")]
    assert f'<a href="{DOCS}/entries/{entry}">docs {entry}</a>' in client.get("/dashboard/events").text
    certificate = client.get(f"{DOCS}/entries/{entry}/certificate.txt")
    assert certificate.status_code == 200
    assert "ada" not in certificate.text


# ---- Headers, markup and links.


def crawl(client: TestClient) -> dict[str, Any]:
    """Follow every link of the dashboard from its first page."""
    found: dict[str, Any] = {}
    waiting = ["/dashboard"]
    while waiting:
        path = waiting.pop()
        if path in found:
            continue
        found[path] = answer = client.get(path)
        if (
            answer.headers["content-type"].startswith("text/html")
            and "sandbox" not in answer.headers["content-security-policy"]
        ):
            links = re.findall(r'(?:href|src|hx-get)="([^"#]+)', answer.text)
            waiting += [html.unescape(link) for link in links]
    return found


def test_reports_of_others_take_no_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The longest list is of the newest pages that a person may see, not of those that a folder names first."""
    monkeypatch.setattr(reports, "_MOST_FILES", 3)
    for place, name in enumerate(("aaa/1", "aaa/2", "aaa/3", "docs/1", "docs/2", "docs/3", "docs/4")):
        path = tmp_path / f"{name}.html"
        path.parent.mkdir(exist_ok=True)
        path.write_text("<p>A plan", encoding="utf-8")
        os.utime(path, (place, place))

    def names(collections: list[str], *, sees_all: bool) -> list[str]:
        return [one.name for one in reports.list_reports(tmp_path, collections, sees_all=sees_all)]

    assert names(["docs"], sees_all=False) == ["docs/4.html", "docs/3.html", "docs/2.html"]
    assert names(["aaa"], sees_all=False) == ["aaa/3.html", "aaa/2.html", "aaa/1.html"]
    assert names([], sees_all=True) == ["docs/4.html", "docs/3.html", "docs/2.html"]


@pytest.mark.parametrize("role", ["reader", "officer", "admin"])
def test_links_work_and_pages_are_safe(role: Any, client: TestClient, service: Service, tmp_path: Path) -> None:
    """Every link leads somewhere on this host. No page has a script, a style or a handler within."""
    charge(service, "docs", 3)
    charge(service, "secret", 2)
    spend_hostile(service)
    (tmp_path / "reports" / "a plan.html").write_text("<p>A plan", encoding="utf-8")
    (tmp_path / "reports" / f"{HOSTILE.replace('/', '')}.html").write_text("<p>A plan", encoding="utf-8")
    if role == "admin":
        service.keys.create("app")
    sign_in(client, service, "ada" if role == "admin" else role, role)
    found = crawl(client)
    assert len(found) >= {"reader": 10, "officer": 20, "admin": 25}[role]
    for path, answer in found.items():
        assert path.startswith("/dashboard"), path
        assert answer.status_code == 200, path
        headers = answer.headers
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "no-referrer"
        if "/static/" in path or "content-disposition" in headers or "/reports/" in path:
            continue
        assert headers["content-security-policy"] == POLICY
        assert headers["cache-control"] == "no-store"
        check_markup(answer.text)


def check_markup(text: str) -> None:
    """Check that a page brings no code of its own, and that hostile texts are texts."""
    assert re.findall(r"<script(?! src=\"/dashboard/static/[\w.]+\" defer></script>)", text) == []
    tags = re.findall(r"<[a-zA-Z][^>]*>", text)
    assert [tag for tag in tags if re.search(r"\s(on\w+|style)\s*=", tag)] == []
    assert re.findall(r"<(style|iframe|object|base|u|img)\b", text) == []
    assert "javascript:" not in text


def spend_hostile(service: Service) -> None:
    """Write an entry whose caller and reason hold markup, as another program with the ledger could."""
    ledger = service.collections["docs"].account.ledger
    guarantee = service.collections["docs"].offers["search"].guarantee
    ledger.spend(guarantee, dataset="docs", who=HOSTILE, why=f"service: {HOSTILE}")


def test_hostile_texts_stay_texts(client: TestClient, service: Service, tmp_path: Path) -> None:
    """Markup in ids, fields, callers, reasons, queries, names of reports and paths is shown as text."""
    spend_hostile(service)
    token = sign_in(client, service, "ada", "admin")
    name = f"{HOSTILE.replace('/', '')}.html"
    (tmp_path / "reports" / name).write_text("<p>A plan", encoding="utf-8")
    pages = [
        client.get(DOCS),
        client.get(f"{DOCS}/entries/{list_hashes(service, 'docs')[-1]}"),
        ask(client, token, json.dumps(make_query(1)), "/dashboard/collections/secret/search"),
        ask(client, token, HOSTILE),
        client.get("/dashboard/reports"),
        client.get(f"/dashboard/{HOSTILE}"),
        client.post("/dashboard/keys", data={"form_token": token, "caller": HOSTILE, "once": HOSTILE}),
    ]
    for page in pages:
        check_markup(page.text)
    escaped = html.escape(HOSTILE).replace("&quot;", "&#34;").replace("&#x27;", "&#39;")
    for page in pages[:4]:
        assert escaped in page.text
    assert "&lt;u&gt;field" in pages[2].text
    assert client.get(f"/dashboard/reports/{name}").status_code == 200


@pytest.mark.parametrize("name", ["htmx.min.js", "dashboard.js", "dashboard.css", "icon.svg", "htmx-LICENSE.txt"])
def test_static_files(name: str, client: TestClient) -> None:
    """They need no session, since the page of the sign-in has them too, and fetch nothing from elsewhere."""
    answer = client.get(f"/dashboard/static/{name}")
    assert answer.status_code == 200
    assert answer.headers["x-content-type-options"] == "nosniff"
    if name != "htmx.min.js":
        assert not re.search(r"(?<!xmlns=\")https?://|@import|url\(", answer.text)


def test_no_other_static_file(client: TestClient) -> None:
    for name in ("../routes.py", "..%2froutes.py", "routes.py", "", "dashboard.html"):
        assert client.get(f"/dashboard/static/{name}").status_code in (303, 404)


# ---- Forms.


def list_forms() -> list[str]:
    """List the paths that take a form."""
    examples = {"name": "docs", "prefix": "01234567"}
    return [
        re.sub(r"\{([^}]+)\}", lambda part: examples[part[1]], getattr(route, "path", ""))
        for route in routes.router.routes
        if "POST" in getattr(route, "methods", ())
    ]


def test_list_of_forms_is_complete() -> None:
    assert sorted(list_forms()) == [
        SEARCH,
        "/dashboard/keys",
        "/dashboard/keys/01234567/revoke",
        "/dashboard/keys/01234567/rotate",
    ]


@pytest.mark.parametrize("path", list_forms())
def test_forms_need_their_token(path: str, client: TestClient, service: Service) -> None:
    """Without the token of the session, with that of another one, or from another site, nothing happens."""
    key, _ = service.keys.create("app")
    path = path.replace("01234567", key.prefix)
    foreign = sign_in(client, service, "eve", "admin")
    token = sign_in(client, service, "ada", "admin")
    offer = re.search(r'name="offer" value="(\w+)"', client.get(SEARCH).text)
    assert offer is not None
    fields = {"query": json.dumps(make_query(1)), "offer": offer[1], "k": "5", "caller": "app", "once": "a"}
    before, keys = spent(service), service.keys.list_keys()
    for wrong in ({}, {"form_token": ""}, {"form_token": foreign}, {"form_token": token[:-1]}):
        assert client.post(path, data={**fields, **wrong}).status_code == 403
    from_elsewhere = {"sec-fetch-site": "cross-site"}
    assert client.post(path, data={**fields, "form_token": token}, headers=from_elsewhere).status_code == 403
    assert (spent(service), service.keys.list_keys()) == (before, keys)
    right = {**fields, "form_token": token, "hours": "1"}
    assert client.post(path, data=right).status_code in (200, 303)
    assert (spent(service), service.keys.list_keys()) != (before, keys)


@pytest.mark.parametrize("path", list_forms())
def test_forms_need_a_session(path: str, client: TestClient) -> None:
    assert client.post(path, data={"form_token": "0" * 64}).status_code == 401


# ---- Questions.


def test_a_question_says_its_cost_and_is_charged_once(client: TestClient, service: Service) -> None:
    """The page names the cost and what is left before the button. A reload and another k are free."""
    token = sign_in(client, service, "ada", "admin")
    page = " ".join(client.get(SEARCH).text.split())
    assert (
        page.index("A new question costs ε 1.")
        < page.index("20 more are left.")
        < page.index('<button type="submit">Sp')
    )
    query = json.dumps(make_query(1))
    first = ask(client, token, query)
    assert first.status_code == 200
    assert spent(service) == 1.0
    assert "19 more are left" in " ".join(first.text.split())
    assert ask(client, token, query).text == first.text
    assert ask(client, token, query, k="50").status_code == 200
    assert spent(service) == 1.0


def test_the_answer_is_the_released_one(client: TestClient, service: Service) -> None:
    """The page shows ids and scores of the answer that /v1 gives, with the certificate of its charge."""
    token = sign_in(client, service, "ada", "admin")
    page = ask(client, token, json.dumps(make_query(2))).text
    answer = client.post(
        "/v1/collections/docs/search", json={"query": make_query(2), "k": 5}, headers=make_headers(service)
    ).json()
    assert spent(service) == 1.0
    shown = re.findall(r"<th scope=\"row\"[^>]*>([^<]*)</th><td[^>]*>(-?[\d.]+)</td>", page)
    assert shown == [(hit["id"], f"{hit['score']:.3f}") for hit in answer["hits"]]
    assert f"{DOCS}/entries/{answer['entry']}" in page
    assert "What it is worth" in page


@pytest.mark.parametrize(("action", "path", "k"), [("matches", "matches", "50"), ("top_k", "top-k", "3")])
def test_matches_and_top_k_are_asked_for(action: str, path: str, k: str, client: TestClient, service: Service) -> None:
    """The page shows the same records as /v1 for one charge, without scores where none is released."""
    token = sign_in(client, service, "ada", "admin")
    box = f"{SEARCH}?action={action}"
    text = " ".join(client.get(box).text.split())
    assert f'action={action}" aria-current="page"' in text
    offer = re.search(r'name="offer" value="(\w+)"', text)
    assert offer is not None
    query = json.dumps(make_query(2))
    fields = {"form_token": token, "offer": offer[1], "action": action, "query": query, "k": k}
    page = client.post(SEARCH, data=fields)
    assert page.status_code == 200
    assert client.post(SEARCH, data=fields).text == page.text
    answer = client.post(
        f"/v1/collections/docs/{path}", json={"query": make_query(2)}, headers=make_headers(service)
    ).json()
    assert spent(service) == 1.0
    shown = re.findall(r"<th scope=\"row\"[^>]*>([^<]*)</th>", page.text)
    assert shown == [hit["id"] for hit in answer["hits"]][: int(k)]
    assert shown
    assert "Released score" not in page.text
    assert f"{DOCS}/entries/{answer['entry']}" in page.text


def test_the_offer_of_another_question_is_not_charged(client: TestClient, service: Service) -> None:
    """A form names the question whose cost its page showed."""
    token = sign_in(client, service, "ada", "admin")
    query = json.dumps(make_query(2))
    for action in ("matches", "top_k"):
        answer = ask(client, token, query, action=action, k="3")  # with the offer of a search
        assert (answer.status_code, answer.headers.get("x-problem-code")) == (409, None)
        assert "nothing was charged" in answer.text
    for unknown in ("index", "entries", "everything", "<b>"):
        assert client.get(SEARCH, params={"action": unknown}).status_code == 404
        assert ask(client, token, query, action=unknown).status_code == 404
    assert spent(service) == 0.0


def test_a_caller_without_searches_has_the_other_questions(tmp_path: Path) -> None:
    """The box asks what the policy grants, and nothing else."""
    content = write_dashboard_policy(tmp_path)
    content["callers"]["app"]["collections"]["docs"] = {"actions": ["top_k"]}
    service = open_service(tmp_path, content)
    with TestClient(create_app(service), headers=HTML, follow_redirects=False) as client:
        token = sign_in(client, service, "ada", "admin")
        assert f'href="{SEARCH}"' in client.get("/dashboard").text
        page = client.get(SEARCH).text
        assert "action=" not in page.replace('action="', "")  # one question needs no choice
        assert 'name="action" value="top_k"' in page
        assert client.get(SEARCH, params={"action": "search"}).status_code == 404
        assert ask(client, token, json.dumps(make_query(1)), action="search").status_code == 404
        assert ask(client, token, json.dumps(make_query(1)), action="top_k", k="3").status_code == 200
        assert spent(service) == 1.0


@pytest.mark.parametrize(
    ("query", "k"),
    [
        ("", "5"),
        ("words", "5"),
        ("[1, 2]", "5"),
        ("[" + "1, " * 15 + '"x"]', "5"),
        ("[" + "1, " * 15 + "NaN]", "5"),
        ("[" + "1, " * 15 + "1e999]", "5"),
        ("[" + "1, " * 15 + "1" + "0" * 400 + "]", "5"),
        ("[" + "1, " * 15 + "true]", "5"),
        ("[" * 100_000, "5"),
        ("[" + "0, " * 15 + "0]", "5"),
        (json.dumps([1.0] * 16), "0"),
        (json.dumps([1.0] * 16), "51"),
        (json.dumps([1.0] * 16), "-1"),
        (json.dumps([1.0] * 16), "²"),
    ],
)
def test_wrong_questions_cost_nothing(query: str, k: str, client: TestClient, service: Service) -> None:
    token = sign_in(client, service, "ada", "admin")
    answer = ask(client, token, query, k=k)
    assert answer.status_code == 422
    assert 'role="alert"' in answer.text
    assert spent(service) == 0


def test_a_form_of_an_older_page_is_not_charged(client: TestClient, service: Service, tmp_path: Path) -> None:
    """If the data or the price changed, the page says so, and shows the new cost."""
    token = sign_in(client, service, "ada", "admin")
    old = re.search(r'name="offer" value="(\w+)"', client.get(SEARCH).text)
    assert old is not None
    content = write_dashboard_policy(tmp_path, collection={"search": {"mechanism": "staircase", "epsilon": 2.0}})
    dearer = open_service(tmp_path, content)
    with TestClient(create_app(dearer), headers=HTML, follow_redirects=False, cookies=client.cookies) as other:
        fields = {"form_token": token, "offer": old[1], "query": json.dumps(make_query(1)), "k": "5"}
        answer = other.post(SEARCH, data=fields)
        assert answer.status_code == 409
        assert "nothing was charged" in answer.text
        assert "costs ε 2." in answer.text
    write_collection(tmp_path / "docs.npz", seed=9)
    newer = open_service(tmp_path, write_policy_again(tmp_path))
    with TestClient(create_app(newer), headers=HTML, follow_redirects=False, cookies=client.cookies) as other:
        assert other.post(SEARCH, data=fields).status_code == 409
    assert spent(newer) == 0


def write_policy_again(folder: Path) -> dict[str, Any]:
    kept = (folder / "docs.npz").read_bytes()
    content = write_dashboard_policy(folder)
    (folder / "docs.npz").write_bytes(kept)
    return content


def test_exhausted_budget_and_allowance(client: TestClient, service: Service) -> None:
    """The page says that nothing is left, and a form that comes anyway is not charged."""
    token = sign_in(client, service, "ada", "admin")
    path = "/dashboard/collections/secret/search"
    for seed in range(3):
        assert ask(client, token, json.dumps(make_query(seed)), path).status_code == 200
    before = spent(service, "secret")
    assert "No new question is left" in client.get(path).text
    answer = ask(client, token, json.dumps(make_query(9)), path)
    assert answer.status_code == 403
    assert "allowance of this caller" in answer.text
    assert spent(service, "secret") == before
    assert ask(client, token, json.dumps(make_query(0)), path).status_code == 200  # a stored answer is free
    assert "used up" not in client.get(DOCS).text
    charge(service, "docs", 20)
    assert ask(client, token, json.dumps(make_query(9))).status_code == 403
    assert spent(service) == 20
    for shown in (client.get(DOCS).text, client.get("/dashboard").text):
        assert "used up" in shown
        assert "20 charges in the last 7 days. The budget covers no new answer." in " ".join(shown.split())
    assert "Spend ε" not in client.get(SEARCH).text  # the button spends nothing now


def test_a_question_that_noise_would_answer_says_so(client: TestClient, service: Service, tmp_path: Path) -> None:
    """The page warns before the charge where the prediction is useless, and not where it is useful."""
    sign_in(client, service, "ada", "admin")
    weak = "chosen by noise"
    assert weak in client.get(SEARCH).text  # epsilon 1
    (tmp_path / "strong").mkdir()
    content = write_dashboard_policy(tmp_path / "strong")
    content["collections"]["docs"]["budget"] = {"epsilon": 900.0}
    content["collections"]["docs"]["search"] = {"mechanism": "staircase", "epsilon": 60.0}
    strong = open_service(tmp_path / "strong", content)
    with TestClient(create_app(strong), headers=HTML, follow_redirects=False) as other:
        sign_in(other, strong, "ada", "admin")
        assert weak not in other.get(SEARCH).text


def test_pages_explain_sums_of_callers(client: TestClient, service: Service) -> None:
    """The officer reads why callers together have more than what is spent, and who charged the index."""
    charge(service, "docs", 2)
    sign_in(client, service, "olga", "officer")
    for name in ("docs", "secret"):
        page = client.get(f"/dashboard/collections/{name}").text
        callers = {one.caller for one in facts.list_allowances(service.collections[name], service.policy)}
        assert "Allowances of callers, and what they spent" in page
        assert ("may cost less than their sum" in page) == bool(service.policy.collections[name].budget.delta)
        assert ("which charges the index" in page) == ("(service)" in callers)


def test_a_person_without_collections_reads_who_chooses_them(client: TestClient, service: Service) -> None:
    sign_in(client, service, "nora", "reader", collections=[])
    assert "scoreshield serve people change NAME --collection COLLECTION" in client.get("/dashboard").text


def test_small_deltas_of_entries_are_typeset(tmp_path: Path) -> None:
    """The table writes a small delta as a power of ten, as the other pages do."""
    content = write_dashboard_policy(tmp_path)
    content["collections"]["docs"]["budget"] = {"epsilon": 40.0, "delta": 1e-6}
    content["collections"]["docs"]["search"] = {"mechanism": "gaussian", "epsilon": 2.0, "delta": 1e-8}
    service = open_service(tmp_path, content)
    charge(service, "docs", 1)
    with TestClient(create_app(service), headers=HTML, follow_redirects=False) as client:
        sign_in(client, service, "olga", "officer")
        page = client.get(DOCS).text
    assert "10\N{SUPERSCRIPT MINUS}\N{SUPERSCRIPT EIGHT}</td>" in page
    assert "1e-08" not in page


def test_pages_say_what_a_restored_backup_means(client: TestClient, service: Service) -> None:
    """Those who read entries find it beside the head; a reader has no head."""
    for role, is_shown in (("officer", True), ("reader", False)):
        sign_in(client, service, f"p{role}", role, collections=["docs"])  # type: ignore[arg-type]
        for path in ("/dashboard", DOCS):
            assert ("restored from a backup" in client.get(path).text) == is_shown
            assert ("must show the hash after it" in client.get(path).text) == is_shown


def test_many_collections_are_a_table(tmp_path: Path) -> None:
    """More than a few collections are shown as rows, with the same facts."""
    content = write_policy()
    docs = content["collections"]["docs"]
    for place in range(facts.MOST_CARDS):
        write_collection(tmp_path / f"c{place}.npz", seed=place + 1)
        content["collections"][f"c{place}"] = {**docs, "file": f"c{place}.npz"}
    service = open_service(tmp_path, content)
    charge(service, "c1", 3)
    with TestClient(create_app(service), headers=HTML, follow_redirects=False) as client:
        sign_in(client, service, "few", "officer", collections=[f"c{place}" for place in range(facts.MOST_CARDS)])
        page = client.get("/dashboard").text
        assert page.count('class="card"') == facts.MOST_CARDS
        assert "<table" not in page
        sign_in(client, service, "ada", "officer", collections=None)
        page = " ".join(client.get("/dashboard").text.split())
        assert 'class="card"' not in page
        assert page.count('<th scope="row"') == facts.MOST_CARDS + 1
        assert 'aria-valuetext="17 of epsilon 20 left, 3 spent"' in page
        assert "17 searches, 17 match answers, 17 top-k answers" in page
        assert "3 charges in the last 7 days. At this rate" in page


def test_who_may_ask(client: TestClient, service: Service) -> None:
    """Only a person whom a caller of the policy names, and whose own role asks, has a search box."""
    boxes = {}
    for name, role in (("ada", "admin"), ("rex", "reader"), ("olga", "officer"), ("zoe", "admin")):
        sign_in(client, service, name, role, collections=["docs", "secret"])  # type: ignore[arg-type]
        boxes[name] = client.get(SEARCH).status_code == 200
        assert (f'href="{SEARCH}"' in client.get(DOCS).text) == boxes[name]
        has_index = client.get("/dashboard/collections/secret/index").status_code == 200
        assert has_index == boxes[name]
    assert boxes == {"ada": True, "rex": True, "olga": False, "zoe": False}
    assert client.get(f"{DOCS}/index").status_code == 404  # it has none


def test_the_end_of_a_caller_ends_the_box(tmp_path: Path) -> None:
    content = write_dashboard_policy(tmp_path)
    content["callers"]["app"]["expires"] = (datetime.now(UTC) + timedelta(seconds=2)).isoformat()
    service = open_service(tmp_path, content)
    with TestClient(create_app(service), headers=HTML, follow_redirects=False) as client:
        sign_in(client, service, "ada", "admin")
        assert client.get(SEARCH).status_code == 200
        caller = service.policy.callers["app"].model_copy(update={"expires": datetime.now(UTC)})
        service.policy.callers["app"] = caller
        assert client.get(SEARCH).status_code == 404


def test_a_person_asks_as_one_caller(tmp_path: Path) -> None:
    content = write_dashboard_policy(tmp_path)
    content["callers"]["officer"]["people"] = ["ada"]
    from service_support import make_policy

    assert [fault for fault in find_contradictions(make_policy(tmp_path, content)) if "ada" in fault]


def test_a_repeated_text_is_the_same_query(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An embedder that is not exact does not make a reload cost again."""
    content = write_dashboard_policy(tmp_path, collection={"embedder": "hashing"})
    service = open_service(tmp_path, content)
    served = service.collections["docs"]
    generator = np.random.default_rng(1)

    def encode(texts: list[str]) -> Any:
        time.sleep(0.05)
        return generator.standard_normal((len(texts), 16))

    monkeypatch.setattr(served._embedder, "_encode", encode)
    with TestClient(create_app(service), headers=HTML, follow_redirects=False) as client:
        token = sign_in(client, service, "ada", "admin")
        first = ask(client, token, "How long is the warranty?")
        assert first.status_code == 200
        assert ask(client, token, "How long is the warranty?").text == first.text
        assert spent(service) == 1.0
        with ThreadPoolExecutor(2) as pool:  # as a double click
            twins = list(pool.map(lambda _: ask(client, token, "Another question"), range(2)))
        assert [one.status_code for one in twins] == [200, 200]
        assert spent(service) == 2.0


def test_slow_embedder_leaves_threads_to_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the embedder of one collection answers no form, other collections are searched."""
    service = open_service(tmp_path, write_dashboard_policy(tmp_path, collection={"embedder": "hashing"}))
    embedder, may_end = service.collections["docs"]._embedder, threading.Event()
    assert embedder is not None
    monkeypatch.setattr(embedder, "_encode", lambda texts: may_end.wait(60) and np.ones((len(texts), 16)))
    headers = make_headers(service)
    with (
        TestClient(create_app(service), headers=HTML, follow_redirects=False) as client,
        ThreadPoolExecutor(50) as pool,
    ):
        token = sign_in(client, service, "ada", "admin")
        try:
            offer = re.search(r'name="offer" value="(\w+)"', client.get(SEARCH).text)
            assert offer is not None
            fields = {"form_token": token, "offer": offer[1], "k": "5"}
            forms = [pool.submit(client.post, SEARCH, data={**fields, "query": str(place)}) for place in range(45)]
            time.sleep(2)
            other = pool.submit(
                client.post, "/v1/collections/secret/search", headers=headers, json={"query": make_query(1)}
            )
            assert other.result(20).status_code == 200
        finally:
            may_end.set()
        assert {one.result(60).status_code for one in forms} == {200}
    assert spent(service) == 1.0  # all of them have the same vector


# ---- Keys.


def find_once(client: TestClient) -> str:
    found = re.search(r'name="once" value="(\w+)"', client.get("/dashboard/keys").text)
    assert found is not None
    return found[1]


def test_create_rotate_and_revoke(client: TestClient, service: Service) -> None:
    """A key is shown once, a reload makes no second one, and what was done is an event with its author."""
    token = sign_in(client, service, "ada", "admin")
    fields = {"form_token": token, "once": find_once(client), "caller": "app", "days": "30", "collection.docs": "1"}
    page = client.post("/dashboard/keys", data=fields)
    text = re.search(r"ss_[0-9a-f]{8}_[0-9a-f]{72}", page.text)
    assert page.status_code == 200
    assert text is not None
    key = service.keys.authenticate(text[0])
    assert (key.caller, key.collections) == ("app", ("docs",))
    assert key.expires is not None
    assert timedelta(days=29) < key.expires - datetime.now(UTC) < timedelta(days=31)
    assert text[0] not in client.get("/dashboard/keys").text
    again = client.post("/dashboard/keys", data=fields)
    assert again.status_code == 409
    assert "ss_" not in again.text
    assert len(service.keys.list_keys()) == 1

    rotation = {"form_token": token, "once": find_once(client), "hours": "2"}
    page = client.post(f"/dashboard/keys/{key.prefix}/rotate", data=rotation)
    fresh = re.search(r"ss_[0-9a-f]{8}_[0-9a-f]{72}", page.text)
    assert fresh is not None
    assert client.post(f"/dashboard/keys/{key.prefix}/rotate", data=rotation).status_code == 409
    assert len(service.keys.list_keys()) == 2
    prefix = service.keys.authenticate(fresh[0]).prefix
    answer = client.post(f"/dashboard/keys/{prefix}/revoke", data={"form_token": token})
    assert (answer.status_code, answer.headers["location"]) == (303, "/dashboard/keys")
    assert "revoked" in client.get("/dashboard/keys").text
    events = [(one.kind, one.author.name) for one in service.events.list_events()]
    for kind in ("key created", "key rotated", "key revoked"):
        assert (kind, "person:ada") in events
    page = client.get("/dashboard/events").text
    assert "key revoked" in page
    assert "person:ada" in page


def test_an_admin_of_some_collections(client: TestClient, service: Service) -> None:
    """Such an admin sees and makes keys of these collections alone."""
    wide, _ = service.keys.create("app")
    other, _ = service.keys.create("app", collections=["secret"])
    own, _ = service.keys.create("app", collections=["docs"])
    token = sign_in(client, service, "dora", "admin", collections=["docs"])
    page = client.get("/dashboard/keys").text
    assert own.prefix in page
    assert wide.prefix not in page
    assert other.prefix not in page
    assert "secret" not in page
    for key in (wide, other):
        for action in ("rotate", "revoke"):
            fields = {"form_token": token, "once": key.prefix + action, "hours": "1"}
            assert client.post(f"/dashboard/keys/{key.prefix}/{action}", data=fields).status_code == 404
    for chosen in ({}, {"collection.secret": "1"}, {"collection.docs": "1", "collection.secret": "1"}):
        fields = {"form_token": token, "once": find_once(client), "caller": "app", **chosen}
        assert client.post("/dashboard/keys", data=fields).status_code in (403, 422)
    assert len(service.keys.list_keys()) == 3
    fields = {"form_token": token, "once": find_once(client), "caller": "app", "collection.docs": "1"}
    assert client.post("/dashboard/keys", data=fields).status_code == 200
    assert all(key.revoked is None for key in service.keys.list_keys())


def test_admins_of_everything_see_the_people(client: TestClient, service: Service) -> None:
    """They read who signs in, and which command adds someone. An admin of some collections does not."""
    service.people.create("eve", "officer", ("docs",), None)
    service.people.disable("eve")
    sign_in(client, service, "ada", "admin")
    page = client.get("/dashboard/keys").text
    assert "scoreshield serve people create" in page
    for command in ("change", "set-password", "disable", "enable"):
        assert f"<code>{command}</code>" in page
    row = next(row for row in page.split("<tr") if ">eve<" in row)
    for fact in ("officer", "docs", "by the provider", "disabled"):
        assert f">{fact}<" in row
    sign_in(client, service, "dora", "admin", collections=["docs"])
    page = client.get("/dashboard/keys").text
    assert "serve people create" not in page
    assert ">eve<" not in page


def test_page_of_an_entry_begins_with_the_warnings(tmp_path: Path) -> None:
    """The page says what the certificate as text says first."""
    service = open_service(
        tmp_path, write_dashboard_policy(tmp_path, collection={"search": {"mechanism": "laplace", "epsilon": 9.0}})
    )
    charge(service, "docs", 1)
    with TestClient(create_app(service), headers=HTML, follow_redirects=False) as client:
        sign_in(client, service, "ada", "officer")
        path = f"{DOCS}/entries/{list_hashes(service, 'docs')[0]}"
        page, text = client.get(path).text, client.get(f"{path}/certificate.txt").text
    assert "WARNING: this release hides practically nothing" in " ".join(text.split())
    assert "WARNING: this release hides practically nothing" in page
    assert page.index("WARNING") < page.index("Verdict")


@pytest.mark.parametrize("change", [{"days": "0.5"}, {"days": "99999"}, {"caller": "nobody-here"}, {"days": "-1"}])
def test_wrong_forms_make_no_key(change: dict[str, str], client: TestClient, service: Service) -> None:
    token = sign_in(client, service, "ada", "admin")
    fields = {"form_token": token, "once": find_once(client), "caller": "app", "days": "5", **change}
    answer = client.post("/dashboard/keys", data=fields)
    assert answer.status_code == 422
    assert 'role="alert"' in answer.text
    assert service.keys.list_keys() == []


# ---- Reports.


def test_reports_stay_in_their_folder(client: TestClient, service: Service, tmp_path: Path) -> None:
    """Only pages below the folder are listed and sent; links and other names are not followed."""
    folder = tmp_path / "reports"
    (tmp_path / "outside.html").write_text("outside", encoding="utf-8")
    (tmp_path / "away").mkdir()
    (tmp_path / "away" / "far.html").write_text("outside", encoding="utf-8")
    for name in ("docs", "secret", "docs/audit"):
        (folder / name).mkdir()
        (folder / name / "report.html").write_text(f"<style>p {{color: red}}</style><p>{name}", encoding="utf-8")
    (folder / "docs" / "notes.txt").write_text("no page", encoding="utf-8")
    (folder / "top.html").write_text("top", encoding="utf-8")
    (folder / "link.html").symlink_to(tmp_path / "outside.html")
    (folder / "linked").symlink_to(tmp_path / "away")
    (folder / ".hidden.html").write_text("hidden", encoding="utf-8")
    sign_in(client, service, "olga", "officer")
    page = client.get("/dashboard/reports").text
    listed = set(re.findall(r'href="/dashboard/reports/([^"]+)"', page))
    assert listed == {"docs/report.html", "secret/report.html", "docs/audit/report.html", "top.html"}
    answer = client.get("/dashboard/reports/docs/report.html")
    assert answer.text.endswith("<p>docs")
    policy = answer.headers["content-security-policy"]
    assert policy.startswith("sandbox; default-src 'none'; ")
    assert "script" not in policy
    wrong = ["link.html", "linked/far.html", ".hidden.html", "docs/notes.txt", "docs", "", "..%2foutside.html"]
    for name in (*wrong, "%2e%2e/outside.html", "docs/../top.html/", "/etc/passwd", "docs%5c..%5ctop.html", "a\0.html"):
        answer = client.get(f"/dashboard/reports/{name.replace(chr(0), '%00')}")
        assert answer.status_code == 404, name
        assert "outside" not in answer.text
    sign_in(client, service, "carl", "curator", collections=["docs"])
    page = client.get("/dashboard/reports").text
    assert set(re.findall(r'href="/dashboard/reports/([^"]+)"', page)) == {"docs/report.html", "docs/audit/report.html"}
    assert client.get("/dashboard/reports/docs/audit/report.html").status_code == 200
    for name in ("secret/report.html", "top.html"):
        assert client.get(f"/dashboard/reports/{name}").status_code == 404


def test_missing_folder_of_reports(tmp_path: Path) -> None:
    from service_support import make_policy

    content = write_dashboard_policy(tmp_path)
    content["installation"]["reports"] = "nowhere"
    assert [fault for fault in find_contradictions(make_policy(tmp_path, content)) if "installation.reports" in fault]


# ---- Numbers.


def test_downloads_are_signed(client: TestClient, service: Service) -> None:
    """Certificates and entries are the documents of /v1, which `scoreshield verify` checks."""
    charge(service, "docs", 2)
    sign_in(client, service, "olga", "officer")
    entry = list_hashes(service, "docs")[0]
    headers = make_headers(service, "officer")
    pairs = {
        f"{DOCS}/entries.json": "/v1/collections/docs/entries",
        f"{DOCS}/entries/{entry}/certificate.json": f"/v1/collections/docs/certificate?entry={entry}",
        f"{DOCS}/certificates/top_k.json": "/v1/collections/docs/certificate?action=top_k",
    }
    for path, same in pairs.items():
        answer = client.get(path)
        assert answer.content == client.get(same, headers=headers).content
        assert answer.headers["content-disposition"].startswith("attachment")
        assert find_signature_fault(answer.json(), service.key.signer.public) is None
        assert (
            answer.json()["signature"]["value"] in client.get(f"{DOCS}/entries/{entry}").text or "entries/" not in path
        )
    text = client.get(f"{DOCS}/entries/{entry}/certificate.txt")
    assert text.text.startswith("ScoreShield certificate")
    for wrong in ("certificates/index.txt", "certificates/search.pdf", f"entries/{entry}/other.txt"):
        assert client.get(f"{DOCS}/{wrong}").status_code == 404


def test_entries_are_paged(tmp_path: Path) -> None:
    """Each entry is on one page, the newest first."""
    service = open_service(tmp_path, write_dashboard_policy(tmp_path, collection={"budget": {"epsilon": 100.0}}))
    charge(service, "docs", 45)
    with TestClient(create_app(service), headers=HTML) as client:
        sign_in(client, service, "olga", "officer")
        path, numbers = DOCS, []
        for _ in range(3):
            page = client.get(path).text
            numbers += [int(one) for one in re.findall(r'entries/[0-9a-f]{64}">(\d+)<', page)]
            older = re.search(r'href="([^"]+\?before=\d+)', page)
            path = older[1] if older else ""
        assert not path
        assert numbers == list(range(45, 0, -1))
        assert client.get(f"{DOCS}?before=x").status_code == 422
        assert "There is no entry before" in client.get(f"{DOCS}?before=1").text


@pytest.mark.parametrize(
    "collection",
    [
        {},
        {
            "budget": {"epsilon": 6.0, "delta": 1e-6},
            "search": {"mechanism": "gaussian", "epsilon": 1.0, "delta": 1e-7},
            "matches": {"threshold": 0.4, "epsilon": 0.5},
        },
    ],
)
def test_history_follows_the_rules_of_the_budget(
    collection: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The total of each day, and how long the budget lasts, are those of charges one after another."""
    service = open_service(tmp_path, write_dashboard_policy(tmp_path, collection=collection))
    served = service.collections["docs"]
    now = datetime.now(UTC)
    totals = {}
    rules = PrivacyFilter(served.policy.budget.epsilon, served.policy.budget.delta)
    recent = []
    for place, (back, action) in enumerate(
        [(30, "search"), (30, "matches"), (9, "search"), (6, "search"), (2, "matches"), (2, "search")]
    ):
        time = now - timedelta(days=back)
        monkeypatch.setattr(accounts, "_get_time", lambda time=time: time)
        served.search(Payer("app"), action, [served.read_query(make_query(place))])
        rules.spend(served.offers[action].guarantee)
        totals[time.date()] = served.account.spent
        recent += [served.offers[action].guarantee] * (back < facts.RATE_DAYS)
    history = facts.compute_history(served, today=now.date())
    assert {one.day: one.spent for one in history.days} == pytest.approx(totals, rel=1e-12)
    assert [one.charges for one in history.days] == [2, 1, 1, 2]
    assert history.recent == len(recent) == 3
    weeks = 0
    try:
        while True:
            for guarantee in recent:
                rules.spend(guarantee)
            weeks += 1
    except BudgetExceeded:
        pass
    assert history.weeks_left == weeks > 0


def test_rates_of_a_total() -> None:
    """The bounds from epsilon and delta are the largest values of the region that they allow."""
    for epsilon, delta in ((0.1, 0.0), (1.0, 0.0), (1.0, 1e-3), (3.0, 0.05), (8.0, 1e-6)):
        alphas = np.concatenate([np.linspace(0, 1, 200_001), [(1 - delta) / (1 + math.exp(epsilon))]])
        missed = np.maximum(
            np.maximum(0.0, 1 - delta - math.exp(epsilon) * alphas), math.exp(-epsilon) * (1 - delta - alphas)
        )
        advantage = float((1 - alphas - missed).max())
        detected = 1 - max(0.0, 1 - delta - 0.01 * math.exp(epsilon), math.exp(-epsilon) * (1 - delta - 0.01))
        rates = bound_rates(epsilon, delta)
        assert rates.right == format_right_guesses(advantage)
        assert float(rates.detected.removesuffix(" %")) == pytest.approx(100 * detected, abs=0.0101)
        assert float(rates.detected.removesuffix(" %")) >= 100 * detected - 1e-9
        if not delta:
            assert rates.right == format_right_guesses(PureProfile(epsilon).advantage)
    assert bound_rates(0.0, 0.0)[:2] == ("50.0 %", "1.00 %")


def test_allowances_name_all_who_may_ask(service: Service) -> None:
    charge(service, "secret", 2, "app")
    found = {one.caller: one for one in facts.list_allowances(service.collections["secret"], service.policy)}
    assert set(found) == {"app", "(service)"}
    assert found["app"].queries == 2
    assert found["app"].share_left == pytest.approx(1 / 3)
    assert found["app"].count_left(1.0) == 1
    assert found["(service)"].share_left is None
