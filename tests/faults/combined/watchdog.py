"""Whether the machine itself kept up: a late answer is judged only where it did."""

from __future__ import annotations

import asyncio
from time import monotonic

PERIOD = 0.05  # seconds between looks
NOTED = 0.05  # seconds: a shorter delay is not worth noting


class Watchdog:
    """Notes how much later than due its own process was run; monotonic seconds."""

    def __init__(self) -> None:
        self._due = monotonic()
        self._delays: list[tuple[float, float]] = []  # when it was due, when it was run

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            self._due = monotonic() + PERIOD
            await asyncio.sleep(PERIOD)
            now = monotonic()
            if now - self._due > NOTED:
                self._delays.append((self._due, now))

    def worst(self, since: float, until: float) -> float:
        """Return the longest delay between two moments, in seconds."""
        # Who asks may have been woken before the look that is due now.
        delays = [*self._delays, (self._due, monotonic())]
        longest = [run - due for due, run in delays if due <= until and since <= run]
        return max([each for each in longest if each > NOTED], default=0.0)
