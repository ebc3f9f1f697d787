"""What the service never answers, in every interface: one fixed sentence each, whatever the records are."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="the 'service' extra is not installed")

from service_support import TestClient, make_headers, make_query, open_service, write_collection, write_policy

from scoreshield.service.application import create_app
from scoreshield.service.interfaces import reject_form
from scoreshield.service.problems import (
    CODES,
    MISSING_MEMBER,
    NO_JSON,
    NO_VECTOR,
    NOT_OFFERED,
    UNKNOWN_MEMBER,
    WRONG_MEMBER,
)
from scoreshield.service.qdrant import QdrantQuery, QdrantVectorQuery
from scoreshield.service.rest import QueryBody, SearchBody
from scoreshield.service.vector_stores import TextQuery

Q = make_query(1)
REST, QDRANT, OPENAI, MCP = (
    "/v1/collections/docs/search",
    "/collections/docs/points",
    "/v1/vector_stores/docs",
    "/mcp",
)
#: What is asked for, and the requests that ask for it: interface, method, path and body. For MCP the body is a tool and
#: its arguments.
REJECTED: dict[str, list[tuple[str, str, Any]]] = {
    "vectors": [
        ("POST", f"{QDRANT}/query", {"query": Q, "with_vector": True}),
        ("POST", f"{QDRANT}/query", {"query": Q, "with_vector": ["dense"]}),
        ("POST", f"{QDRANT}/query/batch", {"searches": [{"query": Q, "with_vector": True}]}),
        ("POST", f"{QDRANT}/search", {"vector": Q, "limit": 3, "with_vector": True}),
        ("POST", f"{QDRANT}/search/batch", {"searches": [{"vector": Q, "with_vector": ["dense"]}]}),
        ("POST", REST, {"query": Q, "with_vector": True}),
        ("POST", f"{OPENAI}/search", {"query": "a text", "include": ["vectors"]}),
        ("POST", MCP, ("search", {"collection": "docs", "query": Q, "with_vector": True})),
        ("GET", "/v1/collections/docs/vectors", None),
    ],
    "query by id": [
        ("POST", f"{QDRANT}/query", {"query": 7}),
        ("POST", f"{QDRANT}/query", {"query": {"nearest": "5c56c793-69f3-4fbf-87e6-c4bf54c28c26"}}),
        ("POST", f"{QDRANT}/search", {"vector": 7}),
        ("POST", f"{QDRANT}/search", {"vector": {"name": "", "vector": 7}}),
        ("POST", REST, {"query": "r7"}),
        ("POST", REST, {"id": "r7"}),
        ("POST", MCP, ("search", {"collection": "docs", "query": 7})),
        ("POST", f"{OPENAI}/search", {"query": 7}),
    ],
    "recommend": [
        ("POST", f"{QDRANT}/query", {"query": {"recommend": {"positive": [7]}}}),
        ("POST", f"{QDRANT}/query", {"query": {"discover": {"target": 7, "context": []}}}),
        ("POST", f"{QDRANT}/recommend", {"positive": [7]}),
        ("POST", REST, {"positive": ["r7"]}),
        ("POST", MCP, ("recommend", {"collection": "docs", "positive": [7]})),
    ],
    "scroll": [
        ("POST", f"{QDRANT}/scroll", {"limit": 10}),
        ("GET", f"{OPENAI}/files", None),
        ("GET", f"{OPENAI}/file_batches/b/files", None),
        ("GET", "/v1/collections/docs/records", None),
        ("POST", MCP, ("scroll", {"collection": "docs"})),
    ],
    "retrieve": [
        ("POST", QDRANT, {"ids": [7], "with_vector": True}),
        ("GET", f"{QDRANT}/7", None),
        ("GET", f"{OPENAI}/files/r7", None),
        ("GET", f"{OPENAI}/files/r7/content", None),
        ("GET", "/v1/collections/docs/records/r7", None),
        ("POST", MCP, ("retrieve", {"collection": "docs", "id": "r7"})),
    ],
    "count": [
        ("POST", f"{QDRANT}/count", {"exact": True}),
        ("POST", "/v1/collections/docs/count", {"filter": {"year": 2001}}),
        ("POST", MCP, ("count", {"collection": "docs"})),
    ],
    "facet": [
        ("POST", "/collections/docs/facet", {"key": "year"}),
        ("POST", f"{QDRANT}/query/groups", {"query": Q, "group_by": "year"}),
        ("POST", "/v1/collections/docs/facet", {"key": "year"}),
        ("POST", MCP, ("facet", {"collection": "docs", "key": "year"})),
    ],
    "prefetch": [
        ("POST", f"{QDRANT}/query", {"query": Q, "prefetch": [{"query": Q}]}),
        ("POST", f"{QDRANT}/query", {"prefetch": [{"query": Q}], "query": {"fusion": "rrf"}}),
        ("POST", f"{QDRANT}/query", {"query": Q, "lookup_from": {"collection": "docs"}}),
        ("POST", REST, {"query": Q, "prefetch": [{"query": Q}]}),
    ],
    "filter on private fields": [
        ("POST", f"{QDRANT}/query", {"query": Q, "filter": {"must": [{"key": "name", "match": {"value": "x"}}]}}),
        ("POST", f"{QDRANT}/query", {"query": Q, "filter": {"must": [{"has_id": [7]}]}}),
        ("POST", f"{QDRANT}/query", {"query": Q, "filter": {"must": [{"key": "year", "match": {"text": "2"}}]}}),
        ("POST", REST, {"query": Q, "filter": {"name": "x"}}),
        ("POST", REST, {"query": Q, "filter": {"id": "r7"}}),
        ("POST", f"{OPENAI}/search", {"query": "a text", "filters": {"type": "eq", "key": "name", "value": "x"}}),
        ("POST", MCP, ("search", {"collection": "docs", "query": Q, "filter": {"name": "x"}})),
    ],
    "changes": [
        ("PUT", QDRANT, {"points": [{"id": 1, "vector": Q}]}),
        ("POST", f"{QDRANT}/delete", {"points": [7]}),
        ("PUT", "/collections/new", {"vectors": {"size": 4, "distance": "Cosine"}}),
        ("DELETE", "/collections/docs", None),
        ("DELETE", f"{OPENAI}/files/r7", None),
        ("POST", "/v1/vector_stores", {"name": "new"}),
        ("DELETE", "/v1/collections/docs", None),
        ("POST", MCP, ("delete", {"collection": "docs", "id": "r7"})),
    ],
}
CASES = [(what, *request) for what, requests in REJECTED.items() for request in requests]
#: Sentences that name a member name one of these models, and no text of a request.
MEMBERS = {
    name for model in (QueryBody, SearchBody, QdrantQuery, QdrantVectorQuery, TextQuery) for name in model.model_fields
}
SENTENCES = {sentence for _, sentence in CODES.values()} | {reject_form().detail, NO_JSON, NO_VECTOR, UNKNOWN_MEMBER}
SENTENCES |= set(NOT_OFFERED.values())
SENTENCES |= {sentence.format(name) for sentence in (MISSING_MEMBER, WRONG_MEMBER) for name in MEMBERS}


@pytest.fixture(scope="module")
def services(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[tuple[Any, TestClient]]]:
    """Two services with the same policy and other records."""
    pairs = []
    for seed in range(2):
        folder: Path = tmp_path_factory.mktemp(f"seed{seed}")
        write_collection(folder / "docs.npz", seed)
        service = open_service(folder, write_policy(collection={"embedder": "hashing"}))
        headers = {"accept": "application/json, text/event-stream", **make_headers(service)}
        client = TestClient(create_app(service), headers=headers, raise_server_exceptions=False)
        client.__enter__()
        pairs.append((service, client))
    yield pairs
    for _, client in pairs:
        client.__exit__()


def send(client: TestClient, method: str, path: str, body: Any) -> tuple[int, bytes]:
    """Send a request; the status of a tool call is the one of the problem in its result."""
    if path != MCP:
        answer = client.request(method, path, json=body)
        return answer.status_code, answer.content
    name, arguments = body
    call = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": name, "arguments": arguments}}
    result = client.post(path, json=call).json()["result"]
    assert result["isError"] is True
    text = result["content"][0]["text"]
    return int(json.loads(text)["status"]), text.encode()


@pytest.mark.parametrize(("what", "method", "path", "body"), CASES)
def test_rejected_with_one_sentence(
    services: list[tuple[Any, TestClient]], what: str, method: str, path: str, body: Any
) -> None:
    """The answer is 4xx with a fixed sentence, equal for any records, and costs nothing."""
    answers = [send(client, method, path, body) for _, client in services]
    assert answers[0] == answers[1], what
    status, content = answers[0]
    assert 400 <= status < 500
    found = find_sentences(json.loads(content))
    assert len(found) == 1, (what, content)
    assert found <= SENTENCES
    for service, _ in services:
        assert service.collections["docs"].account.spent == 0.0


def find_sentences(document: Any) -> set[str]:
    """Find the sentence of an error in any of the forms."""
    if "error" in document:
        return {document["error"]["message"]}
    if isinstance(document.get("status"), dict):
        return {document["status"]["error"]}
    return {document["detail"]}


def test_list_covers_every_interface() -> None:
    """Each kind is asked for in the interface that has it, and no kind is without a request."""
    prefixes = {path.split("/")[1] + "/" + path.split("/")[2] if path != MCP else MCP for _, _, path, _ in CASES}
    assert {"v1/collections", "v1/vector_stores", "collections/docs", MCP} <= prefixes
    assert all(REJECTED.values())


def test_answers_are_equal_in_shape(services: list[tuple[Any, TestClient]]) -> None:
    """The same request on other records has the same members, the same number of them, and constant extra fields."""
    requests = [
        (REST, {"query": Q, "k": 7}),
        (f"{QDRANT}/query", {"query": Q, "limit": 7, "with_payload": True}),
        (f"{OPENAI}/search", {"query": "a text", "max_num_results": 7}),
        ("/v1/collections/docs/top-k", {"query": Q}),
    ]
    for path, body in requests:
        documents = [client.post(path, json=body).json() for _, client in services]
        shapes = [describe_shape(document) for document in documents]
        assert shapes[0] == shapes[1], path
        for document in documents:
            assert document.get("time", 0.0) == 0.0
            assert document.get("usage") is None
    headers = [[sorted(client.post(REST, json={"query": Q, "k": 7}).headers) for _, client in services]]
    assert headers[0][0] == headers[0][1]


def describe_shape(value: Any) -> Any:
    """Describe the types, the members and the lengths of a document, and no values."""
    if isinstance(value, dict):
        return {name: describe_shape(one) for name, one in value.items()}
    if isinstance(value, list):
        return [describe_shape(one) for one in value]
    return type(value).__name__


def test_shape_differs_where_an_answer_is_shorter() -> None:
    """The near miss of the test above."""
    full = {"hits": [{"id": 1, "score": 0.5}, {"id": 2, "score": 0.25}]}
    for other in ({"hits": full["hits"][:1]}, {"hits": [{"id": 1, "score": None}, full["hits"][1]]}):
        assert describe_shape(full) != describe_shape(other)


def test_sentences_name_no_row() -> None:
    """No sentence has room for a value: the codes are constants, and only two public numbers are ever put in."""
    for sentence in (*NOT_OFFERED.values(), NO_JSON, NO_VECTOR, UNKNOWN_MEMBER):
        assert sentence.endswith(".")
        assert not set("{}%") & set(sentence)
    for code, (status, sentence) in CODES.items():
        assert 400 <= status < 600
        assert sentence.endswith((".", "ss_...")), code
        assert not set("{}%") & set(sentence), code


SPOKEN = [
    # What people of Qdrant and OpenAI ask for, and a word of the sentence that they read.
    ("PUT", QDRANT, {"points": [{"id": 1, "vector": Q}]}, "added, changed or deleted"),
    ("POST", f"{QDRANT}/delete", {"points": [7]}, "added, changed or deleted"),
    ("POST", f"{QDRANT}/payload", {"points": [7], "payload": {}}, "added, changed or deleted"),
    ("PUT", "/collections/docs/index", {"field_name": "year"}, "added, changed or deleted"),
    ("PUT", "/collections/new", {"vectors": {"size": 4, "distance": "Cosine"}}, "No collection can be made"),
    ("DELETE", "/collections/docs", None, "No collection can be made"),
    ("POST", "/v1/vector_stores", {"name": "new"}, "No collection can be made"),
    ("POST", f"{OPENAI}/files", {"file_id": "f"}, "added, changed or deleted"),
    ("POST", f"{QDRANT}/count", {"exact": True}, "has their number"),
    ("POST", f"{QDRANT}/query", {"query": Q, "with_vector": True}, "MMR"),
    ("POST", f"{QDRANT}/query", {"query": {"nearest": Q, "mmr": {"diversity": 0.5}}}, "MMR"),
    ("POST", f"{QDRANT}/query", {"query": Q, "using": "dense"}, "leave the name out"),
    ("POST", f"{QDRANT}/search", {"vector": {"name": "dense", "vector": Q}}, "leave the name out"),
    ("POST", f"{QDRANT}/query", {"query": 7}, "one dense vector"),
    ("POST", f"{QDRANT}/query", {"query": Q, "filter": {"must": [{"has_id": [7]}]}}, "public fields"),
    ("POST", f"{QDRANT}/scroll", {"limit": 10}, "shows no more"),
    ("POST", f"{OPENAI}/search", {"query": "a text", "rewrite_query": True}, "rewrite_query"),
    ("POST", f"{OPENAI}/search", {"querry": "a text"}, "no member query"),
    ("POST", REST, {"query": Q, "limit": 3}, "does not take"),
    ("POST", REST, {"query": Q, "limit": 3}, "/openapi.json"),
    ("POST", REST, {"query": "a text"}, "a text is searched at /v1/vector_stores/NAME/search"),
    ("POST", REST, {"query": Q, "k": "three"}, "parameter k has"),
]


@pytest.mark.parametrize(("method", "path", "body", "words"), SPOKEN)
def test_sentences_say_what_is_wrong(
    services: list[tuple[Any, TestClient]], method: str, path: str, body: Any, words: str
) -> None:
    """The sentence says what is not offered, or which member of the body is wrong."""
    answers = [services[0][1].request(method, path, json=body), services[1][1].request(method, path, json=body)]
    assert answers[0].content == answers[1].content
    assert words in next(iter(find_sentences(answers[0].json())))


def test_body_that_is_no_json(services: list[tuple[Any, TestClient]]) -> None:
    """A body without the type of JSON, as curl sends by default, is rejected with the header that is missing."""
    _, client = services[0]
    for path in (REST, f"{QDRANT}/query", f"{OPENAI}/search"):
        answer = client.post(path, content=json.dumps({"query": Q}), headers={"content-type": "text/plain"})
        assert answer.status_code == 422
        assert find_sentences(answer.json()) == {NO_JSON}
    assert "secret-7" not in client.post(REST, json={"query": Q, "secret-7": 1}).text


LARGE = b'"' + b"a" * (2**20 + 1) + b'"'


@pytest.mark.parametrize(
    ("path", "headers", "status", "code"),
    [
        (f"{QDRANT}/query", {}, 413, "body_too_large"),
        (f"{OPENAI}/search", {}, 413, "body_too_large"),
        (f"{QDRANT}/query", {"x-long": "a" * 40_000}, 431, "head_too_large"),
        ("/v1/models", {}, 413, "body_too_large"),
        ("/v1/embeddings", {"x-small": "yes"}, 404, "not_found"),
        (REST, {}, 413, "body_too_large"),
    ],
)
def test_early_problems_have_the_form_of_their_client(
    services: list[tuple[Any, TestClient]], path: str, headers: dict[str, str], status: int, code: str
) -> None:
    """A request that is rejected before its route has the form that the client of its path shows."""
    content = b"{}" if headers else LARGE
    answer = services[0][1].post(path, content=content, headers={"content-type": "application/json", **headers})
    assert answer.status_code == status
    document = answer.json()
    assert find_sentences(document) == {CODES[code][1]}
    if path.startswith("/collections/"):
        assert document.keys() == {"result", "status", "time", "usage"}
        assert document["status"]["code"] == code
    elif path == REST:
        assert answer.headers["content-type"] == "application/problem+json"
        assert document["code"] == code
    else:
        assert document.keys() == {"error"}
        assert document["error"]["code"] == code
