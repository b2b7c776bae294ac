"""Check the Redis of the claims periodically: how full it is, and which deployments use it.

Each gateway writes an entry about itself. Two gateways with the same prefix and different routes or
brokers are two deployments, which would mistake each other's deliveries for their own.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import socket

from kombu.utils.url import parse_url
from redis.exceptions import RedisError

from gateway.background import Service, Work
from gateway.clock import time
from gateway.config.settings import Config
from gateway.metrics import Metrics
from gateway.stores.result_store import Ask
from gateway.stores.state_store import StateStore

log = logging.getLogger(__name__)

PAUSE = 10.0  # seconds between checks
PRESENT = 120.0  # seconds for which a deployment counts as running after its last entry
RUNNING = 3 * PAUSE  # the same, where its end is to be noticed soon


class StateWatch(Service):
    """Sets gauges of its size and writes this deployment's entry; `redis` is that of the claims."""

    def __init__(self, config: Config, metrics: Metrics, redis: StateStore):
        self._config = config
        self._metrics = metrics
        self._redis = redis

    def _work(self) -> Work:
        yield "state watch", self._watch()

    async def _watch(self) -> None:
        key, field = _key(self._config), _fingerprint(self._config)
        description = _description(self._config)
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
                entry = json.dumps({"seen": time(), "as": description})
                await self._redis.run("HSET", key, field, entry)
                await self._redis.run("EXPIRE", key, 86_400)
            except (RedisError, OSError) as exc:
                # Only a debug line: code that needs the claims logs its errors itself, and a full
                # Redis cannot take the entry.
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


async def others(config: Config, ask: Ask) -> list[str]:
    """Return descriptions of the other deployments that keep claims under the same prefix.

    `ask` sends a command to the Redis of the claims and returns the reply.
    """
    present = await _present(config, ask, PRESENT)
    return sorted(name for field, name in present.items() if field != _fingerprint(config))


async def running(config: Config, ask: Ask) -> list[str]:
    """Return descriptions of the deployments with this prefix that run, or have just ended."""
    return sorted((await _present(config, ask, RUNNING)).values())


async def _present(config: Config, ask: Ask, seconds: float) -> dict[str, str]:
    """Return the description of each deployment with an entry of the last `seconds`."""
    found = await ask("HGETALL", _key(config))
    # Redis' own reply is a list, and redis-py's a dict.
    pairs = found.items() if isinstance(found, dict) else zip(found[::2], found[1::2], strict=True)
    entries = {field.decode(): json.loads(entry) for field, entry in pairs}
    return {
        field: entry["as"] for field, entry in entries.items() if time() - entry["seen"] < seconds
    }


def _key(config: Config) -> str:
    return f"{config.prefix}deployments"


def _brokers(config: Config) -> list[str]:
    """Return the brokers' addresses, without users and passwords."""
    parts = map(parse_url, config.brokers)
    return sorted(f"{p['hostname']}:{p['port']}/{p['virtual_host'] or '/'}" for p in parts)


def _fingerprint(config: Config) -> str:
    """Return a text that is the same for all processes of one deployment, and for no other."""
    routes = sorted((route.path, route.task, route.queue_names) for route in config.routes)
    return hashlib.sha256(json.dumps([_brokers(config), routes]).encode()).hexdigest()[:16]


def _description(config: Config) -> str:
    tasks = ", ".join(sorted({route.task for route in config.routes})[:3])
    return f"{', '.join(_brokers(config))} on {socket.gethostname()} with the tasks {tasks}"
