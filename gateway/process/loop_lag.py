"""Measure how late a process's event loop does what is due.

A loop that is late answers late, whatever the broker and the workers do.
"""

from __future__ import annotations

import asyncio

from gateway.clock import monotonic
from gateway.metric_table import LAG
from gateway.metrics import Metrics

PERIOD = 1.0  # seconds between measurements


class LoopLag:
    """Counts a measurement in each `PERIOD`."""

    def __init__(self, metrics: Metrics):
        self._lag = metrics.histogram(LAG)
        self._due = 0.0  # monotonic seconds
        self._timer: asyncio.TimerHandle  # from `start` on

    def start(self) -> None:
        self._due = monotonic() + PERIOD
        self._timer = asyncio.get_running_loop().call_later(PERIOD, self._measure)

    def stop(self) -> None:
        self._timer.cancel()

    def _measure(self) -> None:
        # Some loops round their timers to milliseconds, and so may be early.
        self._lag.observe(max(0.0, monotonic() - self._due))
        self.start()
