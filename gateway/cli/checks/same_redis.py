"""Find out whether two addresses are the same Redis, by comparing the servers' run ids."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import RedisError

from gateway.config.settings import Config
from gateway.stores import result_store

_PATIENCE = 0.8  # seconds

#: Host and port.
Server = tuple[str, int]


async def compare(config: Config, servers: Iterable[Server]) -> dict[Server, bool | None]:
    """Return for each of the `servers` whether it is the gateway's result store.

    None: the server cannot be reached from here, or needs a password. The gateway's password is not
    sent, because anybody who may publish to the broker can provide addresses.
    """
    names = sorted(set(servers))
    if not names:
        return {}
    clients = [Redis(host=host, port=port, protocol=2) for host, port in names]
    runs = await asyncio.gather(_run(result_store.connect(config)), *map(_run, clients))
    own, *others = runs
    known = zip(names, others, strict=True)
    return {name: own == other if own and other else None for name, other in known}


async def _run(client: Redis) -> str:
    """Return the run id of a Redis; empty where it does not tell."""
    try:
        async with asyncio.timeout(_PATIENCE), client:
            about: dict[str, Any] = await client.info("server")
        return str(about.get("run_id", ""))
    except (RedisError, OSError):
        return ""
