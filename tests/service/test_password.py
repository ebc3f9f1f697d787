"""People change their own password: with the old one, for all sessions, once, and with an event."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="the 'service' extra is not installed")

from argon2 import PasswordHasher
from service_support import TestClient, open_service, sign_in, start_session

from scoreshield.errors import InvalidInput
from scoreshield.service.application import create_app
from scoreshield.service.core import Service
from scoreshield.service.dashboard import password
from scoreshield.service.people import MOST_PER_NAME, PeopleTable
from scoreshield.service.problems import ServiceProblem
from scoreshield.service.sign_in import name_session_cookie

OLD, NEW = "a quiet lake at noon", "another quiet lake"
PAGE = password.PAGE
HTML = {"accept": "text/html"}


@pytest.fixture
def service(tmp_path: Path) -> Service:
    service = open_service(tmp_path)
    cheap = PasswordHasher(time_cost=1, memory_cost=8, parallelism=1)
    service.people = PeopleTable(service.database, service.key, hasher=cheap)
    service.people.create("ada", "reader", (), OLD)
    return service


@pytest.fixture
def client(service: Service) -> Iterator[TestClient]:
    with TestClient(create_app(service), headers=HTML, follow_redirects=False) as client:
        yield client


def can_sign_in(service: Service, text: str, name: str = "ada") -> bool:
    try:
        service.people.sign_in(name, text, "10.9.9.9")
    except ServiceProblem:
        return False
    return True


def list_kinds(service: Service) -> list[str]:
    return [event.kind for event in service.events.list_events()]


def send(
    client: TestClient, token: str, old: str = OLD, new: str = NEW, again: str | None = None, **headers: str
) -> Any:
    fields = {"form_token": token, "old": old, "new": new, "again": new if again is None else again}
    return client.post(PAGE, data=fields, headers=headers)


def test_change(client: TestClient, service: Service) -> None:
    """The new password opens, the old one does not, other sessions end, and this browser stays signed in."""
    other = start_session(service, "ada")
    token = sign_in(client, service, "ada")
    mine = client.cookies[name_session_cookie(service)]
    page = client.get(PAGE)
    assert page.status_code == 200
    assert 'autocomplete="current-password"' in page.text
    assert f'href="{PAGE}"' in client.get("/dashboard").text
    answer = send(client, token)
    assert (answer.status_code, answer.headers["location"]) == (303, f"{PAGE}?changed=yes")
    assert [service.people.find_session(one) for one in (other, mine)] == [None, None]
    client.cookies.clear()  # of the test's own domain
    client.cookies.set(name_session_cookie(service), answer.cookies[name_session_cookie(service)])
    assert "Your password is changed" in client.get(answer.headers["location"]).text
    assert can_sign_in(service, NEW)
    assert not can_sign_in(service, OLD)
    event = next(event for event in service.events.list_events() if event.kind == "password set")
    assert (event.author.name, event.subject) == ("person:ada", "ada")


@pytest.mark.parametrize(
    ("old", "new", "again", "words"),
    [
        ("a wrong password", NEW, NEW, "another one"),
        (OLD, NEW, "another noisy lake", "repetition differ"),
        (OLD, "too short", "too short", "has 12 to"),
        (OLD, "x" * 1025, "x" * 1025, "has 12 to"),
        (OLD, OLD, OLD, "is the old one"),
        ("", NEW, NEW, "another one"),
    ],
)
def test_wrong_fields_change_nothing(
    client: TestClient, service: Service, old: str, new: str, again: str, words: str
) -> None:
    token = sign_in(client, service, "ada")
    answer = send(client, token, old, new, again)
    assert 400 <= answer.status_code < 500
    found = re.search(r'<p class="failure" role="alert">([^<]*)</p>', answer.text)
    assert found is not None
    assert words in found[1]
    for typed in (old, new):
        assert not typed or typed not in answer.text
    assert client.get(PAGE).status_code == 200  # the session has not ended
    assert can_sign_in(service, OLD)
    assert "password set" not in list_kinds(service)
    assert ("password change failed" in list_kinds(service)) == (old != OLD)


def test_form_needs_its_token(client: TestClient, service: Service) -> None:
    """Another site cannot change the password, and no one can without a session."""
    foreign = sign_in(client, service, "eve", "admin")
    token = sign_in(client, service, "ada")
    for wrong in ("", foreign, token[:-1]):
        assert send(client, wrong).status_code == 403
    assert send(client, token, **{"sec-fetch-site": "cross-site"}).status_code == 403
    client.cookies.clear()
    assert send(client, token).status_code == 401
    assert client.get(PAGE).headers["location"].startswith("/sign-in")
    assert can_sign_in(service, OLD)


def test_guesses_count_with_those_to_sign_in(client: TestClient, service: Service) -> None:
    """A stolen session does not guess the password: attempts are limited, also the right one then."""
    token = sign_in(client, service, "ada")
    for _ in range(MOST_PER_NAME):
        assert send(client, token, "a wrong password").status_code == 401
    blocked = send(client, token)
    assert blocked.status_code == 429
    assert int(blocked.headers["retry-after"]) > 0
    assert not can_sign_in(service, OLD)
    assert "sign-ins blocked" in list_kinds(service)


def test_changes_do_not_count_as_attempts(service: Service) -> None:
    """A right password is no attempt, however often it is changed."""
    for place in range(MOST_PER_NAME + 2):
        was, now = (OLD, NEW) if place % 2 == 0 else (NEW, OLD)
        service.people.change_password("ada", was, now, "10.0.0.1")
    assert can_sign_in(service, OLD)


def test_person_of_a_provider_has_no_page(client: TestClient, service: Service) -> None:
    token = sign_in(client, service, "guest")  # made without a password
    assert client.get(PAGE).status_code == 404
    assert send(client, token).status_code == 404
    assert f'href="{PAGE}"' not in client.get("/dashboard").text
    with pytest.raises(ServiceProblem):
        service.people.change_password("guest", "", NEW, "")


def test_change_that_comes_in_between_wins(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    """A password that an admin sets while the old one is checked stays, and a session of before it is over."""
    verify = PeopleTable._verify

    def set_first(self: PeopleTable, *arguments: Any) -> bool:
        is_right = verify(self, *arguments)
        service.people.set_password("ada", "set by an admin")
        return is_right

    with monkeypatch.context() as patch:
        patch.setattr(PeopleTable, "_verify", set_first)
        with pytest.raises(ServiceProblem, match="meanwhile"):
            service.people.change_password("ada", OLD, NEW, "")
    assert can_sign_in(service, "set by an admin")
    begin = PeopleTable._begin_session

    def set_before(self: PeopleTable, *arguments: Any) -> str:
        service.people.set_password("ada", OLD)
        return begin(self, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(PeopleTable, "_begin_session", set_before)
        token = service.people.change_password("ada", "set by an admin", NEW, "")
    assert service.people.find_session(token) is None
    with pytest.raises(InvalidInput, match="is the old one"):
        service.people.change_password("ada", OLD, OLD, "")
