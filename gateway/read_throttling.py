"""Read from servers, and write to them, less often while many requests are in flight.

Other processes use the CPU's caches between two turns of the loop, so messages that arrive in one
read cost half as much as single ones. docs/decisions/0013-reads-that-rest.md has the figures.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

#: Seconds of pause for each request in flight. A process works about twice as long on each, so
#: that the pause delays the last of them by at most a half.
EACH = 50e-6
#: The longest pause in seconds: with a longer one workers would wait for requests.
LONGEST = 2e-3
#: With fewer requests in flight than this there is no pause.
FEW = 10
#: No pause follows a read that comes later than this (seconds) after the last read or pause: there
#: is little to read where many requests are in flight only because their tasks take long.
SPARSE = 1e-3


class ReadThrottling:
    """Pauses transports after a read, and resumes all of them at the same time.

    `in_flight` tells how many requests are in flight.
    """

    def __init__(self, in_flight: Callable[[], float]):
        self._in_flight = in_flight
        self._resting: list[asyncio.Transport] = []
        self._last = 0.0  # loop time

    @property
    def few(self) -> bool:
        """Are too few requests in flight for a pause to be of use?"""
        return self._in_flight() < FEW

    def rest(self, transport: asyncio.Transport | None) -> None:
        """Pause reading from `transport` for a moment, so that bytes gather.

        Called after each read.
        """
        if transport is None:
            return
        if not self._resting:
            loop = asyncio.get_running_loop()
            last, self._last = self._last, loop.time()
            if self._last - last > SPARSE or self.few:
                return
            seconds = min(EACH * self._in_flight(), LONGEST)
            loop.call_later(seconds, self._resume)
        transport.pause_reading()
        self._resting.append(transport)

    def _resume(self) -> None:
        self._last = asyncio.get_running_loop().time()
        resting, self._resting = self._resting, []
        for transport in resting:
            transport.resume_reading()
