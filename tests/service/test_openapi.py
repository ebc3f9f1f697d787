"""The OpenAPI description, and requests that are generated from it: none may make the service fail."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("fastapi", reason="the 'service' extra is not installed")

from service_support import TestClient, make_headers, open_service, write_policy

from scoreshield.service.application import create_app

PATHS = {
    "/",
    "/collections",
    "/collections/{name}",
    "/collections/{name}/exists",
    "/collections/{name}/points/query",
    "/collections/{name}/points/query/batch",
    "/collections/{name}/points/search",
    "/collections/{name}/points/search/batch",
    "/livez",
    "/metrics",
    "/readyz",
    "/v1/collections",
    "/v1/collections/{name}",
    "/v1/collections/{name}/budget",
    "/v1/collections/{name}/certificate",
    "/v1/collections/{name}/entries",
    "/v1/collections/{name}/estimate",
    "/v1/collections/{name}/index",
    "/v1/collections/{name}/matches",
    "/v1/collections/{name}/search",
    "/v1/collections/{name}/top-k",
    "/v1/keys",
    "/v1/keys/{prefix}",
    "/v1/keys/{prefix}/rotate",
    "/v1/signing-keys",
    "/v1/vector_stores",
    "/v1/vector_stores/{name}",
    "/v1/vector_stores/{name}/search",
}


def test_description_lists_paths(tmp_path: Path) -> None:
    service = open_service(tmp_path)
    with TestClient(create_app(service)) as client:
        described = client.get("/openapi.json").json()
        assert set(described["paths"]) == PATHS
        assert described["components"]["securitySchemes"]["HTTPBearer"]["scheme"] == "bearer"
        answer = described["paths"]["/v1/collections/{name}/matches"]["post"]["responses"]
        assert answer["200"]["content"]["application/json"]["schema"]["$ref"].endswith("/SignedAnswerModel")
        assert "application/problem+json" in answer["403"]["content"]
        answer = described["paths"]["/collections/{name}/points/query"]["post"]["responses"]
        assert answer["422"]["content"]["application/json"]["schema"]["$ref"].endswith("/QdrantError")
        assert client.get("/docs").status_code == 404  # it would fetch scripts from elsewhere


def test_generated_requests_never_fail(tmp_path: Path) -> None:
    """No generated request gets a status of 500 or more, or spends more than the budget."""
    schemathesis = pytest.importorskip("schemathesis", reason="schemathesis is not installed")
    import hypothesis

    admins = {"admin": {"role": "admin", "rate": {"requests": 100_000}}}
    service = open_service(tmp_path, write_policy(collection={"embedder": "hashing"}, callers=admins))
    headers, admin = make_headers(service), make_headers(service, "admin")
    app = create_app(service)
    schema = schemathesis.openapi.from_asgi("/openapi.json", app)
    codes: dict[str, int] = {}
    client = TestClient(app, raise_server_exceptions=False)
    for operation in schema.get_all_operations():
        made = operation.ok()

        @hypothesis.settings(
            max_examples=12, deadline=None, database=None, suppress_health_check=list(hypothesis.HealthCheck)
        )
        @hypothesis.given(case=made.as_strategy())
        def check(case: object) -> None:
            arguments = case.as_transport_kwargs(base_url="http://testserver")  # type: ignore[attr-defined]
            chosen = admin if "/v1/keys" in arguments["url"] else headers
            made_up = dict(arguments.get("headers") or {})
            kept = {name: value for name, value in made_up.items() if name.lower() != "authorization"}
            arguments["headers"] = {**kept, **chosen}
            arguments["content"] = arguments.pop("data", None)
            answer = client.request(**{name: value for name, value in arguments.items() if name != "cookies"})
            assert answer.status_code < 500, answer.text
            codes[str(answer.status_code)] = codes.get(str(answer.status_code), 0) + 1

        check()
    assert sum(codes.values()) >= 12 * len(PATHS) / 2
    assert service.collections["docs"].account.spent <= 20.0
    assert "401" not in codes  # the requests came further than the check of the key
