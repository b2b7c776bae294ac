"""Write the metrics in Prometheus' text format or in OpenMetrics, with Prometheus' library."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import accumulate

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector
from prometheus_client.samples import Exemplar

from gateway.admin.families import Family
from gateway.metric_table import COUNTER, HISTOGRAM


def expose(families: Iterable[Family], accept: str = "") -> tuple[bytes, str]:
    """Write `families` in the format that `accept`, a header, asks for.

    Returns it with its content type. Only OpenMetrics has exemplars.
    """
    encode, content_type = choose_encoder(accept)
    return encode(_Collector(families)), content_type


class _Collector(Collector):
    def __init__(self, families: Iterable[Family]):
        self._families = families

    def collect(self) -> Iterator[Metric]:
        for family in self._families:
            yield _histogram(family) if family.metric.type == HISTOGRAM else _plain(family)


def _plain(family: Family) -> Metric:
    metric = family.metric
    kind = CounterMetricFamily if metric.type == COUNTER else GaugeMetricFamily
    written = kind(family.name, metric.about, labels=metric.labels)
    for labels, value in family.values.items():
        written.add_metric(labels, value)
    return written


def _histogram(family: Family) -> Metric:
    """Add up the buckets: Prometheus' are cumulative."""
    written = HistogramMetricFamily(family.name, family.metric.about, labels=family.metric.labels)
    for labels, buckets in family.buckets.items():
        rows: list[tuple[str, float] | tuple[str, float, Exemplar]] = []
        for bound, value in zip(buckets.counts, accumulate(buckets.counts.values()), strict=True):
            one = buckets.exemplars.get(bound)
            if one:
                exemplar = Exemplar({"trace_id": one.trace}, one.seconds, one.time)
                rows.append((bound, value, exemplar))
            else:
                rows.append((bound, value))
        written.add_metric(labels, rows, buckets.seconds)
    return written
