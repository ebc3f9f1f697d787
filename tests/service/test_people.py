"""People who sign in: passwords, sessions, form tokens, cookies and limits on guesses."""

from __future__ import annotations

import html
import io
import json
import logging
import re
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any

import pytest

pytest.importorskip("fastapi", reason="the 'service' extra is not installed")

import yaml
from argon2 import PasswordHasher
from fastapi import Depends
from service_support import (
    TestClient,
    make_headers,
    make_policy,
    open_service,
    sign_in,
    start_session,
    write_collection,
    write_policy,
)

from scoreshield import cli
from scoreshield.errors import InvalidInput, LedgerError
from scoreshield.service import people as people_module
from scoreshield.service.application import create_app
from scoreshield.service.core import Service
from scoreshield.service.events import Author, Event
from scoreshield.service.logs import JsonFormatter
from scoreshield.service.pages import PAGE_POLICY, make_page
from scoreshield.service.people import PeopleTable, Person, ProviderGrant, group_address, make_password
from scoreshield.service.problems import ServiceProblem
from scoreshield.service.sign_in import check_next, read_checked_form, require_person

PASSWORD = "a quiet lake at noon"
#: Cheap parameters: the tests check which hashes are computed, and one test the parameters of use.
CHEAP = PasswordHasher(time_cost=1, memory_cost=8, parallelism=1)


class CountingHasher:
    """A cheap hasher that counts its work."""

    def __init__(self) -> None:
        self.verified = self.hashed = 0

    def hash(self, password: bytes | str) -> str:
        self.hashed += 1
        return CHEAP.hash(password)

    def verify(self, hashed: str, password: bytes | str) -> bool:
        self.verified += 1
        return CHEAP.verify(hashed, password)

    def check_needs_rehash(self, hashed: str) -> bool:
        return CHEAP.check_needs_rehash(hashed)


class Clock:
    """A clock that the tests turn."""

    def __init__(self) -> None:
        self.now = datetime.now(UTC)

    def __call__(self) -> datetime:
        return self.now


def open_cheap(folder: Path, content: dict[str, Any] | None = None, clock: Any = None) -> Service:
    """Open a service whose hashes are cheap."""
    service = open_service(folder, content)
    extra = {} if clock is None else {"clock": clock}
    service.people = PeopleTable(service.database, service.key, hasher=CountingHasher(), **extra)  # type: ignore[arg-type]
    return service


def get_hasher(service: Service) -> CountingHasher:
    hasher = service.people._hasher
    assert isinstance(hasher, CountingHasher)
    return hasher


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def service(tmp_path: Path, clock: Clock) -> Service:
    return open_cheap(tmp_path, clock=clock)


def make_client(service: Service, base_url: str = "http://testserver") -> TestClient:
    """Make a client of an application with three plain pages, which come before those of the dashboard."""
    app = create_app(service)
    before = len(app.router.routes)

    @app.get("/dashboard")
    def show(person: Annotated[Person, Depends(require_person())]) -> dict[str, object]:
        return {"name": person.name, "role": person.role, "collections": person.collections}

    @app.get("/dashboard/officers")
    def show_officers(person: Annotated[Person, Depends(require_person("officer", "admin"))]) -> str:
        return person.name

    @app.post("/dashboard/change")
    def change(
        person: Annotated[Person, Depends(require_person())],
        form: Annotated[dict[str, str], Depends(read_checked_form)],
    ) -> str:
        return f"{person.name} {form['value']}"

    routes = app.router.routes
    routes[:] = [*routes[before:], *routes[:before]]
    return TestClient(app, follow_redirects=False, base_url=base_url)


@pytest.fixture
def client(service: Service) -> Iterator[TestClient]:
    with make_client(service) as client:
        yield client


def read_token(page: str) -> str:
    found = re.search(r'name="form_token" value="([^"]*)"', page)
    assert found is not None
    return html.unescape(found[1])


def submit(client: TestClient, name: str, password: str, next_: str = "", **headers: str) -> Any:
    token = read_token(client.get("/sign-in").text)
    fields = {"form_token": token, "name": name, "password": password, "next": next_}
    return client.post("/sign-in", data=fields, headers=headers)


def find_code(service: Service, name: str, password: str, address: str = "10.0.0.1") -> str:
    try:
        service.people.sign_in(name, password, address)
    except ServiceProblem as problem:
        return problem.code
    return "ok"


def test_sign_in_and_out(client: TestClient, service: Service) -> None:
    """A person signs in by the form, sees pages, and signs out, which ends the session."""
    service.people.create("ada", "officer", ["docs", "gone"], PASSWORD)
    answer = client.get("/dashboard")
    assert (answer.status_code, answer.json()["code"]) == (401, "not_signed_in")
    sent = client.get("/dashboard?x=1", headers={"accept": "text/html"})
    assert (sent.status_code, sent.headers["location"]) == (303, "/sign-in?next=%2Fdashboard%3Fx%3D1")
    script = client.get("/dashboard", headers={"accept": "text/html", "hx-request": "true"})
    assert (script.status_code, script.headers["hx-redirect"]) == (401, "/sign-in")
    answer = submit(client, "Ada ", PASSWORD, "/dashboard/officers")
    assert (answer.status_code, answer.headers["location"]) == (303, "/dashboard/officers")
    assert client.get("/dashboard").json() == {"name": "ada", "role": "officer", "collections": ["docs"]}
    assert client.get("/sign-in").headers["location"] == "/dashboard"
    token = client.cookies["scoreshield-session"]
    form = {"form_token": service.key.compute_tag("form token of a session", token)}
    assert client.post("/sign-out", data={"form_token": "0"}).json()["code"] == "invalid_form_token"
    assert client.get("/dashboard").status_code == 200
    assert client.post("/sign-out", data=form).headers["location"] == "/sign-in"
    assert "scoreshield-session" not in client.cookies
    client.cookies.set("scoreshield-session", token)
    assert client.get("/dashboard").status_code == 401
    kinds = [(event.kind, event.author.name, event.subject) for event in service.events.list_events()]
    assert kinds == [
        ("signed out", "person:ada", "ada"),
        ("signed in", "person:ada", "ada"),
        ("person created", "command line", "ada"),
    ]


def test_roles(client: TestClient, service: Service) -> None:
    """A dependency that names roles answers others with 403, also browsers."""
    sign_in(client, service, "ada", "reader", collections=["docs"])
    answer = client.get("/dashboard/officers", headers={"accept": "text/html"})
    assert (answer.status_code, answer.json()["code"]) == (403, "role_not_allowed")
    sign_in(client, service, "bob", "admin")
    assert client.get("/dashboard/officers").json() == "bob"


def test_form_tokens(client: TestClient, service: Service) -> None:
    """A form needs the token of its own session, and no other site may send it."""
    foreign = sign_in(client, service, "eve", "reader")
    token = sign_in(client, service, "ada", "reader")

    def send(headers: dict[str, str] | None = None, **fields: str) -> str:
        answer = client.post("/dashboard/change", data={"value": "3", **fields}, headers=headers)
        return str(answer.json() if answer.status_code == 200 else answer.json()["code"])

    assert send(form_token=token) == send({"x-csrf-token": token}) == "ada 3"
    for wrong in ("", "x", foreign, token[:-1], token.upper(), "é", client.cookies["scoreshield-session"]):
        assert send(form_token=wrong) == "invalid_form_token"
    assert send() == send({"x-csrf-token": foreign}) == "invalid_form_token"
    assert send({"sec-fetch-site": "same-origin"}, form_token=token) == "ada 3"
    for site in ("cross-site", "same-site", "strange"):
        assert send({"sec-fetch-site": site}, form_token=token) == "invalid_form_token"
    client.cookies.clear()
    assert send(form_token=token) == "not_signed_in"


def test_form_is_strict(client: TestClient, service: Service) -> None:
    """A body of another kind, a field that comes twice and too many fields are problems."""
    token = sign_in(client, service, "ada", "reader")
    kind = {"content-type": "application/x-www-form-urlencoded", "x-csrf-token": token}
    for body in (b"value=1&value=2", b"value=%ff", b"value=\xff", b"&".join(b"a%d=" % n for n in range(101))):
        answer = client.post("/dashboard/change", content=body, headers=kind)
        assert (answer.status_code, answer.json()["code"]) == (422, "invalid_form")
    answer = client.post("/dashboard/change", json={"value": "1"}, headers={"x-csrf-token": token})
    assert answer.json()["code"] == "invalid_form"


def test_sign_in_form_needs_its_token(client: TestClient, service: Service) -> None:
    """No other site can sign a browser in: the form of one visitor does not work for another."""
    service.people.create("ada", "reader", (), PASSWORD)
    fields = {"name": "ada", "password": PASSWORD, "form_token": read_token(client.get("/sign-in").text)}
    visitor = client.cookies["scoreshield-visitor"]
    client.cookies.clear()
    assert client.post("/sign-in", data=fields).status_code == 403
    assert client.post("/sign-in", data=fields).status_code == 403  # the visitor of the answer is another one
    assert "scoreshield-session" not in client.cookies
    client.cookies.clear()
    client.cookies.set("scoreshield-visitor", visitor, domain="testserver.local")
    assert client.post("/sign-in", data=fields, headers={"sec-fetch-site": "cross-site"}).status_code == 403
    assert client.post("/sign-in", data={**fields, "form_token": ""}).status_code == 403
    assert get_hasher(service).verified == 0
    assert client.post("/sign-in", data=fields).status_code == 303


def test_session_fixation(client: TestClient, service: Service) -> None:
    """A session that someone planted in a browser is not continued: a sign-in makes a new one and ends the old one."""
    service.people.create("ada", "reader", (), PASSWORD)
    service.people.create("eve", "reader", ())
    for planted in ("A" * 43, start_session(service, "eve")):
        client.cookies.clear()
        fields = {"name": "ada", "password": PASSWORD, "form_token": read_token(client.get("/sign-in").text)}
        client.cookies.set("scoreshield-session", planted)
        answer = client.post("/sign-in", data=fields)
        assert answer.status_code == 303
        made = re.search("scoreshield-session=([^;]+)", answer.headers["set-cookie"])
        assert made is not None
        assert made[1] != planted
        assert service.people.find_session(planted) is None
        found = service.people.find_session(made[1])
        assert found is not None
        assert found.name == "ada"


def test_cookies_over_tls(tmp_path: Path) -> None:
    """Behind TLS, cookies have the prefix and all flags. On this computer without TLS they have no Secure."""
    content = write_policy()
    content["installation"] |= {"behind_proxy": True}
    secure = open_cheap(tmp_path, content)
    secure.people.create("ada", "reader", (), PASSWORD)
    with make_client(secure, "https://testserver") as client:
        shown = client.get("/sign-in")
        token = read_token(shown.text)
        answer = client.post("/sign-in", data={"name": "ada", "password": PASSWORD, "form_token": token})
        cookies = [*shown.headers.get_list("set-cookie"), *answer.headers.get_list("set-cookie")]
        assert len(cookies) == 3
        for cookie in cookies:
            parts = cookie.lower().split("; ")
            assert parts[0].startswith("__host-scoreshield-")
            assert {"path=/", "secure", "httponly", "samesite=strict"} <= set(parts)
            assert "domain" not in cookie.lower()
        assert client.get("/dashboard").status_code == 200
        # A cookie without the prefix could come from plain HTTP or from a neighbouring host.
        value = client.cookies["__Host-scoreshield-session"]
        client.cookies.clear()
        client.cookies.set("scoreshield-session", value)
        assert client.get("/dashboard").status_code == 401
    plain = open_cheap(tmp_path)
    with make_client(plain) as client:
        cookie = client.get("/sign-in").headers["set-cookie"].lower()
        assert cookie.startswith("scoreshield-visitor=")
        assert "httponly" in cookie
        assert "samesite=strict" in cookie
        assert "secure" not in cookie


def test_page_and_headers(client: TestClient) -> None:
    """The page has labels, its own content security policy and no script; other answers keep the strict one."""
    answer = client.get("/sign-in")
    assert answer.headers.get_list("content-security-policy") == [PAGE_POLICY]
    assert "unsafe" not in PAGE_POLICY
    assert answer.headers["cache-control"] == "no-store"
    for name in ("name", "password"):
        assert f'<label for="{name}">' in answer.text
        assert f'<input id="{name}" name="{name}"' in answer.text
    assert "<script" not in answer.text
    assert "style=" not in answer.text
    assert client.get("/livez").headers.get_list("content-security-policy") == [
        "default-src 'none'; frame-ancestors 'none'"
    ]
    failed = submit(client, "<b>ada", "x" * 12)
    assert (failed.status_code, "<b>ada" in failed.text) == (401, False)
    assert 'role="alert"' in failed.text
    assert "x-problem-code" not in failed.headers
    hostile = make_page("sign_in.html", form_token="", next="", sentence="</p><script>alert(1)</script>", provider="")
    assert b"<script" not in bytes(hostile.body)


@pytest.mark.parametrize(
    "next_",
    [
        "https://evil.example",
        "//evil.example",
        "/\\evil.example",
        "\\\\evil.example",
        "/dashboard//evil.example",
        "/dashboard/../v1/keys",
        "/dashboard\r\nSet-Cookie: a=b",
        "/dashboard?x=\n",
        "/dashboardx",
        "/dashboard@evil.example",
        "javascript:alert(1)",
        "/sign-out",
        "/dashboard/" + "a" * 600,
        "/dashboard\x00",
        "/dashboard/é",
        "",
    ],
)
def test_no_open_redirect(client: TestClient, service: Service, next_: str) -> None:
    """After a sign-in, only pages of the dashboard follow."""
    assert check_next(next_) == "/dashboard"
    if "ada" not in [one.name for one in service.people.list_people()]:
        service.people.create("ada", "reader", (), PASSWORD)
    shown = client.get("/sign-in", params={"next": next_}).text
    assert '<input type="hidden" name="next" value="/dashboard">' in shown
    answer = submit(client, "ada", PASSWORD, next_)
    assert (answer.status_code, answer.headers["location"]) == (303, "/dashboard")
    assert client.get("/sign-in", params={"next": next_}).headers["location"] == "/dashboard"


@pytest.mark.parametrize("page", ["/dashboard", "/dashboard/", "/dashboard/a-b/c.d?x=1&y=%20", "/dashboard/keys"])
def test_pages_of_the_dashboard_follow(page: str) -> None:
    assert check_next(page) == page


def test_sessions_expire(service: Service, clock: Clock) -> None:
    """A session ends when it is idle, and at last by its age; use keeps it alive in between."""
    service.people.create("ada", "reader", (), PASSWORD)
    idle = start_session(service, "ada")
    clock.now += people_module.IDLE_TIME - timedelta(seconds=1)
    assert service.people.find_session(idle) is not None  # this use counts
    clock.now += people_module.IDLE_TIME - timedelta(seconds=1)
    assert service.people.find_session(idle) is not None
    clock.now += people_module.IDLE_TIME
    assert service.people.find_session(idle) is None
    busy, begin = start_session(service, "ada"), clock.now
    while clock.now < begin + people_module.LONGEST_TIME - timedelta(minutes=30):
        assert service.people.find_session(busy) is not None
        clock.now += timedelta(minutes=30)
    assert service.people.find_session(busy) is not None
    clock.now = begin + people_module.LONGEST_TIME
    assert service.people.find_session(busy) is None
    start_session(service, "ada")  # which deletes the rows of sessions that have ended
    assert service.database.read("SELECT COUNT(*) FROM scoreshield_service_sessions")[0][0] == 1


def test_password_change_and_disable_end_sessions(service: Service, tmp_path: Path) -> None:
    """A new password and a disabled person end all sessions, on every replica and at once."""
    replica = open_cheap(tmp_path)
    service.people.create("ada", "reader", (), PASSWORD)
    tokens = [start_session(replica, "ada") for _ in range(2)]
    other = replica.people.create("bob", "reader", ())
    kept = start_session(service, other.name)
    service.people.set_password("ada", "another quiet lake")
    assert [replica.people.find_session(token) for token in tokens] == [None, None]
    assert find_code(replica, "ada", PASSWORD) == "sign_in_failed"
    token = replica.people.sign_in("ada", "another quiet lake", "")
    service.people.disable("ada")
    assert replica.people.find_session(token) is None
    assert find_code(replica, "ada", "another quiet lake") == "sign_in_failed"
    assert replica.people.find_session(start_session(replica, "ada")) is None
    assert replica.people.find_session(kept) is not None
    people = service.people
    for change in (people.change, people.disable, people.enable, lambda name: people.set_password(name, PASSWORD)):
        with pytest.raises(InvalidInput, match="There is no person"):
            change("eve")


def test_change_of_role_and_collections(service: Service, tmp_path: Path) -> None:
    """A change keeps what it does not name, ends all sessions on every replica, and is an event."""
    replica = open_cheap(tmp_path)
    service.people.create("ada", "reader", ["docs"], PASSWORD)
    facts = []
    for change in ({"role": "officer"}, {"collections": None}, {"role": "admin", "collections": ["docs", "notes"]}):
        token = replica.people.sign_in("ada", PASSWORD, "")
        changed = service.people.change("ada", **change)  # type: ignore[arg-type]
        assert replica.people.find_session(token) is None
        found = replica.people.find_session(replica.people.sign_in("ada", PASSWORD, ""))
        assert found == changed
        assert found.has_password
        facts.append((found.role, found.collections))
    assert facts == [("officer", ("docs",)), ("officer", None), ("admin", ("docs", "notes"))]
    assert [event.kind for event in service.events.list_events()].count("person changed") == 3


def test_changes_that_are_rejected(service: Service) -> None:
    """A wrong role and a role that a grant gives are no change: sessions stay, and there is no event."""
    grant = ProviderGrant("bob", "reader", ("docs",))
    tokens = [service.people.admit(grant, "")]
    service.people.create("ada", "reader", (), PASSWORD)
    tokens.append(start_session(service, "ada"))
    with pytest.raises(InvalidInput, match="A grant of the policy gives bob the role"):
        service.people.change("bob", "admin")
    with pytest.raises(InvalidInput, match="The role must be one of"):
        service.people.change("ada", "owner")  # type: ignore[arg-type]
    assert all(service.people.find_session(token) is not None for token in tokens)
    assert "person changed" not in [event.kind for event in service.events.list_events()]
    # With a password, the provider no longer signs the person in, so no grant gives the role.
    service.people.set_password("bob", PASSWORD)
    assert service.people.change("bob", "admin").role == "admin"
    # Someone who was added here and signs in at the provider has the role of the table.
    service.people.create("eve", "reader", ())
    service.people.change("eve", "officer", None)
    found = service.people.find_session(service.people.admit(ProviderGrant("eve", "reader", ()), ""))
    assert found is not None
    assert (found.role, found.collections) == ("officer", None)


def test_change_and_its_event_are_one_transaction(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the event cannot be written, nothing changes and no session ends."""
    service.people.create("ada", "reader", (), PASSWORD)
    service.people.create("bob", "reader", (), PASSWORD)
    service.people.disable("bob")
    token, before = start_session(service, "ada"), service.people.list_people()

    def fail(*_: Any) -> None:
        raise LedgerError("The disk is full.")

    monkeypatch.setattr(people_module, "write_event", fail)
    for change in (lambda: service.people.change("ada", "admin"), lambda: service.people.enable("bob")):
        with pytest.raises(LedgerError, match="full"):
            change()
    assert service.people.list_people() == before
    assert service.people.find_session(token) is not None


def test_racing_changes_are_all_made(service: Service, tmp_path: Path) -> None:
    """Changes of the role and of the collections at the same time on two replicas undo none of each other."""
    replica = open_cheap(tmp_path)
    service.people.create("ada", "reader", (), PASSWORD)
    changes = [lambda: service.people.change("ada", "officer"), lambda: replica.people.change("ada", collections=None)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda place: changes[place % 2](), range(16)))
    (ada,) = service.people.list_people()
    assert (ada.role, ada.collections) == ("officer", None)
    assert [event.kind for event in service.events.list_events()].count("person changed") == 16


def test_enable(service: Service) -> None:
    """A person who is enabled again has the password, role and collections of before, and none of the old sessions."""
    service.people.create("ada", "officer", ["docs"], PASSWORD)
    (before,) = service.people.list_people()
    old = service.people.sign_in("ada", PASSWORD, "")
    service.people.disable("ada")
    assert service.people.set_password("ada", "another quiet lake").disabled is not None
    assert find_code(service, "ada", "another quiet lake") == "sign_in_failed"
    service.people.enable("ada")
    assert service.people.list_people() == [before]
    assert service.people.find_session(old) is None
    token = service.people.sign_in("ada", "another quiet lake", "")
    service.people.enable("ada")  # of someone who is enabled, which ends no session
    assert service.people.find_session(token) is not None
    kinds = [event.kind for event in service.events.list_events()]
    assert kinds.count("person enabled") == 2


def test_session_that_begins_while_the_password_changes(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sign-in that checked the old password just before a change gets a session that is already over."""
    service.people.create("ada", "reader", (), PASSWORD)
    begin = PeopleTable._begin_session

    def change_first(self: PeopleTable, *arguments: Any) -> str:
        with monkeypatch.context() as patch:
            patch.setattr(PeopleTable, "_begin_session", begin)
            service.people.set_password("ada", "another quiet lake")
            return begin(self, *arguments)

    monkeypatch.setattr(PeopleTable, "_begin_session", change_first)
    token = service.people.sign_in("ada", PASSWORD, "")
    assert service.people.find_session(token) is None


def test_secrets_are_not_stored(service: Service, tmp_path: Path) -> None:
    """The database holds neither passwords nor sessions, and no name that belongs to no person."""
    service.people.create("ada", "reader", (), PASSWORD)
    token = service.people.sign_in("ada", PASSWORD, "10.1.2.3")
    find_code(service, "my secret typed as a name", "x" * 20)
    content = (tmp_path / "service.db").read_bytes()
    for secret in (PASSWORD, token, "my secret typed as a name", "x" * 20):
        assert secret.encode() not in content
    assert b"$argon2id$" in content


def test_parameters_of_the_hash(tmp_path: Path) -> None:
    """The hash of use is Argon2id with at least 64 MiB and 3 passes. A hash of less is replaced at the next sign-in."""
    service = open_service(tmp_path)
    PeopleTable(service.database, service.key, hasher=CHEAP).create("ada", "reader", (), PASSWORD)
    for _ in range(2):
        token = service.people.sign_in("ada", PASSWORD, "")
    assert service.people.find_session(token) is not None
    stored = service.database.read("SELECT password FROM scoreshield_service_people")[0][0]
    assert stored.startswith("$argon2id$v=19$m=65536,t=3,p=4$")


def test_same_work_for_unknown_names(service: Service) -> None:
    """Unknown names, wrong passwords, disabled people and people without a password cost one hash, and look alike."""
    service.people.create("ada", "reader", (), PASSWORD)
    service.people.create("old", "reader", (), PASSWORD)
    service.people.disable("old")
    service.people.create("guest", "reader", ())
    hasher = get_hasher(service)
    attempts = [
        ("stranger", PASSWORD),
        ("ada", "wrong password"),
        ("old", PASSWORD),
        ("guest", PASSWORD),
        ("ada", "x" * 100_000),
        ("stranger", "x" * 100_000),
        ("NO NAME \r\n", PASSWORD),
        ("ada", ""),
        ("", ""),
        ("ada", "\ud800"),
    ]
    problems = []
    for place, (name, password) in enumerate(attempts):
        before = (hasher.verified, hasher.hashed)
        with pytest.raises(ServiceProblem) as caught:
            service.people.sign_in(name, password, f"10.0.0.{place}")
        problems.append((caught.value.code, caught.value.status, caught.value.detail, caught.value.headers))
        hashes = hasher.hashed - before[1]
        assert hasher.verified - before[0] == 1
        assert hashes == (1 if place == 0 else 0)  # the first attempt of a process makes the hash for unknown names
    assert all(problem == problems[0] for problem in problems)
    assert find_code(service, "ada", PASSWORD) == "ok"
    fresh = open_cheap(Path(service.policy.installation.key_file).parent)
    assert find_code(fresh, "ada", "wrong password") == "sign_in_failed"
    assert (get_hasher(fresh).verified, get_hasher(fresh).hashed) == (1, 1)  # also where the name is known


def test_same_page_for_unknown_names(client: TestClient, service: Service) -> None:
    """The pages of an unknown name and a wrong password are the same bytes, with the same headers."""
    service.people.create("ada", "reader", (), PASSWORD)
    client.get("/sign-in")
    known, unknown = submit(client, "ada", "x" * 12), submit(client, "eve", "x" * 12)
    assert (known.status_code, known.content) == (unknown.status_code, unknown.content)
    assert known.headers.multi_items() == unknown.headers.multi_items()


def test_long_passwords_are_cut_off(service: Service) -> None:
    """A password that is too long is never hashed whole, and is never right."""
    longest = "p" * people_module.LONGEST_PASSWORD
    service.people.create("ada", "reader", (), longest)
    assert find_code(service, "ada", longest) == "ok"
    assert find_code(service, "ada", longest + "p") == "sign_in_failed"
    for wrong in (longest + "p", "short", ""):
        with pytest.raises(InvalidInput, match="12 to 1,024"):
            service.people.create("bob", "reader", (), wrong)
        with pytest.raises(InvalidInput, match="12 to 1,024"):
            service.people.set_password("ada", wrong)


def test_passwords_of_other_keyboards(service: Service) -> None:
    """The same text is the same password, whether letters and accents come as one character or two."""
    service.people.create("ada", "reader", (), "caf\u00e9 au lait noir")
    assert find_code(service, "ada", "cafe\u0301 au lait noir") == "ok"
    assert find_code(service, "ada", "cafe au lait noir") == "sign_in_failed"


def test_limit_per_name(service: Service, tmp_path: Path, clock: Clock) -> None:
    """Guesses for one name are counted over all replicas and addresses, and unknown names the same way."""
    replicas = [service, open_cheap(tmp_path, clock=clock)]
    service.people.create("ada", "reader", (), PASSWORD)
    for name in ("ada", "stranger"):
        codes = [find_code(replicas[n % 2], name, "wrong password", f"10.{n}.0.1") for n in range(25)]
        assert codes == ["sign_in_failed"] * 20 + ["too_many_attempts"] * 5
    events = service.events.list_events()
    assert [(one.subject, one.author.address) for one in events if one.kind == "sign-ins blocked"] == [
        ("", "10.20.0.1"),
        ("ada", "10.20.0.1"),
    ]
    hasher = get_hasher(replicas[1])
    before = hasher.verified
    with pytest.raises(ServiceProblem) as caught:
        replicas[1].people.sign_in("ada", PASSWORD, "10.99.0.1")  # the right password does not help
    assert hasher.verified == before
    assert (caught.value.status, 0 < int(caught.value.headers["retry-after"]) <= 901) == (429, True)
    assert find_code(service, "other", "wrong password") == "sign_in_failed"
    clock.now += people_module.ATTEMPT_TIME + timedelta(seconds=1)
    assert find_code(service, "ada", PASSWORD) == "ok"
    for n in range(21):
        find_code(service, "ada", "wrong password", f"10.{n}.0.2")
    assert find_code(service, "ada", PASSWORD) == "too_many_attempts"
    service.people.set_password("ada", "another quiet lake")  # an operator helps someone who is locked out
    assert find_code(service, "ada", "another quiet lake") == "ok"


def test_limit_per_address(service: Service, tmp_path: Path, clock: Clock) -> None:
    """Guesses from one address are counted over all replicas and names; a network of IPv6 is one address."""
    replicas = [service, open_cheap(tmp_path, clock=clock)]
    service.people.create("ada", "reader", (), PASSWORD)
    codes = [find_code(replicas[n % 2], f"name{n}", "wrong password", f"2001:db8::{n:x}") for n in range(63)]
    assert codes == ["sign_in_failed"] * 60 + ["too_many_attempts"] * 3
    assert find_code(service, "ada", PASSWORD, "2001:db8::ffff:1") == "too_many_attempts"
    assert find_code(service, "ada", PASSWORD, "2001:db8:0:1::1") == "ok"
    assert group_address("::ffff:10.0.0.1") == "10.0.0.1"
    assert group_address("fe80::1%eth0") == "fe80::/64"
    assert group_address("no address\r\n") == ""


def test_blocked_address_counts_for_no_name(service: Service) -> None:
    """An address that has too many attempts locks out no one else, and writes no rows for names that it invents."""
    service.people.create("ada", "reader", (), PASSWORD)
    for n in range(60):
        find_code(service, f"name{n}", "wrong password")
    count = "SELECT COUNT(*) FROM scoreshield_service_attempts"
    before = service.database.read(count)[0][0]
    assert {find_code(service, "ada", "wrong password") for _ in range(25)} == {"too_many_attempts"}
    assert {find_code(service, f"other{n}", "wrong password") for n in range(25)} == {"too_many_attempts"}
    assert service.database.read(count)[0][0] <= before + 1
    assert find_code(service, "ada", PASSWORD, "10.0.0.2") == "ok"


def test_success_does_not_clear_failures(service: Service) -> None:
    """An own account does not reset the count of an address: a success takes back itself alone."""
    service.people.create("eve", "reader", (), PASSWORD)
    codes = []
    for n in range(63):
        if n % 10 == 0:
            assert find_code(service, "eve", PASSWORD) == ("ok" if n < 60 else "too_many_attempts")
        codes.append(find_code(service, f"name{n}", "wrong password"))
    assert codes.count("sign_in_failed") == 60


def test_racing_guesses_are_all_counted(service: Service, tmp_path: Path) -> None:
    """Guesses that come at the same time on two replicas are all counted before any password is checked."""
    replicas = [service, open_cheap(tmp_path)]
    service.people.create("ada", "reader", (), PASSWORD)
    with ThreadPoolExecutor(8) as pool:
        codes = list(pool.map(lambda n: find_code(replicas[n % 2], "ada", "wrong password", f"10.0.{n}.1"), range(40)))
    assert (codes.count("sign_in_failed"), codes.count("too_many_attempts")) == (20, 20)
    assert sum(get_hasher(replica).verified for replica in replicas) == 20


def test_address_behind_a_proxy(tmp_path: Path) -> None:
    """Behind a proxy, the address that it saw counts. What a client wrote into the header does not, nor without one."""
    content = write_policy()
    content["installation"] |= {"behind_proxy": True}
    service = open_cheap(tmp_path, content)
    with make_client(service, "https://testserver") as client:
        submit(client, "ada", "x" * 12, **{"x-forwarded-for": "1.2.3.4, 203.0.113.9"})
        assert service.events.list_events()[0].author.address == "203.0.113.9"
    plain = open_cheap(tmp_path)
    with make_client(plain) as client:
        submit(client, "ada", "x" * 12, **{"x-forwarded-for": "203.0.113.10"})
        assert plain.events.list_events()[0].author.address == ""


@pytest.mark.parametrize(
    "name", ["", "Ada", "a b", "a\r\nSet-Cookie: x=y", "a\n", "-a", "a" * 81, "é", "a<b", "a:b", "a;b", 'a"']
)
def test_names_are_plain(service: Service, name: str) -> None:
    """Names cannot break a header, a log line or a page."""
    with pytest.raises(InvalidInput, match="A name has"):
        service.people.create(name, "reader", (), PASSWORD)
    assert find_code(service, name, PASSWORD) == "sign_in_failed"


def test_people_are_unique_and_have_roles(service: Service) -> None:
    service.people.create("ada@example.org", "officer", ["docs"], PASSWORD)
    with pytest.raises(InvalidInput, match="already"):
        service.people.create("ada@example.org", "admin", None, PASSWORD)
    with pytest.raises(InvalidInput, match="role"):
        service.people.create("bob", "owner", None, PASSWORD)  # type: ignore[arg-type]
    (ada,) = service.people.list_people()
    assert (ada.role, ada.collections, ada.disabled, ada.has_password) == ("officer", ("docs",), None, True)
    assert len({make_password() for _ in range(50)}) == 50
    assert re.fullmatch(r"([a-z2-9]{5}-){4}[a-z2-9]{5}", make_password())


def test_events_are_log_lines_without_secrets(
    client: TestClient, service: Service, caplog: pytest.LogCaptureFixture
) -> None:
    """Each event is a line of the log and a row. Neither holds a password, a session or a name of no person."""
    caplog.set_level(logging.INFO, logger="scoreshield.service")
    service.people.create("ada", "reader", (), PASSWORD)
    submit(client, "my secret", "another secret")
    submit(client, "ada", "another secret")
    submit(client, "ada", PASSWORD)
    token = client.cookies["scoreshield-session"]
    lines = [JsonFormatter().format(record) for record in caplog.records]
    audits = [json.loads(line) for line in lines if json.loads(line)["event"] == "audit"]
    assert [(one["kind"], one["subject"]) for one in audits] == [
        ("person created", "ada"),
        ("sign-in failed", ""),
        ("sign-in failed", "ada"),
        ("signed in", "ada"),
    ]
    assert len(service.events.list_events()) == 4
    assert len(service.events.list_events(most=2)) == 2
    everything = "\n".join(lines) + repr(service.events.list_events())
    for secret in (PASSWORD, "secret", token):
        assert secret not in everything


def test_older_database_gets_the_tables(tmp_path: Path) -> None:
    """A database of the version before people has its keys and gets the new tables."""
    from alembic import command
    from alembic.config import Config

    from scoreshield.service.tables import _MIGRATIONS, InstallationDatabase, open_engine

    url = f"sqlite:///{tmp_path / 'service.db'}"
    config = Config()
    config.set_main_option("script_location", str(_MIGRATIONS / "installation"))
    engine = open_engine(url)
    with engine.begin() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, "0001")
    old = InstallationDatabase(url)
    old.write(
        lambda execute: execute(
            "INSERT INTO scoreshield_service_keys (prefix, digest, caller, created) "
            "VALUES ('00000000', 'a', 'app', :now)",
            now=datetime.now(UTC).isoformat(),
        )
    )
    old.close()
    service = open_service(tmp_path)
    assert [key.prefix for key in service.keys.list_keys()] == ["00000000"]
    assert service.people.list_people() == []


def test_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Commands add, list, change, disable and enable people. A password comes from standard input alone."""
    monkeypatch.chdir(tmp_path)
    write_collection(tmp_path / "docs.npz")
    (tmp_path / "policy.yaml").write_text(yaml.safe_dump(write_policy()))

    def call(*arguments: str, typed: str = "") -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["scoreshield", "serve", "people", *arguments, "--config", "policy.yaml"])
        monkeypatch.setattr(sys, "stdin", io.StringIO(typed))
        code = 0
        try:
            cli.main()
        except SystemExit as stopped:
            code = int(stopped.code or 0)
        shown = capsys.readouterr()
        assert "Traceback" not in shown.err
        return code, shown.out + shown.err

    assert call("list")[0] == 2  # no database yet
    made = call("create", "ada", "--role", "officer", "--collection", "docs", typed=f"{PASSWORD}\n")
    assert made == (0, "ada  officer  enabled  by password  docs\n")
    assert call("create", "bob", "--role", "admin", "--all-collections", "--no-password")[0] == 0
    for arguments, sentence in {
        ("create", "eve", "--role", "owner"): "role",
        ("create", "eve", "--role", "reader", "--collection", "other"): "serves no collection",
        ("create", "eve", "--role", "reader", "--collection", "docs", "--all-collections"): "exclude",
        ("create", "ada", "--role", "reader"): "already",
        ("change", "ada"): "give --role, --collection or --all-collections",
        ("change", "ada", "--role", "owner"): "role",
        ("change", "ada", "--collection", "other"): "serves no collection",
        ("change", "ada", "--collection", "docs", "--all-collections"): "exclude",
        ("change", "eve", "--role", "reader"): "no person",
        ("disable", "eve"): "no person",
        ("enable", "eve"): "no person",
    }.items():
        code, text = call(*arguments, typed=f"{PASSWORD}\n")
        assert (code, sentence in text) == (2, True), text
    assert call("create", "eve", "--role", "reader", typed="short\n")[0] == 2
    service = open_service(tmp_path)
    token = service.people.sign_in("ada", PASSWORD, "")
    assert call("set-password", "ada", typed="another quiet lake\n")[0] == 0
    assert service.people.find_session(token) is None
    assert find_code(service, "ada", "another quiet lake") == "ok"
    assert call("change", "ada", "--role", "reader") == (0, "ada  reader  enabled  by password  docs\n")
    assert call("change", "ada", "--all-collections") == (0, "ada  reader  enabled  by password  all collections\n")
    changed = call("change", "ada", "--role", "officer", "--collection", "docs")
    assert changed == (0, "ada  officer  enabled  by password  docs\n")
    assert call("disable", "ada")[0] == 0
    code, text = call("set-password", "ada", typed="a third quiet lake\n")
    command = "scoreshield serve people enable ada --config policy.yaml"
    assert (code, text) == (
        0,
        f"The password of ada is set, but ada is still disabled; '{command}' enables ada.\n",
    )
    assert call("enable", "ada") == (0, "Enabled ada.\n")
    assert find_code(service, "ada", "a third quiet lake") == "ok"
    assert call("disable", "ada")[0] == 0
    code, text = call("list")
    assert "ada  officer  disabled" in text
    assert "bob  admin  enabled  without a password  all collections" in text


def test_person_opens_no_query_path(client: TestClient, service: Service) -> None:
    """A session is no API key: the paths of queries do not take it."""
    sign_in(client, service, "ada")
    for path in ("/v1/collections", "/v1/collections/docs/entries", "/v1/signing-keys"):
        assert client.get(path).json()["code"] == "missing_key"
    assert client.get("/v1/collections", headers=make_headers(service)).status_code == 200


def test_old_events_end(tmp_path: Path) -> None:
    """Events that are older than the policy keeps them end at a start, at a reload and before they are shown."""
    service = open_service(tmp_path)
    now = datetime.now(UTC)
    for days in (1, 29, 31, 400):
        service.events.record(Event("signed in", Author("person:ada"), "ada", now - timedelta(days=days)))

    def count_days() -> list[int]:
        return sorted((now - event.time).days for event in service.events.list_events() if event.time is not None)

    service.reload(service.policy)
    assert count_days() == [1, 29, 31, 400]  # without the setting they are kept
    content = write_policy()
    content["installation"]["event_days"] = 300
    service.reload(make_policy(tmp_path, content))
    assert count_days() == [1, 29, 31]
    content["installation"]["event_days"] = 30
    open_service(tmp_path, content)
    assert count_days() == [1, 29]
    service.events.record(Event("signed in", Author("person:ada"), "ada", now - timedelta(days=301)))
    with TestClient(create_app(service)) as client:
        sign_in(client, service, "root")
        assert "signed in" in client.get("/dashboard/events").text
    assert 301 not in count_days()
