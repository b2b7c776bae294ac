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
from gateway.history.gateways import KINDS, Difference
from gateway.metric_table import COUNTER, HISTOGRAM, METRICS, OTHER, PARENT, Metric
from gateway.process import health
from gateway.process.counters import Exemplar, Labels, Totals
from gateway.process.supervisor import Supervisor

_OPEN = "application/openmetrics-text"


@dataclass(slots=True)
class Buckets:
    """What a histogram has counted: by upper bound, and not cumulative."""

    counts: dict[str, float] = field(default_factory=dict)
    seconds: float = 0.0
    exemplars: dict[str, Exemplar] = field(default_factory=dict)


@dataclass(slots=True)
class Family:
    """The series of one metric, by their labels: ``buckets`` of a histogram, else ``values``."""

    name: str
    metric: Metric
    values: defaultdict[Labels, float] = field(default_factory=lambda: defaultdict(float))
    buckets: defaultdict[Labels, Buckets] = field(default_factory=lambda: defaultdict(Buckets))


Own = Mapping[str, Mapping[Labels, float]]


def of_parent(
    supervisor: Supervisor, answers: health.Answers, differences: Iterable[Difference]
) -> Own:
    """Return what the parent knows: each metric of `PARENT`, by its labels."""
    differing = Counter(each.kind for each in differences)
    return {
        "gateway_build_info": {(__version__, supervisor.config.strategy, python_version()): 1},
        "gateway_ready": {(): health.serves(supervisor, answers)},
        "gateway_processes": {(): len(answers)},
        "gateway_process_restarts_total": {(): supervisor.restarts},
        "gateway_reload_failed": {(): supervisor.reload_failed},
        "gateway_start_time_seconds": {(): supervisor.started},
        "gateway_differing": {(kind,): differing[kind] for kind in KINDS},
    }


def families(total: Totals, own: Own) -> Iterator[Family]:
    """Yield all metrics; `own` are those of the parent.

    The processes of two versions may have different labels and bounds: only the labels of this
    version count, and series that differ in others are added up.
    """
    found = {name: Family(name, metric) for name, metric in (PARENT | METRICS).items()}
    for name, values in own.items():
        found[name].values.update({labels: float(value) for labels, value in values.items()})
    for series, numbers in total.values.items():
        name, named, bounds = series
        metric = METRICS.get(name)
        if metric is None or bool(bounds) != (metric.type == HISTOGRAM):
            continue
        labels = tuple(dict(named).get(label, "") for label in metric.labels)
        if _other(labels) and not any(numbers):
            continue
        if not bounds:
            found[name].values[labels] += numbers[0]
            continue
        its = found[name].buckets[labels]
        its.seconds += numbers[-1]
        for bound, count in zip(bounds, numbers, strict=False):
            its.counts[bound] = its.counts.get(bound, 0.0) + count
            if one := total.exemplars.get((series, bound)):
                its.exemplars[bound] = one
    yield from found.values()


def _other(labels: Labels) -> bool:
    """Do these labels stand for series that a process had no room for?"""
    return bool(labels) and all(label == OTHER for label in labels)


def expose(collected: Iterable[Family], accept: str) -> tuple[bytes, str]:
    """Write what was `collected` in the format that `accept`, a header, asks for.

    Returns it with its content type. Only OpenMetrics has exemplars.
    """
    # The library fails at a version in the header that it cannot read.
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
        bounds = sorted(buckets.counts, key=float)
        sums = zip(bounds, accumulate(buckets.counts[bound] for bound in bounds), strict=True)
        rows: list[Any] = [(*each, *_exemplar(buckets.exemplars.get(each[0]))) for each in sums]
        written.add_metric(labels, rows, buckets.seconds)
    return written


def _exemplar(one: Exemplar | None) -> list[core.Exemplar]:
    return [core.Exemplar({"trace_id": one.trace}, one.seconds, one.time)] if one else []
