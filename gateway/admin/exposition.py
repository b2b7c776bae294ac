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

from gateway.metrics import GAUGES, HELP
from gateway.process.counters import Totals

#: Prometheus' text format, in the version that every scraper reads.
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_Labelled = list[tuple[dict[str, str], float]]


def expose(total: Totals) -> bytes:
    """Write `total`; labelled series at zero are left out."""
    return generate_latest(_Collector(total))


class _Collector(Collector):
    """Yields one metric family for each of the gateway's metrics."""

    def __init__(self, total: Totals):
        self._series: defaultdict[str, _Labelled] = defaultdict(list)
        for (name, labels), value in total.items():
            self._series[name].append((dict(labels), value))

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
        for labels, value in self._series[name]:
            if value or not labels:
                family.add_metric(list(labels.values()), value)
        return family

    def _histogram(self, family: HistogramMetricFamily, name: str) -> Metric:
        """Add up the buckets: Prometheus' are cumulative, those of the file are not.

        The processes of two versions may have different bounds.
        """
        buckets: defaultdict[str, list[tuple[str, float]]] = defaultdict(list)
        for labels, value in self._series[f"{name}_bucket"]:
            buckets[labels["route"]].append((labels["le"], value))
        for labels, seconds in self._series[f"{name}_sum"]:
            bounds, counts = zip(*sorted(buckets[labels["route"]], key=_bound), strict=True)
            cumulative = list(accumulate(counts))
            if cumulative[-1]:
                family.add_metric(
                    [labels["route"]], list(zip(bounds, cumulative, strict=True)), seconds
                )
        return family


def _bound(bucket: tuple[str, float]) -> float:
    return float(bucket[0])
