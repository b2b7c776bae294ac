"""Allow so many of something at once, and others after a while."""

from __future__ import annotations

_MOST = 1_000  # keys that are remembered


class Allowance:
    """Token buckets by key: each has `size` tokens, and another one after each `pause` seconds.

    Of many keys those are forgotten that were asked for longest ago.
    """

    def __init__(self, size: float, pause: float):
        self._size, self._pause = float(size), pause
        self._buckets: dict[object, tuple[float, float]] = {}

    def wait(self, key: object, now: float) -> float:
        """Fill the bucket of `key` as of `now` (monotonic); return the seconds until a token.

        They are 0 where it has one.
        """
        tokens, filled = self._buckets.pop(key, (self._size, now))
        tokens = min(self._size, tokens + (now - filled) / self._pause)
        self._buckets[key] = tokens, now
        if len(self._buckets) > _MOST:
            del self._buckets[next(iter(self._buckets))]
        return max(1 - tokens, 0.0) * self._pause

    def take(self, key: object) -> None:
        """Take a token of `key`, which has one."""
        tokens, filled = self._buckets[key]
        self._buckets[key] = tokens - 1, filled
