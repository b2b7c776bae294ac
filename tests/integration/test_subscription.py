"""Channels that come and go on a connection that comes and goes, with a real Redis."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import pytest

from gateway.config.settings import Config
from gateway.read_throttling import ReadThrottling
from gateway.stores import result_store, subscription
from gateway.stores.subscription import Subscription
from tests.support.parts import started
from tests.support.redis_kinds import account
from tests.support.stack import Server
from tests.support.waiting import eventually

STEPS = 60  # turns of the loop: more than connecting takes


async def add(
    subscription: Subscription, channel: str, on_message: Callable[[bytes | None], object]
) -> None:
    subscription.add(channel, on_message)
    await subscription.ready(channel)


@pytest.fixture
def heard(redis_server: Server) -> Callable[..., AbstractAsyncContextManager[Subscription]]:
    """Open a subscription, and wait until it is connected unless `ready` is false."""

    @asynccontextmanager
    async def heard(
        url: str = redis_server.url, ready: bool = True, **more: Any
    ) -> AsyncIterator[Subscription]:
        config = Config(result_backend=url)
        subscription = Subscription(lambda: result_store.connect(config), "test", **more)
        async with started(subscription), asyncio.timeout(60):
            await eventually(lambda: not (ready and subscription.error))
            yield subscription

    return heard


@pytest.fixture
def hear(heard) -> Callable[[str], Any]:
    """Write down what is published below a prefix."""

    @asynccontextmanager
    async def hear(prefix: str) -> AsyncIterator[list[tuple[bytes, bytes]]]:
        got: list[tuple[bytes, bytes]] = []
        told = {"on_match": lambda *message: got.append(message)}
        async with heard(prefix=prefix, throttling=ReadThrottling(lambda: 0), **told):
            yield got

    return hear


async def test_what_is_published_after_add_has_returned_is_heard(heard, client):
    async with heard() as subscription:
        for n in range(100):
            got: list[bytes | None] = []
            await add(subscription, f"channel-{n}", got.append)
            client.publish(f"channel-{n}", b"message")
            await eventually(lambda got=got: got)
            assert got == [b"message"]
            subscription.remove(f"channel-{n}", got.append)
        await eventually(lambda: client.pubsub_channels("channel-*") == [])


async def test_add_waits_until_redis_has_heard_of_it(heard, redis_server):
    async with heard() as subscription:
        redis_server.freeze()
        adding = asyncio.create_task(add(subscription, "slow", lambda _message: None))
        await asyncio.sleep(0.2)
        assert not adding.done()
        redis_server.thaw()
        await adding


async def test_what_is_removed_before_redis_has_heard_of_it_is_not_waited_for(heard, redis_server):
    async with heard() as subscription:
        with redis_server.frozen():
            on_message = [].append
            adding = asyncio.create_task(add(subscription, "slow", on_message))
            await asyncio.sleep(0)
            assert not adding.done()
            subscription.remove("slow", on_message)
            await adding


async def test_what_comes_goes_and_comes_again_waits_for_its_own_answer(heard, redis_server):
    async with heard() as subscription:
        redis_server.freeze()
        on_message = [].append
        subscription.add("slow", on_message)
        subscription.remove("slow", on_message)
        adding = asyncio.create_task(add(subscription, "slow", on_message))
        await asyncio.sleep(0)
        subscription.data_received(b"*3\r\n$9\r\nsubscribe\r\n$4\r\nslow\r\n:2\r\n")
        for _ in range(STEPS):
            await asyncio.sleep(0)
        assert not adding.done()
        redis_server.thaw()
        await adding


@pytest.mark.parametrize("steps", range(0, STEPS, 3))
async def test_a_channel_added_at_any_moment_of_connecting_is_heard(heard, client, steps):
    async with heard(ready=False) as subscription:
        got: list[bytes | None] = []
        for _ in range(steps):
            await asyncio.sleep(0)
        await add(subscription, "early", got.append)
        await eventually(lambda: client.pubsub_numsub("early") == [(b"early", 1)])
        client.publish("early", b"message")
        await eventually(lambda: b"message" in got)
        # Whoever comes second does not wait for a confirm that has been.
        await add(subscription, "early", lambda _message: None)


@pytest.mark.parametrize("steps", range(0, STEPS, 3))
async def test_a_channel_removed_at_any_moment_of_connecting_is_forgotten(heard, client, steps):
    async with heard(ready=False) as subscription:
        hear = [].append
        # While the connection is away, adding returns at once.
        await add(subscription, "removed", hear)
        for _ in range(steps):
            await asyncio.sleep(0)
        subscription.remove("removed", hear)
        await eventually(lambda: not subscription.error)
        await eventually(lambda: client.pubsub_numsub("removed") == [(b"removed", 0)])


async def test_after_a_cut_everyone_is_told_and_hears_again(heard, client):
    async with heard() as subscription:
        got: dict[int, list[bytes | None]] = {n: [] for n in range(50)}
        await asyncio.gather(*(add(subscription, f"cut-{n}", got[n].append) for n in got))

        client.execute_command("CLIENT", "KILL", "TYPE", "pubsub")

        await eventually(lambda: all(some == [None] for some in got.values()))
        for n in got:
            client.publish(f"cut-{n}", b"message")
        await eventually(lambda: all(some == [None, b"message"] for some in got.values()))
        for n, some in got.items():
            subscription.remove(f"cut-{n}", some.append)
        await eventually(lambda: client.pubsub_channels("cut-*") == [])


@pytest.mark.parametrize("steps", range(4))
async def test_a_connection_that_ends_under_a_command_fails_nobody(heard, client, each_loop, steps):
    async with heard() as subscription:
        got: list[bytes | None] = []
        await add(subscription, "closing", got.append)
        await add(subscription, "other", got.append)

        subscription._transport.abort()
        for _ in range(steps):
            await asyncio.sleep(0)
        subscription.remove("closing", got.append)
        await add(subscription, "third", got.append)

        await eventually(lambda: got)
        await eventually(lambda: client.pubsub_numsub("third") == [(b"third", 1)])


async def test_what_comes_and_goes_leaves_nothing_behind(heard, client):
    async with heard() as subscription:

        async def come_and_go(n: int) -> None:
            hear = [].append
            for _ in range(20):
                await add(subscription, f"busy-{n % 5}", hear)
                subscription.remove(f"busy-{n % 5}", hear)

        await asyncio.gather(*(come_and_go(n) for n in range(50)))
        await eventually(lambda: client.pubsub_channels("busy-*") == [])
        assert not (subscription._callbacks or subscription._subscribed)


async def test_every_message_on_the_pattern_is_heard_in_order(hear, client):
    payloads = [b"%d " % n * (n % 7) ** 6 for n in range(200)]  # up to 200 KB
    async with hear("mine-") as got:
        pipeline = client.pipeline(transaction=False)
        for n, payload in enumerate(payloads):
            pipeline.publish(f"other-{n}", b"not for us")
            pipeline.publish(f"mine-{n}", payload)
        await asyncio.to_thread(pipeline.execute)
        await eventually(lambda: len(got) == len(payloads))
    assert got == [(b"mine-%d" % n, payload) for n, payload in enumerate(payloads)]


@pytest.mark.parametrize("prefix", ["*", "?x", "[ab]", "[^a]", "a\\", "]", "\\*", "\\[a\\]"])
async def test_a_prefix_means_itself_alone(hear, client, prefix):
    async with hear(f"{prefix}-") as got:
        for other in ("ax", "a", "b", "xx", "[", "\\", "x"):
            client.publish(f"{other}-1", b"not for us")
        assert client.publish(f"{prefix}-1", b"x") == 1
        await eventually(lambda: got)
    assert got == [(f"{prefix}-1".encode(), b"x")]


async def test_a_silent_server_is_left_and_a_quiet_one_is_not(heard, stack, start, monkeypatch):
    monkeypatch.setattr(subscription, "SILENCE", 0.2)
    store = start(stack.redis)

    async with heard(url=store.url) as one:
        first = one._transport
        # Quiet for several times as long: it answers the PINGs.
        await asyncio.sleep(1.5)
        assert one._transport is first
        with store.frozen():
            await eventually(lambda: one.error)
        await eventually(lambda: not one.error)


async def test_who_may_not_subscribe_is_told_so(heard, redis_server):
    async with heard(account(redis_server, "subscribe"), ready=False) as one:
        await eventually(lambda: "subscribe" in one.error and "permission" in one.error)


async def test_a_server_that_is_away_is_an_error(heard, stack, start):
    store = start(stack.redis)
    store.stop()

    async with heard(url=store.url, ready=False) as one:
        await eventually(lambda: "ConnectionError" in one.error)
