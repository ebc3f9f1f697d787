"""The same service on a real PostgreSQL server: races, twins, crashes and keys."""

from __future__ import annotations

import itertools
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="the 'service' extra is not installed")
pytest.importorskip("psycopg", reason="the driver of PostgreSQL is not installed")

import psycopg
from argon2 import PasswordHasher
from service_support import TestClient, make_headers, make_query, open_service, write_collection, write_policy

from scoreshield.errors import InvalidInput
from scoreshield.service.access import KeyTable
from scoreshield.service.answers import AnswerBook, Payer
from scoreshield.service.application import create_app
from scoreshield.service.core import Service
from scoreshield.service.dashboard import facts
from scoreshield.service.people import PeopleTable, ProviderGrant
from scoreshield.service.problems import ServiceProblem

_schemas = itertools.count()


@pytest.fixture
def content(postgres: str) -> dict[str, Any]:
    """A policy with a schema of its own for each test."""
    schema = f"service{next(_schemas)}"
    with psycopg.connect(postgres) as connection:
        connection.execute(f"CREATE SCHEMA {schema}")
    policy = write_policy()
    policy["installation"]["database"] = f"{postgres}&options=-csearch_path%3D{schema}"
    return policy


def ask(service: Service, seed: int) -> Any:
    served = service.collections["docs"]
    try:
        answer = served.search(Payer("app"), "search", [served.read_query(make_query(seed))], 5)[0]
    except ServiceProblem as problem:
        return problem.code
    return [hit.to_dict() for hit in answer.hits]


def test_replicas_and_races(tmp_path: Path, content: dict[str, Any]) -> None:
    """Two replicas pay once for twins, and 60 racing queries spend exactly the budget of 20."""
    replicas = [open_service(tmp_path, content) for _ in range(2)]
    with ThreadPoolExecutor(10) as pool:
        twins = list(pool.map(lambda place: ask(replicas[place % 2], 0), range(20)))
        assert all(twin == twins[0] != "budget_exhausted" for twin in twins)
        account = replicas[1].collections["docs"].account
        assert account.spent == 1.0
        results = list(pool.map(lambda place: ask(replicas[place % 2], place), range(1, 60)))
    assert results.count("budget_exhausted") == 59 - 19
    assert account.spent == 20.0
    assert account.ledger.verify()
    for replica in replicas:
        replica.close()


def test_people_and_guesses(tmp_path: Path, content: dict[str, Any]) -> None:
    """Sessions and attempts are shared by replicas: 40 racing guesses are 20 checks of the password."""
    replicas = [open_service(tmp_path, content) for _ in range(2)]
    hasher = PasswordHasher(time_cost=1, memory_cost=8, parallelism=1)
    tables = [PeopleTable(replica.database, replica.key, hasher=hasher) for replica in replicas]
    tables[0].create("ada", "reader", ["docs"], "a quiet lake at noon")
    token = tables[0].sign_in("ada", "a quiet lake at noon", "10.0.0.1")
    found = tables[1].find_session(token)
    assert found is not None
    assert found.collections == ("docs",)

    def guess(place: int) -> str:
        try:
            tables[place % 2].sign_in("ada", "wrong password", f"10.0.0.{place % 5}")
        except ServiceProblem as problem:
            return problem.code
        return "ok"

    with ThreadPoolExecutor(8) as pool:
        codes = list(pool.map(guess, range(40)))
    assert (codes.count("sign_in_failed"), codes.count("too_many_attempts")) == (20, 20)
    tables[1].set_password("ada", "another quiet lake")
    assert tables[0].find_session(token) is None
    assert tables[0].find_session(tables[1].sign_in("ada", "another quiet lake", "")) is not None
    tables[0].disable("ada")
    tables[1].enable("ada")
    assert tables[0].change("ada", "officer", None).role == "officer"
    assert tables[1].change("ada", "curator").collections is None
    grant = ProviderGrant("bob", "officer", ())
    with ThreadPoolExecutor(4) as pool:
        tokens = list(pool.map(lambda place: tables[place % 2].admit(grant, ""), range(8)))
    assert all(tables[0].find_session(one) is not None for one in tokens)
    kinds = [event.kind for event in replicas[0].events.list_events()]
    assert kinds.count("person created") == 2
    assert kinds.count("sign-in failed") == 20
    for replica in replicas:
        replica.close()


def test_crash_restart_and_keys(tmp_path: Path, content: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer that was charged and not stored is computed after a restart; keys and problems work as on SQLite."""
    service = open_service(tmp_path, content)

    def fail(*_: Any) -> Any:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(AnswerBook, "_store", fail)
        with pytest.raises(MemoryError):
            ask(service, 1)
    assert service.collections["docs"].account.spent == 1.0
    restarted = open_service(tmp_path, content)
    with TestClient(create_app(restarted), headers=make_headers(service)) as client:
        path, body = "/v1/collections/docs/search", {"query": make_query(1)}
        first = client.post(path, json=body, headers={"Idempotency-Key": "a"})
        assert first.status_code == 200
        assert client.post(path, json=body, headers={"Idempotency-Key": "a"}).content == first.content
        other = client.post(path, json={"query": make_query(2)}, headers={"Idempotency-Key": "a"})
        assert other.json()["code"] == "idempotency_conflict"
        assert client.get("/v1/collections/docs/budget").json()["queries_left"]["search"] == 19
        assert client.get("/readyz").status_code == 200
    assert restarted.collections["docs"].account.spent == 1.0
    service.close()


def test_dashboard_reads_the_ledger(tmp_path: Path, content: dict[str, Any]) -> None:
    """The totals by day, the pages of entries, versions and allowances come from a server too."""
    service = open_service(tmp_path, content)
    served = service.collections["docs"]
    for seed in range(3):
        ask(service, seed)
    history = facts.read_history(served)
    assert [one.spent for one in history.days][-1] == served.account.spent == 3.0
    assert history.recent == 3
    assert [one.number for one in facts.list_newest_entries(served, 3)[0]] == [2, 1]
    assert [number for number, _ in facts.list_versions(served)] == [1]
    assert [(one.caller, one.queries) for one in facts.list_allowances(served, service.policy)] == [("app", 3)]
    service.close()


@pytest.mark.parametrize("other", ["rotated", "revoked"])
def test_key_that_ends_while_it_is_rotated(
    tmp_path: Path, content: dict[str, Any], monkeypatch: pytest.MonkeyPatch, other: str
) -> None:
    """A key that another replica revokes or replaces between the look and the change gets no second successor."""
    here, there = (open_service(tmp_path, content) for _ in range(2))
    prefix = here.keys.create("app")[0].prefix
    read, left = KeyTable._read_in, [prefix]

    def read_slowly(execute: Any, wanted: str) -> Any:
        found = read(execute, wanted)
        if left:
            left.clear()
            if other == "revoked":
                there.keys.revoke(wanted)
            else:
                there.keys.rotate(wanted, overlap=timedelta(hours=1))
        return found

    monkeypatch.setattr(KeyTable, "_read_in", staticmethod(read_slowly))
    with pytest.raises(InvalidInput, match="revoked, expired or replaced"):
        here.keys.rotate(prefix, overlap=timedelta(hours=1))
    valid = [key.prefix for key in here.keys.list_keys() if key.revoked is None and key.prefix != prefix]
    assert len(valid) == (0 if other == "revoked" else 1)
    for one in (here, there):
        one.close()


def test_rejected_start_makes_no_schema(tmp_path: Path, content: dict[str, Any], postgres: str) -> None:
    """A policy that is rejected makes no schema for a ledger, so that no limit is fixed."""
    wrong = {**content, "collections": {"docs": {**content["collections"]["docs"], "expected_queries": 99}}}
    schema = f"{content['installation']['database'].rpartition('%3D')[2]}_docs"

    def is_there() -> bool:
        with psycopg.connect(postgres) as connection:
            row = connection.execute("SELECT 1 FROM pg_namespace WHERE nspname = %s", (schema,)).fetchone()
        return row is not None

    with pytest.raises(InvalidInput, match="expects 99 queries"):
        open_service(tmp_path, wrong)
    assert not is_there()
    open_service(tmp_path, content).close()
    assert is_there()


def test_older_ledger_answers_nothing_new(tmp_path: Path, content: dict[str, Any], postgres: str) -> None:
    """Tables that are set back to an earlier state under two replicas: what was seen of them is missing."""
    replicas = [open_service(tmp_path, content) for _ in range(2)]
    schema = f"{content['installation']['database'].rpartition('%3D')[2]}_docs"
    tables = ["ledger", "entries", "accounts", "service_answers", "service_allowances"]
    ask(replicas[0], 1)
    with psycopg.connect(postgres, autocommit=True) as connection:
        for table in tables:
            connection.execute(f"CREATE TABLE {schema}.copy_{table} AS TABLE {schema}.scoreshield_{table}")
        assert isinstance(ask(replicas[0], 2), list)
        assert isinstance(ask(replicas[1], 3), list)
        for table in tables:
            connection.execute(f"DELETE FROM {schema}.scoreshield_{table}")
            connection.execute(f"INSERT INTO {schema}.scoreshield_{table} SELECT * FROM {schema}.copy_{table}")
    assert [ask(replica, 4) for replica in replicas] == ["ledger_outdated"] * 2
    assert replicas[0].collections["docs"].account.spent == 1.0
    for replica in replicas:
        with pytest.raises(ServiceProblem, match="older than what was charged"):
            replica.check_databases()
        replica.close()


def test_reload_during_an_answer(tmp_path: Path, content: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer on older data that is being computed is stored, while a newer replica is charged for the same query."""
    service = open_service(tmp_path, content)
    book = service.collections["docs"]._book
    draw = book._draw

    def draw_slowly(*arguments: Any) -> Any:
        write_collection(tmp_path / "docs.npz", seed=1)
        service.reload(service.policy)
        newer.append(ask(service, 1))
        return draw(*arguments)

    newer: list[Any] = []
    monkeypatch.setattr(book, "_draw", draw_slowly)
    first = ask(service, 1)
    assert isinstance(first, list)
    assert isinstance(newer[0], list)
    assert first != newer[0]
    assert service.collections["docs"].account.spent == 2.0
    service.close()
