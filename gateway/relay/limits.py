"""Limit the requests in flight and their bytes, and the rate of one source."""

from __future__ import annotations

import math

from gateway.clock import monotonic
from gateway.config.settings import Config
from gateway.errors import Full, TooMany
from gateway.sources.base import Options

#: Retry-After in seconds, when too many deliveries of a source are in flight.
_SOON = 1


class Limits:
    """Counts the requests in flight in this process, and the bytes that it holds.

    `bytes` are those that connections have received and not handed on, and those of requests in
    flight. Their owner, the connection or then the request in flight, adds to both numbers, and
    subtracts the same later.
    """

    def __init__(self, config: Config):
        self._most = config.max_in_flight
        self._most_bytes = config.max_in_flight_bytes
        self.bytes = 0
        self.in_flight = 0

    @property
    def exceeded(self) -> bool:
        """Are more bytes held than `max_in_flight_bytes`?"""
        return self.bytes > self._most_bytes

    def admit(self, size: int) -> None:
        """Raise `Full` where a request with `size` more bytes would exceed a limit."""
        if self.in_flight >= self._most or self.bytes + size > self._most_bytes:
            raise Full


class SourceLimits:
    """A token bucket, and a count of deliveries in flight, for one path's source in one process.

    The bucket holds the deliveries of one second, at least one. Only verified deliveries are
    counted, so that only the sender itself can exhaust its rate.
    """

    def __init__(self, options: Options | None):
        self._rate = options.rate if options else None
        self._most = options.max_in_flight if options else None
        self._size = max(self._rate or 1.0, 1.0)
        self._tokens = self._size
        self._filled = monotonic()
        self.in_flight = 0

    def admit(self) -> None:
        """Count a verified delivery; raises `TooMany` where it exceeds a limit."""
        if self._most is not None and self.in_flight >= self._most:
            raise TooMany(
                f"This source has {self._most} deliveries in flight, which is its limit.",
                after=_SOON,
            )
        if self._rate is None:
            return
        now = monotonic()
        self._tokens = min(self._size, self._tokens + (now - self._filled) * self._rate)
        self._filled = now
        if self._tokens < 1:
            raise TooMany(after=math.ceil((1 - self._tokens) / self._rate))
        self._tokens -= 1
