"""Write the sums of all counters in Prometheus' text format, with its own library."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from itertools import accumulate

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector

from gateway.metrics import BY_ROUTE, GAUGES, HELP
from gateway.process.counters import Totals

#: Prometheus' text format, in the version that every scraper reads.
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_ANSWERS = ("route", "status")
_Labelled = list[tuple[dict[str, str], float]]


def expose(total: Totals) -> bytes:
    """Write `total`; labelled series at zero are left out."""
    return generate_latest(_Collector(total))


class _Collector(Collector):
    """Yields one metric family for each of the gateway's metrics.

    The processes of two versions may have different labels and bounds: only the labels of this
    version are exposed, and series that differ in others are added up.
    """

    def __init__(self, total: Totals):
        self._series: defaultdict[str, _Labelled] = defaultdict(list)
        for (name, labels), value in total.items():
            self._series[name].append((dict(labels), value))

    def collect(self) -> Iterator[Metric]:
        for name, text in HELP.items():
            if name in BY_ROUTE:
                yield self._plain(GaugeMetricFamily(name, text, labels=["route"]), name, "route")
            elif name in GAUGES:
                yield self._plain(GaugeMetricFamily(name, text), name)
            elif name == "gateway_requests_total":
                family = CounterMetricFamily(name, text, labels=_ANSWERS)
                yield self._plain(family, name, *_ANSWERS)
            elif name.endswith("_total"):
                yield self._plain(CounterMetricFamily(name, text), name)
            else:
                yield self._histogram(HistogramMetricFamily(name, text, labels=["route"]), name)

    def _plain(
        self, family: GaugeMetricFamily | CounterMetricFamily, name: str, *labels: str
    ) -> Metric:
        for values, value in self._sums(name, *labels).items():
            if value or not labels:
                family.add_metric(values, value)
        return family

    def _histogram(self, family: HistogramMetricFamily, name: str) -> Metric:
        """Add up the buckets: Prometheus' are cumulative, those of the file are not."""
        buckets: defaultdict[str, list[tuple[str, float]]] = defaultdict(list)
        for (route, bound), value in self._sums(f"{name}_bucket", "route", "le").items():
            buckets[route].append((bound, value))
        seconds = self._sums(f"{name}_sum", "route")
        for route, some in buckets.items():
            bounds, counts = zip(*sorted(some, key=_bound), strict=True)
            cumulative = list(accumulate(counts))
            if cumulative[-1]:
                family.add_metric(
                    [route], list(zip(bounds, cumulative, strict=True)), seconds.get((route,), 0.0)
                )
        return family

    def _sums(self, name: str, *labels: str) -> dict[tuple[str, ...], float]:
        """Return the sums of the series called `name` by the values of `labels`."""
        sums: defaultdict[tuple[str, ...], float] = defaultdict(float)
        for given, value in self._series[name]:
            sums[tuple(given.get(label, "") for label in labels)] += value
        return sums


def _bound(bucket: tuple[str, float]) -> float:
    return float(bucket[0])
