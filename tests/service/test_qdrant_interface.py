"""Qdrant's interface: its own client, and the frameworks that use it, work after a change of URL and key."""

from __future__ import annotations

import json
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
    make_key,
    make_query,
    make_rows,
    open_service,
    serve,
    spent,
    write_policy,
)

from scoreshield.privacy.signatures import find_signature_fault
from scoreshield.service.application import create_app
from scoreshield.service.core import Service
from scoreshield.service.qdrant import nest_fields

QUERY = "/collections/docs/points/query"
pytestmark = pytest.mark.filterwarnings("ignore:Api key is used with an insecure connection")


def open_texts(folder: Path, **collection: Any) -> Service:
    """Open a service whose records have texts and metadata, as frameworks store them."""
    places = np.arange(RECORDS)
    texts = np.array([f"text {place}" for place in places])
    np.savez(
        folder / "docs.npz",
        **{
            "embeddings": make_rows(),
            "ids": places,
            "page_content": texts,
            "text": texts,
            "content": texts,
            "metadata.year": places % 5 + 2000,
            "meta.year": places % 5 + 2000,
            "year": places % 5 + 2000,
            "secret": places,
        },
    )
    return open_service(folder, write_policy(collection={"fields": ["metadata.year", "page_content"], **collection}))


@pytest.fixture
def service(tmp_path: Path) -> Service:
    return open_texts(tmp_path)


@pytest.fixture
def http(service: Service) -> Iterator[TestClient]:
    with TestClient(create_app(service), headers=make_headers(service)) as client:
        yield client


def test_real_client(service: Service, recwarn: pytest.WarningsRecorder) -> None:
    """The real client lists, describes and searches, in one request or in a batch, and pays once for a query."""
    qdrant = pytest.importorskip("qdrant_client", reason="qdrant-client is not installed")
    from qdrant_client import models

    with serve(service) as address:
        client = qdrant.QdrantClient(url=address, api_key=make_key(service), timeout=20)
        assert [one.name for one in client.get_collections().collections] == ["docs"]
        assert client.collection_exists("docs")
        assert not client.collection_exists("cats")
        facts = client.get_collection("docs")
        assert (facts.points_count, facts.config.params.vectors.size) == (RECORDS, DIMENSION)
        query = make_query(1)
        points = client.query_points("docs", query=query, limit=5).points
        assert [point.score for point in points] == sorted((point.score for point in points), reverse=True)
        for point in points:
            assert point.payload == {"page_content": f"text {point.id}", "metadata": {"year": point.id % 5 + 2000}}
            assert point.vector is None
        assert client.query_points("docs", query=np.array(query), limit=5).points == points
        assert client.query_points("docs", query=query, limit=3, offset=2).points == points[2:]
        assert client.query_points("docs", query=query, limit=5, with_payload=False).points[0].payload is None
        least = points[2].score
        assert client.query_points("docs", query=query, limit=5, score_threshold=least).points == points[:3]
        assert spent(service) == 1.0
        of_2003 = models.Filter(must=[models.FieldCondition(key="metadata.year", match=models.MatchValue(value=2003))])
        requests = [
            models.QueryRequest(query=query, limit=5, with_payload=True),
            models.QueryRequest(query=make_query(2), limit=50, with_payload=["metadata"], filter=of_2003),
        ]
        first, second = client.query_batch_points("docs", requests)
        assert first.points == points
        assert {point.payload["metadata"]["year"] for point in second.points} == {2003}
        assert all(point.payload.keys() == {"metadata"} for point in second.points)
        assert client.query_batch_points("docs", requests)[1].points == second.points
        assert spent(service) == 2.0
        client.close()
    assert not [one for one in recwarn if "version" in str(one.message)]


def test_real_client_gets_errors(service: Service) -> None:
    """The real client raises its own errors: for records, for other keys, and at the end of the budget."""
    qdrant = pytest.importorskip("qdrant_client", reason="qdrant-client is not installed")
    from qdrant_client import models
    from qdrant_client.http.exceptions import UnexpectedResponse

    with serve(service) as address:
        client = qdrant.QdrantClient(url=address, api_key=make_key(service), timeout=20)
        recommend = models.RecommendQuery(recommend=models.RecommendInput(positive=[1]))
        near = models.Prefetch(query=make_query(1))
        of_secret = models.Filter(must=[models.FieldCondition(key="secret", match=models.MatchValue(value=1))])
        rejected = [
            lambda: client.query_points("docs", query=1),
            lambda: client.query_points("docs", query=recommend),
            lambda: client.query_points("docs", query=make_query(1), with_vectors=True),
            lambda: client.query_points("docs", query=make_query(1), prefetch=near),
            lambda: client.query_points("docs", query=make_query(1), query_filter=of_secret),
            lambda: client.query_points("docs", query=make_query(1), using="other"),
            lambda: client.query_points("docs", limit=3),
            lambda: client.scroll("docs"),
            lambda: client.retrieve("docs", [1]),
            lambda: client.count("docs"),
            lambda: client.facet("docs", "metadata.year"),
            lambda: client.query_points_groups("docs", "metadata.year", make_query(1)),
            lambda: client.delete_collection("docs"),
            lambda: client.upsert("docs", [models.PointStruct(id=1, vector=make_query(1))]),
        ]
        for ask in rejected:
            with pytest.raises(UnexpectedResponse) as error:
                ask()
            assert error.value.status_code in (403, 422)
            assert json.loads(error.value.content)["status"]["error"].endswith(".")
        assert spent(service) == 0.0
        with pytest.raises(UnexpectedResponse) as error:
            client.query_points("cats", query=make_query(1))
        assert error.value.status_code == 404
        requests = [models.QueryRequest(query=make_query(seed), limit=1 + seed) for seed in range(21)]
        with pytest.raises(UnexpectedResponse) as error:
            client.query_batch_points("docs", requests)
        assert error.value.status_code == 403
        assert spent(service) == 0.0  # together or not at all
        client.query_batch_points("docs", requests[:20])
        with pytest.raises(UnexpectedResponse) as error:
            client.query_points("docs", query=make_query(99))
        assert error.value.headers["x-should-retry"] == "false"
        assert json.loads(error.value.content)["status"]["code"] == "budget_exhausted"
        assert spent(service) == 20.0
        client.close()
        # The first client has compared versions. It does so in a thread, which would still ask when this server ends.
        other = qdrant.QdrantClient(url=address, api_key="ss_none", timeout=20)
        with pytest.raises(UnexpectedResponse) as error:
            other.get_collections()
        assert error.value.status_code == 401
        other.close()


def test_langchain(service: Service) -> None:
    """LangChain's own vector store for Qdrant searches, with its filters, and as a retriever."""
    langchain = pytest.importorskip("langchain_qdrant", reason="needs: pip install 'langchain-qdrant>=1.0'")
    pytest.importorskip("langchain_core", reason="the 'langchain' extra is not installed")
    from langchain_core.embeddings import Embeddings
    from qdrant_client import models

    class LengthEmbeddings(Embeddings):
        def embed_documents(self, texts: list[str]) -> list[list[float]]:
            return [self.embed_query(text) for text in texts]

        def embed_query(self, text: str) -> list[float]:
            return make_query(len(text))

    with serve(service) as address:
        store = langchain.QdrantVectorStore.from_existing_collection(
            collection_name="docs", embedding=LengthEmbeddings(), url=address, api_key=make_key(service)
        )
        found = store.similarity_search("words", k=4)
        assert len(found) == 4
        for document in found:
            place = document.metadata["_id"]
            assert document.page_content == f"text {place}"
            assert document.metadata["year"] == place % 5 + 2000
        assert store.as_retriever(search_kwargs={"k": 4}).invoke("words") == found
        assert [document for document, _ in store.similarity_search_with_score("words", k=4)] == found
        condition = models.FieldCondition(key="metadata.year", range=models.Range(gte=2003))
        late = store.similarity_search("words", k=4, filter=models.Filter(must=[condition]))
        assert {document.metadata["year"] for document in late} <= {2003, 2004}
        assert len(late) == 4
        assert spent(service) == 1.0
        store.client.close()


def test_llama_index(tmp_path: Path) -> None:
    """LlamaIndex's own vector store for Qdrant searches, with its filters."""
    reason = "needs: pip install 'llama-index-vector-stores-qdrant>=0.8'"
    llama_index = pytest.importorskip("llama_index.vector_stores.qdrant", reason=reason)
    import qdrant_client
    from llama_index.core.vector_stores import MetadataFilter, MetadataFilters, VectorStoreQuery

    service = open_texts(tmp_path, fields=["text", "year"])
    with serve(service) as address:
        client = qdrant_client.QdrantClient(url=address, api_key=make_key(service))
        store = llama_index.QdrantVectorStore("docs", client=client)
        found = store.query(VectorStoreQuery(query_embedding=make_query(1), similarity_top_k=4))
        assert [node.get_content() for node in found.nodes] == [f"text {one}" for one in found.ids]
        assert found.similarities == sorted(found.similarities, reverse=True)
        filters = MetadataFilters(filters=[MetadataFilter(key="year", value=2002)])
        late = store.query(VectorStoreQuery(query_embedding=make_query(1), similarity_top_k=4, filters=filters))
        assert {int(one) % 5 for one in late.ids} == {2}
        assert spent(service) == 1.0
        client.close()


@pytest.mark.parametrize("name", ["meta.year", "year"])
def test_haystack(tmp_path: Path, name: str) -> None:
    """Haystack's own retriever for Qdrant searches, with its filters. Its own stores name metadata ``meta.NAME``."""
    reason = "needs: pip install 'qdrant-haystack>=13.1'"
    retrievers = pytest.importorskip("haystack_integrations.components.retrievers.qdrant", reason=reason)
    from haystack.utils import Secret
    from haystack_integrations.document_stores.qdrant import QdrantDocumentStore

    service = open_texts(tmp_path, fields=["content", name])
    with serve(service) as address:
        secret = Secret.from_token(make_key(service))
        store = QdrantDocumentStore(url=address, api_key=secret, index="docs", embedding_dim=DIMENSION)
        retriever = retrievers.QdrantEmbeddingRetriever(document_store=store, top_k=4)
        found = retriever.run(query_embedding=make_query(1))["documents"]
        assert len(found) == 4
        for document in found:
            assert document.meta == {"year": int(document.content.removeprefix("text ")) % 5 + 2000}
        assert spent(service) == 1.0
        filters = {"field": name, "operator": "in", "value": [2001]}
        late = retriever.run(query_embedding=make_query(1), filters=filters)["documents"]
        assert {document.meta["year"] for document in late} == {2001}
        assert spent(service) == 1.0
        store._client.close()


def test_answers_are_shared_and_signed(http: TestClient, service: Service) -> None:
    """The interface shows the answers of /v1, and charges for none that is there. Bodies are equal and signed."""
    query = make_query(1)
    own = http.post("/v1/collections/docs/search", json={"query": query, "k": 5}).json()
    first = http.post(QUERY, json={"query": query, "limit": 5})
    assert [(hit["id"], hit["score"]) for hit in own["hits"]] == [
        (point["id"], point["score"]) for point in first.json()["result"]["points"]
    ]
    assert http.post(QUERY, json={"query": query, "limit": 5}).content == first.content
    assert (first.json()["time"], first.json()["usage"]) == (0.0, None)
    assert first.json()["scoreshield"]["charges"][0]["entry"] == own["entry"]
    public = http.get("/v1/signing-keys").json()["keys"][0]
    assert find_signature_fault(first.json(), public) is None
    assert spent(service) == 1.0


def test_repeat_key(http: TestClient, service: Service) -> None:
    """An Idempotency-Key with another request is an error."""
    headers = {"Idempotency-Key": "one"}
    assert http.post(QUERY, json={"query": make_query(1)}, headers=headers).status_code == 200
    other = http.post(QUERY, json={"query": make_query(2)}, headers=headers)
    assert (other.status_code, other.json()["status"]["code"]) == (422, "idempotency_conflict")
    assert spent(service) == 1.0


def test_allowance_counts(tmp_path: Path) -> None:
    """The allowance of a caller limits this interface too, and a batch is charged together or not at all."""
    grant = {"actions": ["search"], "allowance": {"queries": 2}}
    callers = {"small": {"role": "reader", "collections": {"docs": grant}}}
    service = open_service(tmp_path, write_policy(callers=callers))
    with TestClient(create_app(service), headers=make_headers(service, "small")) as http:
        assert http.post(QUERY, json={"query": make_query(1)}).status_code == 200
        batch = {"searches": [{"query": make_query(seed)} for seed in (1, 2, 3)]}
        answer = http.post(f"{QUERY}/batch", json=batch)
        assert (answer.status_code, answer.json()["status"]["code"]) == (403, "allowance_exhausted")
        assert spent(service) == 1.0
        assert http.post(f"{QUERY}/batch", json={"searches": batch["searches"][:2]}).status_code == 200
        assert http.get("/collections/docs/points/1").status_code == 403
    assert spent(service) == 2.0


def test_parquet_column_with_a_dot(tmp_path: Path) -> None:
    """A column whose name has a dot is a nested field."""
    pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    import pyarrow.parquet as parquet

    columns = {"embedding": make_rows().tolist(), "id": range(RECORDS), "metadata.year": np.arange(RECORDS) % 5 + 2000}
    parquet.write_table(pa.table({name: pa.array(values) for name, values in columns.items()}), tmp_path / "a.parquet")
    settings = {"file": "a.parquet", "array": "embedding", "ids": "id", "fields": ["metadata.year"]}
    service = open_service(tmp_path, write_policy(collection=settings))
    with TestClient(create_app(service), headers=make_headers(service)) as http:
        answer = http.post(QUERY, json={"query": make_query(1), "limit": 1, "with_payload": True}).json()
    point = answer["result"]["points"][0]
    assert point["payload"] == {"metadata": {"year": point["id"] % 5 + 2000}}


def test_search_by_the_index(tmp_path: Path) -> None:
    """Where the index answers, queries cost nothing, and filters choose among all records."""
    content = write_policy(
        collection={
            "search": {"mechanism": "index", "most": 50},
            "index": {"epsilon": 15.0},
            "matches": None,
            "top_k": None,
        },
        callers={"app": {"role": "reader", "collections": {"docs": {"actions": ["search"]}}}},
    )
    service = open_service(tmp_path, content)
    condition = {"must": [{"key": "year", "match": {"value": 2003}}]}
    with TestClient(create_app(service), headers=make_headers(service)) as http:
        body = {"query": make_query(1), "limit": 50, "with_payload": True, "filter": condition}
        points = http.post(QUERY, json=body).json()["result"]["points"]
    assert len(points) == 50
    assert {point["payload"]["year"] for point in points} == {2003}
    assert spent(service) == 15.0


YEAR = "metadata.year"
FILTERS: dict[str, tuple[Any, set[int]]] = {
    "value": ({"must": {"key": YEAR, "match": {"value": 2001}}}, {1}),
    "any": ({"must": [{"key": YEAR, "match": {"any": [2001, 2002]}}]}, {1, 2}),
    "except": ({"must": [{"key": YEAR, "match": {"except": [2001, 2002]}}]}, {0, 3, 4}),
    "range": ({"must": [{"key": YEAR, "range": {"gt": 2001, "lte": 2003.5, "lt": None}}]}, {2, 3}),
    "not": ({"must_not": [{"key": YEAR, "match": {"value": 2001}}]}, {0, 2, 3, 4}),
    "should": ({"should": [{"key": YEAR, "match": {"value": one}} for one in (2000, 2004)]}, {0, 4}),
    "at least two": (
        {
            "min_should": {
                "conditions": [{"key": YEAR, "range": {"gte": 2000 + one}} for one in range(3)],
                "min_count": 2,
            }
        },
        {1, 2, 3, 4},
    ),
    "nested": ({"must": [{"should": [{"key": YEAR, "match": {"value": 2003}}]}]}, {3}),
    "truth value": ({"must": [{"key": YEAR, "match": {"value": True}}]}, set()),
    "null": ({"must": [{"is_null": {"key": YEAR}}]}, set()),
    "not empty": ({"must": [{"key": YEAR, "is_empty": False}]}, {0, 1, 2, 3, 4}),
    "nothing": ({}, {0, 1, 2, 3, 4}),
}


@pytest.mark.parametrize("case", FILTERS.values(), ids=FILTERS.keys())
def test_filters(http: TestClient, service: Service, case: tuple[Any, set[int]]) -> None:
    """A filter chooses among the released records, in their order, and is free."""
    condition, years = case
    everything = http.post(QUERY, json={"query": make_query(1), "limit": 50}).json()["result"]["points"]
    answer = http.post(QUERY, json={"query": make_query(1), "limit": 50, "filter": condition})
    points = answer.json()["result"]["points"]
    assert {point["id"] % 5 for point in points} == years
    expected = [point for point in everything if point["id"] % 5 in years]
    assert points[: len(expected)] == expected
    assert spent(service) == 1.0


def nest_deeply(depth: int) -> dict[str, Any]:
    content: dict[str, Any] = {"must": [{"key": YEAR, "match": {"value": 2001}}]}
    for _ in range(depth):
        content = {"must": [content]}
    return content


EQUAL = {"key": YEAR, "match": {"value": 2003}}
BAD_BODIES: dict[str, tuple[Any, str]] = {
    "no query": ({"limit": 3}, "not_offered"),
    "id": ({"query": 7}, "not_offered"),
    "uuid": ({"query": "0b2e"}, "not_offered"),
    "nearest id": ({"query": {"nearest": 7}}, "not_offered"),
    "recommend": ({"query": {"recommend": {"positive": [make_query(1)]}}}, "not_offered"),
    "diversity": ({"query": {"nearest": make_query(1), "mmr": {"diversity": 0.5}}}, "not_offered"),
    "sparse": ({"query": {"indices": [1], "values": [1.0]}}, "not_offered"),
    "several vectors": ({"query": [make_query(1)]}, "not_offered"),
    "sample": ({"query": {"sample": "random"}}, "not_offered"),
    "vectors": ({"query": make_query(1), "with_vector": ["a"]}, "not_offered"),
    "prefetch": ({"query": make_query(1), "prefetch": [{"query": make_query(1)}]}, "not_offered"),
    "lookup": ({"query": make_query(1), "lookup_from": {"collection": "docs"}}, "not_offered"),
    "ids in filter": ({"query": make_query(1), "filter": {"must": [{"has_id": [1]}]}}, "not_offered"),
    "text in filter": (
        {"query": make_query(1), "filter": {"must": [{"key": "page_content", "match": {"text": "1"}}]}},
        "not_offered",
    ),
    "private field": (
        {"query": make_query(1), "filter": {"must": [{"key": "secret", "match": {"value": 1}}]}},
        "unknown_field",
    ),
    "private null": (
        {"query": make_query(1), "filter": {"must_not": [{"is_null": {"key": "secret"}}]}},
        "unknown_field",
    ),
    "private range": (
        {"query": make_query(1), "filter": {"should": [{"key": "secret", "range": {"gt": 0}}]}},
        "unknown_field",
    ),
    "deep": ({"query": make_query(1), "filter": nest_deeply(20)}, "invalid_request"),
    "very deep": ({"query": make_query(1), "filter": nest_deeply(300)}, "invalid_request"),
    "empty condition": ({"query": make_query(1), "filter": {"must": [{}]}}, "invalid_request"),
    "unknown member": ({"query": make_query(1), "filter": {"most": []}}, "invalid_request"),
    "bad bound": (
        {"query": make_query(1), "filter": {"must": [{"key": YEAR, "range": {"gt": "2020-01-01"}}]}},
        "invalid_request",
    ),
    "bad values": (
        {"query": make_query(1), "filter": {"must": [{"key": YEAR, "match": {"any": [[1]]}}]}},
        "invalid_request",
    ),
    "conditions": ({"query": make_query(1), "filter": {"must": [EQUAL] * 101}}, "invalid_request"),
    "groups": ({"query": make_query(1), "filter": {"should": [{"must": []}] * 101}}, "invalid_request"),
    "paths": ({"query": make_query(1), "with_payload": ["a"] * 101}, "invalid_request"),
    "dimension": ({"query": [1.0]}, "wrong_dimension"),
    "zero": ({"query": [0.0] * DIMENSION}, "zero_query"),
    "texts": ({"query": ["a"] * DIMENSION}, "invalid_request"),
    "limit of zero": ({"query": make_query(1), "limit": 0}, "invalid_request"),
    "limit too large": ({"query": make_query(1), "limit": 51}, "k_too_large"),
    "offset too large": ({"query": make_query(1), "limit": 50, "offset": 1}, "k_too_large"),
    "flag": ({"query": make_query(1), "exact": True}, "invalid_request"),
    "list": ([], "invalid_request"),
}


def test_queries_of_older_clients(http: TestClient, service: Service) -> None:
    """qdrant-client 1.12 writes an empty list of prefetches, which asks for nothing."""
    body = {"prefetch": [], "query": make_query(1), "params": None, "limit": 3, "with_payload": True}
    assert http.post(QUERY, json=body).status_code == 200
    assert spent(service) == 1.0


def test_older_form_of_searches(http: TestClient, service: Service) -> None:
    """Clients before 1.16, and those of JavaScript, send ``/points/search``: the same points for the same charge."""
    query = make_query(1)
    newer = http.post(QUERY, json={"query": query, "limit": 5, "with_payload": True}).json()["result"]["points"]
    # As qdrant-client 1.15.1 and LangChain for JavaScript write it.
    older = {"vector": query, "limit": 5, "offset": 0, "with_payload": True, "with_vector": False}
    answer = http.post("/collections/docs/points/search", json=older)
    assert answer.status_code == 200
    assert answer.json()["result"] == newer
    assert find_signature_fault(answer.json(), service.key.signing_keys[0].public) is None
    script = {"vector": query, "limit": 5, "with_payload": ["metadata"], "with_vector": False}
    points = http.post("/collections/docs/points/search", json=script).json()["result"]
    assert [point["payload"].keys() for point in points] == [{"metadata"}] * 5
    named = {"vector": {"name": "", "vector": query}, "limit": 5, "with_payload": True, "params": {"hnsw_ef": 8}}
    assert http.post("/collections/docs/points/search", json=named).json()["result"] == newer
    least = newer[2]["score"]
    best = http.post("/collections/docs/points/search", json={**older, "score_threshold": least}).json()["result"]
    assert best == newer[:3]
    of_2003 = {"must": [{"key": "metadata.year", "match": {"value": 2003}}]}
    searches = [{**older, "limit": 3, "offset": 2}, {**older, "filter": of_2003}]
    results = http.post("/collections/docs/points/search/batch", json={"searches": searches}).json()["result"]
    assert results[0] == newer[2:]
    assert {point["payload"]["metadata"]["year"] for point in results[1]} == {2003}
    assert spent(service) == 1.0
    for body, code in (({}, 422), ({**older, "vector": [1.0]}, 422), ({**older, "exact": True}, 422)):
        rejected = http.post("/collections/docs/points/search", json=body)
        assert rejected.status_code == code
        assert rejected.json().keys() == {"result", "status", "time", "usage"}
    assert spent(service) == 1.0


@pytest.mark.parametrize("case", BAD_BODIES.values(), ids=BAD_BODIES.keys())
def test_bad_bodies(http: TestClient, service: Service, case: tuple[Any, str]) -> None:
    """What is wrong or would show more than a ranking is one sentence in Qdrant's form, and is free."""
    body, code = case
    for path, content in ((QUERY, body), (f"{QUERY}/batch", {"searches": [{"query": make_query(1)}, body]})):
        answer = http.post(path, json=content)
        assert 400 <= answer.status_code < 500
        assert answer.json()["status"]["code"] == code
        assert answer.json().keys() == {"result", "status", "time", "usage"}
    assert spent(service) == 0.0


def test_filters_of_a_batch_count_together(http: TestClient) -> None:
    """The filters of one request have at most 100 conditions, in one query or in several."""
    parts = [{"query": make_query(1), "filter": {"must": [EQUAL] * number}} for number in (60, 40, 1)]
    assert http.post(f"{QUERY}/batch", json={"searches": parts[:2]}).status_code == 200
    rejected = http.post(f"{QUERY}/batch", json={"searches": parts})
    assert (rejected.status_code, rejected.json()["status"]["code"]) == (422, "invalid_request")
    assert "100 conditions" in rejected.json()["status"]["error"]


def test_paths_about_records_are_rejected(http: TestClient) -> None:
    """Other paths of Qdrant answer with a sentence of their own, whatever is asked, and need a key too."""
    paths = ("scroll", "count", "recommend", "discover", "query/groups", "delete", "payload", "")
    for path in paths:
        for method in ("GET", "POST", "PUT", "DELETE", "PATCH"):
            found = set()
            for name in ("docs", "cats"):
                for body in ({"ids": [1], "with_vector": True}, {"filter": {}}, None):
                    answer = http.request(method, f"/collections/{name}/points/{path}", json=body)
                    found.add((answer.status_code, answer.content))
            assert len(found) == 1
            assert next(iter(found))[0] == 403
    assert http.get("/collections/docs/points/1").status_code == 403
    assert http.put("/collections/new").status_code == 403
    assert http.post("/collections/docs/points/scroll", headers={"authorization": ""}).status_code == 401


def test_bad_json(http: TestClient) -> None:
    for content in (b"{", b"[" * 100_000, b'{"query": [NaN]}'):
        answer = http.post(QUERY, content=content, headers={"content-type": "application/json"})
        assert answer.status_code in (400, 422)
        assert answer.json()["status"]["error"].endswith(".")


@pytest.mark.parametrize("test", ['"match": {"value": NaN}', '"match": {"any": [1e999]}', '"range": {"gt": NaN}'])
def test_filters_that_are_no_numbers(http: TestClient, service: Service, test: str) -> None:
    content = f'{{"query": {make_query(1)}, "filter": {{"must": {{"key": "metadata.year", {test}}}}}}}'
    answer = http.post(QUERY, content=content, headers={"content-type": "application/json"})
    assert (answer.status_code, answer.json()["status"]["code"]) == (422, "invalid_request")
    assert service.collections["docs"].account.spent == 0


def test_nested_fields() -> None:
    assert nest_fields({"a.b": 1, "a.c.d": 2, "e": 3}) == {"a": {"b": 1, "c": {"d": 2}}, "e": 3}
    assert nest_fields({"a.b": 1, "a": 2}) == {"a.b": 1, "a": 2}
