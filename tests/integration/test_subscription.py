"""Channels that come and go on a connection that comes and goes, with a real Redis."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
import redis

from gateway.config.settings import Config
from gateway.metrics import Metrics
from gateway.read_throttling import ReadThrottling
from gateway.stores import result_store, subscription
from gateway.stores.subscription import Subscription
from tests.support.in_memory import LOOPS
from tests.support.stack import Server
from tests.support.waiting import eventually

STEPS = 60  # turns of the loop: more than connecting takes


async def add(
    subscription: Subscription, channel: str, on_message: Callable[[bytes | None], object]
) -> None:
    subscription.add(channel, on_message)
    await subscription.ready(channel)


@pytest.fixture
def client(redis_server: Server) -> redis.Redis:
    with redis.Redis.from_url(redis_server.url) as client:
        yield client


@pytest.fixture
def heard(redis_server: Server) -> Callable[[Callable[[Subscription], Awaitable[None]]], None]:
    async def run(work: Callable[[Subscription], Awaitable[None]], url: str) -> None:
        config = Config(result_backend=url)
        subscription = Subscription(lambda: result_store.connect(config), "test")
        await subscription.start()
        try:
            await work(subscription)
        finally:
            await subscription.stop()

    def finish(
        work: Callable[[Subscription], Awaitable[None]], loop: str = "asyncio", url: str = ""
    ) -> None:
        with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
            runner.run(asyncio.wait_for(run(work, url or redis_server.url), 60))

    return finish


def test_what_is_published_after_add_has_returned_is_heard(heard, client):
    async def work(subscription: Subscription) -> None:
        await eventually(lambda: not subscription.error)
        for n in range(100):
            got: list[bytes | None] = []
            await add(subscription, f"channel-{n}", got.append)
            client.publish(f"channel-{n}", b"message")
            await eventually(lambda got=got: got)
            assert got == [b"message"]
            subscription.remove(f"channel-{n}", got.append)
        await eventually(lambda: client.pubsub_channels("channel-*") == [])

    heard(work)


def test_add_waits_until_redis_has_heard_of_it(heard, redis_server):
    async def work(subscription: Subscription) -> None:
        await eventually(lambda: not subscription.error)
        redis_server.freeze()
        adding = asyncio.create_task(add(subscription, "slow", lambda _message: None))
        await asyncio.sleep(0.2)
        assert not adding.done()
        redis_server.thaw()
        await adding

    heard(work)


def test_what_is_removed_before_redis_has_heard_of_it_is_not_waited_for(heard, redis_server):
    async def work(subscription: Subscription) -> None:
        await eventually(lambda: not subscription.error)
        redis_server.freeze()
        try:
            on_message = [].append
            adding = asyncio.create_task(add(subscription, "slow", on_message))
            await asyncio.sleep(0)
            assert not adding.done()
            subscription.remove("slow", on_message)
            await adding
        finally:
            redis_server.thaw()

    heard(work)


def test_what_comes_goes_and_comes_again_waits_for_its_own_answer(heard, redis_server):
    async def work(subscription: Subscription) -> None:
        await eventually(lambda: not subscription.error)
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

    heard(work)


@pytest.mark.parametrize("steps", range(0, STEPS, 3))
def test_a_channel_added_at_any_moment_of_connecting_is_heard(heard, client, steps):
    async def work(subscription: Subscription) -> None:
        got: list[bytes | None] = []
        for _ in range(steps):
            await asyncio.sleep(0)
        await add(subscription, "early", got.append)
        await eventually(lambda: client.pubsub_numsub("early") == [(b"early", 1)])
        client.publish("early", b"message")
        await eventually(lambda: b"message" in got)
        # Whoever comes second does not wait for a confirm that has been.
        await add(subscription, "early", lambda _message: None)

    heard(work)


@pytest.mark.parametrize("steps", range(0, STEPS, 3))
def test_a_channel_removed_at_any_moment_of_connecting_is_forgotten(heard, client, steps):
    async def work(subscription: Subscription) -> None:
        def hear(_message: bytes | None) -> None:
            pass

        # While the connection is away, adding returns at once.
        await add(subscription, "removed", hear)
        for _ in range(steps):
            await asyncio.sleep(0)
        subscription.remove("removed", hear)
        await eventually(lambda: not subscription.error)
        await eventually(lambda: client.pubsub_numsub("removed") == [(b"removed", 0)])

    heard(work)


def test_after_a_cut_everyone_is_told_and_hears_again(heard, client):
    async def work(subscription: Subscription) -> None:
        await eventually(lambda: not subscription.error)
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

    heard(work)


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("steps", range(4))
def test_a_connection_that_closes_under_a_command_is_nobody_s_failure(heard, client, loop, steps):
    async def work(subscription: Subscription) -> None:
        await eventually(lambda: not subscription.error)
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

    heard(work, loop)


def test_what_comes_and_goes_leaves_nothing_behind(heard, client):
    async def work(subscription: Subscription) -> None:
        await eventually(lambda: not subscription.error)

        async def come_and_go(n: int) -> None:
            def hear(_message: bytes | None) -> None:
                pass

            for _ in range(20):
                await add(subscription, f"busy-{n % 5}", hear)
                subscription.remove(f"busy-{n % 5}", hear)

        await asyncio.gather(*(come_and_go(n) for n in range(50)))
        await eventually(lambda: client.pubsub_channels("busy-*") == [])
        assert not (subscription._callbacks or subscription._subscribed)

    heard(work)


def hear(store: Server, prefix: str, work) -> list[tuple[bytes, bytes]]:
    """Do `work(heard)` while what is published below `prefix` is written down."""
    heard: list[tuple[bytes, bytes]] = []
    metrics = Metrics()
    config = Config(result_backend=store.url)

    async def run() -> None:
        subscription = Subscription(
            lambda: result_store.connect(config),
            "test",
            prefix,
            lambda *message: heard.append(message),
            throttling=ReadThrottling(metrics),
        )
        await subscription.start()
        try:
            async with asyncio.timeout(60):
                await eventually(lambda: not subscription.error)
                await work(heard)
        finally:
            await subscription.stop()

    asyncio.run(run())
    metrics.close()
    return heard


def test_every_message_on_the_pattern_is_heard_in_order(redis_server):
    payloads = [b"%d " % n * (n % 7) ** 6 for n in range(200)]  # up to 200 KB

    async def work(heard):
        publisher = redis.Redis.from_url(redis_server.url)
        pipeline = publisher.pipeline(transaction=False)
        for n, payload in enumerate(payloads):
            pipeline.publish(f"other-{n}", b"not for us")
            pipeline.publish(f"mine-{n}", payload)
        await asyncio.to_thread(pipeline.execute)
        await eventually(lambda: len(heard) == len(payloads))

    assert hear(redis_server, "mine-", work) == [
        (b"mine-%d" % n, payload) for n, payload in enumerate(payloads)
    ]


@pytest.mark.parametrize("prefix", ["*", "?x", "[ab]", "[^a]", "a\\", "]", "\\*", "\\[a\\]"])
def test_a_prefix_means_itself_alone(redis_server, prefix):
    async def work(heard):
        publisher = redis.Redis.from_url(redis_server.url)
        for other in ("ax", "a", "b", "xx", "[", "\\", "x"):
            publisher.publish(f"{other}-1", b"not for us")
        assert publisher.publish(f"{prefix}-1", b"x") == 1
        await eventually(lambda: heard)

    assert hear(redis_server, f"{prefix}-", work) == [(f"{prefix}-1".encode(), b"x")]


def test_what_is_published_once_it_is_open_is_heard(redis_server):
    async def work(heard):
        assert redis.Redis.from_url(redis_server.url).publish("mine-1", b"x") == 1
        await eventually(lambda: heard)

    assert hear(redis_server, "mine-", work) == [(b"mine-1", b"x")]


def test_a_silent_server_is_left_and_a_quiet_one_is_not(heard, stack, start, monkeypatch):
    monkeypatch.setattr(subscription, "SILENCE", 0.2)
    store = start(stack.redis)

    async def work(one: Subscription) -> None:
        await eventually(lambda: not one.error)
        first = one._transport
        # Quiet for several times as long: it answers the PINGs.
        await asyncio.sleep(1.5)
        assert one._transport is first
        store.freeze()
        try:
            await eventually(lambda: one.error)
        finally:
            store.thaw()
        await eventually(lambda: not one.error)

    heard(work, url=store.url)
    store.stop()


def test_who_may_not_subscribe_is_told_so(heard, stack, start):
    store = start(stack.redis)
    client = redis.Redis.from_url(store.url)
    client.acl_setuser("weak", enabled=True, passwords=["+pw"], commands=["+@all", "-subscribe"])

    async def work(one: Subscription) -> None:
        await eventually(lambda: "subscribe" in one.error and "permission" in one.error)

    heard(work, url=store.url.replace("redis://", "redis://weak:pw@"))
    store.stop()


def test_a_server_that_is_away_is_an_error(heard, stack, start):
    store = start(stack.redis)
    store.stop()

    async def work(one: Subscription) -> None:
        await eventually(lambda: "ConnectionError" in one.error)

    heard(work, url=store.url)
