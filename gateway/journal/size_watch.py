"""Remove what is older than the journal's age, and count what it has, again and again."""

from __future__ import annotations

import asyncio
import logging

from redis.exceptions import RedisError

from gateway import background
from gateway.journal import scripts
from gateway.journal.keys import Keys
from gateway.metrics import Metrics
from gateway.stores.pipeline import Pipeline

log = logging.getLogger(__name__)

PAUSE = 10.0  # seconds between two queries
_MOST = 200  # deliveries that are removed at once


class SizeWatch:
    """Sets the journal's gauges; `redis` is the journal's, `age` is in seconds."""

    def __init__(self, keys: Keys, metrics: Metrics, redis: Pipeline, age: float):
        self._metrics = metrics
        self._redis = redis
        self._query = (
            "EVAL", scripts.TRIM, 4, keys.deliveries, keys.refused, keys.open, keys.bytes,
            int(age * 1000), _MOST, keys.prefix,
        )  # fmt: skip
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        self._task = background.start(self._watch(), "journal size")

    async def stop(self) -> None:
        await background.stop(self._task)

    async def _watch(self) -> None:
        while True:
            removed = 0
            try:
                removed, deliveries, unfinished, size = await self._redis.run(*self._query)
                self._metrics.set("gateway_journal_deliveries", deliveries)
                self._metrics.set("gateway_journal_open", unfinished)
                self._metrics.set("gateway_journal_bytes", float(size))
            except (RedisError, OSError) as exc:
                # Only a debug line: whoever writes to the journal logs its errors.
                log.debug("the size of the journal cannot be queried: %s", exc)
            if removed < _MOST:
                await asyncio.sleep(PAUSE)
