"""The counts of the last slots of time, by route, in a memory of fixed size.

A count is 16 bits: 11 binary digits, and a power of 2 by which they are multiplied. So it is exact
up to 2,047, and above that to one part in 2,000.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

from gateway.metric_table import BUCKETS

#: Statuses that are counted apart; each other one is counted by its class, a 3xx as a 2xx.
STATUSES = ("2xx", "4xx", "5xx", "502", "503", "504")
#: The columns of a slot: requests by status, accepted deliveries whose task has failed later,
#: milliseconds of all requests, and requests by the time until their answer.
LATER = len(STATUSES)
MILLISECONDS = LATER + 1
FIRST = MILLISECONDS + 1
WIDTH = FIRST + len(BUCKETS) + 1

_DIGITS = 11
_LARGEST = (1 << _DIGITS) - 1


def packed(count: float) -> int:
    """Return a count, which is not below 0, in 16 bits."""
    digits = int(count + 0.5)
    power = max(digits.bit_length() - _DIGITS, 0)
    digits = (digits + (1 << power >> 1)) >> power
    if digits > _LARGEST:  # it was rounded up
        digits, power = digits >> 1, power + 1
    return power << _DIGITS | digits


def unpacked(bits: int) -> int:
    """Return the count that `packed` has packed."""
    return (bits & _LARGEST) << (bits >> _DIGITS)


def row(status: str, values: Sequence[float]) -> list[float]:
    """Return the counts of answers with a `status`: `values` are those of their histogram."""
    *buckets, seconds = values
    found = [0.0] * FIRST + buckets
    kind = {"4": "4xx", "5": "5xx"}.get(status[:1], "2xx")
    found[STATUSES.index(status if status in STATUSES else kind)] = sum(buckets)
    found[MILLISECONDS] = seconds * 1000
    return found


@dataclass(slots=True)
class Slot:
    """What has come after ``time`` (epoch), in ``seconds`` that were watched.

    They are more than the slot has where what came in others was counted late, or the clock was set
    back.
    """

    time: float
    seconds: float
    counts: list[int]

    @property
    def received(self) -> int:
        return sum(self.counts[:LATER])

    @property
    def refused(self) -> int:
        return self.counts[STATUSES.index("4xx")]

    @property
    def errors(self) -> int:
        return sum(self.counts[STATUSES.index("5xx") : LATER])

    @property
    def failed(self) -> int:
        """Requests answered with a 5xx, and accepted deliveries whose task has failed."""
        return sum(self.counts[STATUSES.index("5xx") : MILLISECONDS])

    @property
    def rate(self) -> float:
        """Requests a second."""
        return self.received / self.seconds if self.seconds else 0.0

    @property
    def waiting(self) -> float:
        """How many requests were under way, in the mean: their rate times their time."""
        return self.counts[MILLISECONDS] / 1000 / self.seconds if self.seconds else 0.0

    def quantile(self, share: float) -> float | None:
        """Return within how many seconds this share of requests was answered; None: there is none.

        Within a bucket they count as evenly spread, as in Prometheus; above the last bound it is
        that bound.
        """
        sums = list(accumulate(self.counts[FIRST:]))
        if not sums[-1]:
            return None
        rank = share * sums[-1]
        at = bisect_left(sums, rank)
        if at == len(BUCKETS):
            return BUCKETS[-1]
        low, below = (BUCKETS[at - 1], sums[at - 1]) if at else (0.0, 0)
        return low + (BUCKETS[at] - low) * (rank - below) / (sums[at] - below)


class Ring:
    """The last `length` slots of `step` seconds, by the clock, for each route."""

    def __init__(self, step: int, length: int):
        self.step, self.length = step, length
        #: The number of the newest slot: its time (epoch), divided by `step`.
        self.newest = 0
        #: How many seconds each slot has the counts of.
        self.watched = array("f", bytes(4 * length))
        self._counts: dict[str, array[int]] = {}
        self._sums: dict[str, list[float]] = {}  # of the newest slot, not rounded

    def add(self, time: float, seconds: float, by_route: dict[str, list[float]]) -> None:
        """Count in the slot of `time` what came in `seconds` that ended then.

        Where the clock has gone back, the slots after that time are forgotten.
        """
        self._go_to(int(time // self.step))
        at = self.newest % self.length
        self.watched[at] += seconds
        start = at * WIDTH
        for route, counted in by_route.items():
            counts = self.of(route)
            sums = self._sums.get(route)
            if sums is None:
                sums = [float(unpacked(bits)) for bits in counts[start : start + WIDTH]]
                self._sums[route] = sums
            for column, more in enumerate(counted):
                if more:
                    sums[column] += more
                    counts[start + column] = packed(sums[column])

    def of(self, route: str) -> array[int]:
        """Return the counts of a route, packed: those of a slot are side by side."""
        if route not in self._counts:
            # Made of bytes, it would have room to grow.
            self._counts[route] = array("H", [0]) * (WIDTH * self.length)
        return self._counts[route]

    def fold(self, route: str, into: str) -> None:
        """Add the counts of one route to those of another, and forget them."""
        self._sums = {}
        gone, kept = self._counts.pop(route), self.of(into)
        for at, bits in enumerate(gone):
            if bits:
                kept[at] = packed(unpacked(kept[at]) + unpacked(bits))

    def read(self, route: str, now: float, group: int = 1) -> Iterator[Slot]:
        """Yield the slots up to `now`, the oldest first; each stands for `group` slots."""
        counts = self._counts.get(route)
        last = int(now // self.step)
        first = -(-(last - self.length + 1) // group) * group
        for number in range(first, last + 1, group):
            slot = Slot(number * self.step, 0.0, [0] * WIDTH)
            for each in range(number, min(number + group, last + 1)):
                at = each % self.length
                if self.newest - self.length < each <= self.newest and self.watched[at]:
                    slot.seconds += self.watched[at]
                    if counts is not None:
                        _add(slot.counts, counts[at * WIDTH : (at + 1) * WIDTH])
            yield slot

    def _go_to(self, number: int) -> None:
        if number == self.newest:
            return
        first, last = sorted((number, self.newest))
        for each in range(max(first + 1, last - self.length + 1), last + 1):
            at = each % self.length
            self.watched[at] = 0.0
            for counts in self._counts.values():
                counts[at * WIDTH : (at + 1) * WIDTH] = array("H", bytes(2 * WIDTH))
        self.newest, self._sums = number, {}


def _add(sums: list[int], counts: Sequence[int]) -> None:
    for column, bits in enumerate(counts):
        if bits:
            sums[column] += unpacked(bits)


def total(slots: Sequence[Slot]) -> Slot:
    """Add up slots, of which there is at least one."""
    counts = [sum(column) for column in zip(*(slot.counts for slot in slots), strict=True)]
    return Slot(slots[0].time, sum(slot.seconds for slot in slots), counts)
