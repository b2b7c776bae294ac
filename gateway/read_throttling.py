"""Read from servers, and write to them, less often while much is under way.

Each turn of the loop begins with caches that other processes have filled, so what comes in one
read is worked off at half the cost. docs/decisions/0013-reads-that-rest.md has the figures.
"""

from __future__ import annotations

import asyncio

from gateway.metrics import Metrics

#: Seconds of rest for each request under way. A process works twice as long on each, so that the
#: last of them is not delayed by more than half.
EACH = 50e-6
#: Seconds: beyond it, workers would wait for requests.
LONGEST = 2e-3
#: Fewer requests under way than this gather nothing.
FEW = 10
#: Seconds since the last read, or the end of a rest, after which nothing would gather: where many
#: requests are under way because their tasks take long, little is to be read.
SPARSE = 1e-3


class ReadThrottling:
    """Pauses transports after a read, and resumes all of them at once."""

    def __init__(self, metrics: Metrics):
        self._metrics = metrics
        self._resting: list[asyncio.Transport] = []
        self._last = 0.0  # loop time

    @property
    def few(self) -> bool:
        """Is so little under way that nothing would gather?"""
        return self._metrics.get("gateway_in_flight") < FEW

    def rest(self, transport: asyncio.Transport | None) -> None:
        """Let bytes gather; called after each read."""
        if transport is None:
            return
        if not self._resting:
            loop = asyncio.get_running_loop()
            last, self._last = self._last, loop.time()
            if self._last - last > SPARSE or self.few:
                return
            seconds = min(EACH * self._metrics.get("gateway_in_flight"), LONGEST)
            loop.call_later(seconds, self._resume)
        transport.pause_reading()
        self._resting.append(transport)

    def _resume(self) -> None:
        self._last = asyncio.get_running_loop().time()
        resting, self._resting = self._resting, []
        for transport in resting:
            transport.resume_reading()
