"""The counters of a process, in a file that remains after the process has ended.

The file describes its own values, because the parent that reads it may be of another version with
other metrics. It begins with `HEAD`; then come the series as JSON, a list of
``[name, {label: value}]``; then one double for each.
"""

from __future__ import annotations

import json
import mmap
import os
from bisect import bisect_left
from collections.abc import Iterable
from struct import Struct

#: Upper bounds of the latency histogram (seconds).
BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
#: The index of a histogram's sum: it follows the buckets and the bucket ``+Inf``.
_SUM = len(BUCKETS) + 1
_SECONDS = "gateway_request_seconds"
STATUSES = (
    200, 202, 204, 400, 401, 404, 405, 408, 409, 410, 413, 414, 415, 429, 431,
    500, 502, 503, 504, 0,
)  # fmt: skip

HELP = {
    "gateway_requests_total": "Requests answered, by route and status (other: one not listed).",
    "gateway_request_seconds": "Seconds from a request's arrival to its answer, by route.",
    "gateway_events_unrouted_total": "Verified deliveries whose event no route takes.",
    "gateway_deliveries_filtered_total": "Verified deliveries whose `when` no route fulfils.",
    "gateway_clients_gone_total": "Requests whose client left before the answer.",
    "gateway_messages_published_total": "Messages handed to the broker.",
    "gateway_messages_confirmed_total": "Messages that the broker confirmed.",
    "gateway_messages_refused_total": "Messages returned, rejected, or lost before a confirm.",
    "gateway_results_unclaimed_total": "Results that no request waits for: late, or foreign.",
    "gateway_journal_lost_total": "Deliveries that could not be written to the journal.",
    "gateway_broker_connections_total": "Connections to the broker that were opened.",
    "gateway_result_connections_total": "Connections to the result store that were opened.",
    "gateway_in_flight": "Requests in flight.",
    "gateway_connections_open": "HTTP connections open.",
    "gateway_dynamic_queues": "Dynamic queues that exist, by route, as far as this process knows.",
    "gateway_state_memory_ratio": "How full the Redis of the claims is, from 0 to 1.",
}
#: Gauges that are the same in every process: they are not added up.
SEEN_ALIKE = ("gateway_state_memory_ratio",)
#: Gauges with a value for each route that has one.
BY_ROUTE = ("gateway_dynamic_queues",)
GAUGES = ("gateway_in_flight", "gateway_connections_open", *SEEN_ALIKE, *BY_ROUTE)
_PLAIN = tuple(name for name in HELP if name not in GAUGES)[2:]

#: The form of the file, bytes of JSON, offset of the first value.
HEAD = Struct("=8sII")
FORM = b"counts 1"
_VALUE = 8  # bytes

#: A name and its labels.
Series = tuple[str, tuple[tuple[str, str], ...]]


class Metrics:
    """The counters of one process in the file with the descriptor `fd`; None: in memory only.

    `routes` are the routes' paths, `dynamic` those of routes with dynamic queues. A single writer
    needs no lock: a reader may see a count one too low, never a torn one.
    """

    def __init__(
        self, fd: int | None = None, routes: Iterable[str] = (), dynamic: Iterable[str] = ()
    ):
        plain = [name for name in GAUGES + _PLAIN if name not in BY_ROUTE]
        self.series: list[Series] = [(name, ()) for name in plain]
        self._index = {name: i for i, (name, _) in enumerate(self.series)}
        self._requests: dict[tuple[str, int], int] = {}
        #: Where a route's histogram begins: its buckets, then its sum.
        self._seconds: dict[str, int] = {}
        for path in (*routes, ""):
            route = ("route", path)
            for status in STATUSES:
                self._requests[path, status] = len(self.series)
                labels = (route, ("status", str(status or "other")))
                self.series.append(("gateway_requests_total", labels))
            self._seconds[path] = len(self.series)
            for bound in (*BUCKETS, "+Inf"):
                self.series.append((f"{_SECONDS}_bucket", (route, ("le", str(bound)))))
            self.series.append((f"{_SECONDS}_sum", (route,)))
        self._queues: dict[str, int] = {}
        for path in dict.fromkeys(dynamic):
            self._queues[path] = len(self.series)
            self.series.append(("gateway_dynamic_queues", (("route", path),)))
        described = json.dumps([(name, dict(labels)) for name, labels in self.series]).encode()
        start = -(-(HEAD.size + len(described)) // _VALUE) * _VALUE
        size = start + _VALUE * len(self.series)
        if fd is not None:
            os.ftruncate(fd, size)
        self._map = mmap.mmap(-1 if fd is None else fd, size)
        self._values = memoryview(self._map)[start:].cast("d")
        self._map[HEAD.size : HEAD.size + len(described)] = described
        # The head is written last, because a file with a head is complete and can be read.
        self._map[: HEAD.size] = HEAD.pack(FORM, len(described), start)

    def add(self, name: str, amount: float = 1) -> None:
        self._values[self._index[name]] += amount

    def set(self, name: str, value: float) -> None:
        self._values[self._index[name]] = value

    def set_queues(self, route: str, number: int) -> None:
        """Set how many dynamic queues `route` has."""
        self._values[self._queues[route]] = number

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

    def count(self, series: Series) -> float:
        return self._values[self.series.index(series)]

    def close(self) -> None:
        self._values.release()
        self._map.close()
