"""One sweep for all deadlines of a process, instead of one timer for each."""

from __future__ import annotations

import asyncio
import math
from typing import Protocol

from gateway.clock import monotonic

#: Seconds between sweeps, which run at multiples of it. A deadline is noticed at most this late.
TICK = 0.05
_EARLY = 0.002  # seconds added to a timer, as one that fires too early would find nothing due


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
