"""What the tests of the service share: a small collection, a policy, a service and a client with a key."""

from __future__ import annotations

import contextlib
import threading
import time
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import uvicorn
from numpy.typing import NDArray

from scoreshield.service.application import create_app
from scoreshield.service.core import Service
from scoreshield.service.policy import Policy, Role, check_policy, place_files
from scoreshield.service.sign_in import name_session_cookie

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # newer versions prefer another HTTP client than the one of this project
    from starlette.testclient import TestClient as TestClient

RECORDS, DIMENSION = 300, 16


def make_rows(seed: int = 0, records: int = RECORDS) -> NDArray[np.float32]:
    rows = np.random.default_rng(seed).standard_normal((records, DIMENSION)).astype(np.float32)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def write_collection(path: Path, seed: int = 0) -> None:
    """Write records with public ids and years."""
    ids = np.array([f"r{place}" for place in range(RECORDS)])
    years = np.arange(RECORDS) % 5 + 2000
    np.savez(path, embeddings=make_rows(seed), ids=ids, year=years)


def make_query(seed: int) -> list[float]:
    query: list[float] = np.random.default_rng([7, seed]).standard_normal(DIMENSION).tolist()
    return query


def write_policy(**changes: Any) -> dict[str, Any]:
    """Write the content of a policy: pure epsilon 1 per query, 20 of them in the budget."""
    collection: dict[str, Any] = {
        "file": "docs.npz",
        "ids": "ids",
        "fields": ["year"],
        "budget": {"epsilon": 20.0},
        "search": {"mechanism": "staircase", "epsilon": 1.0, "most": 50},
        "matches": {"threshold": 0.4, "epsilon": 1.0},
        "top_k": {"epsilon": 1.0, "k": 3},
    }
    actions = ["search", "matches", "top_k"]
    return {
        "installation": {"database": "sqlite:///service.db", "time_step": 0.0, "port": 0},
        "collections": {"docs": {**collection, **changes.pop("collection", {})}},
        "callers": {
            "app": {"role": "reader", "collections": {"docs": {"actions": actions}}, "rate": {"requests": 100_000}},
            "officer": {"role": "officer", "collections": {"docs": {"actions": ["entries"]}}},
            **changes.pop("callers", {}),
        },
        **changes,
    }


def make_policy(folder: Path, content: Mapping[str, Any] | None = None) -> Policy:
    """Make a policy whose files lie in a folder, with its collection."""
    if not (folder / "docs.npz").exists():
        write_collection(folder / "docs.npz")
    return place_files(check_policy(dict(write_policy() if content is None else content)), folder)


def open_service(folder: Path, content: Mapping[str, Any] | None = None) -> Service:
    return Service(make_policy(folder, content))


def spent(service: Service) -> float:
    """Return the epsilon that is spent on the collection."""
    return service.collections["docs"].account.spent


def make_headers(service: Service, caller: str = "app", **settings: Any) -> dict[str, str]:
    """Make a new key for a caller, as the header that carries it."""
    return {"authorization": f"Bearer {service.keys.create(caller, **settings)[1]}"}


def make_key(service: Service, caller: str = "app") -> str:
    """Make a new key for a caller, as clients of other programs take it."""
    return service.keys.create(caller)[1]


def start_session(service: Service, name: str) -> str:
    """Begin a session of a person without a sign-in; return its token."""
    row = service.people._find_row(name)
    assert row is not None
    return service.people._begin_session(row, "")


def sign_in(client: TestClient, service: Service, name: str, role: Role = "admin", *, collections: Any = None) -> str:
    """Give a client the session of a person, who is made where there is none; return the form token of the session."""
    if not any(one.name == name for one in service.people.list_people()):
        service.people.create(name, role, collections)
    token = start_session(service, name)
    client.cookies.clear()
    client.cookies.set(name_session_cookie(service), token)
    return service.key.compute_tag("form token of a session", token)


@contextlib.contextmanager
def serve(service: Service, app: Any = None) -> Iterator[str]:
    """Serve on a free port of this computer, for clients that speak real HTTP; yields the address."""
    config = uvicorn.Config(
        create_app(service) if app is None else app, host="127.0.0.1", port=0, log_config=None, ws="none", lifespan="on"
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        end = time.monotonic() + 20
        while not server.started:
            assert thread.is_alive(), "the server has ended"
            assert time.monotonic() < end, "the server does not start"
            time.sleep(0.01)
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        for other in threading.enumerate():
            if "_check_compatibility" in other.name:  # Qdrant's client asks for the version in a thread of its own
                other.join(20)
        server.should_exit = True
        thread.join(20)
