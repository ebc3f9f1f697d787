"""The paths under /v1: the same request gets the same bytes, errors are problems, and nothing private leaves."""

from __future__ import annotations

import hashlib
import json
import math
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
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
    make_query,
    make_rows,
    open_service,
    sign_in,
    write_collection,
    write_policy,
)

from scoreshield import release_index, release_scores
from scoreshield.errors import LedgerError
from scoreshield.privacy.ledger import Ledger
from scoreshield.privacy.signatures import find_signature_fault
from scoreshield.service.answers import Payer
from scoreshield.service.application import create_app
from scoreshield.service.core import Service
from scoreshield.service.memory import KnownBody, hash_request

SEARCH = "/v1/collections/docs/search"


@pytest.fixture
def service(tmp_path: Path) -> Service:
    return open_service(tmp_path)


@pytest.fixture
def client(service: Service) -> Iterator[TestClient]:
    with TestClient(create_app(service), headers=make_headers(service)) as client:
        yield client


def spent(service: Service) -> float:
    return service.collections["docs"].account.spent


def test_same_request_same_bytes_one_charge(client: TestClient, service: Service, tmp_path: Path) -> None:
    """The same request gets the same bytes, from a second service and after a restart, and is charged once."""
    body = {"query": make_query(1), "k": 5}
    first = client.post(SEARCH, json=body)
    assert first.status_code == 200, first.text
    assert client.post(SEARCH, json=body).content == first.content
    other = open_service(tmp_path)  # another process would read the same files
    with TestClient(create_app(other), headers=client.headers) as second:
        assert second.post(SEARCH, json=body).content == first.content
    assert spent(other) == spent(service) == 1.0
    longer = client.post(SEARCH, json={**body, "k": 50}).json()
    assert longer["hits"][:5] == first.json()["hits"]
    assert spent(service) == 1.0  # more of the same ranking is free


def test_scaled_query_is_the_same(client: TestClient, service: Service) -> None:
    """A query stands for its direction."""
    query = make_query(2)
    first = client.post(SEARCH, json={"query": query})
    scaled = client.post(SEARCH, json={"query": [4 * value for value in query]}).json()
    named = {name: scaled[name] for name in ("request", "signature")}  # they say which of the two was asked
    assert scaled == {**first.json(), **named}
    assert spent(service) == 1.0
    assert client.post(SEARCH, json={"query": [-value for value in query]}).content != first.content
    assert spent(service) == 2.0


def test_answer_is_noisy_and_complete(client: TestClient) -> None:
    """An answer names as many records as were asked for, ranked by noisy scores, with public fields only."""
    query = make_query(3)
    answer = client.post(SEARCH, json={"query": query, "k": 50}).json()
    clean = make_rows() @ (np.array(query) / np.linalg.norm(query))
    scores = [hit["score"] for hit in answer["hits"]]
    assert scores == sorted(scores, reverse=True)
    assert len(scores) == 50
    places = [int(hit["id"][1:]) for hit in answer["hits"]]
    assert all(hit["fields"] == {"year": place % 5 + 2000} for hit, place in zip(answer["hits"], places, strict=True))
    # Staircase noise of epsilon 1 has a standard deviation of 2.8: a score is close to its clean one by chance only.
    assert sum(abs(score - clean[place]) < 1e-3 for score, place in zip(scores, places, strict=True)) < 5
    assert answer.keys() == {"action", "collection", "entry", "guarantee", "hits", "request", "signature", "version"}


def test_filter_on_public_field_is_free(client: TestClient, service: Service) -> None:
    """A filter chooses among the released records."""
    query = make_query(4)
    everything = client.post(SEARCH, json={"query": query, "k": 50}).json()["hits"]
    chosen = client.post(SEARCH, json={"query": query, "k": 50, "filter": {"year": [2001, 2003]}}).json()["hits"]
    assert [hit for hit in everything if hit["fields"]["year"] in (2001, 2003)] == chosen[: len(chosen)][
        : sum(hit["fields"]["year"] in (2001, 2003) for hit in everything)
    ]
    assert {hit["fields"]["year"] for hit in chosen} == {2001, 2003}
    assert client.post(SEARCH, json={"query": query, "filter": {"year": True}}).json()["hits"] == []
    assert spent(service) == 1.0
    wrong = client.post(SEARCH, json={"query": query, "filter": {"vector": 1}})
    assert (wrong.status_code, wrong.json()["code"]) == (422, "unknown_field")


def test_filter_is_limited(client: TestClient, service: Service) -> None:
    """A filter has at most 100 values: it is free, and each one is compared with each released record."""
    query = make_query(4)
    assert client.post(SEARCH, json={"query": query, "filter": {"year": [2001] * 100}}).status_code == 200
    wrong = client.post(SEARCH, json={"query": make_query(5), "filter": {"year": [2001] * 101}})
    assert (wrong.status_code, wrong.json()["code"]) == (422, "invalid_request")
    assert spent(service) == 1.0


@pytest.mark.parametrize("entry", ["\0", "ab" * 31, "AB" * 32, "ab" * 32 + "\n", "é"])
def test_entry_has_one_form(client: TestClient, entry: str) -> None:
    """A text that is no hash never reaches the database, which may be unable to look for it."""
    answer = client.get("/v1/collections/docs/certificate", params={"entry": entry})
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid_request")


@pytest.mark.parametrize("number", [True, "0.5", None, [0.5], 10**400])
def test_numbers_of_a_query(client: TestClient, service: Service, number: Any) -> None:
    """A number is a number: texts and truth values are errors, whole numbers are not."""
    assert client.post(SEARCH, json={"query": [1, 0.5, *make_query(1)[2:]]}).status_code == 200
    answer = client.post(SEARCH, json={"query": [number, *make_query(2)[1:]]})
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid_request")
    assert spent(service) == 1.0


def test_slash_at_the_end_is_no_redirect(client: TestClient) -> None:
    """The address of a redirect would come from the Host header."""
    answer = client.get("/v1/collections/", headers={"host": "elsewhere.example"}, follow_redirects=False)
    assert (answer.status_code, answer.json()["code"]) == (404, "not_found")
    assert "elsewhere" not in answer.text + str(answer.headers)


def test_batch_is_charged_together(client: TestClient, service: Service) -> None:
    """A batch is answered as its queries are, and charged for each new one, all or none."""
    queries = [make_query(seed) for seed in (1, 2, 1)]
    answers = client.post(SEARCH, json={"queries": queries, "k": 3}).json()["answers"]
    assert spent(service) == 2.0
    assert answers[0] == answers[2] != answers[1]
    single = client.post(SEARCH, json={"query": queries[0], "k": 3}).json()
    assert single["hits"] == answers[0]["hits"]
    many = client.post(SEARCH, json={"queries": [make_query(seed) for seed in range(100, 119)]})
    assert (many.status_code, many.json()["code"]) == (403, "budget_exhausted")
    assert spent(service) == 2.0
    assert client.post(SEARCH, json={"queries": [make_query(seed) for seed in range(100, 118)]}).status_code == 200
    assert spent(service) == 20.0


def test_exhausted_budget_is_final(client: TestClient, service: Service) -> None:
    """An exhausted budget is 403 without a retry; stored answers stay free."""
    for seed in range(20):
        assert client.post(SEARCH, json={"query": make_query(seed)}).status_code == 200
    answer = client.post(SEARCH, json={"query": make_query(99)})
    assert (answer.status_code, answer.headers["x-should-retry"]) == (403, "false")
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["code"] == "budget_exhausted"
    assert "retry-after" not in answer.headers
    assert client.post(SEARCH, json={"query": make_query(0)}).status_code == 200
    assert spent(service) == 20.0
    assert service.collections["docs"].account.ledger.verify()


def test_matches_and_top_k(client: TestClient, service: Service) -> None:
    """Matches and the best records come without scores, and the same bytes come again."""
    body = {"query": make_query(5)}
    for path in ("matches", "top-k"):
        first = client.post(f"/v1/collections/docs/{path}", json=body)
        assert first.status_code == 200, first.text
        assert all(hit.keys() == {"id", "fields"} for hit in first.json()["hits"])
        assert client.post(f"/v1/collections/docs/{path}", json=body).content == first.content
    assert len(first.json()["hits"]) == 3
    assert spent(service) == 2.0


def test_index_is_charged_once(tmp_path: Path) -> None:
    """A search by the index costs nothing per query; the file answers the same offline."""
    import scoreshield as ss

    content = write_policy(
        collection={"search": {"mechanism": "index", "most": 50}, "index": {"epsilon": 15.0}, "matches": None},
        callers={
            "app": {"role": "reader", "collections": {"docs": {"actions": ["search", "index"]}}},
        },
    )
    content["collections"]["docs"]["top_k"] = None
    service = open_service(tmp_path, content)
    assert spent(service) == 15.0
    with TestClient(create_app(service), headers=make_headers(service)) as client:
        first = client.post(SEARCH, json={"query": make_query(1), "k": 5})
        assert client.post(SEARCH, json={"query": make_query(1), "k": 5}).content == first.content
        file = client.get("/v1/collections/docs/index")
        (tmp_path / "index.npz").write_bytes(file.content)
        offline = ss.load(tmp_path / "index.npz").search(np.array(make_query(1)), 5)
        assert [f"r{place}" for place in offline.indices] == [hit["id"] for hit in first.json()["hits"]]
    again = open_service(tmp_path, content)
    assert spent(again) == 15.0
    assert again.collections["docs"].read_index().content == file.content


def test_filter_of_an_index_is_tested_once(tmp_path: Path) -> None:
    """A free batch compares each record with its filter once. Otherwise a small request would take minutes."""
    index = {"search": {"mechanism": "index", "most": 50}, "index": {"epsilon": 15.0}}
    service = open_service(tmp_path, write_policy(collection=index))
    served = service.collections["docs"]
    queries = [served.read_query(make_query(seed)) for seed in range(5)]
    tested = []

    def is_early(record: Any) -> bool:
        tested.append(record["year"])
        return bool(record["year"] < 2002)

    found = served.search(Payer("app"), "search", queries, 5, is_early)
    assert len(tested) == RECORDS
    assert [len(one.hits) for one in found] == [5] * 5
    named = served.search(Payer("app"), "search", queries, 5, {"year": [2000, 2001.0, True, "2002"]})
    assert [one.hits for one in named] == [one.hits for one in found]
    whole = served.search(Payer("app"), "search", queries, 50)
    for filtered, complete in zip(found, whole, strict=True):
        early = [hit for hit in complete.hits if int(hit.fields["year"] or 0) < 2002]
        assert filtered.hits[: len(early)] == early[:5]
    assert not any(one.hits for one in served.search(Payer("app"), "search", queries, 5, {"year": []}))


def test_public_facts_cost_nothing(client: TestClient, service: Service) -> None:
    """Facts, estimates, budgets and certificates read public facts and charge nothing."""
    listed = client.get("/v1/collections").json()["collections"]
    assert [one["name"] for one in listed] == ["docs"]
    facts = client.get("/v1/collections/docs").json()
    assert (facts["records"], facts["dimension"], facts["fields"]) == (RECORDS, DIMENSION, ["year"])
    estimate = client.post("/v1/collections/docs/estimate", json={"action": "search"}).json()
    assert estimate["cost"] == {"epsilon": 1.0, "delta": 0.0}
    assert estimate["queries_left"] == 20
    assert "of the relevant records" in estimate["sentence"]
    budget = client.get("/v1/collections/docs/budget").json()
    assert budget["queries_left"] == {"matches": 20, "search": 20, "top_k": 20}
    assert "epsilon" in client.get("/v1/collections/docs/certificate").json()["certificate"].lower()
    assert spent(service) == 0.0
    entry = client.post(SEARCH, json={"query": make_query(1)}).json()["entry"]
    stated = client.get("/v1/collections/docs/certificate", params={"entry": entry}).json()
    assert stated["guarantee"]["epsilon"] == 1.0
    assert client.get("/v1/collections/docs/budget").json()["queries_left"]["search"] == 19
    missing = client.get("/v1/collections/docs/certificate", params={"entry": "0" * 64})
    assert missing.json()["code"] == "unknown_entry"


def test_documents_are_signed(client: TestClient, service: Service) -> None:
    """Answers, certificates and entries carry a signature, which a change of one digit breaks."""
    public = client.get("/v1/signing-keys").json()["keys"][0]
    answer = client.post(SEARCH, json={"query": make_query(1)}).json()
    certificate = client.get("/v1/collections/docs/certificate").json()
    entries = client.get("/v1/collections/docs/entries", headers=make_headers(service, "officer")).json()
    for document in (answer, certificate, entries):
        assert find_signature_fault(document, public) is None
        assert find_signature_fault({**document, "collection": "dogs"}, public) is not None
        assert find_signature_fault(document, "0" * 64) is not None
    assert entries["entries"][0]["hash"] == answer["entry"]
    answer["hits"][0]["score"] += 1e-9
    assert find_signature_fault(answer, public) == "the signature is not of this content"


BAD_BODIES = {
    "wrong dimension": ({"query": [1.0] * (DIMENSION + 1)}, 422, "wrong_dimension"),
    "zero": ({"query": [0.0] * DIMENSION}, 422, "zero_query"),
    "no query": ({"k": 3}, 422, "invalid_request"),
    "both": ({"query": make_query(1), "queries": [make_query(1)]}, 422, "invalid_request"),
    "empty batch": ({"queries": []}, 422, "invalid_request"),
    "large batch": ({"queries": [[1.0]] * 101}, 422, "too_many_queries"),
    "one bad of a batch": ({"queries": [make_query(1), [1.0]]}, 422, "wrong_dimension"),
    "k of zero": ({"query": make_query(1), "k": 0}, 422, "invalid_request"),
    "k too large": ({"query": make_query(1), "k": 51}, 422, "k_too_large"),
    "texts": ({"query": ["a"] * DIMENSION}, 422, "invalid_request"),
    "vectors wanted": ({"query": make_query(1), "with_vectors": True}, 422, "invalid_request"),
    "null": (None, 422, "invalid_request"),
    "list": ([], 422, "invalid_request"),
    "filter of objects": ({"query": make_query(1), "filter": {"year": {"gt": 1}}}, 422, "invalid_request"),
    "filter on an id": ({"query": make_query(1), "filter": {"ids": "r1"}}, 422, "unknown_field"),
}


@pytest.mark.parametrize("case", BAD_BODIES.values(), ids=BAD_BODIES.keys())
def test_bad_body_is_problem_and_free(client: TestClient, service: Service, case: tuple[Any, int, str]) -> None:
    """A wrong body is a problem with a stable code, shows no value of the request, and is not charged."""
    body, status, code = case
    answer = client.post(SEARCH, json=body)
    assert (answer.status_code, answer.json()["code"]) == (status, code)
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["detail"].endswith(".")
    assert spent(service) == 0.0


@pytest.mark.parametrize(
    ("content", "status", "code"),
    [
        (b"{", 400, "invalid_json"),
        (b"\xff\xfe", 400, "invalid_json"),
        (b'{"query": [NaN]}', 422, "invalid_request"),
        (b'{"query": [1e999]}', 422, "invalid_request"),
        (json.dumps({"query": make_query(1), "filter": {"year": [1, math.nan]}}).encode(), 422, "invalid_request"),
        (b"[" * 100_000, 400, "invalid_json"),
        (b'{"query": [' + b"9" * 5000 + b"]}", 400, "invalid_json"),
        (b" " * (2**20 + 1), 413, "body_too_large"),
    ],
)
def test_bad_bytes(client: TestClient, service: Service, content: bytes, status: int, code: str) -> None:
    """Bytes that are no proper JSON, or too many, are problems."""
    answer = client.post(SEARCH, content=content, headers={"content-type": "application/json"})
    assert (answer.status_code, answer.json()["code"]) == (status, code)
    assert spent(service) == 0.0


def test_unknown_paths_and_collections(client: TestClient) -> None:
    """Paths, methods and collections that are not there are problems too."""
    for method, path, code in (
        ("GET", "/nothing", "not_found"),
        ("PUT", SEARCH, "method_not_allowed"),
        ("POST", "/v1/collections/other/search", "unknown_collection"),
        ("GET", "/v1/collections/other/budget", "unknown_collection"),
        ("GET", "/v1/collections/docs/entries", "action_not_allowed"),
        ("GET", "/v1/collections/docs/index", "action_not_allowed"),
    ):
        answer = client.request(method, path, json={"query": make_query(1)} if method == "POST" else None)
        assert answer.json()["code"] == code
        assert answer.headers["content-type"] == "application/problem+json"


def test_security_headers(client: TestClient) -> None:
    """Every response forbids caching, framing and sniffing, and names no server."""
    for answer in (client.get("/livez"), client.get("/nothing"), client.post(SEARCH, content=b"{")):
        assert answer.headers["cache-control"] == "no-store"
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["x-frame-options"] == "DENY"
        assert "x-problem-code" not in answer.headers
        assert "server" not in answer.headers


def test_idempotency_key(client: TestClient, service: Service) -> None:
    """A key with the same request is fine, with another one it is an error, and another caller has other keys."""
    body = {"query": make_query(1)}
    first = client.post(SEARCH, json=body, headers={"Idempotency-Key": "abc"})
    assert client.post(SEARCH, json=body, headers={"Idempotency-Key": "abc"}).content == first.content
    other = client.post(SEARCH, json={"query": make_query(2)}, headers={"Idempotency-Key": "abc"})
    assert (other.status_code, other.json()["code"]) == (422, "idempotency_conflict")
    long = client.post(SEARCH, json=body, headers={"Idempotency-Key": "x" * 201})
    assert (long.status_code, long.json()["code"]) == (400, "invalid_idempotency_key")
    assert spent(service) == 1.0


def test_allowance_inside_budget(tmp_path: Path) -> None:
    """A caller's allowance ends its fresh answers and not those of others; stored answers stay free."""
    grants = {"docs": {"actions": ["search"], "allowance": {"epsilon": 2.0}}}
    counted = {"docs": {"actions": ["search"], "allowance": {"queries": 1}}}
    content = write_policy(
        callers={"small": {"role": "reader", "collections": grants}, "one": {"role": "reader", "collections": counted}}
    )
    service = open_service(tmp_path, content)
    with TestClient(create_app(service)) as client:
        small, one = make_headers(service, "small"), make_headers(service, "one")
        for seed in (1, 2):
            assert client.post(SEARCH, json={"query": make_query(seed)}, headers=small).status_code == 200
        budget = client.get("/v1/collections/docs/budget", headers=small).json()["caller"]
        assert budget["queries_left"] == {"search": 0}
        assert budget["spent"] == {"epsilon": 2.0, "queries": 2}
        last = client.post(SEARCH, json={"query": make_query(3)}, headers=small)
        assert (last.status_code, last.json()["code"]) == (403, "allowance_exhausted")
        assert last.headers["x-should-retry"] == "false"
        assert client.post(SEARCH, json={"query": make_query(1)}, headers=small).status_code == 200
        assert client.post(SEARCH, json={"query": make_query(1)}, headers=one).status_code == 200
        assert client.post(SEARCH, json={"query": make_query(3)}, headers=one).status_code == 200
        assert client.post(SEARCH, json={"query": make_query(4)}, headers=one).json()["code"] == "allowance_exhausted"
        assert client.post(SEARCH, json={"query": make_query(3)}, headers=small).status_code == 200
        assert spent(service) == 3.0


def test_altered_ledger_releases_nothing(client: TestClient, service: Service, tmp_path: Path) -> None:
    """A ledger that was changed from outside charges nothing, and its error names no path."""
    import sqlite3

    client.post(SEARCH, json={"query": make_query(1)})
    with sqlite3.connect(tmp_path / "service-docs.ledger.db") as connection:
        connection.execute("UPDATE scoreshield_entries SET who = 'eve'")
    connection.close()
    answer = client.post(SEARCH, json={"query": make_query(2)})
    assert (answer.status_code, answer.json()["code"]) == (503, "ledger_unavailable")
    assert str(tmp_path) not in answer.text
    with pytest.raises(LedgerError):
        Ledger.open(f"sqlite:///{tmp_path / 'service-docs.ledger.db'}").spend(
            service.collections["docs"].offers["search"].guarantee, dataset="docs"
        )


def test_changed_entry_is_not_signed(client: TestClient, service: Service, tmp_path: Path) -> None:
    """An entry in the middle of the ledger that was changed from outside is neither signed nor shown."""
    import sqlite3

    from scoreshield.privacy.ledger.entries import write_canonical_json

    entries = [client.post(SEARCH, json={"query": make_query(seed)}).json()["entry"] for seed in range(8)]
    officer = make_headers(service, "officer")
    assert client.get("/v1/collections/docs/entries", headers=officer).status_code == 200
    smaller = release_scores(make_rows(), make_rows()[0], epsilon=0.001, mechanism="staircase").guarantee
    with sqlite3.connect(tmp_path / "service-docs.ledger.db") as connection:
        change = "UPDATE scoreshield_entries SET guarantee = ?, who = 'eve' WHERE id = 2"
        connection.execute(change, (write_canonical_json(smaller.to_dict()),))
    connection.close()
    certificate = "/v1/collections/docs/certificate"
    for path in ("/v1/collections/docs/entries", f"{certificate}?entry=all", f"{certificate}?entry={entries[1]}"):
        answer = client.get(path, headers=officer)
        assert (answer.status_code, answer.json()["code"]) == (503, "ledger_unavailable")
    assert client.get(f"{certificate}?entry={entries[0]}").status_code == 200
    sign_in(client, service, "ada")
    pages = ("", "/entries.json", f"/entries/{entries[1]}", f"/entries/{entries[1]}/certificate.json")
    for page in pages:
        answer = client.get(f"/dashboard/collections/docs{page}")
        assert (answer.status_code, "The ledger cannot be used now" in answer.text) == (503, True), page
        assert ">eve<" not in answer.text


@pytest.mark.parametrize("path", ["entries", "certificate?entry=all"])
def test_checks_of_all_entries_leave_threads_to_others(
    path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One check runs at a time, some wait, and the rest are rejected; a search is answered meanwhile."""
    content = write_policy()
    most = 50  # more than the threads that all other requests share
    content["installation"]["most_requests"] = 4 * most
    service = open_service(tmp_path, content)
    served, officer = service.collections["docs"], make_headers(service, "officer")
    check_chain, end, running = served.check_chain, threading.Event(), []

    def wait_before(*arguments: Any) -> str:
        running.append(1)
        assert end.wait(60)
        return check_chain(*arguments)

    monkeypatch.setattr(served, "check_chain", wait_before)
    monkeypatch.setattr(service.rates, "count", lambda *_: None)
    app = create_app(service)
    with TestClient(app, headers=make_headers(service)) as client, ThreadPoolExecutor(most + 1) as pool:
        try:
            url = f"/v1/collections/docs/{path}"
            answers = [pool.submit(client.get, url, headers=officer) for _ in range(most + 1)]
            wait_for(lambda: served.entry_threads.statistics().tasks_waiting == most)
            assert len(running) == 1
            answer = client.get(url, headers=officer)
            assert (answer.status_code, answer.json()["code"]) == (503, "too_busy")
            assert client.post(SEARCH, json={"query": make_query(1)}).status_code == 200
        finally:
            end.set()
    assert [one.result().status_code for one in answers] == [200] * (most + 1)


def test_checks_of_databases_leave_threads_to_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Anyone may ask whether the service is ready. While a database does not answer, such requests hold one thread."""
    content = write_policy()
    most = 50  # more than the threads that all other requests share
    content["installation"]["most_requests"] = 4 * most
    service = open_service(tmp_path, content)
    end, running = threading.Event(), []

    def wait() -> None:
        running.append(1)
        assert end.wait(60)

    monkeypatch.setattr(service, "check_databases", wait)
    app = create_app(service)
    with TestClient(app, headers=make_headers(service)) as client, ThreadPoolExecutor(most + 1) as pool:
        try:
            answers = [pool.submit(client.get, "/readyz") for _ in range(most + 1)]
            wait_for(lambda: running == [1] and service._check_threads.statistics().tasks_waiting == most)
            rejected = client.get("/readyz")
            assert client.post(SEARCH, json={"query": make_query(1)}).status_code == 200
        finally:
            end.set()
    assert (rejected.status_code, rejected.json()["code"]) == (503, "too_busy")
    assert [one.result().status_code for one in answers] == [200] * (most + 1)


def wait_for(is_true: Callable[[], bool]) -> None:
    end = time.monotonic() + 30
    while not is_true():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_signed_entries_end_at_their_head(
    client: TestClient, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A charge that is made while entries are listed is not in the list, whose head says where it ends."""
    served = service.collections["docs"]
    check_chain = served.check_chain

    def charge_afterwards(*arguments: Any) -> str:
        head = check_chain(*arguments)
        client.post(SEARCH, json={"query": make_query(len(served.account.entries()))})
        return head

    monkeypatch.setattr(served, "check_chain", charge_afterwards)
    for number in range(3):
        listed = client.get("/v1/collections/docs/entries", headers=make_headers(service, "officer")).json()
        hashes = [entry["hash"] for entry in listed["entries"]]
        assert len(hashes) == number
        assert listed["head"].startswith(f"{number}:")
        assert not hashes or listed["head"] == f"{number}:{hashes[-1]}"


def test_missing_ledger_is_not_made_again(client: TestClient, tmp_path: Path) -> None:
    """A ledger that is gone does not start with a whole budget."""
    from scoreshield.errors import InvalidInput

    client.post(SEARCH, json={"query": make_query(1)})
    path = tmp_path / "service-docs.ledger.db"
    path.unlink()
    with pytest.raises(InvalidInput, match="is missing or cannot be read"):
        open_service(tmp_path)
    assert not path.exists()
    Ledger.create(f"sqlite:///{path}", epsilon=20.0, delta=0.0)
    with pytest.raises(InvalidInput, match="not the one that it had before"):
        open_service(tmp_path)


def test_other_installation_key_is_rejected(tmp_path: Path) -> None:
    """With another secret, no stored answer would be found, and all would be charged again."""
    from scoreshield.errors import InvalidInput
    from scoreshield.service.installation import open_installation_key

    open_service(tmp_path).close()
    path = tmp_path / "scoreshield-installation.key"
    path.unlink()
    with pytest.raises(InvalidInput, match="There is no installation key"):
        open_service(tmp_path)
    open_installation_key(path, is_made=True)
    with pytest.raises(InvalidInput, match="not the one of this database"):
        open_service(tmp_path)
    path.chmod(0o644)
    with pytest.raises(InvalidInput, match="Others may read"):
        open_service(tmp_path)


def test_new_data_is_new_version_on_same_account(client: TestClient, tmp_path: Path) -> None:
    """A change of the data is a new version, which draws on the same budget."""
    body = {"query": make_query(1)}
    first = client.post(SEARCH, json=body)
    write_collection(tmp_path / "docs.npz", seed=1)
    changed = open_service(tmp_path)
    with TestClient(create_app(changed), headers=client.headers) as second:
        answer = second.post(SEARCH, json=body)
    assert (first.json()["version"], answer.json()["version"]) == (1, 2)
    assert answer.json()["hits"] != first.json()["hits"]
    assert spent(changed) == 2.0


def test_signing_key_rotation_keeps_bytes(client: TestClient, tmp_path: Path) -> None:
    """After a rotation, old answers keep their bytes and new ones have the new key."""
    from scoreshield.service.installation import rotate_signing_key

    body = {"query": make_query(1)}
    first = client.post(SEARCH, json=body)
    public = rotate_signing_key(tmp_path / "scoreshield-installation.key")
    with TestClient(create_app(open_service(tmp_path)), headers=client.headers) as second:
        assert second.post(SEARCH, json=body).content == first.content
        fresh = second.post(SEARCH, json={"query": make_query(2)}).json()
        assert fresh["signature"]["key"] == public != first.json()["signature"]["key"]
        assert second.get("/v1/signing-keys").json()["keys"][0] == public


def test_logs_hold_no_contents(client: TestClient, caplog: pytest.LogCaptureFixture) -> None:
    """A line of log has method, path, status, caller and a coarse time, and nothing of the query or the answer."""
    with caplog.at_level("DEBUG"):
        answer = client.post(SEARCH, json={"query": make_query(1)}).json()
    text = " ".join(
        f"{record.getMessage()} {vars(record)}" for record in caplog.records if "scoreshield" in record.name
    )
    assert "below" in text
    for secret in (repr(make_query(1)[0]), repr(answer["hits"][0]["score"]), answer["hits"][0]["id"] + "'"):
        assert secret not in text
    assert client.headers["authorization"].removeprefix("Bearer ") not in text


def test_database_holds_no_key_after_answer(client: TestClient, service: Service, tmp_path: Path) -> None:
    """After an answer is stored, its seed is gone, from the row and from the file."""
    import sqlite3

    seeds: list[str] = []
    book = service.collections["docs"]._book
    draw = book._draw

    def keep_seed(*arguments: Any) -> bytes:
        seeds.append(arguments[1].seed)
        return draw(*arguments)

    book._draw = keep_seed  # type: ignore[method-assign]
    client.post(SEARCH, json={"query": make_query(1)})
    path = tmp_path / "service-docs.ledger.db"
    with sqlite3.connect(path) as connection:
        rows = connection.execute("SELECT state, seed FROM scoreshield_service_answers").fetchall()
    connection.close()
    assert rows == [("stored", None)]
    assert len(seeds) == 1
    assert seeds[0].encode() not in path.read_bytes()
    assert json.dumps(make_query(1)[0]).encode() not in path.read_bytes()


def test_full_disk_after_charge_keeps_the_answer(
    client: TestClient, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If an answer cannot be stored, it is not sent; later the same answer comes, without a second charge."""
    book = service.collections["docs"]._book
    contents: list[bytes] = []

    def fail(row: Any, content: bytes) -> Any:
        del row
        contents.append(content)
        raise LedgerError("The ledger cannot be used: database or disk is full.")

    body = {"query": make_query(1), "k": 5}
    with monkeypatch.context() as patch:
        patch.setattr(book, "_store", fail)
        for _ in range(2):
            answer = client.post(SEARCH, json=body)
            assert (answer.status_code, answer.json()["code"]) == (503, "ledger_unavailable")
            assert "disk" not in answer.text
    assert contents[0] == contents[1]  # the same noise, drawn again for the same charge
    assert spent(service) == 1.0
    hits = client.post(SEARCH, json=body).json()["hits"]
    assert [hit["score"] for hit in hits] == json.loads(contents[0])["scores"][:5]
    assert spent(service) == 1.0


def test_fresh_answers_leave_at_coarse_times(tmp_path: Path) -> None:
    """An answer that was computed waits for the time step, a stored one does not."""
    import time

    content = write_policy()
    content["installation"]["time_step"] = 0.5
    service = open_service(tmp_path, content)
    with TestClient(create_app(service), headers=make_headers(service)) as client:
        client.get("/livez")
        times = []
        for _ in range(2):
            begin = time.monotonic()
            assert client.post(SEARCH, json={"query": make_query(1)}).status_code == 200
            times.append(time.monotonic() - begin)
    assert times[0] >= 0.5
    assert times[1] < 0.4


def test_unforeseen_error_says_nothing(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    """An unforeseen error is one fixed sentence."""
    headers = make_headers(service)

    def fail(*_: object) -> None:
        raise RuntimeError("row 17 holds 0.123")

    monkeypatch.setattr(service, "list_collections", fail)
    with TestClient(create_app(service), headers=headers, raise_server_exceptions=False) as client:
        answer = client.get("/v1/collections")
    assert (answer.status_code, answer.json()["code"]) == (500, "internal_error")
    assert "17" not in answer.text


def test_certificate_of_all_charges_composes_the_ledger(client: TestClient, service: Service) -> None:
    """All charges have one certificate, for those who may read entries."""
    batch = client.post(SEARCH, json={"queries": [make_query(1), make_query(2), make_query(1)]}).json()
    assert batch["total"] == {"epsilon": 2.0, "delta": 0.0}
    client.post(SEARCH, json={"query": make_query(3)})
    place = "/v1/collections/docs/certificate?entry=all"
    assert client.get(place).json()["code"] == "action_not_allowed"
    shown = client.get(place, headers=make_headers(service, "officer")).json()
    assert find_signature_fault(shown, service.key.signer.public) is None
    assert (shown["charges"], shown["guarantee"]["epsilon"]) == (3, service.collections["docs"].account.spent)
    assert shown["guarantee"]["verdict"] == "hides practically nothing"  # an advantage above 0.9
    assert "right at most 95.3 % of the time" in shown["certificate"]  # e^3 / (1 + e^3), rounded up


def test_signed_answer_names_its_request(client: TestClient, service: Service) -> None:
    """The signature covers a hash of the path and the body, in the forms of all interfaces."""
    for path, body in (
        (SEARCH, {"query": make_query(1)}),
        (SEARCH, {"queries": [make_query(1)]}),
        ("/v1/collections/docs/top-k", {"query": make_query(1)}),
        ("/collections/docs/points/query", {"query": make_query(1), "limit": 3}),
    ):
        content = json.dumps(body).encode()
        answer = client.post(path, content=content, headers={"content-type": "application/json"}).json()
        whole = b"%d\n%b\n%b" % (len(path), path.encode(), content)
        assert answer["request"] == hashlib.sha256(whole).hexdigest()
        assert find_signature_fault(answer, service.key.signer.public) is None
        assert find_signature_fault({**answer, "request": "0" * 64}, service.key.signer.public) is not None


def test_request_hash_separates_path_and_body() -> None:
    """A part of the body that moves into the path is another request."""
    assert hash_request("/search", b"{\n1}") != hash_request("/search\n{", b"1}")
    assert hash_request("/search", b"{}") == hash_request("/search", b"{}")


def test_body_of_another_action_is_not_sent(client: TestClient, service: Service) -> None:
    """Whatever lies under the hash of a request, a caller gets only what the action of the request may show."""
    body = json.dumps({"query": make_query(1)}).encode()
    place = hash_request(SEARCH, body)
    service.collections["docs"].bodies.put(place, KnownBody("matches", b"of another action", None), 20)
    answer = client.post(SEARCH, content=body, headers={"content-type": "application/json", "idempotency-key": "a"})
    assert answer.json()["action"] == "search"
    slow = client.post(SEARCH, content=body, headers={"content-type": "application/json; charset=utf-8"})
    assert slow.json()["action"] == "search"


def test_certificate_of_a_draw(client: TestClient, service: Service) -> None:
    """Draws of an index, which another program charges to the same ledger, have no certificate of their own."""
    account = service.collections["docs"].account
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of few records
        release_index(make_rows(), epsilon=1.0, changes="public", ids=range(RECORDS), ledger=account)
    entry = account.ledger.entries()[-1]
    assert entry.kind == "draw"
    answer = client.get(f"/v1/collections/docs/certificate?entry={entry.hash}")
    assert (answer.status_code, answer.json()["code"]) == (404, "unknown_entry")
