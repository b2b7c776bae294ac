"""The publisher by itself against a real broker: what breaks beside it, or while it connects."""

from __future__ import annotations

import asyncio
import random
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager
from functools import partial
from time import monotonic
from urllib.parse import urlsplit

import pytest

from gateway.amqp import broker as broker_module
from gateway.amqp import publisher as publisher_module
from gateway.amqp import publishing_channel
from gateway.amqp.connection import TurnConnection
from gateway.amqp.publisher import Publisher
from gateway.celery_message import Message, MessageOptions
from gateway.config.settings import Config, Route
from gateway.errors import BodyTooLarge, BrokerUnavailable, Unroutable, URITooLong
from gateway.pending_task import PendingTask
from tests.faults.proxy import Proxy
from tests.support import parts
from tests.support.stack import RabbitMQ
from tests.support.waiting import eventually

TIMEOUT = 30  # seconds
QUEUE = "celery"


@asynccontextmanager
async def started(publisher: Publisher, ready: bool = True) -> AsyncIterator[Publisher]:
    """Start a publisher and, unless `ready` is false, wait for its broker; stop it at the end."""
    async with parts.started(publisher), asyncio.timeout(TIMEOUT):
        await eventually(lambda: not (ready and publisher.error))
        yield publisher


def pending(body: bytes = b"[]", queue: str = QUEUE) -> PendingTask:
    message = Message(f"id-{monotonic()}", "task", queue, body, {})
    return PendingTask(message, monotonic() + TIMEOUT)


async def publish(publisher: Publisher, one: PendingTask | None = None) -> PendingTask:
    """Publish a message; return it when it is confirmed, or has failed."""
    one = one or pending()
    publisher.publish(one)
    await eventually(lambda: one.ended or one.confirmed)
    return one


def published_as(task_id: str, delivery_id: str, queue: str) -> PendingTask:
    message = Message(task_id, "task", queue, b"[]", {"id": delivery_id})
    return PendingTask(message, monotonic() + TIMEOUT)


def config(broker: RabbitMQ, **settings) -> Config:
    return Config(broker_url=broker.url, **settings)


def cut(publisher: Publisher) -> None:
    """End its connection as a network does: without a word."""
    publisher._connection._transport.get_extra_info("socket").shutdown(socket.SHUT_RDWR)


async def test_a_waiter_that_fails_keeps_no_publisher_from_its_broker(broker, metrics):
    lost, told = [], []

    def fails(ended: PendingTask) -> None:
        if ended.error is not None:
            raise ZeroDivisionError

    async with started(
        Publisher(config(broker), metrics, on_lost=lambda: lost.append(1))
    ) as publisher:
        asyncio.get_running_loop().set_exception_handler(lambda _, what: told.append(what))
        # Given an unconfirmed message, and a watcher with a bug,
        with broker.frozen():
            waiting = pending()
            publisher.publish(waiting)
            waiting.watch(fails)
            # when the connection goes,
            cut(publisher)
            await eventually(lambda: lost)
            assert waiting.ended
        # then it comes back.
        await eventually(lambda: not publisher.error)
        assert (await publish(publisher)).confirmed

    assert any(isinstance(what.get("exception"), ZeroDivisionError) for what in told)


async def test_a_waiter_that_fails_keeps_no_other_from_its_timeout(broker, metrics):
    def fails(ended: PendingTask) -> None:
        raise ZeroDivisionError

    async with started(Publisher(config(broker, confirm_timeout=0.3), metrics)) as publisher:
        asyncio.get_running_loop().set_exception_handler(lambda *_: None)
        with broker.frozen():
            first, second = pending(), pending()
            publisher.publish(first)
            first.watch(fails)
            await asyncio.sleep(0.2)  # they are not overdue in the same sweep
            publisher.publish(second)
            await eventually(lambda: first.ended and second.ended)
            assert second.error is not None and second.error.type == "not-confirmed"


async def test_a_return_that_comes_after_its_timeout_concerns_no_later_try(broker, metrics):
    # The broker may need most of its time to wake up.
    async with started(Publisher(config(broker, confirm_timeout=2.0), metrics)) as publisher:
        with broker.frozen():
            # Given a message for a queue that is missing, which is given up (it may take the broker
            # a moment to freeze),
            given_up = False
            while not given_up:
                first = published_as("id", "first", "a-queue-that-nobody-makes")
                given_up = (await publish(publisher, first)).error.type == "not-confirmed"
            # and the next try's under the same task id: the queue is there now.
            second = published_as("id", "second", QUEUE)
            publisher.publish(second)
        await eventually(lambda: second.ended or second.confirmed)
        assert second.confirmed, second.error
        await eventually(lambda: not publisher._channel.confirms)


async def test_templates_are_kept_in_bounds(broker, metrics, monkeypatch):
    monkeypatch.setattr(publishing_channel, "_TEMPLATES", 3)

    async with started(Publisher(config(broker), metrics)) as publisher:
        sent = [pending(queue=f"queue-{number}") for number in range(10)]
        for one in sent:
            publisher.publish(one)
        await eventually(lambda: all(one.ended for one in sent))
        assert {one.error.type for one in sent} == {"unroutable"}
        assert 0 < len(publisher._channel._templates._made) <= 3


async def test_a_message_fills_its_header_frame_to_the_last_byte_and_not_beyond(broker, metrics):
    def with_headers(size: int) -> PendingTask:
        message = Message("x" * 255, "task", QUEUE, b"x" * 30_000, {"id": "1", "q": "x" * size})
        return PendingTask(message, monotonic() + TIMEOUT)

    with broker.setting("frame_max", 8192):
        async with started(Publisher(config(broker), metrics)) as publisher:
            assert publisher._connection.params.frame_max == 8192
            taken, refused = 0, 8192
            while refused - taken > 1:
                size = (taken + refused) // 2
                try:
                    one = await publish(publisher, with_headers(size))
                except URITooLong as error:
                    assert "too long" in error.detail
                    refused = size
                else:
                    assert one.confirmed, one.error
                    taken = size
            assert taken > 7000
            assert metrics.get("gateway_broker_connections_total") == 1


@pytest.fixture
def most_bytes(broker: RabbitMQ) -> Iterator[int]:
    """A limit of the broker for messages on connections to come."""
    # RabbitMQ 3 reads the first one, RabbitMQ 4 the other.
    limit = "application:set_env(rabbit, {0}, {1}), persistent_term:put({0}, {1})."
    broker.ctl("eval", limit.format("max_message_size", 100_000))
    yield 100_000
    broker.ctl("eval", limit.format("max_message_size", 16 * 1024 * 1024))


async def test_too_large_a_message_ends_one_connection_at_most(broker, metrics, most_bytes):
    async with started(Publisher(config(broker), metrics)) as publisher:
        # Given that the broker has closed the channel of one,
        first = await publish(publisher, pending(b"x" * (most_bytes + 1)))
        assert first.error.type == "broker-unavailable"
        await eventually(lambda: not publisher.error)
        # when another one comes,
        neighbour = pending(b"x" * most_bytes)
        publisher.publish(neighbour)
        with pytest.raises(BodyTooLarge, match=f"{most_bytes + 1} bytes.*takes {most_bytes}"):
            publisher.publish(pending(b"x" * (most_bytes + 1)))
        # then that one alone is refused.
        await eventually(lambda: neighbour.confirmed)
        assert metrics.get("gateway_broker_connections_total") == 2


async def test_a_refused_exchange_ends_one_connection_at_most(metrics, broker, monkeypatch):
    monkeypatch.setattr(publisher_module, "REFUSED", 1.0)
    rights = r"^(amq\.default|celery)$"
    broker.ctl("add_user", "some", "some")
    broker.ctl("set_permissions", "some", ".*", rights, ".*")
    routes = [{"path": "/", "queue": QUEUE}, {"path": "/e", "exchange": "amq.fanout"}]
    some = Config(broker_url=broker.url.replace("guest:guest", "some:some"), routes=routes)

    def to_exchange() -> PendingTask:
        made = pending()
        made.message.options = MessageOptions(exchange="amq.fanout")
        return made

    async with started(Publisher(some, metrics)) as publisher:
        assert (await publish(publisher, to_exchange())).error is not None
        await eventually(lambda: not publisher.error)
        connection = publisher.connection

        with pytest.raises(Unroutable, match="refuses the exchange amq.fanout"):
            publisher.publish(to_exchange())
        assert (await publish(publisher)).confirmed
        assert publisher.connection is connection

        # It is tried again later, when the account may have the right.
        broker.ctl("set_permissions", "some", ".*", ".*", ".*")
        await eventually(lambda: publisher._refused["amq.fanout"] < monotonic())
        taken = await publish(publisher, to_exchange())
        assert "The exchange amq.fanout routes" in str(taken.error)


async def test_a_connection_that_lasted_comes_back_without_a_pause(broker, metrics, monkeypatch):
    # Given pauses that are longer than this test,
    monkeypatch.setattr(publisher_module, "BACKOFF", (10 * TIMEOUT, 10 * TIMEOUT))
    monkeypatch.setattr(publisher_module, "STEADY", 0.1)
    lost = []

    async with started(
        Publisher(config(broker), metrics, on_lost=lambda: lost.append(1))
    ) as publisher:
        for _ in range(3):
            await eventually(lambda: not publisher.error)
            # when a connection has lasted for as long as it has to, and goes,
            await asyncio.sleep(2 * publisher_module.STEADY)
            lost.clear()
            cut(publisher)
            await eventually(lambda: lost)
        # then it is back within the test's time.
        await eventually(lambda: not publisher.error)


async def test_what_ends_a_channel_while_it_is_prepared_is_told_at_once(broker, metrics):
    began = monotonic()

    async def consume(channel, _scanner) -> None:
        declare = partial(channel.queue_declare, "a-queue-that-nobody-makes", passive=True)
        await broker_module.rpc(channel, declare)

    async with started(Publisher(config(broker), metrics, consume), ready=False) as publisher:
        await eventually(lambda: "NOT_FOUND" in publisher.error)

    assert monotonic() - began < broker_module.CONNECT_TIMEOUT


async def test_a_broker_that_does_not_read_is_given_so_much_and_no_more(broker, metrics):
    most = 1024 * 1024

    async with started(Publisher(config(broker, max_in_flight_bytes=most), metrics)) as publisher:
        with broker.frozen():
            # What fits into the kernel's buffers has to be filled first.
            with pytest.raises(BrokerUnavailable, match="The broker does not read"):
                for _ in range(50):
                    publisher.publish(pending(b'"%s"' % (b"x" * most)))
                    await asyncio.sleep(0)
            transport = publisher._connection._transport
            assert most <= transport.get_write_buffer_size() <= 3 * most
        await eventually(lambda: publisher._connection.writable)
        assert (await publish(publisher)).confirmed


async def test_an_alarm_is_noticed_by_who_connects_and_publishes_nothing(broker, metrics):
    with ExitStack() as alarm:
        alarm.enter_context(broker.alarm())
        async with started(Publisher(config(broker), metrics), ready=False) as publisher:
            await eventually(lambda: publisher.error.startswith("blocked: "))
            await asyncio.to_thread(alarm.close)
            await eventually(lambda: not publisher.error)


@pytest.mark.parametrize(("kind", "more"), [("classic", 0), ("quorum", 1)])
async def test_a_quorum_queue_that_takes_nothing_since_an_outage_is_tried_on_another_connection(
    broker, metrics, monkeypatch, kind, more
):
    queue = f"full-{kind}"
    routes = [Route(path="/", task="task", queue=queue, queue_type=kind)]
    losses = 0
    # Each loss lasts, by the publisher's clock.
    long = 2 * publisher_module.SETTLING
    monkeypatch.setattr(publisher_module, "monotonic", lambda: monotonic() + losses * long)

    def on_lost() -> None:
        nonlocal losses
        losses += 1

    def connections() -> float:
        return metrics.get("gateway_broker_connections_total")

    async def published(publisher: Publisher) -> str:
        """Publish once; return what the broker says of it."""
        await eventually(lambda: not publisher.error)
        one = await publish(publisher, pending(queue=queue))
        return "confirmed" if one.confirmed else one.error.type

    async with started(
        Publisher(config(broker, routes=routes), metrics, on_lost=on_lost)
    ) as publisher:
        # Given a queue that has taken messages until it was full,
        assert await published(publisher) == "confirmed"
        policy = '{"max-length": 1, "overflow": "reject-publish"}'
        broker.ctl("set_policy", "full", f"^{queue}$", policy, "--apply-to", "queues")
        try:
            while await published(publisher) != "rejected":
                pass
            # then nothing is wrong with the connection,
            assert (connections(), publisher.error) == (1, "")
            # but when it has taken nothing since an outage, however long, there may be,
            cut(publisher)
            await eventually(lambda: losses)
            assert await published(publisher) == "rejected"
            await eventually(lambda: connections() == 2 + more)
            # until that has been tried for long enough.
            for _ in range(3):
                assert await published(publisher) == "rejected"
            assert (connections(), publisher.error) == (2 + more, "")
        finally:
            broker.ctl("clear_policy", "full")


async def test_no_silent_broker_keeps_a_stopped_publishers_connection(broker, metrics, monkeypatch):
    monkeypatch.setattr(broker_module, "CONNECT_TIMEOUT", 1.0)
    sockets = []

    try:
        async with started(Publisher(config(broker), metrics)) as publisher:
            sockets.append(publisher._connection._transport.get_extra_info("socket"))
            broker.freeze()
            await publisher.stop()
            assert sockets[0].fileno() == -1
    finally:
        broker.thaw()


async def test_a_publisher_that_stops_while_it_connects_ends_at_once(broker, metrics, monkeypatch):
    transports: asyncio.Queue[asyncio.Transport] = asyncio.Queue()

    async def never_ready(connection: TurnConnection, _: object) -> None:
        transports.put_nowait(connection._transport)
        await asyncio.Event().wait()

    monkeypatch.setattr(broker_module, "ensure_queues", never_ready)
    publisher = Publisher(config(broker), metrics)
    await publisher.start()
    transport = await transports.get()
    await publisher.stop()
    assert transport.is_closing()


def behind(proxy: Proxy, broker: RabbitMQ, query: str = "") -> str:
    return broker.url.replace(f":{broker.port}/", f":{proxy.port}/") + query


async def test_a_silently_dead_connection_is_given_up(metrics, broker, proxy, caplog, monkeypatch):
    """Nothing tells of it but the missing confirm; heartbeats would need 20 s to."""
    urls = [behind(proxy, broker), broker.url]

    monkeypatch.setattr(random, "randrange", lambda _: 0)  # the first broker is the first
    one = Config(broker_url=urls, confirm_timeout=0.6)
    async with started(Publisher(one, metrics)) as publisher:
        proxy.stall()
        assert (await publish(publisher)).error is not None
        await eventually(lambda: publisher.url == broker.url)
        assert (await publish(publisher)).confirmed
        # What the new connection does not answer yet was not asked of it.
        assert caplog.text.count("given up") == 1


async def test_a_connection_without_heartbeats_is_given_up(metrics, broker, proxy, monkeypatch):
    monkeypatch.setattr(random, "randrange", lambda _: 0)
    urls = [behind(proxy, broker, "?heartbeat=1"), broker.url]

    async with started(Publisher(Config(broker_url=urls), metrics)) as publisher:
        proxy.stall()
        await eventually(lambda: publisher.url == broker.url)


async def test_the_second_address_of_a_name_serves_if_one_is_silent(metrics, broker, monkeypatch):
    loop = asyncio.get_running_loop()
    monkeypatch.setattr(broker_module, "CONNECT_TIMEOUT", 1.0)

    with socket.create_server(("127.0.0.1", 0)) as silent:
        ports = silent.getsockname()[1], urlsplit(broker.url).port

        async def addresses(*_: object, **__: object) -> list[tuple]:
            about = socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, ""
            return [(*about, ("127.0.0.1", port)) for port in ports]

        monkeypatch.setattr(loop, "getaddrinfo", addresses)
        async with started(Publisher(config(broker), metrics)) as publisher:
            assert not publisher.error


async def test_a_broker_that_only_confirms_late_keeps_its_connection(metrics, broker, monkeypatch):
    """It answers the question, so the messages time out, and the replies of others still come."""

    async with started(
        Publisher(Config(broker_url=broker.url, confirm_timeout=0.6), metrics)
    ) as publisher:
        channel = publisher._channel
        # Confirms of these messages are never handled, as if a queue had no leader.
        channel.confirms.confirm = lambda *_: None
        publisher.connection._scanner._on_confirm = lambda *_: None
        for _ in range(3):
            assert (await publish(publisher)).error is not None
        assert publisher._channel is channel
