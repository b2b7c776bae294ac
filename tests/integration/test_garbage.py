"""Requests leave nothing behind that only the garbage collector can free: it would stop all
requests while it looks for that."""

from __future__ import annotations

import asyncio
import gc
from collections import Counter

import pytest

from gateway.config.strategies import STRATEGIES
from tests.support.http_client import Connection, connections, request
from tests.support.in_memory import connected

REQUESTS, AT_ONCE = 200, 4
#: How many objects in cycles may appear meanwhile, of others: timers, reconnections.
OTHERS = REQUESTS // 10


# Celery's drainer has to patch its process, which only a process of its own can.
@pytest.mark.parametrize("strategy", [name for name in STRATEGIES if name != "gevent"])
def test_requests_make_no_cycles(strategy, rabbitmq, redis_server, worker):
    route = {"task": "appserver.tasks.echo"}
    settings = {
        "broker_url": rabbitmq.url, "result_backend": redis_server.url,
        "secret_key": "a key of this test", "public_url": "https://hooks.example.com",
        "routes": [{"path": "/", **route}, {"path": "/accept", "answer": "accept", **route}],
    }  # fmt: skip

    async def ask(connection: Connection, times: int) -> None:
        for _ in range(times):
            assert (await connection.ask(request(b"hello"))).status == 200
            assert (await connection.ask(request(b"hello", "/accept"))).status == 202
            assert (await connection.ask(request(b"hello", "/unknown"))).status == 404

    async def serving() -> Counter[str]:
        async with connected(strategy, settings) as one, connections(one.address, AT_ONCE) as some:
            await asyncio.gather(*(ask(connection, 2) for connection in some))
            gc.collect()
            gc.disable()
            gc.set_debug(gc.DEBUG_SAVEALL)
            try:
                each = REQUESTS // AT_ONCE
                await asyncio.gather(*(ask(connection, each) for connection in some))
                gc.collect()
                return Counter(type(garbage).__qualname__ for garbage in gc.garbage)
            finally:
                gc.set_debug(0)
                gc.garbage.clear()
                gc.enable()

    found = asyncio.run(serving())
    assert {name: n for name, n in found.items() if n > OTHERS} == {}
