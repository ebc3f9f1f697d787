"""Every path that /openapi.json describes, asked by every role: who gets an answer, and who gets which problem."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="the 'service' extra is not installed")

from service_support import (
    TestClient,
    make_headers,
    make_query,
    open_service,
    sign_in,
    write_collection,
    write_policy,
)

from scoreshield.service.application import create_app
from scoreshield.service.core import Service
from scoreshield.service.policy import ROLE_ACTIONS

#: What a path needs: nothing, any key, any grant on the collection, an action on it, or the role admin.
FREE, KEY, GRANT, ADMIN = "free", "key", "grant", "admin"
QUERY: dict[str, Any] = {"query": make_query(1)}
#: For each operation, what it needs and a body that would be answered.
OPERATIONS: dict[tuple[str, str], tuple[str, Any]] = {
    ("get", "/"): (FREE, None),
    ("get", "/livez"): (FREE, None),
    ("get", "/readyz"): (FREE, None),
    ("get", "/metrics"): ("metrics", None),
    ("get", "/v1/collections"): (KEY, None),
    ("get", "/v1/collections/{name}"): (GRANT, None),
    ("post", "/v1/collections/{name}/search"): ("search", QUERY),
    ("post", "/v1/collections/{name}/matches"): ("matches", QUERY),
    ("post", "/v1/collections/{name}/top-k"): ("top_k", QUERY),
    ("get", "/v1/collections/{name}/index"): ("index", None),
    ("get", "/v1/collections/{name}/certificate"): (GRANT, None),
    ("get", "/v1/collections/{name}/certificate?entry=all"): ("entries", None),
    ("post", "/v1/collections/{name}/estimate"): (GRANT, {}),
    ("get", "/v1/collections/{name}/budget"): (GRANT, None),
    ("get", "/v1/collections/{name}/entries"): ("entries", None),
    ("get", "/v1/signing-keys"): (KEY, None),
    ("get", "/v1/keys"): (ADMIN, None),
    ("post", "/v1/keys"): (ADMIN, {"caller": "reader"}),
    ("post", "/v1/keys/{prefix}/rotate"): (ADMIN, None),
    ("delete", "/v1/keys/{prefix}"): (ADMIN, None),
    ("get", "/collections"): (KEY, None),
    ("get", "/collections/{name}"): (GRANT, None),
    ("get", "/collections/{name}/exists"): (KEY, None),
    ("post", "/collections/{name}/points/query"): ("search", QUERY),
    ("post", "/collections/{name}/points/query/batch"): ("search", {"searches": [QUERY]}),
    ("post", "/collections/{name}/points/search"): ("search", {"vector": QUERY["query"], "limit": 3}),
    ("post", "/collections/{name}/points/search/batch"): (
        "search",
        {"searches": [{"vector": QUERY["query"], "limit": 3}]},
    ),
    ("get", "/v1/vector_stores"): (KEY, None),
    ("get", "/v1/vector_stores/{name}"): (GRANT, None),
    ("post", "/v1/vector_stores/{name}/search"): ("search", {"query": "a text"}),
}
#: Callers of the policy: the role, and the actions on the collection docs.
CALLERS: dict[str, tuple[str, tuple[str, ...]]] = {
    "reader": ("reader", ROLE_ACTIONS["reader"]),
    "searcher": ("reader", ("search",)),
    "curator": ("curator", ROLE_ACTIONS["curator"]),
    "officer": ("officer", ROLE_ACTIONS["officer"]),
    "admin": ("admin", ()),
    "stranger": ("reader", ()),
}


@pytest.fixture
def service(tmp_path: Path) -> Service:
    write_collection(tmp_path / "other.npz", seed=1)
    content = write_policy(collection={"embedder": "hashing", "index": {"epsilon": 2.0}, "budget": {"epsilon": 200.0}})
    content["collections"]["other"] = {**content["collections"]["docs"], "file": "other.npz"}
    content["callers"] = {
        name: {"role": role, "rate": {"requests": 100_000}, "collections": {"docs": {"actions": actions}}}
        for name, (role, actions) in CALLERS.items()
    }
    content["callers"]["admin"]["collections"] = {}
    content["callers"]["stranger"]["collections"] = {"other": {"actions": ["search"]}}
    return open_service(tmp_path, content)


@pytest.fixture
def client(service: Service) -> Iterator[TestClient]:
    with TestClient(create_app(service)) as client:
        yield client


def ask(client: TestClient, service: Service, operation: tuple[str, str], headers: dict[str, str]) -> tuple[int, str]:
    """Send one request; return its status and the code of its problem."""
    method, path = operation
    prefix = service.keys.create("reader")[0].prefix
    body = OPERATIONS[operation][1]
    answer = client.request(method, path.format(name="docs", prefix=prefix), json=body, headers=headers)
    found = service.keys.find(prefix)
    assert found is not None
    assert answer.status_code < 400 or (found.revoked is None and found.successor is None)
    if answer.status_code < 400:
        return answer.status_code, ""
    document = answer.json()
    code = document.get("code") or document.get("status", {}).get("code") if "error" not in document else None
    return answer.status_code, code or document["error"]["code"]


def test_table_is_complete(client: TestClient) -> None:
    described = client.get("/openapi.json").json()["paths"]
    found = {(method, path) for path, methods in described.items() for method in methods}
    assert found == {(method, path.partition("?")[0]) for method, path in OPERATIONS}


@pytest.mark.parametrize("caller", CALLERS)
def test_keys_of_every_role(client: TestClient, service: Service, caller: str) -> None:
    role, actions = CALLERS[caller]
    has_grant = caller not in ("admin", "stranger")
    for operation, (need, _) in OPERATIONS.items():
        status, code = ask(client, service, operation, make_headers(service, caller))
        if need in (FREE, KEY) or (need == ADMIN and role == "admin") or (need == GRANT and has_grant):
            allowed = True
        else:
            allowed = has_grant and need in actions
        if allowed:
            assert status < 300, (operation, status, code)
        elif need == ADMIN:
            assert (status, code) == (403, "role_not_allowed"), operation
        elif has_grant or need == "metrics":
            assert (status, code) == (403, "action_not_allowed"), operation
        else:  # a collection that the key does not open is as if it were not there
            assert (status, code) == (404, "unknown_collection"), operation


@pytest.mark.parametrize("kind", ["none", "wrong", "revoked", "expired", "removed"])
def test_keys_that_are_not_valid(client: TestClient, service: Service, kind: str) -> None:
    key, text = service.keys.create("admin", expires=datetime.now(UTC) + timedelta(days=1 if kind != "expired" else -1))
    codes = {"none": "missing_key", "revoked": "key_revoked", "expired": "key_expired"}
    if kind == "revoked":
        service.keys.revoke(key.prefix)
    if kind == "removed":  # a caller that the policy no longer has
        text = service.keys.create("nobody")[1]
    headers = {} if kind == "none" else {"authorization": f"Bearer {'ss_x' if kind == 'wrong' else text}"}
    for operation, (need, _) in OPERATIONS.items():
        status, code = ask(client, service, operation, headers)
        wanted = (200, "") if need == FREE else (401, codes.get(kind, "invalid_key"))
        assert (status, code) == wanted, operation
    assert service.collections["docs"].account.spent == 2.0  # of the index, at the start


@pytest.mark.parametrize("narrow", [{"collections": ["other"]}, {"actions": ["matches"]}])
def test_narrow_keys(client: TestClient, service: Service, narrow: dict[str, Any]) -> None:
    """A key is never wider than it was made, on any path."""
    for operation, (need, _) in OPERATIONS.items():
        status, code = ask(client, service, operation, make_headers(service, "curator", **narrow))
        allowed = need in (FREE, KEY) if "collections" in narrow else need in (FREE, KEY, GRANT, "matches")
        assert (status < 300) == allowed, (operation, status, code)


@pytest.mark.parametrize("role", ["reader", "curator", "officer", "admin"])
@pytest.mark.parametrize("has_token", [True, False])
def test_sessions_of_every_role(client: TestClient, service: Service, role: Any, has_token: bool) -> None:
    """A session opens no path of programs, except that an admin manages keys, and changes them by a form token."""
    token = sign_in(client, service, f"{role}-person", role)
    for operation, (need, _) in OPERATIONS.items():
        status, code = ask(client, service, operation, {"x-csrf-token": token} if has_token else {})
        if need == FREE:
            assert status == 200, operation
        elif need != ADMIN:
            assert (status, code) == (401, "missing_key"), operation
        elif operation[0] != "get" and not has_token:
            assert (status, code) == (403, "invalid_form_token"), operation
        elif role == "admin":
            assert status < 300, operation
        else:
            assert (status, code) == (403, "role_not_allowed"), operation
