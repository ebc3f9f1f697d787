"""Metrics and traces: they say what happened to requests and budgets, and hold no content."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="the 'service' extra is not installed")
pytest.importorskip("prometheus_client", reason="the 'service' extra is not installed")

from prometheus_client.parser import text_string_to_metric_families
from service_support import DIMENSION, TestClient, make_headers, make_query, open_service, write_policy

from scoreshield.errors import LedgerError
from scoreshield.privacy.ledger import Ledger
from scoreshield.service.application import create_app
from scoreshield.service.core import Service
from scoreshield.service.metrics import METRICS
from scoreshield.service.observation import DURATIONS, LONGEST
from scoreshield.service.policy import check_policy, find_contradictions
from scoreshield.service.problems import CODES

SEARCH = "/v1/collections/docs/search"
CALLERS = {"watch": {"role": "officer", "collections": {"docs": {"actions": ["metrics"]}}}}


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    service = open_service(tmp_path, write_policy(callers=CALLERS))
    yield service
    service.close()


def make_traffic(client: TestClient, service: Service) -> None:
    """Send fresh, repeated, wrong and unknown requests, some with secret-looking parts."""
    headers = make_headers(service)
    for seed in (1, 1, 2):
        assert client.post(SEARCH, json={"query": make_query(seed)}, headers=headers).status_code == 200
    client.post(SEARCH, json={"query": make_query(1), "k": 3}, headers=headers)
    client.post(SEARCH, json={"query": [1.0]}, headers=headers)
    client.post(SEARCH, content=b"{", headers=headers)
    client.post("/collections/docs/points/query", json={"query": make_query(3)}, headers=headers)
    client.get("/v1/collections/hiddenname/budget", headers=headers)
    client.get(
        "/nothing/hiddenpath?word=hiddenquery", headers={"traceparent": "00-" + "ab" * 16 + "-" + "cd" * 8 + "-01"}
    )
    client.request("HIDDENMETHOD", SEARCH)


def read_samples(text: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_metrics_hold_the_allowed_set(service: Service) -> None:
    """After traffic, every name and label is of the allowed set, every value of a label is public, and counts agree."""
    with TestClient(create_app(service)) as client:
        make_traffic(client, service)
        shown = client.get("/metrics", headers=make_headers(service, "watch"))
    assert shown.status_code == 200
    assert shown.headers["content-type"].startswith("text/plain")
    samples = read_samples(shown.text)
    assert {name for name, _ in samples} == set(METRICS)
    paths = {"/metrics", "/v1/collections/{name}/search", "/v1/collections/{name}/budget", "unknown"}
    paths |= {"/collections/{name}/points/query", SEARCH.replace("docs", "{name}")}
    values = {
        "version": None,
        "method": {"GET", "POST", "other"},
        "path": paths,
        "status": {"200", "400", "404", "405", "422"},
        "status_class": {"2xx", "4xx"},
        "code": {"", *CODES},
        "duration": {LONGEST, *(name for _, name in DURATIONS)},
        "source": {"fresh", "stored"},
        "collection": {"docs"},
        "action": {"search", "matches", "top_k"},
    }
    for name, labels in samples:
        assert sorted(label for label, _ in labels) == sorted(METRICS[name])
        for label, value in labels:
            assert values[label] is None or value in values[label], (name, label, value)
    assert "hidden" not in shown.text.lower()
    assert "_created" not in shown.text  # the exact time of a first event
    assert "_sum" not in shown.text  # of durations

    def find(name: str, **labels: str) -> float:
        return samples[name, tuple(sorted(labels.items()))]

    assert find("scoreshield_answered_requests_total", source="fresh") == 3
    assert find("scoreshield_answered_requests_total", source="stored") == 2
    assert find("scoreshield_rejections_total", code="wrong_dimension") == 1
    assert find("scoreshield_epsilon_spent", collection="docs") == 3.0
    assert find("scoreshield_epsilon_headroom", collection="docs") == pytest.approx(17.0)
    assert find("scoreshield_queries_left", collection="docs", action="search") == 17
    total = sum(value for (name, _), value in samples.items() if name == "scoreshield_requests_total")
    timed = sum(value for (name, _), value in samples.items() if name == "scoreshield_requests_by_duration_total")
    assert total == timed == 10


def test_metrics_need_the_action(service: Service) -> None:
    """No key, a reader and an officer without the action see no metrics, nor does a narrower key."""
    with TestClient(create_app(service)) as client:
        assert client.get("/metrics").status_code == 401
        for caller in ("app", "officer"):
            refused = client.get("/metrics", headers=make_headers(service, caller))
            assert (refused.status_code, refused.json()["code"]) == (403, "action_not_allowed")
        narrow = make_headers(service, "watch", actions=["entries"])
        assert client.get("/metrics", headers=narrow).status_code == 403
        assert (
            client.post(SEARCH, json={"query": make_query(1)}, headers=make_headers(service, "watch")).status_code
            == 403
        )


def test_reader_cannot_be_granted_metrics() -> None:
    callers = {"app": {"role": "reader", "collections": {"docs": {"actions": ["metrics"]}}}}
    faults = list(find_contradictions(check_policy({**write_policy(), "callers": callers})))
    assert "Caller app is granted metrics on docs, which the role reader does not have." in faults


def test_metrics_without_a_ledger(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    """A ledger that cannot be read is a gauge of 0, and the rest is shown."""

    def fail(*_: Any) -> Any:
        raise LedgerError("The ledger cannot be used.")

    with TestClient(create_app(service)) as client:
        headers = make_headers(service, "watch")
        assert client.get("/metrics", headers=headers).status_code == 200
        monkeypatch.setattr(Ledger, "spent_on", fail)
        samples = read_samples(client.get("/metrics", headers=headers).text)
    assert samples["scoreshield_ledger_available", (("collection", "docs"),)] == 0
    assert samples["scoreshield_epsilon_budget", (("collection", "docs"),)] == 20.0
    assert not any(name == "scoreshield_epsilon_spent" for name, _ in samples)


def test_spans_hold_no_content(service: Service) -> None:
    """Spans are exported to memory: they hold the allowed attributes, coarse times, and nothing of the requests."""
    pytest.importorskip("opentelemetry.sdk", reason="the 'traces' extra is not installed")
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    with TestClient(create_app(service, provider)) as client:
        make_traffic(client, service)
        exported = exporter.get_finished_spans()
        answer = client.post(SEARCH, json={"query": make_query(1)}, headers=make_headers(service)).json()
    assert len(exported) == 10
    text = "".join(span.to_json() for span in exported)
    keys = {"http.request.method", "http.route", "http.response.status_code"}
    keys |= {"scoreshield.problem", "scoreshield.duration", "scoreshield.source"}
    for span in exported:
        assert set(span.attributes or {}) == keys
        assert span.parent is None
        assert not span.events
        assert span.start_time is not None
        assert span.end_time is not None
        assert span.start_time % 1_000_000_000 == 0
        assert (span.end_time - span.start_time) / 1e9 in (*(limit for limit, _ in DURATIONS), 60.0)
    contents = [repr(value) for value in make_query(1)] + [hit["id"] for hit in answer["hits"]]
    contents += [repr(hit["score"]) for hit in answer["hits"]] + ["hidden", "ab" * 16, "docs", "app", answer["entry"]]
    assert len(contents) > DIMENSION
    lowered = text.lower()
    for content in contents:
        assert json.dumps(content)[1:-1].lower() not in lowered, content
    sources = [(span.attributes or {})["scoreshield.source"] for span in exported]
    assert (sources.count("fresh"), sources.count("stored")) == (3, 2)


def test_traces_by_policy(tmp_path: Path) -> None:
    """A policy that names a collector makes a provider of its own; the global one of libraries stays as it was."""
    pytest.importorskip("opentelemetry.exporter.otlp.proto.grpc", reason="the 'traces' extra is not installed")
    from opentelemetry import trace

    content = write_policy()
    content["installation"]["traces"] = {"endpoint": "http://127.0.0.1:9"}
    service = open_service(tmp_path, content)
    before = trace.get_tracer_provider()
    with TestClient(create_app(service)):  # its end shuts the provider down
        assert trace.get_tracer_provider() is before


def test_messages_of_libraries_are_not_written() -> None:
    """What an embedder, a driver or a warning says stays out of the log; that it said something does not."""
    code = """if True:
        import logging, warnings
        from scoreshield.service.logs import start_logs
        start_logs()
        logging.getLogger("some.embedder").warning("too long: %s", "my private question")
        try:
            raise ValueError("my private question")
        except ValueError:
            logging.getLogger("asyncio").exception("my private question")
        logging.error("my private question")
        warnings.warn("my private question")
    """
    written = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stderr
    assert "private" not in written
    lines = [json.loads(line) for line in written.splitlines()]
    assert [line["event"] for line in lines] == ["some.embedder", "asyncio", "root", "py.warnings"]
    assert lines[1]["error"] == "ValueError"
