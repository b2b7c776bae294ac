"""Commands of many on one connection: in order, together, each with its own end."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from redis.exceptions import ConnectionError as Lost
from redis.exceptions import ResponseError

from gateway.stores import pipeline
from gateway.stores.pipeline import Pipeline


class Redis:
    """Echoes commands, as far as it is let: `gate` holds batches up."""

    def __init__(self) -> None:
        self.sent: list[list[tuple[Any, ...]]] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.closed = False

    def pipeline(self, transaction: bool) -> Commands:
        assert not transaction
        return Commands(self)

    async def aclose(self) -> None:
        self.closed = True


class Commands:
    def __init__(self, redis: Redis):
        self._redis = redis
        self._commands: list[tuple[Any, ...]] = []

    def execute_command(self, *command: Any) -> None:
        self._commands.append(command)

    async def execute(self, raise_on_error: bool) -> list[Any]:
        assert not raise_on_error
        self._redis.sent.append(self._commands)
        await self._redis.gate.wait()
        if ("LOSE",) in self._commands:
            raise Lost("gone")
        return [ResponseError("bad") if c == ("BAD",) else c for c in self._commands]


@pytest.fixture
def batched() -> Callable[[Callable[[Pipeline, Redis], Awaitable[None]]], None]:
    async def run(work: Callable[[Pipeline, Redis], Awaitable[None]]) -> None:
        redis = Redis()
        some = Pipeline(lambda: redis, "test")
        await some.start()
        try:
            await work(some, redis)
        finally:
            await some.stop()
        assert redis.closed

    return lambda work: asyncio.run(run(work))


def test_what_comes_while_a_batch_is_under_way_goes_with_the_next(batched):
    async def work(some: Pipeline, redis: Redis) -> None:
        redis.gate.clear()
        first = some.run("GET", 0)
        await asyncio.sleep(0.01)
        others = [some.run("GET", n) for n in range(1, 1_001)]
        redis.gate.set()
        assert await first == ("GET", 0)
        assert await asyncio.gather(*others) == [("GET", n) for n in range(1, 1_001)]
        assert [len(batch) for batch in redis.sent] == [1, 500, 500]

    batched(work)


def test_each_command_has_its_own_error(batched):
    async def work(some: Pipeline, redis: Redis) -> None:
        good, bad = some.run("GET"), some.run("BAD")
        assert await good == ("GET",)
        with pytest.raises(ResponseError):
            await bad

    batched(work)


def test_a_lost_connection_fails_its_batch_and_not_the_next(batched):
    async def work(some: Pipeline, redis: Redis) -> None:
        lost = [some.run("GET"), some.run("LOSE")]
        for reply in await asyncio.gather(*lost, return_exceptions=True):
            assert isinstance(reply, OSError)
        assert await some.run("GET") == ("GET",)

    batched(work)


def test_what_nobody_waits_for_any_more_is_not_sent(batched):
    async def work(some: Pipeline, redis: Redis) -> None:
        redis.gate.clear()
        some.run("FIRST")
        await asyncio.sleep(0)
        left = some.run("LEFT")
        left.cancel()
        redis.gate.set()
        await some.run("LAST")
        assert redis.sent == [[("FIRST",)], [("LAST",)]]

    batched(work)


def test_a_redis_that_hangs_is_given_up(batched, monkeypatch):
    monkeypatch.setattr(pipeline, "PATIENCE", 0.05)

    async def work(some: Pipeline, redis: Redis) -> None:
        redis.gate.clear()
        sent = some.run("SENT")
        await asyncio.sleep(0)
        waits = some.run("WAITS")
        for reply in await asyncio.gather(sent, waits, return_exceptions=True):
            assert isinstance(reply, OSError)
        # The second had waited long enough for its turn.
        assert [("WAITS",)] not in redis.sent
        redis.gate.set()
        assert await some.run("AGAIN") == ("AGAIN",)

    batched(work)


def test_what_was_given_is_written_before_the_end(batched):
    written: list[Any] = []

    async def work(some: Pipeline, redis: Redis) -> None:
        some.run("WRITE").add_done_callback(lambda reply: written.append(reply.result()))

    batched(work)
    assert written == [("WRITE",)]
