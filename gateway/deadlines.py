"""One sweep for all deadlines of a process, instead of a timer each."""

from __future__ import annotations

import asyncio
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
    the sweep runs only while something is waiting.
    """

    def __init__(self) -> None:
        self._ticks: dict[int, set[Expiring]] = {}
        self._timer: asyncio.TimerHandle | None = None

    def add(self, entry: Expiring) -> None:
        tick = int(entry.deadline / TICK) + 1
        waiting = self._ticks.get(tick)
        if waiting is None:
            waiting = self._ticks[tick] = set()
            if self._timer is None:
                self._arm()
        waiting.add(entry)

    def remove(self, entry: Expiring) -> None:
        waiting = self._ticks.get(int(entry.deadline / TICK) + 1)
        if waiting is not None:
            waiting.discard(entry)

    def _sweep(self) -> None:
        now = int(monotonic() / TICK)
        try:
            for tick in sorted(tick for tick in self._ticks if tick <= now):
                entries = self._ticks[tick]
                while entries:
                    entries.pop().expire()
                del self._ticks[tick]
        finally:  # one that fails must not end the others' deadlines
            self._timer = None
            if self._ticks:
                self._arm()

    def _arm(self) -> None:
        rest = TICK - monotonic() % TICK  # until this tick ends, and what lies in it is due
        self._timer = asyncio.get_running_loop().call_later(rest + _EARLY, self._sweep)
