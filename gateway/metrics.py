"""Counters that survive their process: a memory-mapped array a child, added up by the parent.

Every child counts into a file of its own that the parent keeps open, so that what a killed
child has counted is not lost. Exposition: https://prometheus.io/docs/instrumenting/exposition_formats/
"""

from __future__ import annotations

import mmap
import tempfile
from bisect import bisect_left
from collections.abc import Iterable
from typing import IO

#: Upper bounds of the latency histogram (seconds).
BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
#: Where in a histogram the sum stands: behind those, and the one without a bound.
_SUM = len(BUCKETS) + 1
STATUSES = (
    200, 202, 204, 400, 401, 404, 405, 408, 409, 410, 413, 414, 415, 429, 431,
    500, 502, 503, 504, 0,
)  # fmt: skip

HELP = {
    "gateway_requests_total": "Requests answered, by route and status (0: any other status).",
    "gateway_request_seconds": "Seconds from a request's arrival to its answer, by route.",
    "gateway_events_unrouted_total": "Verified deliveries whose event no route takes.",
    "gateway_clients_gone_total": "Requests whose client left before the answer.",
    "gateway_messages_published_total": "Messages handed to the broker.",
    "gateway_messages_confirmed_total": "Messages that the broker confirmed.",
    "gateway_messages_refused_total": "Messages returned, rejected, or lost before a confirm.",
    "gateway_results_unclaimed_total": "Results that came for nobody: late, or foreign.",
    "gateway_journal_lost_total": "Deliveries that could not be written to the journal.",
    "gateway_broker_connections_total": "Connections to the broker that were opened.",
    "gateway_result_connections_total": "Connections to the result store that were opened.",
    "gateway_in_flight": "Requests under way.",
    "gateway_connections_open": "HTTP connections open.",
    "gateway_state_memory_ratio": "How full the Redis of the claims is, from 0 to 1.",
}
#: What every process sees alike is not added up.
_SEEN_ALIKE = ("gateway_state_memory_ratio",)
_GAUGES = ("gateway_in_flight", "gateway_connections_open", *_SEEN_ALIKE)
_PLAIN = tuple(name for name in HELP if name not in _GAUGES)[2:]


class Metrics:
    """The counters of one process, kept in `file`; `routes` are the routes' paths.

    Parent and child make the same layout from the same routes. A single writer needs
    no lock: a reader may see a count one too low, never a torn one.
    """

    def __init__(self, file: IO[bytes] | int, routes: Iterable[str]):
        self.series: list[tuple[str, str]] = [(name, "") for name in _GAUGES + _PLAIN]
        self._requests: dict[tuple[str, int], int] = {}
        #: Where a route's histogram begins: its buckets, then its sum.
        self._seconds: dict[str, int] = {}
        for route in (*routes, ""):
            label = f'route="{_escape(route)}"'
            for status in STATUSES:
                self._requests[route, status] = len(self.series)
                labels = f'{label},status="{status or "other"}"'
                self.series.append(("gateway_requests_total", labels))
            self._seconds[route] = len(self.series)
            for bound in (*BUCKETS, "+Inf"):
                self.series.append(("gateway_request_seconds_bucket", f'{label},le="{bound}"'))
            self.series.append(("gateway_request_seconds_sum", label))
        fd = file if isinstance(file, int) else file.fileno()
        self._map = mmap.mmap(fd, self.size(len(self.series)))
        self._values = memoryview(self._map).cast("d")
        self._index = {name: i for i, (name, labels) in enumerate(self.series) if not labels}

    @staticmethod
    def size(series: int) -> int:
        return 8 * series

    @classmethod
    def create(cls, routes: Iterable[str]) -> tuple[Metrics, IO[bytes]]:
        """Make the counters and the file they live in (inheritable by its descriptor)."""
        routes = list(routes)
        file = tempfile.TemporaryFile(prefix="gateway-metrics-")  # noqa: SIM115 - the caller closes it
        file.truncate(cls.size(4096 + len(routes) * (len(STATUSES) + _SUM + 1)))
        return cls(file, routes), file

    def add(self, name: str, amount: float = 1) -> None:
        self._values[self._index[name]] += amount

    def set(self, name: str, value: float) -> None:
        self._values[self._index[name]] = value

    def get(self, name: str) -> float:
        return self._values[self._index[name]]

    def answered(self, route: str, status: int, seconds: float) -> None:
        """Count an answer given `seconds` after its request arrived."""
        at = self._requests.get((route, status))
        values = self._values
        values[self._requests[route, 0] if at is None else at] += 1
        start = self._seconds[route]
        values[start + bisect_left(BUCKETS, seconds)] += 1
        values[start + _SUM] += seconds

    def totals(self, alive: bool = True) -> dict[tuple[str, str], float]:
        """Return every series with its value; what is not `alive` has no gauges."""
        return {
            series: self._values[i]
            for i, series in enumerate(self.series)
            if alive or series[0] not in _GAUGES
        }

    def close(self) -> None:
        self._values.release()
        self._map.close()


def add_up(parts: Iterable[dict[tuple[str, str], float]]) -> dict[tuple[str, str], float]:
    """Add up the `totals` of several processes."""
    total: dict[tuple[str, str], float] = {}
    for part in parts:
        for series, value in part.items():
            known = total.get(series, 0)
            total[series] = max(known, value) if series[0] in _SEEN_ALIKE else known + value
    return total


def expose(total: dict[tuple[str, str], float]) -> str:
    """Write added-up series in Prometheus' text format; request series at zero are left out."""
    lines = []
    for name, text in HELP.items():
        kind = "gauge" if name in _GAUGES else "counter" if name.endswith("_total") else "histogram"
        lines += [f"# HELP {name} {text}", f"# TYPE {name} {kind}"]
        if kind == "histogram":
            lines += _histograms(name, total)
            continue
        for (series, labels), value in total.items():
            if series == name and (value or not labels):
                lines.append(
                    f"{series}{{{labels}}} {value:.15g}" if labels else f"{series} {value:.15g}"
                )
    return "\n".join(lines) + "\n"


def _histograms(name: str, total: dict[tuple[str, str], float]) -> list[str]:
    """Write the histogram of each route that has one: a bucket counts all up to its bound."""
    counts: dict[str, float] = {}
    buckets: dict[str, list[str]] = {}
    for (series, labels), value in total.items():
        if series == f"{name}_bucket":
            route = labels.rpartition(",le=")[0]
            counts[route] = counts.get(route, 0) + value
            line = f"{series}{{{labels}}} {counts[route]:.15g}"
            buckets.setdefault(route, []).append(line)
    lines = []
    for route, count in counts.items():
        if count:
            lines += buckets[route]
            lines.append(f"{name}_count{{{route}}} {count:.15g}")
            lines.append(f"{name}_sum{{{route}}} {total[f'{name}_sum', route]:.6f}")
    return lines


def _escape(label: str) -> str:
    return label.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
