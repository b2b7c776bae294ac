"""Write the sums of all counters in Prometheus' text format, with its own library."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector

from gateway.metrics import GAUGES, HELP
from gateway.process.counters import Totals

CONTENT_TYPE = CONTENT_TYPE_LATEST


def expose(total: Totals) -> bytes:
    """Write `total`; labelled series at zero are left out."""
    return generate_latest(_Collector(total))


class _Collector(Collector):
    """Yields one metric family for each of the gateway's metrics."""

    def __init__(self, total: Totals):
        self._total = total

    def collect(self) -> Iterator[Metric]:
        for name, text in HELP.items():
            if name in GAUGES:
                yield self._plain(GaugeMetricFamily(name, text), name)
            elif name.endswith("_total"):
                labels = ["route", "status"] if name == "gateway_requests_total" else []
                yield self._plain(CounterMetricFamily(name, text, labels=labels), name)
            else:
                yield self._histogram(HistogramMetricFamily(name, text, labels=["route"]), name)

    def _plain(self, family: GaugeMetricFamily | CounterMetricFamily, name: str) -> Metric:
        for (series, labels), value in self._total.items():
            if series == name and (value or not labels):
                family.add_metric([value for _, value in labels], value)
        return family

    def _histogram(self, family: HistogramMetricFamily, name: str) -> Metric:
        """Add up the buckets: Prometheus' are cumulative, those of the file are not."""
        buckets: dict[str, list[tuple[str, float]]] = {}
        for (series, labels), value in self._total.items():
            if series == f"{name}_bucket":
                (_, route), (_, bound) = labels
                some = buckets.setdefault(route, [])
                some.append((bound, value + (some[-1][1] if some else 0.0)))
        for route, some in buckets.items():
            if some[-1][1]:
                total = self._total[f"{name}_sum", (("route", route),)]
                family.add_metric([route], some, total)
        return family
