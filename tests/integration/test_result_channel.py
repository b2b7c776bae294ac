"""The results' subscription against a real Redis: what it hears, and how it ends."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
import redis
from redis.exceptions import RedisError, ResponseError

from gateway.config.settings import Config
from gateway.metrics import Metrics
from gateway.read_throttling import ReadThrottling
from gateway.stores import result_channel
from gateway.stores.result_channel import ResultChannel
from gateway.stores.result_store import connect
from tests.support.stack import Server, Stack
from tests.support.waiting import eventually

TIMEOUT = 10  # seconds


@pytest.fixture
def store(stack: Stack, start) -> Iterator[Server]:
    store = start(stack.redis)
    yield store
    store.stop()


def hear(store: Server, prefix: str, work) -> list[tuple[bytes, bytes]]:
    """Do `work(channel, heard)` while what is published below `prefix` is written down."""
    heard: list[tuple[bytes, bytes]] = []
    metrics = Metrics()

    def hear(*message: bytes) -> None:
        heard.append(message)

    async def run() -> None:
        client = connect(Config(result_backend=store.url))
        async with (
            asyncio.timeout(TIMEOUT),
            ResultChannel(client, prefix, hear, ReadThrottling(metrics)) as channel,
        ):
            await work(channel, heard)

    asyncio.run(run())
    metrics.close()
    return heard


def test_every_message_on_the_pattern_is_heard_in_order(store):
    payloads = [b"%d " % n * (n % 7) ** 6 for n in range(200)]  # up to 200 KB

    async def work(_channel, heard):
        publisher = redis.Redis.from_url(store.url)
        pipeline = publisher.pipeline(transaction=False)
        for n, payload in enumerate(payloads):
            pipeline.publish(f"other-{n}", b"not for us")
            pipeline.publish(f"mine-{n}", payload)
        await asyncio.to_thread(pipeline.execute)
        await eventually(lambda: len(heard) == len(payloads))

    assert hear(store, "mine-", work) == [
        (b"mine-%d" % n, payload) for n, payload in enumerate(payloads)
    ]


@pytest.mark.parametrize("prefix", ["*", "?x", "[ab]", "[^a]", "a\\", "]", "\\*", "\\[a\\]"])
def test_a_prefix_means_itself_alone(store, prefix):
    async def work(_channel, heard):
        publisher = redis.Redis.from_url(store.url)
        for other in ("ax", "a", "b", "xx", "[", "\\", "x"):
            publisher.publish(f"{other}-1", b"not for us")
        assert publisher.publish(f"{prefix}-1", b"x") == 1
        await eventually(lambda: heard)

    assert hear(store, f"{prefix}-", work) == [(f"{prefix}-1".encode(), b"x")]


def test_what_is_published_once_it_is_open_is_heard(store):
    async def work(_channel, heard):
        assert redis.Redis.from_url(store.url).publish("mine-1", b"x") == 1
        await eventually(lambda: heard)

    assert hear(store, "mine-", work) == [(b"mine-1", b"x")]


def test_a_lost_connection_ends_it(store):
    async def work(channel, _heard):
        watching = asyncio.create_task(channel.watch())
        redis.Redis.from_url(store.url).client_kill_filter(_type="pubsub")
        await watching

    with pytest.raises((RedisError, OSError)):
        hear(store, "mine-", work)


def test_a_silent_server_ends_it_and_a_quiet_one_does_not(store, monkeypatch):
    monkeypatch.setattr(result_channel, "SILENCE", 0.2)

    async def work(channel, heard):
        watching = asyncio.create_task(channel.watch())
        # Quiet for several times as long: it answers the PINGs.
        await asyncio.wait([watching], timeout=1.5)
        assert not watching.done()
        store.freeze()
        try:
            await watching
        finally:
            store.thaw()

    with pytest.raises(TimeoutError):
        hear(store, "mine-", work)


def test_who_may_not_subscribe_is_told_so(store):
    client = redis.Redis.from_url(store.url)
    client.acl_setuser("weak", enabled=True, passwords=["+pw"], commands=["+@all", "-psubscribe"])
    store.url = store.url.replace("redis://", "redis://weak:pw@")

    async def work(_channel, _heard):
        raise AssertionError("it was open")

    with pytest.raises(ResponseError, match="psubscribe"):
        hear(store, "mine-", work)


def test_a_server_that_is_away_is_an_error(store):
    store.stop()

    async def work(_channel, _heard):
        raise AssertionError("it was open")

    with pytest.raises((RedisError, OSError)):
        hear(store, "mine-", work)
