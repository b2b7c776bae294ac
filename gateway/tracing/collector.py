"""Send spans to a collector, in the thread of the SDK's processor."""

from __future__ import annotations

from collections.abc import Sequence

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExportResult

from gateway.tracing.outage import Outage
from gateway.tracing.session import Session


class Collector(OTLPSpanExporter):
    """Exports spans by OTLP over HTTP to `endpoint`; None: as the variables OTEL_* say."""

    def __init__(self, endpoint: str | None):
        super().__init__(endpoint, session=Session())
        self.outage = Outage("spans")

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        result = super().export(spans)
        if result is SpanExportResult.SUCCESS:
            self.outage.end()
        return result
