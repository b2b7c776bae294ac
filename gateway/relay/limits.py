"""Limit the requests in flight, their bytes and their time, and the rate of one source."""

from __future__ import annotations

import asyncio
import math
from typing import Protocol

from gateway.allowance import Allowance
from gateway.clock import monotonic
from gateway.config.settings import Config
from gateway.errors import Full, TooMany
from gateway.sources.base import Options

#: Retry-After in seconds, when too many deliveries of a source are in flight.
_SOON = 1
#: Seconds between sweeps, which run at multiples of it. A deadline is noticed at most this late.
TICK = 0.05
_EARLY = 0.002  # seconds added to a timer, as one that fires too early would find nothing due


class Limits:
    """Counts the requests in flight in this process, and the bytes that it holds.

    `bytes` are those that connections have received and not handed on, and those of requests in
    flight. Their owner, the connection or then the request in flight, adds to both numbers, and
    subtracts the same later.
    """

    def __init__(self, config: Config):
        self._most = config.max_in_flight
        #: The limits are exceeded while `bytes` are more.
        self.most_bytes = config.max_in_flight_bytes
        self.bytes = 0
        self.in_flight = 0

    def admit(self, size: int) -> None:
        """Raise `Full` where a request with `size` more bytes would exceed a limit."""
        if self.in_flight >= self._most or self.bytes + size > self.most_bytes:
            raise Full


class SourceLimits:
    """The rate of one source, and its deliveries in flight, in one process.

    Only verified deliveries are counted, so that only the sender itself can exhaust its rate.
    """

    def __init__(self, options: Options | None):
        rate = options.rate if options else None
        # The deliveries of one second may come at once, at least one.
        self._rate = Allowance(max(rate, 1.0), 1 / rate) if rate else None
        self._most = options.max_in_flight if options else None
        self.in_flight = 0

    def admit(self) -> None:
        """Take a verified delivery from the rate; raises `TooMany` where a limit is reached."""
        if self._most is not None and self.in_flight >= self._most:
            raise TooMany(
                f"This source has {self._most} deliveries in flight, which is its limit.",
                after=_SOON,
            )
        if self._rate is not None:
            if seconds := self._rate.wait("", monotonic()):
                raise TooMany(after=math.ceil(seconds))
            self._rate.take("")


class Expiring(Protocol):
    """Something that ends at ``deadline`` (monotonic seconds)."""

    deadline: float

    def expire(self) -> None:
        """Called once, at most about a `TICK` after the deadline."""


class Deadlines:
    """Calls `expire` of each entry that was not removed before its deadline.

    Each tick has its own entries, so adding and removing cost the same for any number of
    entries. The sweep runs only when an entry may be due.
    """

    def __init__(self) -> None:
        # The entries are the keys of a dict, which has an order, as all runs of a simulation need.
        self._ticks: dict[int, dict[Expiring, None]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._next = math.inf

    @property
    def pending(self) -> int:
        """How many entries have been neither removed nor called."""
        return sum(map(len, self._ticks.values()))

    def add(self, entry: Expiring) -> None:
        tick = int(entry.deadline / TICK) + 1
        waiting = self._ticks.get(tick)
        if waiting is None:
            waiting = self._ticks[tick] = {}
            if tick < self._next:
                self._arm(tick)
        waiting[entry] = None

    def remove(self, entry: Expiring) -> None:
        waiting = self._ticks.get(int(entry.deadline / TICK) + 1)
        if waiting is not None:
            waiting.pop(entry, None)

    def _sweep(self) -> None:
        now = int(monotonic() / TICK)
        # Entries that are added during the sweep start no timer: its end starts one for all.
        self._timer, self._next = None, -math.inf
        try:
            for tick in sorted(tick for tick in self._ticks if tick <= now):
                entries = self._ticks[tick]
                while entries:
                    entries.popitem()[0].expire()
                del self._ticks[tick]
        finally:  # an error of one entry must not end the deadlines of the others
            self._next = math.inf
            if self._ticks:
                self._arm(min(self._ticks))

    def _arm(self, tick: int) -> None:
        """Schedule a sweep at the end of `tick`, when its entries are due."""
        if self._timer is not None:
            self._timer.cancel()
        self._next = tick
        rest = tick * TICK - monotonic()
        self._timer = asyncio.get_running_loop().call_later(max(rest, 0) + _EARLY, self._sweep)
