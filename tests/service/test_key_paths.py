"""Keys over HTTP: admins make, replace and end them, and no key is wider than the policy or its author."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="the 'service' extra is not installed")

from service_support import TestClient, make_headers, make_query, open_service, sign_in, write_collection, write_policy

from scoreshield.service.application import create_app
from scoreshield.service.core import Service

KEYS = "/v1/keys"


def write_two_collections() -> dict[str, Any]:
    """Write a policy with two collections, two admins and callers of other roles."""
    content = write_policy()
    content["collections"]["notes"] = {**content["collections"]["docs"], "file": "notes.npz"}
    content["callers"] |= {
        "admin": {"role": "admin", "rate": {"requests": 100_000}},
        "curator": {
            "role": "curator",
            "collections": {"docs": {"actions": ["search", "entries"]}, "notes": {"actions": ["entries"]}},
        },
    }
    return content


@pytest.fixture
def service(tmp_path: Path) -> Service:
    write_collection(tmp_path / "notes.npz", seed=1)
    return open_service(tmp_path, write_two_collections())


@pytest.fixture
def client(service: Service) -> Iterator[TestClient]:
    with TestClient(create_app(service), headers=make_headers(service, "admin")) as client:
        yield client


def test_life_of_a_key(client: TestClient, service: Service) -> None:
    """A key is made, used, replaced and revoked over HTTP; its text is shown once, and each step is an event."""
    made = client.post(KEYS, json={"caller": "app", "collections": ["docs"], "actions": ["search"], "days": 30})
    assert made.status_code == 201, made.text
    facts = made.json()
    text, prefix = facts.pop("key"), facts["prefix"]
    assert (facts["state"], facts["collections"], facts["actions"]) == ("valid", ["docs"], ["search"])
    assert made.headers["cache-control"] == "no-store"
    listed = client.get(KEYS)
    assert text[12:] not in listed.text
    assert facts in listed.json()["keys"]
    search = {"json": {"query": make_query(1)}, "headers": {"authorization": f"Bearer {text}"}}
    assert client.post("/v1/collections/docs/search", **search).status_code == 200
    replaced = client.post(f"{KEYS}/{prefix}/rotate", json={"overlap_hours": 1})
    assert (replaced.status_code, replaced.json()["expires"]) == (201, facts["expires"])
    again = client.post(f"{KEYS}/{prefix}/rotate")
    assert (again.status_code, again.json()["code"]) == (409, "key_ended")
    for one in (prefix, replaced.json()["prefix"]):
        assert client.delete(f"{KEYS}/{one}").status_code == 204
        assert client.delete(f"{KEYS}/{one}").status_code == 204
    ended = client.post("/v1/collections/docs/search", **search)
    assert (ended.status_code, ended.json()["code"]) == (401, "key_revoked")
    for method, path in (("DELETE", "00000000"), ("POST", "00000000/rotate")):
        missing = client.request(method, f"{KEYS}/{path}")
        assert (missing.status_code, missing.json()["code"]) == (404, "unknown_key")
    assert client.delete(f"{KEYS}/XYZ").status_code == 422
    events = [event for event in service.events.list_events() if event.author.name != "command line"]
    assert [event.kind for event in events] == ["key revoked", "key revoked", "key rotated", "key created"]
    author = client.headers["authorization"].split("_")[1]
    assert {event.author.name for event in events} == {f"key:{author}"}
    assert events[-1].subject == prefix


BODIES: dict[str, tuple[dict[str, Any], int, str]] = {
    "unknown caller": ({"caller": "stranger"}, 422, "unknown_caller"),
    "collection of another caller": ({"caller": "app", "collections": ["notes"]}, 403, "grant_too_wide"),
    "unknown collection": ({"caller": "app", "collections": ["other"]}, 403, "grant_too_wide"),
    "action of another role": ({"caller": "app", "actions": ["entries"]}, 403, "grant_too_wide"),
    "action of another collection": (
        {"caller": "curator", "collections": ["notes"], "actions": ["search"]},
        403,
        "grant_too_wide",
    ),
    "action of an admin without collections": ({"caller": "admin", "actions": ["search"]}, 403, "grant_too_wide"),
    "unknown action": ({"caller": "app", "actions": ["everything"]}, 422, "invalid_request"),
    "no action": ({"caller": "app", "actions": []}, 422, "invalid_request"),
    "no collection": ({"caller": "app", "collections": []}, 422, "invalid_request"),
    "role": ({"caller": "app", "role": "admin"}, 422, "invalid_request"),
    "no end": ({"caller": "app", "days": 0}, 422, "invalid_request"),
    "no caller": ({}, 422, "invalid_request"),
    "header in a name": ({"caller": "app\r\nx: y"}, 422, "invalid_request"),
}


@pytest.mark.parametrize("case", BODIES.values(), ids=BODIES.keys())
def test_policy_limits_keys(client: TestClient, service: Service, case: tuple[dict[str, Any], int, str]) -> None:
    """An admin cannot grant what the policy does not name. No key is made."""
    body, status, code = case
    before = len(service.keys.list_keys())
    answer = client.post(KEYS, json=body)
    assert (answer.status_code, answer.json()["code"]) == (status, code)
    assert len(service.keys.list_keys()) == before


@pytest.mark.parametrize("caller", ["app", "officer", "curator", None])
def test_other_roles_manage_nothing(service: Service, caller: str | None) -> None:
    """Readers, officers and curators manage no keys, and no one does without a key."""
    key, _ = service.keys.create("app")
    headers = {} if caller is None else make_headers(service, caller)
    with TestClient(create_app(service), headers=headers) as client:
        answers = [
            client.get(KEYS),
            client.post(KEYS, json={"caller": "app"}),
            client.post(f"{KEYS}/{key.prefix}/rotate"),
            client.delete(f"{KEYS}/{key.prefix}"),
        ]
    expected = (401, "missing_key") if caller is None else (403, "role_not_allowed")
    assert [(answer.status_code, answer.json()["code"]) for answer in answers] == [expected] * 4
    found = service.keys.find(key.prefix)
    assert found is not None
    assert (found.revoked, found.successor) == (None, None)


def test_admin_of_one_collection_in_the_policy(tmp_path: Path) -> None:
    """An admin whose policy names one collection manages keys of this collection alone, whatever the key."""
    write_collection(tmp_path / "notes.npz", seed=1)
    content = write_two_collections()
    content["callers"]["admin"]["collections"] = {"docs": {"actions": ["entries"]}}
    service = open_service(tmp_path, content)
    with TestClient(create_app(service), headers=make_headers(service, "admin")) as client:
        assert client.post(KEYS, json={"caller": "curator"}).json()["code"] == "grant_too_wide"
        notes, _ = service.keys.create("curator", collections=["notes"])
        assert client.delete(f"{KEYS}/{notes.prefix}").json()["code"] == "unknown_key"
        assert client.post(KEYS, json={"caller": "curator", "collections": ["docs"]}).status_code == 201


def test_narrow_admin_key(service: Service) -> None:
    """An admin key for one collection manages keys of this collection alone; one for some actions manages none."""
    wide, _ = service.keys.create("curator")
    docs, _ = service.keys.create("curator", collections=["docs"])
    notes, _ = service.keys.create("curator", collections=["notes", "docs"])
    with TestClient(create_app(service), headers=make_headers(service, "admin", collections=["docs"])) as client:
        listed = {key["prefix"] for key in client.get(KEYS).json()["keys"]}
        assert docs.prefix in listed
        assert not {wide.prefix, notes.prefix} & listed
        for prefix in (wide.prefix, notes.prefix):
            assert client.post(f"{KEYS}/{prefix}/rotate").json()["code"] == "unknown_key"
            assert client.delete(f"{KEYS}/{prefix}").json()["code"] == "unknown_key"
        for body in ({"caller": "curator"}, {"caller": "admin"}, {"caller": "curator", "collections": ["notes"]}):
            assert client.post(KEYS, json=body).json()["code"] == "grant_too_wide"
        assert client.post(KEYS, json={"caller": "curator", "collections": ["docs"]}).status_code == 201
        assert client.post(f"{KEYS}/{docs.prefix}/rotate").status_code == 201
        narrow = make_headers(service, "admin", actions=["entries"])
        assert client.get(KEYS, headers=narrow).json()["code"] == "role_not_allowed"


def test_ending_admin_key_makes_no_lasting_key(service: Service) -> None:
    """A key that ends soon makes no key that lasts longer, neither directly nor by a rotation."""
    end = datetime.now(UTC) + timedelta(days=2)
    lasting, _ = service.keys.create("admin")
    short, _ = service.keys.create("app", expires=end - timedelta(days=1))
    with TestClient(create_app(service), headers=make_headers(service, "admin", expires=end)) as client:
        made = client.post(KEYS, json={"caller": "admin"}).json()
        assert made["expires"] == end.isoformat(timespec="seconds")
        assert client.post(KEYS, json={"caller": "app", "days": 3}).json()["code"] == "grant_too_wide"
        assert client.post(KEYS, json={"caller": "app", "days": 1}).status_code == 201
        assert client.post(f"{KEYS}/{lasting.prefix}/rotate").json()["code"] == "grant_too_wide"
        assert client.post(f"{KEYS}/{short.prefix}/rotate").status_code == 201
        assert client.delete(f"{KEYS}/{lasting.prefix}").status_code == 204


def test_person_needs_session_and_form_token(service: Service) -> None:
    """A person of role admin manages keys with a session and its form token, within the own collections."""
    with TestClient(create_app(service)) as client:
        foreign = sign_in(client, service, "eve")
        token = sign_in(client, service, "ada")
        body = {"caller": "app"}
        assert client.get(KEYS).status_code == 200
        for headers in ({}, {"x-csrf-token": foreign}, {"x-csrf-token": token, "sec-fetch-site": "cross-site"}):
            answer = client.post(KEYS, json=body, headers=headers)
            assert (answer.status_code, answer.json()["code"]) == (403, "invalid_form_token")
        made = client.post(KEYS, json=body, headers={"x-csrf-token": token})
        assert made.status_code == 201
        assert service.events.list_events(most=1)[0].author.name == "person:ada"
        prefix = made.json()["prefix"]
        assert client.delete(f"{KEYS}/{prefix}").status_code == 403
        assert client.post(f"{KEYS}/{prefix}/rotate").status_code == 403
        assert client.delete(f"{KEYS}/{prefix}", headers={"x-csrf-token": token}).status_code == 204
        assert client.post(KEYS, json={"caller": "stranger"}, headers={"x-csrf-token": token}).status_code == 422
        # A wrong API key is not replaced by the session that comes with it.
        wrong = {"authorization": "Bearer x", "x-csrf-token": token}
        assert client.post(KEYS, json=body, headers=wrong).json()["code"] == "invalid_key"
        token = sign_in(client, service, "noor", collections=["docs"])
        headers = {"x-csrf-token": token}
        assert client.post(KEYS, json={"caller": "curator"}, headers=headers).json()["code"] == "grant_too_wide"
        narrow = {"caller": "curator", "collections": ["docs"]}
        assert client.post(KEYS, json=narrow, headers=headers).status_code == 201
        token = sign_in(client, service, "finn", "officer")
        answer = client.post(KEYS, json=body, headers={"x-csrf-token": token})
        assert (answer.status_code, answer.json()["code"]) == (403, "role_not_allowed")
        service.people.disable("ada")
        sign_out = sign_in(client, service, "olga")
        service.people.disable("olga")
        assert client.post(KEYS, json=body, headers={"x-csrf-token": sign_out}).json()["code"] == "missing_key"


def test_revocation_on_another_replica(
    client: TestClient, service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A key that one replica made and revoked works on another one, and then no longer."""
    monkeypatch.setattr("scoreshield.service.access._CACHE_SECONDS", 0.0)
    made = client.post(KEYS, json={"caller": "app"}).json()
    replica = open_service(tmp_path, write_two_collections())
    with TestClient(create_app(replica), headers={"authorization": f"Bearer {made['key']}"}) as other:
        assert other.get("/v1/collections").status_code == 200
        assert client.delete(f"{KEYS}/{made['prefix']}").status_code == 204
        assert other.get("/v1/collections").json()["code"] == "key_revoked"
    assert service.keys.find(made["prefix"]) is not None
