"""Metrics for Prometheus: how many requests, with which outcome, and what is spent and left of each budget.

They hold no query, record, score or exact time. A histogram of Prometheus would export the sum of all durations, and a
counter the exact time of its first event, so both are counted here, in coarse classes and without times.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator, Sequence

from fastapi import APIRouter, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import Response
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from scoreshield._version import VERSION
from scoreshield.errors import LedgerError
from scoreshield.service.core import Caller, ServedCollection, Service
from scoreshield.service.observation import DURATIONS, LONGEST, RequestFacts
from scoreshield.service.problems import ServiceProblem
from scoreshield.service.rest import CallerArgument, ServiceArgument

_TEXT_FORMAT = "text/plain; version=0.0.4; charset=utf-8"
#: Each metric with its labels. The tests compare them with what is exported.
METRICS: dict[str, tuple[str, ...]] = {
    "scoreshield_build_info": ("version",),
    "scoreshield_requests_total": ("method", "path", "status", "status_class", "code"),
    "scoreshield_rejections_total": ("code",),
    "scoreshield_requests_by_duration_total": ("duration",),
    "scoreshield_answered_requests_total": ("source",),
    "scoreshield_ledger_available": ("collection",),
    "scoreshield_epsilon_budget": ("collection",),
    "scoreshield_delta_budget": ("collection",),
    "scoreshield_epsilon_spent": ("collection",),
    "scoreshield_epsilon_headroom": ("collection",),
    "scoreshield_queries_left": ("collection", "action"),
    "scoreshield_collection_version": ("collection",),
}

router = APIRouter()


class RequestCounts:
    """Counts the requests of this process."""

    def __init__(self) -> None:
        self._outcomes: Counter[tuple[str, ...]] = Counter()
        self._rejections: Counter[str] = Counter()
        self._durations: Counter[str] = Counter()
        self._sources: Counter[str] = Counter()
        self._lock = threading.Lock()

    def observe(self, facts: RequestFacts) -> None:
        """Count one request."""
        status = str(facts.status)
        with self._lock:
            self._outcomes[facts.method, facts.path, status, f"{status[0]}xx", facts.code] += 1
            self._durations[facts.duration] += 1
            if facts.code:
                self._rejections[facts.code] += 1
            if facts.source:
                self._sources[facts.source] += 1

    def collect(self) -> Iterator[Metric]:
        """Make the families of Prometheus."""
        with self._lock:
            outcomes, rejections = dict(self._outcomes), dict(self._rejections)
            durations, sources = dict(self._durations), dict(self._sources)
        requests = _make_counter("scoreshield_requests_total", "Requests by path and outcome.")
        for outcome, number in sorted(outcomes.items()):
            requests.add_metric(outcome, number)
        yield requests
        rejected = _make_counter("scoreshield_rejections_total", "Requests that ended with a problem, by its code.")
        for code, number in sorted(rejections.items()):
            rejected.add_metric([code], number)
        yield rejected
        timed = _make_counter("scoreshield_requests_by_duration_total", "Requests by a coarse class of their duration.")
        for name in (*(name for _, name in DURATIONS), LONGEST):
            timed.add_metric([name], durations.get(name, 0))
        yield timed
        answered = _make_counter(
            "scoreshield_answered_requests_total", "Answered queries: from stored answers alone, or with a fresh one."
        )
        for source in ("fresh", "stored"):
            answered.add_metric([source], sources.get(source, 0))
        yield answered


class BudgetGauges:
    """Reads what is spent and left of the budgets of some collections."""

    def __init__(self, collections: Sequence[ServedCollection]) -> None:
        self._collections = collections

    def collect(self) -> Iterator[Metric]:
        """Make the families of Prometheus. A ledger that cannot be read has no gauges but the one that says it."""
        gauges = {
            name: GaugeMetricFamily(name, text, labels=METRICS[name])
            for name, text in (
                ("scoreshield_ledger_available", "1 if the ledger of the collection can be read, 0 if not."),
                ("scoreshield_epsilon_budget", "The most epsilon that may ever be spent, at the delta of the budget."),
                ("scoreshield_delta_budget", "The delta that the budget is counted at."),
                ("scoreshield_epsilon_spent", "Epsilon spent, at the delta of the budget."),
                ("scoreshield_epsilon_headroom", "The largest next charge of pure epsilon that fits."),
                ("scoreshield_queries_left", "Fresh answers that the budget covers, up to a million."),
                ("scoreshield_collection_version", "The number of the version of the data."),
            )
        }
        for served in self._collections:
            name, account = served.name, served.account
            try:
                found = {
                    "scoreshield_epsilon_spent": account.spent,
                    "scoreshield_epsilon_headroom": account.headroom.pure,
                }
                left = {action: served.count_left(action) for action in served.policy.list_actions()}
            except LedgerError:
                gauges["scoreshield_ledger_available"].add_metric([name], 0)
                continue
            gauges["scoreshield_ledger_available"].add_metric([name], 1)
            for metric, value in found.items():
                gauges[metric].add_metric([name], value)
            for action, number in left.items():
                if number is not None:  # a search by the index has no limit
                    gauges["scoreshield_queries_left"].add_metric([name, action], number)
        for served in self._collections:
            ledger = served.account.ledger
            gauges["scoreshield_epsilon_budget"].add_metric([served.name], ledger.epsilon)
            gauges["scoreshield_delta_budget"].add_metric([served.name], ledger.delta)
            gauges["scoreshield_collection_version"].add_metric([served.name], served.version)
        yield from gauges.values()


class _ServiceCollector(Collector):
    def __init__(self, counts: RequestCounts, gauges: BudgetGauges) -> None:
        self._counts, self._gauges = counts, gauges

    def collect(self) -> Iterator[Metric]:
        build = GaugeMetricFamily("scoreshield_build_info", "The version of ScoreShield.", labels=["version"])
        build.add_metric([VERSION], 1)
        yield build
        yield from self._counts.collect()
        yield from self._gauges.collect()


@router.get("/metrics", tags=["operations"], response_class=Response)
async def show_metrics(request: Request, service: ServiceArgument, caller: CallerArgument) -> Response:
    """Show the metrics of this process, in the text format of Prometheus. It is for officers."""
    collections = _list_measured(service, caller)
    content = await run_in_threadpool(write_metrics, request.app.state.counts, collections)
    return Response(content, media_type=_TEXT_FORMAT)


def write_metrics(counts: RequestCounts, collections: Sequence[ServedCollection]) -> bytes:
    """Write the metrics in the text format of Prometheus, from a registry that holds nothing else."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_ServiceCollector(counts, BudgetGauges(collections)))
    return generate_latest(registry)


def _list_measured(service: Service, caller: Caller) -> list[ServedCollection]:
    """List the collections whose metrics a caller may read.

    Raises:
        ServiceProblem: There is none.
    """
    found = []
    for name in service.collections:
        try:
            found.append(service.open(caller, name, "metrics")[0])
        except ServiceProblem:
            continue
    if not found:
        raise ServiceProblem("action_not_allowed")
    return found


def _make_counter(name: str, text: str) -> CounterMetricFamily:
    return CounterMetricFamily(name, text, labels=METRICS[name])
