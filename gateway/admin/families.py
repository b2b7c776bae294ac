"""The gateway's metrics: the sums of all processes, and what the parent knows, by their labels.

They are written in Prometheus' text format or in OpenMetrics, with Prometheus' library.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from platform import python_version
from typing import Any

from prometheus_client import core
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from gateway import __version__
from gateway.clock import time
from gateway.history.gateways import KINDS, Difference
from gateway.metric_table import COUNTER, HISTOGRAM, METRICS, OTHER, PARENT, Metric
from gateway.process import health
from gateway.process.counters import Exemplar, Labels, Series, Totals
from gateway.process.supervisor import Supervisor

_OPEN = "application/openmetrics-text"
#: When this process has begun, in seconds since the epoch.
STARTED = time()


@dataclass(slots=True)
class Buckets:
    """What a histogram has counted: by upper bound, in their order, and not cumulative."""

    counts: dict[str, float]
    seconds: float
    exemplars: dict[str, Exemplar]


@dataclass(slots=True)
class Family:
    """The series of one metric, by their labels: ``buckets`` of a histogram, else ``values``."""

    name: str
    metric: Metric
    values: dict[Labels, float] = field(default_factory=dict)
    buckets: dict[Labels, Buckets] = field(default_factory=dict)


Own = Mapping[str, Mapping[Labels, float]]


def of_parent(
    supervisor: Supervisor, answers: health.Answers, differences: Iterable[Difference]
) -> Own:
    """Return what the parent knows: each metric of `PARENT`, by its labels."""
    differing = Counter(each.kind for each in differences)
    return {
        "gateway_build_info": {(__version__, supervisor.config.strategy, python_version()): 1},
        "gateway_ready": {(): not supervisor.draining and health.ready(answers)},
        "gateway_processes": {(): len(answers)},
        "gateway_process_restarts_total": {(): supervisor.restarts},
        "gateway_start_time_seconds": {(): STARTED},
        "gateway_differing": {(kind,): differing[kind] for kind in KINDS},
    }


def families(total: Totals, own: Own) -> Iterator[Family]:
    """Yield all metrics; `own` are those of the parent.

    The processes of two versions may have different labels and bounds: only the labels of this
    version count, and series that differ in others are added up.
    """
    for name, metric in PARENT.items():
        values = own.get(name, {}).items()
        yield Family(name, metric, {labels: float(value) for labels, value in values})
    sums = _Sums(total)
    for name, metric in METRICS.items():
        if metric.type == HISTOGRAM:
            yield Family(name, metric, buckets=sums.buckets(name, metric.labels))
        else:
            found = sums.of(name, metric.labels)
            yield Family(name, metric, {k: v for k, v in found.items() if v or not _other(k)})


class _Sums:
    """Adds up the series of a metric by its labels."""

    def __init__(self, total: Totals):
        self._exemplars = total.exemplars
        self._series: defaultdict[str, list[tuple[Series, float]]] = defaultdict(list)
        for series, value in total.values.items():
            self._series[series[0]].append((series, value))

    def of(self, name: str, labels: tuple[str, ...]) -> dict[Labels, float]:
        sums: defaultdict[Labels, float] = defaultdict(float)
        for series, value in self._series[name]:
            sums[_values(series, labels)] += value
        return sums

    def buckets(self, name: str, labels: tuple[str, ...]) -> dict[Labels, Buckets]:
        bucket, bounded = f"{name}_bucket", (*labels, "le")
        counts: defaultdict[Labels, dict[str, float]] = defaultdict(dict)
        for (*values, bound), count in self.of(bucket, bounded).items():
            counts[tuple(values)][bound] = count
        exemplars: defaultdict[Labels, dict[str, Exemplar]] = defaultdict(dict)
        for series, one in self._exemplars.items():
            if series[0] == bucket:
                *values, bound = _values(series, bounded)
                exemplars[tuple(values)][bound] = one
        seconds = self.of(f"{name}_sum", labels)
        return {
            values: Buckets(
                {bound: found[bound] for bound in sorted(found, key=float)},
                seconds.get(values, 0.0),
                exemplars[values],
            )
            for values, found in counts.items()
            if any(found.values()) or not _other(values)
        }


def _values(series: Series, labels: tuple[str, ...]) -> Labels:
    given = dict(series[1])
    return tuple(given.get(label, "") for label in labels)


def _other(labels: Labels) -> bool:
    """Do these labels stand for series that a process had no room for?"""
    return bool(labels) and all(label == OTHER for label in labels)


def expose(collected: Iterable[Family], accept: str = "") -> tuple[bytes, str]:
    """Write what was `collected` in the format that `accept`, a header, asks for.

    Returns it with its content type. Only OpenMetrics has exemplars.
    """
    # The library fails where a version in the header is none.
    encode, content_type = choose_encoder(_OPEN if _OPEN in accept else "")
    return encode(_Collector(collected)), content_type


class _Collector(Collector):
    def __init__(self, collected: Iterable[Family]):
        self._collected = collected

    def collect(self) -> Iterator[core.Metric]:
        for family in self._collected:
            yield _histogram(family) if family.metric.type == HISTOGRAM else _plain(family)


def _plain(family: Family) -> core.Metric:
    metric = family.metric
    kind = core.CounterMetricFamily if metric.type == COUNTER else core.GaugeMetricFamily
    written = kind(family.name, metric.about, labels=metric.labels)
    for labels, value in family.values.items():
        written.add_metric(labels, value)
    return written


def _histogram(family: Family) -> core.Metric:
    """Add up the buckets: Prometheus' are cumulative."""
    metric = family.metric
    written = core.HistogramMetricFamily(family.name, metric.about, labels=metric.labels)
    for labels, buckets in family.buckets.items():
        sums = zip(buckets.counts, accumulate(buckets.counts.values()), strict=True)
        rows: list[Any] = [(*each, *_exemplar(buckets.exemplars.get(each[0]))) for each in sums]
        written.add_metric(labels, rows, buckets.seconds)
    return written


def _exemplar(one: Exemplar | None) -> list[core.Exemplar]:
    return [core.Exemplar({"trace_id": one.trace}, one.seconds, one.time)] if one else []
