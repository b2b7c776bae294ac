"""Read the counters of the children in their parent, and add them up."""

from __future__ import annotations

import json
import logging
import mmap
import os
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from operator import add, sub
from zlib import crc32

from gateway.metric_table import GAUGE, HISTOGRAM, METRICS
from gateway.metrics import CHECKSUM, EXEMPLAR, FORM, HEAD

log = logging.getLogger(__name__)

#: A name, its labels, and the upper bounds of a histogram's buckets.
Series = tuple[str, tuple[tuple[str, str], ...], tuple[str, ...]]
#: The values of a metric's labels, in the order of the table.
Labels = tuple[str, ...]
#: A metric's name, the values of its labels, and what was added: to a counter, or to each bucket of
#: a histogram and to its sum.
Growth = tuple[str, Labels, list[float]]
_VALUE = 8  # bytes


@dataclass(frozen=True, slots=True)
class Exemplar:
    """A request that a bucket has counted: its trace's id, its seconds, its time (epoch)."""

    trace: str
    seconds: float
    time: float


@dataclass(slots=True)
class Totals:
    """The values of series, and the last exemplars of buckets, by their upper bounds.

    A histogram has a value for each bucket, and their sum; other series have one.
    """

    values: dict[Series, list[float]] = field(default_factory=dict)
    exemplars: dict[tuple[Series, str], Exemplar] = field(default_factory=dict)


class Reader:
    """Reads the counters of a file (see `gateway.metrics`) that is `mapped` and has its head."""

    def __init__(self, mapped: mmap.mmap):
        self._map = mapped
        _, self._values, self._exemplars = HEAD.unpack_from(mapped)  # where they begin
        self._end = HEAD.size  # of the lines that were read
        #: What they have described: each series, where its values begin and end, and is it a gauge?
        self._series: list[tuple[Series, int, int, bool]] = []
        self._size = 0  # of the values that are described
        self._before = b""  # the values at the last call of `grown`

    def grown(self) -> Iterator[Growth]:
        """Yield what has grown since the last call."""
        self._describe()
        before = self._before
        self._before = now = self._map[self._values : self._values + self._size]
        before += bytes(self._size - len(before))
        for (name, labels, _), start, end, is_gauge in self._series:
            if not is_gauge and before[start:end] != now[start:end]:
                values = memoryview(now)[start:end].cast("d")
                more = map(sub, values, memoryview(before)[start:end].cast("d"))
                yield name, tuple(value for _, value in labels), list(more)

    def totals(self, alive: bool = True) -> Totals:
        """Return every series with its value; without gauges where the child is not `alive`."""
        self._describe()
        totals = Totals()
        values = memoryview(self._map[self._values : self._values + self._size])
        exemplars = dict(_exemplars(self._map[self._exemplars :]))
        for series, start, end, is_gauge in self._series:
            if alive or not is_gauge:
                totals.values[series] = list(values[start:end].cast("d"))
            for at, bound in enumerate(series[2], start // _VALUE):
                if at in exemplars:
                    totals.exemplars[series, bound] = exemplars[at]
        return totals

    def _describe(self) -> None:
        """Read the lines that were written since the last call."""
        # What is empty is not looked through: reading takes up its memory.
        while self._map[self._end] and (end := self._map.find(b"\n", self._end, self._values)) >= 0:
            line = self._map[self._end : end]
            if b"\0" in line:  # not all of it has arrived
                return
            name, kind, labels, bounds = json.loads(line)
            les = (*map(str, bounds), "+Inf") if kind == HISTOGRAM else ()
            self._end, start = end + 1, self._size
            self._size += (len(les) + 1) * _VALUE
            series = name, tuple(labels.items()), les
            self._series.append((series, start, self._size, kind == GAUGE))


class Counters:
    """The file of one child's counters, which the parent keeps open."""

    def __init__(self) -> None:
        # On a disk that is full, who writes to a mapped file is killed.
        if hasattr(os, "memfd_create"):  # Linux
            self._file = os.fdopen(os.memfd_create("gateway-metrics"), "r+b", buffering=0)
        else:
            self._file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 - `close`
        self._map: mmap.mmap | None = None
        self._reader: Reader | None = None
        self._foreign = False

    def fileno(self) -> int:
        return self._file.fileno()

    def totals(self, alive: bool = True) -> Totals:
        """Return what the child has counted: nothing until it has written its file."""
        reader = self._opened()
        return Totals() if reader is None else reader.totals(alive)

    def grown(self) -> list[Growth]:
        """Return what has grown since the last call; it costs much less than `totals`."""
        reader = self._opened()
        return [] if reader is None else list(reader.grown())

    def close(self) -> None:
        if self._map is not None:
            self._map.close()
        self._file.close()

    def _opened(self) -> Reader | None:
        """Return what reads the file, once the child has written its head."""
        if self._reader is not None or self._foreign:
            return self._reader
        head = os.pread(self.fileno(), HEAD.size, 0)
        if len(head) < HEAD.size or not any(head):
            return None
        form, _, _ = HEAD.unpack(head)
        if form != FORM:
            self._foreign = True
            log.warning(
                "the counters of a child of another version have an unknown form, %r: restart the "
                "gateway to see them",
                form,
            )
            return None
        self._map = mmap.mmap(self.fileno(), 0, prot=mmap.PROT_READ)
        self._reader = Reader(self._map)
        return self._reader


def _exemplars(data: bytes) -> Iterator[tuple[int, Exemplar]]:
    """Yield the exemplars in this part of a file, each with the index of its bucket's value."""
    size = EXEMPLAR.size + CHECKSUM.size
    for start in range(0, len(data) - size + 1, size):
        fields = data[start : start + EXEMPLAR.size]
        at, seconds, when, trace = EXEMPLAR.unpack(fields)
        (checksum,) = CHECKSUM.unpack_from(data, start + EXEMPLAR.size)
        if when and checksum == crc32(fields):
            yield at, Exemplar(trace.hex(), seconds, when)


def add_up(parts: Iterable[Totals]) -> Totals:
    """Add up the `totals` of several processes."""
    total = Totals()
    for part in parts:
        for series, values in part.values.items():
            known, metric = total.values.get(series), METRICS.get(series[0])
            how = max if metric is not None and metric.alike else add
            total.values[series] = list(map(how, known, values)) if known else values
        for bucket, exemplar in part.exemplars.items():
            last = total.exemplars.get(bucket)
            if last is None or last.time < exemplar.time:
                total.exemplars[bucket] = exemplar
    return total
