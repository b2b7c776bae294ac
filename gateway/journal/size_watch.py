"""Count periodically how many deliveries the journal has, how many are open, and their bytes."""

from __future__ import annotations

import asyncio
import logging

from redis.exceptions import RedisError

from gateway import background
from gateway.journal.keys import Keys
from gateway.metrics import Metrics
from gateway.stores.pipeline import Pipeline

log = logging.getLogger(__name__)

PAUSE = 10.0  # seconds between two queries


class SizeWatch:
    """Sets the journal's gauges; `redis` is the journal's."""

    def __init__(self, keys: Keys, metrics: Metrics, redis: Pipeline):
        self._metrics = metrics
        self._redis = redis
        self._queries = {
            "gateway_journal_deliveries": ("XLEN", keys.deliveries),
            "gateway_journal_open": ("ZCARD", keys.open),
            "gateway_journal_bytes": ("GET", keys.bytes),
        }
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        self._task = background.start(self._watch(), "journal size")

    async def stop(self) -> None:
        await background.stop(self._task)

    async def _watch(self) -> None:
        while True:
            try:
                for name, query in self._queries.items():
                    self._metrics.set(name, float(await self._redis.run(*query) or 0))
            except (RedisError, OSError) as exc:
                # Only a debug line: whoever writes to the journal logs its errors.
                log.debug("the size of the journal cannot be queried: %s", exc)
            await asyncio.sleep(PAUSE)
