"""Read less often while much is under way: what comes in one read is worked off at half the cost.

Each turn of the loop begins with caches that other processes have filled. While many requests
wait, a read that is a moment late delays none of them by more than that moment.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

MANY = 16
PAUSE = 0.001


class Coalescing:
    """Pauses a transport after a read while `busy` says so."""

    def __init__(self, busy: Callable[[], bool]):
        self._busy = busy
        self._paused = False

    def rest(self, transport: asyncio.Transport | None) -> None:
        """Let bytes gather for `PAUSE`; called after each read."""
        if transport is not None and not self._paused and self._busy():
            self._paused = True
            transport.pause_reading()
            asyncio.get_running_loop().call_later(PAUSE, self._resume, transport)

    def _resume(self, transport: asyncio.Transport) -> None:
        self._paused = False
        transport.resume_reading()
