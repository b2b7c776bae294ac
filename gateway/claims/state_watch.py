"""A look at the Redis of the claims from time to time: how full it is, and who else uses it.

Each gateway writes down that it is there. Two with the same prefix whose routes or brokers differ
are two deployments that take each other's deliveries for their own.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import socket
import time
from typing import Any

from kombu.utils.url import parse_url
from redis.exceptions import RedisError

from gateway import background
from gateway.config.settings import Config
from gateway.metrics import Metrics
from gateway.stores.pipeline import Pipeline
from gateway.stores.result_store import Ask

log = logging.getLogger(__name__)

PAUSE = 10.0  # seconds between looks
PRESENT = 120.0  # seconds after its last word that a deployment counts as one that runs


class StateWatch:
    """Writes a gauge and this deployment's presence; `redis` is that of the claims."""

    def __init__(self, config: Config, metrics: Metrics, redis: Pipeline):
        self._config = config
        self._metrics = metrics
        self._redis = redis
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        self._task = background.start(self._watch(), "state watch")

    async def stop(self) -> None:
        await background.stop(self._task)

    async def _watch(self) -> None:
        key, field, presence = _key(self._config), _fingerprint(self._config), _told(self._config)
        while True:
            try:
                memory = await self._redis.run("INFO", "memory")
                self._metrics.set("gateway_state_memory_ratio", full(memory))
                told = json.dumps({"seen": time.time(), "as": presence})
                await self._redis.run("HSET", key, field, told)
                await self._redis.run("EXPIRE", key, 86_400)
            except (RedisError, OSError) as exc:
                # Whoever needs the claims says so; and a Redis that is full takes no presence.
                log.debug("cannot look at the state's Redis: %s", exc)
            await asyncio.sleep(PAUSE)


def full(memory: dict[str, Any]) -> float:
    """Return how full a Redis is, from 0 to 1, by the section `memory` of its INFO."""
    limit = memory["maxmemory"] or memory.get("total_system_memory", 0)
    return memory["used_memory"] / limit if limit else 0.0


async def others(config: Config, ask: Ask) -> list[str]:
    """Name the other deployments that keep their claims under the same prefix.

    `ask` is given a command for the Redis of the claims and returns the reply.
    """
    names = []
    for field, told in (await ask("HGETALL", _key(config))).items():
        entry = json.loads(told)
        if field.decode() != _fingerprint(config) and time.time() - entry["seen"] < PRESENT:
            names.append(entry["as"])
    return sorted(names)


def _key(config: Config) -> str:
    return f"{config.prefix}deployments"


def _brokers(config: Config) -> list[str]:
    """Return where the brokers are, without users and passwords."""
    parts = map(parse_url, config.brokers)
    return sorted(f"{p['hostname']}:{p['port']}/{p['virtual_host'] or '/'}" for p in parts)


def _fingerprint(config: Config) -> str:
    """Return what processes of one deployment have in common, and no other has."""
    routes = sorted((route.path, route.task, route.queue_names) for route in config.routes)
    return hashlib.sha256(json.dumps([_brokers(config), routes]).encode()).hexdigest()[:16]


def _told(config: Config) -> str:
    tasks = ", ".join(sorted({route.task for route in config.routes})[:3])
    return f"{', '.join(_brokers(config))} on {socket.gethostname()} with the tasks {tasks}"
