"""The services by which each delivery is taken once, whatever gateway its tries come to."""

from __future__ import annotations

import logging

from gateway.background import Service, Work, keep_on
from gateway.claims.result_waiter import ResultWaiter
from gateway.claims.store import Claims
from gateway.claims.unattended_tasks import UnattendedTasks
from gateway.config.settings import Config
from gateway.metrics import Metrics
from gateway.stores.results import Results
from gateway.stores.server import numbers
from gateway.stores.state_store import StateStore

log = logging.getLogger(__name__)

PAUSE = 10.0  # seconds between checks of how full the Redis of the claims is


class Idempotency(Service):
    """Claims on deliveries, and who waits for the tasks of others; `results` is their store."""

    def __init__(self, config: Config, results: Results, metrics: Metrics):
        self.claims = Claims(config)
        self.waiter = ResultWaiter(config, self.claims, results)
        self.unattended = UnattendedTasks(config, self.claims, results)
        self.required = config.claims_required
        watch = StateWatch(metrics, self.claims.redis)
        self.uses = (self.claims, watch, self.waiter, self.unattended)

    def held(self) -> dict[str, int]:
        """Return how many leases, subscribed channels, and commands without a reply there are."""
        return {
            "claims leased": self.claims.leased,
            "unattended tasks": len(self.unattended.awaited),
            "subscriptions": self.waiter.channels,
            "claims' commands": self.claims.redis.pending,
        }

    @property
    def error(self) -> str:
        """Why deliveries cannot be taken, in words; empty when they can."""
        return (self.waiter.error or self.claims.uncopied) if self.required else ""


class StateWatch(Service):
    """Sets gauges of how full the `redis` of the claims is, and which part of it answers."""

    def __init__(self, metrics: Metrics, redis: StateStore):
        self._metrics = metrics
        self._redis = redis

    def _work(self) -> Work:
        # Only a debug line: code that needs the claims logs its errors itself.
        problem = "cannot check the Redis of the claims"
        yield "state watch", keep_on(self._look, PAUSE, log.debug, problem)

    async def _look(self) -> bool:
        self._metrics.set("gateway_state_available_ratio", self._redis.available)
        nodes = self._redis.nodes.values()
        asked = [node for node in nodes if not node.error] or nodes
        used = [share_used(await node.run("INFO", "memory")) for node in asked]
        keys = [await node.run("DBSIZE") for node in asked]
        # The fullest one refuses first.
        self._metrics.set("gateway_state_memory_ratio", max(used, default=0.0))
        self._metrics.set("gateway_state_keys", sum(keys))
        return False


def share_used(memory: object) -> float:
    """Return which share of a Redis' memory is used, from 0 to 1, or 0 where it does not tell.

    `memory` is that section of its INFO.
    """
    told = numbers(memory)
    limit = told.get("maxmemory") or told.get("total_system_memory")
    return told.get("used_memory", 0) / limit if limit else 0.0
