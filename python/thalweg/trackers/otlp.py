"""OpenTelemetry: a trace a round, sent to a collector as OTLP over HTTP (``otlp:http://host:4318``).

The root span is the round; within it are its transfers, the work of a tree's workers, and the phases of a graph's
nodes. The variables ``OTEL_EXPORTER_OTLP_*`` and ``OTEL_RESOURCE_ATTRIBUTES`` count as in any program.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExportResult

from thalweg.outcome import Entry
from thalweg.record.spans import Span, spans_of
from thalweg.trackers import PROJECT, Run

# The path of traces below a collector's address (OTLP specification, "OTLP/HTTP request").
TRACES = "/v1/traces"
# Spans that wait to be sent. Beyond OpenTelemetry's own limit, 2048, it drops spans and does not count them.
_WAITING: Final = 1000


class _Counting:
    """An exporter that counts the spans that the collector did not take. OpenTelemetry's own only logs them."""

    def __init__(self, exporter: OTLPSpanExporter) -> None:
        self._exporter = exporter
        self.refused = 0

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        result = self._exporter.export(spans)
        self.refused += 0 if result is SpanExportResult.SUCCESS else len(spans)
        return result

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        return bool(self._exporter.force_flush(timeout_millis))

    def shutdown(self) -> None:
        self._exporter.shutdown()


class Otlp:
    """Sends each round's spans to a collector, in the background."""

    def __init__(self, where: str | None) -> None:
        """``where``: the collector's address; else OpenTelemetry's own setting, by default http://localhost:4318."""
        endpoint = None if where is None else where.rstrip("/") + TRACES
        self._exporter = _Counting(OTLPSpanExporter(endpoint=endpoint))

    def begin(self, run: Run) -> None:
        resource = Resource.create({"service.name": PROJECT, "thalweg.record": run.name})
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(self._exporter, max_queue_size=2 * _WAITING))
        self._added = 0
        self._tracer = self._provider.get_tracer("thalweg")
        self._began = run.began

    def round(self, entry: Entry) -> None:
        spans = spans_of(entry)
        if spans is None:
            return
        whole, inner = spans
        if self._began is None:  # an older record: the round has ended just now
            self._began = time.time() - whole.end
        root = self._tracer.start_span(whole.what, start_time=self._at(whole.start), attributes=dict(whole.facts))
        within = trace.set_span_in_context(root)
        for span in inner:
            self._add(span, within)
        root.end(self._at(whole.end))
        self._count()

    def _add(self, span: Span, within: Context) -> None:
        facts = {**span.facts, "thalweg.party": span.party}
        name = f"{span.party}: {span.what}"
        one = self._tracer.start_span(name, within, start_time=self._at(span.start), attributes=facts)
        one.end(self._at(span.end))
        self._count()

    def _count(self) -> None:
        """Send what waits if many spans were added since the last time."""
        self._added += 1
        if self._added >= _WAITING:
            self._added = 0
            self._provider.force_flush()

    def _at(self, seconds: float) -> int:
        """Return a time on the run's clock as nanoseconds since 1970."""
        return int(((self._began or 0.0) + seconds) * 1e9)

    def end(self, status: str) -> None:
        """Send what waits. ``status`` is in no span: each round has its own trace."""
        del status
        self._provider.shutdown()
        if self._exporter.refused:
            raise ConnectionError(f"the collector did not take {self._exporter.refused} spans")
