"""The counters of a process, in a file that remains after the process has ended.

The file describes its own values, because the parent that reads it may be of another version with
other metrics. It begins with `HEAD`. Then come lines of JSON, one for each series, in the order of
their values: ``[name, type, {label: value}, [upper bounds]]``; then the values, doubles; then
exemplars.

A counter or a gauge has one value. A histogram has one for each bucket, ``+Inf`` included, and
their sum. Series are described when they are first used. The space of the lines is filled with zero
bytes, of which JSON has none: a line is complete when it ends and has none, in whatever order
another processor sees its bytes. So the reader needs no lock, and a killed writer leaves no half of
a series.
"""

from __future__ import annotations

import json
import mmap
import os
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable
from struct import Struct
from zlib import crc32

from gateway.clock import monotonic, time
from gateway.metric_table import (
    BUCKETS,
    HISTOGRAM,
    METHODS,
    METRICS,
    OTHER,
    PUBLISHED,
    QUEUES,
    RECONNECTS,
    REQUESTS,
    SENT,
)

#: The form of the file, and where the values and the exemplars begin in it.
HEAD = Struct("=8sQQ")
FORM = b"counts 2"
#: An exemplar: which value (of a bucket) it belongs to, its seconds, its time in seconds since the
#: epoch, and its trace id. A checksum of these follows, so that none is read half written.
EXEMPLAR, CHECKSUM = Struct("=Qdd16s"), Struct("=I")
#: How many exemplars there are at the most.
EXEMPLARS = 256
#: How many series there is room for: in any case, and for each route. A client that sends whatever
#: it can causes about 25 for a route, and 100 without one.
SERIES, ROUTE_SERIES = 256, 48

_SUM = len(BUCKETS) + 1  # the index of a histogram's sum
_LINE = 400  # bytes of a description beside the route's path, which may be escaped
_ESCAPED = 6
_VALUE = 8  # bytes

#: A metric's name and the values of its labels.
Key = tuple[str, ...]


class Metrics:
    """The counters of one process in the file with the descriptor `fd`; None: in memory only.

    `routes` are the routes' paths. A single writer needs no lock: a reader may see a count one too
    low, never a torn one. All methods are called on the event loop.
    """

    def __init__(self, fd: int | None = None, routes: Iterable[str] = ()):
        paths = list(routes)
        series = SERIES + ROUTE_SERIES * len(paths)
        self._room = series * (_SUM + 1)  # values
        line = _LINE + _ESCAPED * max(map(len, paths), default=0)
        start = -(-(HEAD.size + series * line) // _VALUE) * _VALUE
        self._exemplars = start + _VALUE * self._room
        size = self._exemplars + EXEMPLARS * (EXEMPLAR.size + CHECKSUM.size)
        if fd is not None:
            os.ftruncate(fd, size)  # a sparse file: only what is used takes room
        self.map = mmap.mmap(-1 if fd is None else fd, size)
        self._values = memoryview(self.map)[start : self._exemplars].cast("d")
        self._end, self._lines_end = HEAD.size, start  # of the lines, and of their space
        self._used = 0  # values
        self._slots: dict[int, int] = {}  # of exemplars, by their value
        self._places: dict[Key, int] = {}
        for name, metric in METRICS.items():
            for labels in (tuple(OTHER for _ in metric.labels), *metric.known):
                self._place((name, *labels))
        #: Those without labels by their names only, as these are counted most often.
        self._plain = {name: self._places[name,] for name, m in METRICS.items() if not m.labels}
        self._answers: dict[tuple[str, str, int], int] = {}
        # The head is written last, because a file with a head is complete and can be read.
        self.map[: HEAD.size] = HEAD.pack(FORM, start, self._exemplars)

    def add(self, name: str, amount: float = 1) -> None:
        """Add to a counter or a gauge without labels."""
        self._values[self._plain[name]] += amount

    def get(self, name: str) -> float:
        return self._values[self._plain[name]]

    def set(self, name: str, value: float) -> None:
        self._values[self._plain[name]] = value

    def set_queues(self, route: str, number: int) -> None:
        """Set how many dynamic queues `route` has."""
        self._values[self.place(QUEUES, route)] = number

    def count(self, *key: str) -> None:
        """Add 1 to the counter `key`: its name, and its labels in the order of the table."""
        self._values[self.place(*key)] += 1

    def count_at(self, place: int) -> None:
        """Do the same for a counter that is counted often."""
        self._values[place] += 1

    def observe(self, seconds: float, *key: str) -> None:
        """Add `seconds` to the histogram `key`."""
        at = self._places.get(key)
        self.observe_at(self._place(key) if at is None else at, seconds)

    def observe_at(self, place: int, seconds: float) -> None:
        """Do the same for a histogram that is counted often."""
        values = self._values
        values[place + bisect_left(BUCKETS, seconds)] += 1
        values[place + _SUM] += seconds

    def place(self, *key: str) -> int:
        """Return where the values of a series begin; describe it, at zero, where it is new."""
        at = self._places.get(key)
        return self._place(key) if at is None else at

    def connected(self, server: str) -> None:
        """Count a connection to the ``broker`` or to the ``results`` that was opened."""
        name = f"gateway_{server}_connections_total"
        if self.get(name):
            self.count(RECONNECTS, server)
        self.add(name)

    def published(self, system: tuple[str, str], sent: float, error_type: str = "") -> None:
        """Count a message that was sent at `sent` (monotonic seconds), and its confirm or error."""
        self.count(SENT, *system)
        self.observe(monotonic() - sent, PUBLISHED, *system, error_type)

    def answered(
        self, route: str, method: str, status: int, seconds: float, trace: str = ""
    ) -> None:
        """Count an answer given `seconds` after its request arrived.

        `trace` is the id of the trace that the request belongs to, if it is recorded.
        """
        start = self._answers.get((route, method, status))
        if start is None:
            start = self._answer(route, method, status)
        values = self._values
        at = start + bisect_left(BUCKETS, seconds)
        values[at] += 1
        values[start + _SUM] += seconds
        if trace:
            self._exemplify(at, seconds, trace)

    def answers(self) -> Counter[str]:
        """Return how many requests of each route were answered, but for those with a 4xx."""
        found = Counter[str]()
        for (route, _, status), start in self._answers.items():
            if not 400 <= status < 500:
                found[route] += int(sum(self._values[start : start + _SUM]))
        return found

    def close(self) -> None:
        self._values.release()
        self.map.close()

    def _answer(self, route: str, method: str, status: int) -> int:
        """Return where the values of these answers begin; only a known method is remembered."""
        known = method if method in METHODS else OTHER
        start = self._answers.get((route, known, status))
        if start is None:
            start = self.place(REQUESTS, route, known, str(status))
            self._answers[route, known, status] = start
        return start

    def _place(self, key: Key) -> int:
        name, *labels = key
        metric = METRICS[name]
        bounds = BUCKETS if metric.type == HISTOGRAM else ()
        size = _SUM + 1 if bounds else 1
        named = dict(zip(metric.labels, labels, strict=True))
        line = json.dumps([name, metric.type, named, bounds]).encode() + b"\n"
        end = self._end + len(line)
        if self._used + size > self._room or end > self._lines_end:
            return self._places[name, *(OTHER for _ in labels)]
        self.map[self._end : end] = line
        at = self._places[key] = self._used
        self._end, self._used = end, at + size
        return at

    def _exemplify(self, at: int, seconds: float, trace: str) -> None:
        """Keep the last exemplar of the bucket whose value is at `at`."""
        slot = self._slots.get(at)
        if slot is None:
            if len(self._slots) == EXEMPLARS:
                return
            slot = self._slots[at] = len(self._slots)
        data = EXEMPLAR.pack(at, seconds, time(), bytes.fromhex(trace))
        data += CHECKSUM.pack(crc32(data))
        start = self._exemplars + slot * len(data)
        self.map[start : start + len(data)] = data
