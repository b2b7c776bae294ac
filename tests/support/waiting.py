"""Waiting for what no event tells."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

TIMEOUT = 60.0  # seconds


def until(
    condition: Callable[[], object],
    timeout: float = TIMEOUT,
    said: Callable[[], object] = lambda: "it never came true",
) -> None:
    """Ask again and again for `timeout` seconds at the most, then fail with what is `said`."""
    end = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < end, said()
        time.sleep(0.02)


async def eventually(
    condition: Callable[[], object], timeout: float = TIMEOUT, pause: float = 0.01
) -> None:
    """The same, without holding up the loop."""
    end = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < end
        await asyncio.sleep(pause)
