"""Send the metrics to a collector, by OTLP over HTTP, under the names that OpenTelemetry has.

https://opentelemetry.io/docs/specs/semconv/http/http-metrics/
https://opentelemetry.io/docs/specs/semconv/messaging/messaging-metrics/
Their translation to Prometheus' names, which a collector or Prometheus itself makes, gives the
names of ``/metrics``: https://opentelemetry.io/docs/specs/otel/compatibility/prometheus_and_openmetrics/
"""

from __future__ import annotations

from collections.abc import Iterable
from time import time_ns
from uuid import uuid4

from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Gauge,
    Histogram,
    HistogramDataPoint,
    Metric,
    MetricExportResult,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from gateway import __version__
from gateway.admin.families import Family, Labels
from gateway.config.settings import Config
from gateway.metric_table import ACTIVE, COUNTER, HISTOGRAM, PARENT, PUBLISHED, REQUESTS, SENT
from gateway.tracing.outage import Outage
from gateway.tracing.service import resource
from gateway.tracing.session import Session

#: The names that the conventions have. Others lose their prefix and their unit.
_NAMES = {
    REQUESTS: "http.server.request.duration",
    ACTIVE: "http.server.active_requests",
    SENT: "messaging.client.sent.messages",
    PUBLISHED: "messaging.client.operation.duration",
}
_ATTRIBUTES = {
    "http_route": "http.route",
    "http_request_method": "http.request.method",
    "http_response_status_code": "http.response.status_code",
    "messaging_operation_name": "messaging.operation.name",
    "messaging_system": "messaging.system",
    "error_type": "error.type",
}
#: What a name may end in, and the unit that it means (UCUM).
_UNITS = {"_total": "", "_seconds": "s", "_bytes": "By", "_ratio": "1"}
_STATUS = "http_response_status_code"
_CUMULATIVE = AggregationTemporality.CUMULATIVE


class Exporter:
    """Sends families to `Config.metrics_endpoint`; logs each outage of the collector once."""

    def __init__(self, config: Config):
        own = {"service.version": __version__, "service.instance.id": str(uuid4())}
        self._resource = resource(config, own)
        self._exporter = OTLPMetricExporter(config.metrics_endpoint, session=Session())
        self._outage = Outage("metrics")
        self._outage.attach()

    def export(self, families: Iterable[Family], started: float) -> None:
        """Send them, for 10 s if nothing comes back; `started` is in seconds since the epoch."""
        times = int(started * 1e9), time_ns()
        scope = InstrumentationScope("gateway", __version__)
        counted = [each for each in families if each.values or each.buckets]
        scoped = ScopeMetrics(scope, [_metric(each, *times) for each in counted], "")
        data = MetricsData([ResourceMetrics(self._resource, [scoped], "")])
        if self._exporter.export(data) is MetricExportResult.SUCCESS:
            self._outage.end()

    def close(self) -> None:
        self._outage.detach()


def _metric(family: Family, start: int, now: int) -> Metric:
    name, unit = _named(family.name)
    data: Gauge | Histogram | Sum
    if family.metric.type == HISTOGRAM:
        histograms = [
            HistogramDataPoint(
                _attributes(family, labels),
                start,
                now,
                count=int(sum(buckets.counts.values())),
                sum=buckets.seconds,
                bucket_counts=[int(count) for count in buckets.counts.values()],
                explicit_bounds=[float(bound) for bound in buckets.counts][:-1],
                # They are not known, and are left out.
                min=None,  # type: ignore[arg-type]
                max=None,  # type: ignore[arg-type]
            )
            for labels, buckets in family.buckets.items()
        ]
        data = Histogram(histograms, _CUMULATIVE)
    else:
        points = [
            NumberDataPoint(_attributes(family, labels), start, now, value)
            for labels, value in family.values.items()
        ]
        counter = family.metric.type == COUNTER
        # What gateways on several machines have in flight can be added up, their versions cannot.
        alike = family.metric.alike or family.name in PARENT
        data = Gauge(points) if alike and not counter else Sum(points, _CUMULATIVE, counter)
    return Metric(name, family.metric.about, unit, data)


def _named(name: str) -> tuple[str, str]:
    """Return a metric's name and its unit."""
    ending = next((ending for ending in _UNITS if name.endswith(ending)), "")
    plain = name.removesuffix(ending).removeprefix("gateway_")
    return _NAMES.get(name, f"gateway.{plain}"), _UNITS.get(ending, "")


def _attributes(family: Family, labels: Labels) -> dict[str, str | int]:
    """Name the labels; one that is empty does not exist."""
    found: dict[str, str | int] = {}
    for label, value in zip(family.metric.labels, labels, strict=True):
        if value:
            number = label == _STATUS and value.isdigit()
            found[_ATTRIBUTES.get(label, label)] = int(value) if number else value
    return found
