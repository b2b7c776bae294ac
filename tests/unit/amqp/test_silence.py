"""When the publisher gives up a connection on which no heartbeats come."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

from gateway.amqp import publisher
from gateway.amqp.publisher import Publisher
from gateway.config.settings import Config
from gateway.metrics import Metrics


async def test_a_connection_is_given_up_that_is_silent_at_two_looks_in_a_row(monkeypatch, caplog):
    monkeypatch.setattr(publisher, "_LOOK_AGAIN", 0.0)
    looks, metrics = [True, False, True, True], Metrics()
    ends = asyncio.Event()
    own = Publisher(Config(result_backend="redis://127.0.0.1:1"), metrics)
    own._lost = ends

    class Silent(SimpleNamespace):
        @property
        def silent(self) -> bool:
            return looks.pop(0)

        def abort(self, _: str) -> None:
            ends.set()

    own._connection = Silent()
    async with asyncio.timeout(30):
        await own._until_lost()
    assert not looks and "no heartbeats have come" in caplog.text
    metrics.close()
