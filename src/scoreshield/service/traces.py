"""Traces for OpenTelemetry: one span per request, of the same facts as a line of the log, without the caller.

A span has a begin and an end. Exact ones would show how long an answer took to compute, so both are coarse: the begin
is a whole second, and the end is the upper end of the class of the duration. The provider is the service's own and
never the global one, because libraries write spans with exact times and error texts to the global one.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Protocol

from scoreshield._version import VERSION
from scoreshield.errors import InvalidInput
from scoreshield.service.observation import DURATIONS, RequestFacts
from scoreshield.service.policy import TracesPolicy

if TYPE_CHECKING:
    from opentelemetry.trace import Tracer

_SECOND = 1_000_000_000  # nanoseconds
#: The span of a request that took longer than the last class.
_LONGEST_SECONDS = 60.0
_EXPORT_SECONDS = 5


class SpanProvider(Protocol):
    """What spans are written to; a ``TracerProvider`` of OpenTelemetry is one."""

    def get_tracer(self, name: str, version: str, /) -> Tracer:
        """Return what starts spans."""

    def shutdown(self) -> None:
        """Send what is left, and end."""


class RequestTraces:
    """Writes one span per request, after it has ended."""

    def __init__(self, provider: SpanProvider) -> None:
        from opentelemetry.context import Context
        from opentelemetry.trace import SpanKind, Status, StatusCode

        self._tracer = provider.get_tracer("scoreshield.service", VERSION)
        self._kind, self._no_parent = SpanKind.SERVER, Context()
        self._failure = Status(StatusCode.ERROR)

    def observe(self, facts: RequestFacts) -> None:
        """Write the span of a request. It has no parent: what a caller puts into its headers is not exported."""
        begin = int(time.time()) * _SECOND
        length = next((limit for limit, name in DURATIONS if name == facts.duration), _LONGEST_SECONDS)
        span = self._tracer.start_span(
            f"{facts.method} {facts.path}",
            context=self._no_parent,
            kind=self._kind,
            attributes={
                "http.request.method": facts.method,
                "http.route": facts.path,
                "http.response.status_code": facts.status,
                "scoreshield.problem": facts.code,
                "scoreshield.duration": facts.duration,
                "scoreshield.source": facts.source,
            },
            start_time=begin,
        )
        if facts.status >= 500:
            span.set_status(self._failure)
        span.end(end_time=begin + int(length * _SECOND))


def open_provider(policy: TracesPolicy) -> SpanProvider:
    """Open the way to a collector. Spans are sent in batches by a thread of their own.

    Raises:
        InvalidInput: The packages of OpenTelemetry are not installed.
    """
    try:
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError:
        raise InvalidInput("Traces need the 'traces' extra: pip install 'scoreshield[traces]'.") from None
    provider = TracerProvider(resource=Resource.create({"service.name": "scoreshield", "service.version": VERSION}))
    exporter = OTLPSpanExporter(endpoint=policy.endpoint, timeout=_EXPORT_SECONDS)
    provider.add_span_processor(BatchSpanProcessor(exporter, export_timeout_millis=_EXPORT_SECONDS * 1000))
    return provider
