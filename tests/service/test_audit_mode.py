"""The service under audit: nothing is found on an honest one, and planted leaks are found."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("fastapi", reason="the 'service' extra is not installed")

from service_support import TestClient, make_policy, serve, write_policy

from scoreshield import cli
from scoreshield.audit import AuditResult, Claim, audit
from scoreshield.audit.targets import Endpoint
from scoreshield.privacy.sampling.stream import ReleaseKey
from scoreshield.service import answers
from scoreshield.service.audit_mode import AuditedCollection, AuditService, create_audit_app
from scoreshield.service.memory import hash_request
from scoreshield.service.policy import Policy

QUERY = np.eye(1, 8)[0]
#: A sound service is called broken in fewer than one of a million runs.
CONFIDENCE = 1 - 1e-7


@pytest.fixture
def policy(tmp_path: Path) -> Policy:
    return make_policy(tmp_path, write_policy())


def run_audit(policy: Policy, epsilon: float, action: str = "search", releases: int = 300) -> AuditResult:
    """Audit the service over HTTP, as ``scoreshield audit http://... --output-field hits`` does."""
    service = AuditService(policy)
    with serve(service, create_audit_app(service)) as address:  # type: ignore[arg-type]
        endpoint = Endpoint(f"{address}/v1/audit/docs/{action}", QUERY, output_field="hits")
        try:
            return audit(endpoint, Claim(epsilon), releases=releases, query=QUERY, confidence=CONFIDENCE)
        finally:
            endpoint.close()


@pytest.mark.parametrize("action", ["search", "top-k"])
def test_honest_service(policy: Policy, action: str) -> None:
    """An audit over HTTP does not call a service broken whose noise is as stated."""
    result = run_audit(policy, 1.0, action)
    assert not result.broken, result.verdict


def reuse_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every answer has the noise of the first one."""

    def make_key(*_: Any, **__: Any) -> ReleaseKey:
        return ReleaseKey(bytes(32), release="r", snapshot="s", mechanism="m")

    monkeypatch.setattr(answers, "ReleaseKey", make_key)


def show_length(monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer is shorter where a clean score is low."""
    search = AuditedCollection.search

    def search_and_cut(self: AuditedCollection, *arguments: Any) -> Any:
        found = search(self, *arguments)
        count = int((self.data.vectors @ QUERY.astype(np.float32) > 0.5).sum())
        del found[0].hits[max(1, len(found[0].hits) - count) :]
        return found

    monkeypatch.setattr(AuditedCollection, "search", search_and_cut)


@pytest.mark.parametrize("plant", [reuse_noise, show_length])
def test_planted_leak_is_found(
    policy: Policy, monkeypatch: pytest.MonkeyPatch, plant: Callable[[pytest.MonkeyPatch], None]
) -> None:
    plant(monkeypatch)
    result = run_audit(policy, 1.0, releases=600)
    assert result.broken, result.verdict


def test_larger_epsilon_than_claimed_is_found(tmp_path: Path) -> None:
    """A policy that spends ten times what is claimed."""
    content = write_policy(collection={"search": {"mechanism": "staircase", "epsilon": 10.0}})
    result = run_audit(make_policy(tmp_path, content), 1.0, releases=600)
    assert result.broken, result.verdict


def test_answers_have_the_form_of_the_service(policy: Policy) -> None:
    """The members are those of a real answer, each request draws noise of its own, and bad requests are problems."""
    service = AuditService(policy)
    rows = np.eye(4, 8).tolist()
    with TestClient(create_audit_app(service)) as client:
        body = {"embeddings": rows, "query": QUERY.tolist()}
        first, second = (client.post("/v1/audit/docs/search", json=body) for _ in range(2))
        assert set(first.json()) == {
            "collection",
            "version",
            "action",
            "hits",
            "guarantee",
            "entry",
            "request",
            "signature",
        }
        assert first.json()["request"] == hash_request("/v1/audit/docs/search", first.request.content)
        assert first.headers["cache-control"] == "no-store"
        assert first.json()["hits"] != second.json()["hits"]
        assert len(first.json()["hits"]) == 4
        for change, path, code in (
            ({"query": [0.0] * 8}, "docs/search", "zero_query"),
            ({"query": [1.0] * 7}, "docs/search", "wrong_dimension"),
            ({"embeddings": [[1.0, 2.0], [1.0]]}, "docs/search", "invalid_request"),
            ({"embeddings": []}, "docs/search", "invalid_request"),
            ({"embeddings": rows[:1]}, "docs/top-k", "invalid_request"),
            ({"embeddings": [[1e300] * 8] * 4}, "docs/search", "invalid_request"),
            ({}, "other/search", "unknown_collection"),
            ({}, "docs/index", "invalid_request"),
        ):
            answer = client.post(f"/v1/audit/{path}", json={**body, **change})
            assert answer.json()["code"] == code
            assert 400 <= answer.status_code < 500
        assert client.post("/v1/collections/docs/search", json=body).status_code == 404  # no real collection


def test_command_reads_no_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    """``serve --audit`` prints an audit command for each action, and makes no database and no key."""
    policy = make_policy(tmp_path)
    content = write_policy()
    content["collections"]["docs"]["budget"]["delta"] = 1e-6
    content["collections"]["gaussian"] = {
        **content["collections"]["docs"],
        "search": {"mechanism": "gaussian", "epsilon": 1.0, "delta": 1e-8},
    }
    (tmp_path / "policy.yaml").write_text(json.dumps(content))
    assert policy.collections["docs"].file.exists()

    def announce_only(service: Any, announce: Callable[[str], None]) -> None:
        assert isinstance(service, AuditService)
        announce("http://127.0.0.1:1")

    monkeypatch.setattr("scoreshield.service.server.run_server", announce_only)
    monkeypatch.setattr(sys, "argv", ["scoreshield", "serve", "--config", str(tmp_path / "policy.yaml"), "--audit"])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert not ended.value.code
    shown = capsys.readouterr().out
    for action in ("search", "matches", "top-k"):
        assert f"scoreshield audit http://127.0.0.1:1/v1/audit/docs/{action} --epsilon 1.0 --adjacency" in shown
    assert "/audit/gaussian/search --epsilon 1.0 --delta 1e-08 --adjacency" in shown
    assert {path.name for path in tmp_path.iterdir()} == {"docs.npz", "policy.yaml"}
