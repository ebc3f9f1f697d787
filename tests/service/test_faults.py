"""Faults around a request: no answer is unpaid, paid twice, or seen in two forms.

The functions of ``benchmarks/service.py`` make the faults; what is killed at each step inside the book of answers is in
``test_answers.py``.
"""

from __future__ import annotations

import importlib.util
import socket
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="the 'service' extra is not installed")

import httpx
from service_support import make_headers, make_query, open_service, serve, write_policy

from scoreshield.errors import LedgerError, ScoreShieldError
from scoreshield.privacy.ledger import Ledger
from scoreshield.service.answers import Payer
from scoreshield.service.problems import ServiceProblem
from scoreshield.service.writes import GroupedWriter

SEARCH = "/v1/collections/docs/search"


@pytest.fixture(scope="module")
def faults() -> ModuleType:
    path = Path(__file__).resolve().parents[2] / "benchmarks" / "service.py"
    if not path.exists():
        pytest.skip("the benchmarks are not beside the tests")
    spec = importlib.util.spec_from_file_location("service_benchmark", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("step", ["after the charge", "before the answer is sent"])
def test_killed_server(faults: ModuleType, tmp_path: Path, step: str) -> None:
    """A server that is killed with kill -9 in the middle of a request answers it after a restart, for one charge."""
    row = faults.run_kill(tmp_path, step)
    assert row["holds"], row
    assert row["failed"] == 1


def test_dropping_proxy(faults: ModuleType, tmp_path: Path) -> None:
    """Behind a proxy that drops answers, every repeated query gets the same answer and one charge."""
    row = faults.run_dropping_proxy(tmp_path)
    assert row["holds"], row
    assert row["failed"] == 12


def test_full_disk(faults: ModuleType, tmp_path: Path) -> None:
    """While no file can grow nothing is charged and nothing is answered; afterwards the same server answers."""
    row = faults.run_full_disk(tmp_path)
    assert row["holds"], row
    assert row["failed"] >= 1


def test_check_of_faults_can_fail(faults: ModuleType, tmp_path: Path) -> None:
    """The near miss: a second view, and a query that was answered without a charge, are reported."""
    service = open_service(tmp_path)
    served = service.collections["docs"]
    served.search(Payer("app"), "search", [served.read_query(make_query(1))], 5)
    check = faults.FaultCheck("none", f"sqlite:///{tmp_path / 'service-docs.ledger.db'}")
    check.add(0, faults.Answer(200, b"one"))
    assert check.finish(1)["holds"]
    check.add(0, faults.Answer(200, b"two"))
    assert not check.finish(1)["holds"]
    assert check.finish(1)["second_views"] == 1
    check.add(1, faults.Answer(200, b"other"))
    assert check.finish(2)["unpaid"] == 1


def test_racing_clients(faults: ModuleType, tmp_path: Path) -> None:
    """Sixty clients at once on a budget of ten: exactly ten are answered and paid."""
    row = faults.measure_race(tmp_path, faults.QUICK)
    assert row["holds"], row


def test_load_prints_every_kind_of_answer(faults: ModuleType, tmp_path: Path) -> None:
    rows = faults.measure_load(tmp_path, faults.Size(500, 8, 1, 10, 40, 0, 0))
    assert {(row["answers"], row["clients"]) for row in rows} == {
        (name, clients)
        for name in ("bare", f"bare, {faults.CORES} threads of BLAS", "fresh", "stored")
        for clients in (1, 8)
    }
    assert all(row["p99_ms"] >= row["p50_ms"] > 0 for row in rows)
    if sys.platform == "linux":
        assert all(row["processor_ms"] > 0 for row in rows)


def test_client_that_disconnects(tmp_path: Path) -> None:
    """A client that leaves before its answer is charged once, and gets that answer when it comes back."""
    service = open_service(tmp_path)
    headers = make_headers(service)
    account = service.collections["docs"].account
    with serve(service) as address:
        body = httpx.Request("POST", address + SEARCH, json={"query": make_query(1)}, headers=headers)
        head = "".join(f"{name}: {value}\r\n" for name, value in body.headers.items())
        with socket.create_connection(("127.0.0.1", int(address.rpartition(":")[2]))) as connection:
            connection.sendall(f"POST {SEARCH} HTTP/1.1\r\n{head}\r\n".encode() + body.content)
        end = time.monotonic() + 20
        while account.spent == 0 and time.monotonic() < end:
            time.sleep(0.02)
        with httpx.Client(trust_env=False, base_url=address, headers=headers) as client:
            answers = {client.post(SEARCH, json={"query": make_query(1)}).content for _ in range(3)}
    assert len(answers) == 1
    assert account.spent == 1.0


def test_replicas_answer_alike(tmp_path: Path) -> None:
    """Racing twins of six queries on two replicas, and after a restart: one body and one charge each."""
    replicas = [open_service(tmp_path), open_service(tmp_path)]
    headers = make_headers(replicas[0])
    seen: dict[int, set[bytes]] = {seed: set() for seed in range(6)}

    def ask(address: str, seed: int) -> None:
        with httpx.Client(trust_env=False, base_url=address, headers=headers, timeout=30) as client:
            seen[seed].add(client.post(SEARCH, json={"query": make_query(seed)}).content)

    with serve(replicas[0]) as first, serve(replicas[1]) as second, ThreadPoolExecutor(8) as pool:
        list(
            pool.map(
                lambda place: ask((first, second)[place % 2], place % 6 if place < 12 else place // 2 % 6), range(24)
            )
        )
    with serve(open_service(tmp_path)) as again:
        for seed in seen:
            ask(again, seed)
    assert all(len(bodies) == 1 for bodies in seen.values())
    assert replicas[0].collections["docs"].account.spent == 6.0


def test_known_body_needs_key_grant_and_rate(tmp_path: Path) -> None:
    """A body that is in memory is sent only to keys that may get it, within their rate, and not after a revocation."""
    content = write_policy()
    content["callers"]["slow"] = {
        "role": "reader",
        "collections": {"docs": {"actions": ["search"]}},
        "rate": {"requests": 3, "seconds": 3600},
    }
    service = open_service(tmp_path, content)
    headers, narrow = make_headers(service), make_headers(service, actions=["matches"])
    officer, slow = make_headers(service, "officer"), make_headers(service, "slow")
    body = {"query": make_query(1)}
    with serve(service) as address, httpx.Client(trust_env=False, base_url=address) as client:
        first = client.post(SEARCH, json=body, headers=headers)
        assert first.status_code == 200
        assert client.post(SEARCH, json=body, headers=headers).content == first.content
        for one, code in ((narrow, "action_not_allowed"), (officer, "action_not_allowed"), ({}, "missing_key")):
            for _ in range(2):  # the second time the key was looked up just now
                assert client.post(SEARCH, json=body, headers=one).json()["code"] == code
        statuses = [client.post(SEARCH, json=body, headers=slow).status_code for _ in range(5)]
        assert statuses == [200, 200, 200, 429, 429]
        # The same headers as those of an answer that was computed.
        known = client.post(SEARCH, json=body, headers=headers)
        assert set(known.headers) == set(first.headers)
        service.keys.revoke(headers["authorization"].split("_")[1])
        time.sleep(1.05)
        assert client.post(SEARCH, json=body, headers=headers).json()["code"] == "key_revoked"


def add_rows_together(ledger: Ledger, count: int, fail: Callable[[int], None]) -> list[Any]:
    """Add rows by works that wait for one commit; return for each its number, or the error that it got.

    Args:
        ledger: Beside which the rows are added.
        count: How many works there are.
        fail: Called in each work with its number, after the row is added.
    """
    writer = GroupedWriter(ledger)

    def add(place: int) -> Any:
        def work(session: Any) -> int:
            session.execute("INSERT INTO scoreshield_service_allowances VALUES (?, 1, '1')", (f"c{place}",))
            fail(place)
            return place

        try:
            return writer.run(work)
        except (ScoreShieldError, ArithmeticError) as error:
            return error

    with ThreadPoolExecutor(count) as pool, writer._queue._lock:
        futures = [pool.submit(add, place) for place in range(count)]
        while len(writer._queue._waiting) < count:
            time.sleep(0.001)
    return [future.result() for future in futures]


def list_rows(ledger: Ledger) -> set[str]:
    """List the callers of the rows that were added."""
    rows = "SELECT caller FROM scoreshield_service_allowances"
    return {row[0] for row in ledger.read_beside(lambda session: session.execute(rows).fetchall())}


def test_grouped_works_are_whole_or_absent(tmp_path: Path) -> None:
    """Works that wait together are committed once; one that fails takes nothing of the others with it."""
    ledger = open_service(tmp_path).collections["docs"].account.ledger
    commits = 0
    write = ledger.write_beside

    def count_commits(work: Any) -> Any:
        nonlocal commits
        commits += 1
        return write(work)

    ledger.write_beside = count_commits  # type: ignore[method-assign]

    def fail(place: int) -> None:
        if place % 3 == 0:
            raise ServiceProblem("allowance_exhausted")

    results = [getattr(one, "code", one) for one in add_rows_together(ledger, 12, fail)]
    assert results == ["allowance_exhausted" if place % 3 == 0 else place for place in range(12)]
    assert commits == 1
    assert list_rows(ledger) == {f"c{place}" for place in range(12) if place % 3}


def test_failed_commit_fails_every_work(tmp_path: Path) -> None:
    """A work that breaks the database undoes all works of its commit, and each thread learns it."""
    ledger = open_service(tmp_path).collections["docs"].account.ledger

    def fail(place: int) -> None:
        if place == 2:
            raise LedgerError("The ledger has been altered.")

    assert [type(one) for one in add_rows_together(ledger, 4, fail)] == [LedgerError] * 4
    assert list_rows(ledger) == set()


def test_unexpected_error_of_one_work_fails_that_work_alone(tmp_path: Path) -> None:
    """Where the row of one caller is damaged, the others of the same commit are charged, each once."""
    ledger = open_service(tmp_path).collections["docs"].account.ledger

    def fail(place: int) -> None:
        if place == 2:
            raise ArithmeticError

    results = add_rows_together(ledger, 4, fail)
    assert isinstance(results.pop(2), ArithmeticError)
    assert results == [0, 1, 3]
    assert list_rows(ledger) == {"c0", "c1", "c3"}
