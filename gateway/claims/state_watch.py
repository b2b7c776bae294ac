"""Check the Redis of the claims periodically: how full it is, and which part of it answers."""

from __future__ import annotations

import asyncio
import logging

from gateway.background import Service, Work
from gateway.errors import StoreError
from gateway.metrics import Metrics
from gateway.stores.state_store import StateStore

log = logging.getLogger(__name__)

PAUSE = 10.0  # seconds between checks


class StateWatch(Service):
    """Sets gauges of its size; `redis` is that of the claims."""

    def __init__(self, metrics: Metrics, redis: StateStore):
        self._metrics = metrics
        self._redis = redis

    def _work(self) -> Work:
        yield "state watch", self._watch()

    async def _watch(self) -> None:
        while True:
            try:
                self._metrics.set("gateway_state_available_ratio", self._redis.available)
                nodes = self._redis.nodes.values()
                asked = [node for node in nodes if not node.error] or nodes
                used = [share_used(await node.run("INFO", "memory")) for node in asked]
                keys = [await node.run("DBSIZE") for node in asked]
                # The fullest one refuses first.
                self._metrics.set("gateway_state_memory_ratio", max(used, default=0.0))
                self._metrics.set("gateway_state_keys", sum(keys))
            except StoreError as exc:
                # Only a debug line: code that needs the claims logs its errors itself.
                log.debug("cannot check the Redis of the claims: %s", exc)
            await asyncio.sleep(PAUSE)


def share_used(memory: bytes) -> float:
    """Return which share of a Redis' memory is used, from 0 to 1.

    `memory` is that section of its INFO.
    """
    lines = (line.partition(b":") for line in memory.splitlines())
    values = {name: value for name, _, value in lines}
    limit = int(values[b"maxmemory"]) or int(values.get(b"total_system_memory", 0))
    return int(values[b"used_memory"]) / limit if limit else 0.0
