"""Channels that come and go on a connection that comes and goes, with a real Redis."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
import redis

from gateway.config.settings import Config
from gateway.stores import result_store
from gateway.stores.subscription import Subscription
from tests.support.in_memory import LOOPS
from tests.support.stack import Server
from tests.support.waiting import eventually

STEPS = 60  # turns of the loop: more than connecting takes


@pytest.fixture
def client(redis_server: Server) -> redis.Redis:
    with redis.Redis.from_url(redis_server.url) as client:
        yield client


@pytest.fixture
def heard(redis_server: Server) -> Callable[[Callable[[Subscription], Awaitable[None]]], None]:
    config = Config(result_backend=redis_server.url)

    async def run(work: Callable[[Subscription], Awaitable[None]]) -> None:
        subscription = Subscription(lambda: result_store.connect(config), "test")
        await subscription.start()
        try:
            await work(subscription)
        finally:
            await subscription.stop()

    def finish(work: Callable[[Subscription], Awaitable[None]], loop: str = "asyncio") -> None:
        with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
            runner.run(asyncio.wait_for(run(work), 60))

    return finish


def test_what_is_published_after_add_has_returned_is_heard(heard, client):
    async def work(subscription: Subscription) -> None:
        await eventually(lambda: not subscription.error)
        for n in range(100):
            got: list[bytes | None] = []
            await subscription.add(f"channel-{n}", got.append)
            client.publish(f"channel-{n}", b"message")
            await eventually(lambda got=got: got)
            assert got == [b"message"]
            await subscription.remove(f"channel-{n}", got.append)
        await eventually(lambda: client.pubsub_channels("channel-*") == [])

    heard(work)


def test_add_waits_until_redis_has_heard_of_it(heard, redis_server):
    async def work(subscription: Subscription) -> None:
        await eventually(lambda: not subscription.error)
        redis_server.freeze()
        adding = asyncio.create_task(subscription.add("slow", lambda _message: None))
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
            adding = asyncio.create_task(subscription.add("slow", on_message))
            await asyncio.sleep(0)
            assert not adding.done()
            await subscription.remove("slow", on_message)
            await adding
        finally:
            redis_server.thaw()

    heard(work)


@pytest.mark.parametrize("steps", range(0, STEPS, 3))
def test_a_channel_added_at_any_moment_of_connecting_is_heard(heard, client, steps):
    async def work(subscription: Subscription) -> None:
        got: list[bytes | None] = []
        for _ in range(steps):
            await asyncio.sleep(0)
        await subscription.add("early", got.append)
        await eventually(lambda: client.pubsub_numsub("early") == [(b"early", 1)])
        client.publish("early", b"message")
        await eventually(lambda: b"message" in got)
        # Whoever comes second does not wait for a confirm that has been.
        await subscription.add("early", lambda _message: None)

    heard(work)


@pytest.mark.parametrize("steps", range(0, STEPS, 3))
def test_a_channel_removed_at_any_moment_of_connecting_is_forgotten(heard, client, steps):
    async def work(subscription: Subscription) -> None:
        def hear(_message: bytes | None) -> None:
            pass

        # While the connection is away, adding returns at once.
        await subscription.add("removed", hear)
        for _ in range(steps):
            await asyncio.sleep(0)
        await subscription.remove("removed", hear)
        await eventually(lambda: not subscription.error)
        await eventually(lambda: client.pubsub_numsub("removed") == [(b"removed", 0)])

    heard(work)


def test_after_a_cut_everyone_is_told_and_hears_again(heard, client):
    async def work(subscription: Subscription) -> None:
        await eventually(lambda: not subscription.error)
        got: dict[int, list[bytes | None]] = {n: [] for n in range(50)}
        await asyncio.gather(*(subscription.add(f"cut-{n}", got[n].append) for n in got))

        client.execute_command("CLIENT", "KILL", "TYPE", "pubsub")

        await eventually(lambda: all(some == [None] for some in got.values()))
        for n in got:
            client.publish(f"cut-{n}", b"message")
        await eventually(lambda: all(some == [None, b"message"] for some in got.values()))
        for n, some in got.items():
            await subscription.remove(f"cut-{n}", some.append)
        await eventually(lambda: client.pubsub_channels("cut-*") == [])

    heard(work)


# redis-py's writer does not know that its transport was closed behind its back.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("steps", range(4))
def test_a_connection_that_closes_under_a_command_is_nobody_s_failure(heard, client, steps):
    async def work(subscription: Subscription) -> None:
        await eventually(lambda: not subscription.error)
        got: list[bytes | None] = []
        await subscription.add("closing", got.append)
        await subscription.add("other", got.append)

        subscription._pubsub.connection._writer.transport.abort()
        for _ in range(steps):
            await asyncio.sleep(0)
        await subscription.remove("closing", got.append)
        await subscription.add("third", got.append)

        await eventually(lambda: got)
        await eventually(lambda: client.pubsub_numsub("third") == [(b"third", 1)])

    # asyncio's transports take what is written to them and drop it.
    heard(work, "uvloop")


@pytest.mark.parametrize("steps", range(6))
@pytest.mark.parametrize("loop", LOOPS)
def test_a_command_does_not_bring_a_lost_connection_back(heard, client, loop, steps):
    """It would be one that nobody reads, and be gone under the command."""

    async def work(subscription: Subscription) -> None:
        await eventually(lambda: not subscription.error)
        got: list[bytes | None] = []
        for channel in ("first", "second"):
            await subscription.add(channel, got.append)

        await subscription._pubsub.connection.disconnect(nowait=True)
        for _ in range(steps):
            await asyncio.sleep(0)
        await asyncio.gather(
            subscription.remove("first", got.append),
            subscription.add("third", got.append),
            subscription.remove("second", got.append),
        )

        await eventually(lambda: client.pubsub_numsub("third") == [(b"third", 1)])

    heard(work, loop)


def test_what_comes_and_goes_leaves_nothing_behind(heard, client):
    async def work(subscription: Subscription) -> None:
        await eventually(lambda: not subscription.error)

        async def come_and_go(n: int) -> None:
            def hear(_message: bytes | None) -> None:
                pass

            for _ in range(20):
                await subscription.add(f"busy-{n % 5}", hear)
                await subscription.remove(f"busy-{n % 5}", hear)

        await asyncio.gather(*(come_and_go(n) for n in range(50)))
        await eventually(lambda: client.pubsub_channels("busy-*") == [])
        pubsub = subscription._pubsub
        assert not (pubsub.channels or pubsub.pending_unsubscribe_channels)

    heard(work)
