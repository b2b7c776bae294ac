"""Write the sums of all counters in Prometheus' text format or in OpenMetrics, with its library."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate
from platform import python_version

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector
from prometheus_client.samples import Exemplar

from gateway.metric_table import COUNTER, HISTOGRAM, METRICS, OTHER, PARENT
from gateway.metric_table import Metric as Described
from gateway.process.counters import Series, Totals

_Values = tuple[str, ...]


@dataclass(frozen=True)
class About:
    """What the parent knows: whether a child is ready, how many there are, when it has begun.

    ``started`` is in seconds since the epoch; ``restarts`` is how many children have ended
    unexpectedly.
    """

    version: str
    strategy: str
    ready: bool
    processes: int
    restarts: int
    started: float


def expose(total: Totals, about: About, accept: str = "") -> tuple[bytes, str]:
    """Write `total` and `about`, in the format that `accept`, a header, asks for.

    Returns it with its content type. Only OpenMetrics has exemplars.
    """
    encode, content_type = choose_encoder(accept)
    return encode(_Collector(total, about)), content_type


class _Collector(Collector):
    """Yields one metric family for each of the gateway's metrics, and those about the parent.

    The processes of two versions may have different labels and bounds: only the labels of this
    version are exposed, and series that differ in others are added up.
    """

    def __init__(self, total: Totals, about: About):
        self._about = about
        self._exemplars = total.exemplars
        self._series: defaultdict[str, list[tuple[Series, float]]] = defaultdict(list)
        for series, value in total.values.items():
            self._series[series[0]].append((series, value))

    def collect(self) -> Iterator[Metric]:
        about = self._about
        own: dict[str, tuple[_Values, float]] = {
            "gateway_build_info": ((about.version, about.strategy, python_version()), 1),
            "gateway_ready": ((), about.ready),
            "gateway_processes": ((), about.processes),
            "gateway_process_restarts_total": ((), about.restarts),
            "gateway_start_time_seconds": ((), about.started),
        }
        for name, metric in PARENT.items():
            labels, value = own[name]
            yield _family(name, metric, {labels: float(value)})
        for name, metric in METRICS.items():
            if metric.type == HISTOGRAM:
                yield self._histogram(name, metric)
            else:
                yield _family(name, metric, self._sums(name, *metric.labels))

    def _histogram(self, name: str, metric: Described) -> Metric:
        """Add up the buckets: Prometheus' are cumulative, those of the file are not."""
        family = HistogramMetricFamily(name, metric.about, labels=metric.labels)
        bucket, labels = f"{name}_bucket", (*metric.labels, "le")
        buckets: defaultdict[_Values, dict[str, float]] = defaultdict(dict)
        for key, value in self._sums(bucket, *labels).items():
            buckets[key[:-1]][key[-1]] = value
        exemplars = {
            _values(series, labels): Exemplar({"trace_id": one.trace}, one.seconds, one.time)
            for series, one in self._exemplars.items()
            if series[0] == bucket
        }
        seconds = self._sums(f"{name}_sum", *metric.labels)
        for values, counts in buckets.items():
            bounds = sorted(counts, key=float)
            cumulative = accumulate(counts[bound] for bound in bounds)
            rows: list[tuple[str, float] | tuple[str, float, Exemplar]] = []
            for bound, value in zip(bounds, cumulative, strict=True):
                one = exemplars.get((*values, bound))
                rows.append((bound, value, one) if one else (bound, value))
            if rows[-1][1] or not _other(values):
                family.add_metric(values, rows, seconds.get(values, 0.0))
        return family

    def _sums(self, name: str, *labels: str) -> dict[_Values, float]:
        """Return the sums of the series called `name` by the values of `labels`."""
        sums: defaultdict[_Values, float] = defaultdict(float)
        for series, value in self._series[name]:
            sums[_values(series, labels)] += value
        return sums


def _family(name: str, metric: Described, values: Mapping[_Values, float]) -> Metric:
    kind = CounterMetricFamily if metric.type == COUNTER else GaugeMetricFamily
    family = kind(name, metric.about, labels=metric.labels)
    for labels, value in values.items():
        if value or not _other(labels):
            family.add_metric(labels, value)
    return family


def _values(series: Series, labels: tuple[str, ...]) -> _Values:
    given = dict(series[1])
    return tuple(given.get(label, "") for label in labels)


def _other(labels: _Values) -> bool:
    """Do these labels stand for series that a process had no room for?"""
    return bool(labels) and all(label == OTHER for label in labels)
