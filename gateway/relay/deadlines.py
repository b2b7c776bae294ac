"""One sweep for all deadlines of a process, instead of a timer each."""

from __future__ import annotations

import asyncio
import math
from time import monotonic
from typing import Protocol

#: Seconds between sweeps, which follow its multiples: how late a deadline may be noticed.
TICK = 0.05
_EARLY = 0.002  # seconds: a timer that fires before its time would find nothing due


class Expiring(Protocol):
    """Something that ends at ``deadline`` (monotonic seconds)."""

    deadline: float

    def expire(self) -> None:
        """Called once, at most a TICK and a moment after the deadline."""


class Deadlines:
    """Call `expire` of what was added and not removed by its deadline.

    Entries lie in one set a tick, so adding and removing cost the same however many wait;
    the sweep runs only when something may be due.
    """

    def __init__(self) -> None:
        self._ticks: dict[int, set[Expiring]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._next = math.inf

    def add(self, entry: Expiring) -> None:
        tick = int(entry.deadline / TICK) + 1
        waiting = self._ticks.get(tick)
        if waiting is None:
            waiting = self._ticks[tick] = set()
            if tick < self._next:
                self._arm(tick)
        waiting.add(entry)

    def remove(self, entry: Expiring) -> None:
        waiting = self._ticks.get(int(entry.deadline / TICK) + 1)
        if waiting is not None:
            waiting.discard(entry)

    def _sweep(self) -> None:
        now = int(monotonic() / TICK)
        # What is added meanwhile arms no timer: the end of the sweep does, one for all.
        self._timer, self._next = None, -math.inf
        try:
            for tick in sorted(tick for tick in self._ticks if tick <= now):
                entries = self._ticks[tick]
                while entries:
                    entries.pop().expire()
                del self._ticks[tick]
        finally:  # one that fails must not end the others' deadlines
            self._next = math.inf
            if self._ticks:
                self._arm(min(self._ticks))

    def _arm(self, tick: int) -> None:
        """Sweep at the end of `tick`, when what lies in it is due."""
        if self._timer is not None:
            self._timer.cancel()
        self._next = tick
        rest = tick * TICK - monotonic()
        self._timer = asyncio.get_running_loop().call_later(max(rest, 0) + _EARLY, self._sweep)
