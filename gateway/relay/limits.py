"""How much may be under way, and how fast one source may send."""

from __future__ import annotations

import math
from time import monotonic

from gateway.config.settings import Config
from gateway.errors import Full, TooMany
from gateway.sources.base import Options

#: Seconds until there is room again, when what is under way is the limit.
_SOON = 1


class Limits:
    """Counts what is under way in this process, and the bytes that it holds.

    `bytes` are what connections have received and not handed on, and what requests under way
    keep. Whoever adds to it takes the same away.
    """

    def __init__(self, config: Config):
        self._most = config.max_in_flight
        self._most_bytes = config.max_in_flight_bytes
        self.bytes = 0
        self.in_flight = 0

    @property
    def exceeded(self) -> bool:
        """Are more bytes held than may be?"""
        return self.bytes > self._most_bytes

    def admit(self, size: int) -> None:
        """Raise `Full` where a request that takes `size` more bytes is one too many."""
        if self.in_flight >= self._most or self.bytes + size > self._most_bytes:
            raise Full

    def enter(self, size: int) -> Held:
        """Count a request, until `leave`, and `size` bytes, as long as the result lives."""
        self.in_flight += 1
        return Held(self, size)

    def leave(self) -> None:
        self.in_flight -= 1


class Held:
    """Bytes that are counted as long as this object lives.

    It belongs to the object that keeps them. A request whose sender has gone is kept until its
    message is confirmed and its claim is known, and nobody else knows when that is.
    """

    __slots__ = ("_limits", "_size")

    def __init__(self, limits: Limits, size: int):
        self._limits, self._size = limits, size
        limits.bytes += size

    def __del__(self) -> None:
        self._limits.bytes -= self._size


class SourceLimits:
    """A token bucket and a count for one path's source, in one process.

    The bucket holds one second's worth, at least one delivery. Only verified deliveries are
    counted, so that nobody else can spend a sender's rate.
    """

    def __init__(self, options: Options | None):
        self._rate = options.rate if options else None
        self._most = options.max_in_flight if options else None
        self._size = max(self._rate or 1.0, 1.0)
        self._tokens = self._size
        self._filled = monotonic()
        self.in_flight = 0

    def admit(self) -> None:
        """Count a verified delivery; raises `TooMany` where it is one too many."""
        if self._most is not None and self.in_flight >= self._most:
            raise TooMany("This source has as many deliveries under way as it may.", after=_SOON)
        if self._rate is None:
            return
        now = monotonic()
        self._tokens = min(self._size, self._tokens + (now - self._filled) * self._rate)
        self._filled = now
        if self._tokens < 1:
            raise TooMany(after=math.ceil((1 - self._tokens) / self._rate))
        self._tokens -= 1
