"""Write the sums of all counters in Prometheus' text format, with its own library."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
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

#: The metrics about the parent.
PARENT = {
    "gateway_info": "Version and strategy; the value is 1.",
    "gateway_ready": "1 if a process has its broker and results and takes requests.",
    "gateway_processes": "Serving processes.",
    "gateway_start_time_seconds": "When the gateway was started, in seconds since the epoch.",
}

_ABOUT = ("version", "strategy")
_ANSWERS = ("route", "status")
_Labelled = list[tuple[dict[str, str], float]]


@dataclass(frozen=True)
class About:
    """What the parent knows: whether a child is ready, how many there are, when it has begun.

    ``started`` is in seconds since the epoch.
    """

    version: str
    strategy: str
    ready: bool
    processes: int
    started: float


def expose(total: Totals, about: About) -> bytes:
    """Write `total` and `about`; labelled series at zero are left out."""
    return generate_latest(_Collector(total, about))


class _Collector(Collector):
    """Yields one metric family for each of the gateway's metrics, and those about the parent.

    The processes of two versions may have different labels and bounds: only the labels of this
    version are exposed, and series that differ in others are added up.
    """

    def __init__(self, total: Totals, about: About):
        self._about = about
        self._series: defaultdict[str, _Labelled] = defaultdict(list)
        for (name, labels), value in total.items():
            self._series[name].append((dict(labels), value))

    def collect(self) -> Iterator[Metric]:
        yield from self._parent()
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

    def _parent(self) -> Iterator[Metric]:
        about = self._about
        info = GaugeMetricFamily("gateway_info", PARENT["gateway_info"], labels=_ABOUT)
        info.add_metric((about.version, about.strategy), 1)
        yield info
        for name, value in (
            ("gateway_ready", about.ready),
            ("gateway_processes", about.processes),
            ("gateway_start_time_seconds", about.started),
        ):
            yield GaugeMetricFamily(name, PARENT[name], value=float(value))

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
