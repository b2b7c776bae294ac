"""Growing pauses between attempts."""

from __future__ import annotations

import random


class Backoff:
    """Computes the pauses between attempts, in seconds: `first`, then twice as long each time.

    No pause is longer than `longest`. Each is shortened by up to a half, at random, so that
    processes which have lost the same server do not all reconnect at the same moment.
    """

    def __init__(self, first: float = 0.5, longest: float = 10.0):
        self._first, self._longest = first, longest
        self._seconds = first

    def next(self) -> float:
        """Return the pause before the next attempt."""
        seconds, self._seconds = self._seconds, min(self._seconds * 2, self._longest)
        return seconds * random.uniform(0.5, 1.0)

    def reset(self) -> None:
        """Begin with the first pause again; called when an attempt has succeeded."""
        self._seconds = self._first
