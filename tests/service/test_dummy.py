"""Dummy mode: the same interface and the same noise on synthetic records, and no real record, ledger or budget."""

from __future__ import annotations

import builtins
import io
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("fastapi", reason="the 'service' extra is not installed")

from service_support import (
    DIMENSION,
    RECORDS,
    TestClient,
    make_headers,
    make_policy,
    make_query,
    make_rows,
    open_service,
    sign_in,
    write_policy,
)

from scoreshield.errors import InvalidInput
from scoreshield.privacy.signatures import find_signature_fault
from scoreshield.service.application import create_app
from scoreshield.service.collection import load_collection
from scoreshield.service.core import Service
from scoreshield.service.dummy import find_dummy_shape, make_dummy_policy
from scoreshield.service.policy import CollectionPolicy, find_contradictions

SEARCH = "/v1/collections/docs/search"


@pytest.fixture
def dummy(tmp_path: Path) -> Iterator[Service]:
    """A service whose only collection is a dummy of a real file."""
    service = open_service(tmp_path, write_policy(collection={"dummy": True}))
    yield service
    service.close()


def test_documents_say_dummy(dummy: Service) -> None:
    """Collections, budgets, answers, certificates and entries say that they are of a dummy, of the real shape."""
    with TestClient(create_app(dummy), headers=make_headers(dummy)) as client:
        listed = client.get("/v1/collections").json()["collections"][0]
        assert (listed["dummy"], listed["records"], listed["dimension"]) == (True, RECORDS, DIMENSION)
        first = client.post(SEARCH, json={"query": make_query(1), "k": 5, "filter": {"year": [1, 2, 3]}})
        answer = first.json()
        assert answer["dummy"] is True
        assert all(hit["id"].startswith("dummy-") for hit in answer["hits"])
        assert all(type(hit["fields"]["year"]) is int for hit in answer["hits"])  # the type of the real field
        assert client.post(SEARCH, json={"query": make_query(1), "k": 5, "filter": {"year": [1, 2, 3]}}).content == (
            first.content
        )
        for path in ("budget", f"certificate?entry={answer['entry']}"):
            assert client.get(f"/v1/collections/docs/{path}").json()["dummy"] is True
        assert client.post("/v1/collections/docs/estimate", json={}).json()["dummy"] is True
        points = client.post("/collections/docs/points/query", json={"query": make_query(1)}).json()
        assert points["scoreshield"]["dummy"] is True
        entries = client.get("/v1/collections/docs/entries", headers=make_headers(dummy, "officer")).json()
        assert (entries["dummy"], len(entries["entries"])) == (True, 1)


def test_real_documents_do_not(tmp_path: Path) -> None:
    """Answers of a real collection keep their bytes: they have no such member."""
    service = open_service(tmp_path)
    with TestClient(create_app(service), headers=make_headers(service)) as client:
        assert "dummy" not in client.post(SEARCH, json={"query": make_query(1)}).json()
        assert "dummy" not in client.get("/v1/collections/docs").json()


def test_index_is_named_dummy(tmp_path: Path) -> None:
    """The file of an index says by its name that it is of a dummy."""
    content = write_policy(collection={"dummy": True, "index": {"epsilon": 4.0}})
    content["callers"]["app"]["collections"]["docs"]["actions"] = ["index"]
    service = open_service(tmp_path, content)
    with TestClient(create_app(service), headers=make_headers(service)) as client:
        shown = client.get("/v1/collections/docs/index").headers["content-disposition"]
    assert 'filename="dummy-docs.npz"' in shown


def test_same_mechanism(dummy: Service, tmp_path: Path) -> None:
    """The guarantees of all actions are those of the real collection."""
    real = open_service(tmp_path)
    offers, others = (service.collections["docs"].offers for service in (real, dummy))
    assert offers.keys() == others.keys()
    for action, offer in offers.items():
        assert offer.guarantee == others[action].guarantee
        assert offer.parameters == others[action].parameters
    real.close()


def test_budget_is_of_its_own(tmp_path: Path) -> None:
    """A dummy of a served collection leaves its ledger as it was, and is gone afterwards; the real one starts again."""
    real = open_service(tmp_path)
    ledger = tmp_path / "service-docs.ledger.db"
    before = ledger.read_bytes()
    real.close()
    service = open_service(tmp_path, write_policy(collection={"dummy": True}))
    with TestClient(create_app(service), headers=make_headers(service)) as client:
        for seed in range(20):
            assert client.post(SEARCH, json={"query": make_query(seed)}).status_code == 200
        assert client.post(SEARCH, json={"query": make_query(20)}).json()["code"] == "budget_exhausted"
        folder = Path(service.collections["docs"].account.ledger.name.removeprefix("sqlite:///")).parent
        assert folder.is_dir()
    assert not folder.exists()
    assert ledger.read_bytes() == before
    again = open_service(tmp_path)
    assert again.collections["docs"].account.spent == 0.0
    again.close()


def test_only_headers_are_read(tmp_path: Path) -> None:
    """The vectors of the file can be gone: only its header is read, and the records are the same for the same shape."""
    np.save(tmp_path / "rows.npy", make_rows())
    with (tmp_path / "rows.npy").open("r+b") as file:
        file.truncate(128)  # the header alone
    policy = CollectionPolicy(file=tmp_path / "rows.npy", dummy=True, budget={"epsilon": 1.0})  # type: ignore[arg-type]
    assert find_dummy_shape("docs", policy)[:2] == (RECORDS, DIMENSION)
    data = load_collection("docs", policy)
    stated = CollectionPolicy(dummy=True, records=RECORDS, dimension=DIMENSION, budget={"epsilon": 1.0})  # type: ignore[arg-type]
    assert np.array_equal(load_collection("docs", stated).vectors, data.vectors)
    assert not np.array_equal(data.vectors, make_rows())
    assert np.allclose(np.linalg.norm(data.vectors, axis=1), 1, atol=1e-6)


def test_whole_installation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A dummy of a whole policy opens neither the database nor the key nor a ledger of the real one."""
    open_service(tmp_path).close()
    (tmp_path / "place").mkdir()
    opened: list[str] = []
    for module, name in ((builtins, "open"), (io, "open"), (os, "open")):
        real = getattr(module, name)

        def watch(path: Any, *args: Any, real: Any = real, **settings: Any) -> Any:
            opened.append(str(path))
            return real(path, *args, **settings)

        monkeypatch.setattr(module, name, watch)
    import sqlite3

    connect = sqlite3.connect

    def watch_connection(path: Any, *args: Any, **settings: Any) -> Any:
        opened.append(str(path))
        return connect(path, *args, **settings)

    monkeypatch.setattr(sqlite3, "connect", watch_connection)
    policy = make_dummy_policy(make_policy(tmp_path), tmp_path / "place")
    service = Service(policy)
    assert service.collections["docs"].account.spent == 0
    service.close()
    names = ("service.db", "service-docs.ledger.db", "scoreshield-installation.key")
    real_files = [str(tmp_path / name) for name in names]
    touched = [path for path in opened if any(name in path for name in real_files)]
    assert not touched
    assert any("dummy.db" in path for path in opened)
    open_service(tmp_path).close()  # the same watch sees a real start
    assert all(any(name in path for path in opened) for name in real_files)


def test_nothing_of_the_real_installation_is_shown_or_told(tmp_path: Path) -> None:
    """A dummy shows no reports about the real records, and neither signs in at a provider nor sends traces."""
    provider = {"issuer": "https://id.example.org", "client_id": "a", "public_url": "https://here.example.org"}
    content = write_policy()
    content["installation"] |= {
        "reports": "reports",
        "oidc": provider,
        "traces": {"endpoint": "https://collector.example.org:4317"},
    }
    (tmp_path / "reports").mkdir()
    (tmp_path / "reports" / "audit.html").write_text("<p>An audit of the real records", encoding="utf-8")
    (tmp_path / "place").mkdir()
    real = make_policy(tmp_path, content)
    assert real.installation.traces is not None
    policy = make_dummy_policy(real, tmp_path / "place")
    assert (policy.installation.reports, policy.installation.oidc, policy.installation.traces) == (None, None, None)
    service = Service(policy)
    with TestClient(create_app(service)) as client:
        sign_in(client, service, "ada")
        assert "audit.html" not in client.get("/dashboard/reports").text
        assert client.get("/dashboard/reports/audit.html").status_code == 404
        assert not [route for route in client.app.routes if "oidc" in getattr(route, "path", "")]  # type: ignore[attr-defined]


def test_parquet_types(tmp_path: Path) -> None:
    """A Parquet file gives the number of records, the dimension and the types of fields from its schema."""
    pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    import pyarrow.parquet as parquet

    rows = make_rows(records=20)
    table = pa.table(
        {
            "id": list(range(100, 120)),
            "vector": pa.FixedSizeListArray.from_arrays(pa.array(rows.ravel()), DIMENSION),
            "open": [True] * 20,
            "price": [1.5] * 20,
            "title": ["secret"] * 20,
        }
    )
    parquet.write_table(table, tmp_path / "docs.parquet")
    policy = CollectionPolicy(
        file=tmp_path / "docs.parquet",
        ids="id",
        fields=("open", "price", "title"),
        dummy=True,
        budget={"epsilon": 1.0},  # type: ignore[arg-type]
    )
    data = load_collection("docs", policy)
    assert (data.size, data.dimension) == (20, DIMENSION)
    assert data.ids == range(20)
    record = data.describe_record(3)
    assert [type(record[name]) for name in ("open", "price", "title")] == [bool, float, str]
    assert "secret" not in str(record)


def test_faults(tmp_path: Path) -> None:
    """A dummy without a shape, and a real collection that states one, are contradictions."""
    content = write_policy(collection={"file": None, "ids": None, "fields": [], "dummy": True})
    assert any("needs records and dimension" in fault for fault in find_contradictions(make_policy(tmp_path, content)))
    content = write_policy(collection={"records": 5})
    assert any("only a dummy" in fault for fault in find_contradictions(make_policy(tmp_path, content)))
    (tmp_path / "rows.csv").write_text("1,2\n")
    policy = CollectionPolicy(file=tmp_path / "rows.csv", dummy=True, budget={"epsilon": 1.0})  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="has no header with its shape"):
        find_dummy_shape("docs", policy)


def test_dashboard_says_dummy(dummy: Service) -> None:
    """Pages, certificates and entries of the dashboard say that they are of a dummy, inside the signature."""
    with TestClient(create_app(dummy)) as client:
        entry = client.post(SEARCH, json={"query": make_query(1)}, headers=make_headers(dummy)).json()["entry"]
        sign_in(client, dummy, "ada", "officer")
        for path in ("entries.json", f"entries/{entry}/certificate.json", "certificates/search.json"):
            document = client.get(f"/dashboard/collections/docs/{path}").json()
            assert document["dummy"] is True
            assert find_signature_fault(document, dummy.key.signer.public) is None
        for page in ("", "/collections/docs", f"/collections/docs/entries/{entry}"):
            assert "synthetic records" in client.get(f"/dashboard{page}").text
