"""A connection that is lost between a look at it and a write, on each of the loops."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
import struct
from pathlib import Path
from threading import Thread

import pika
import pytest
import redis.asyncio

from gateway.amqp import broker
from gateway.amqp.publisher import Publisher
from gateway.amqp.remote_control import RemoteControl
from gateway.config.settings import TLS, Config
from gateway.errors import GatewayError, Unanswered
from gateway.http.stream import Stream
from gateway.read_throttling import ReadThrottling
from gateway.relay.limits import Limits
from gateway.stores import pipeline, redis_client, result_store
from gateway.stores.pipeline import results_of
from gateway.stores.subscription import Subscription
from gateway.strategies.pika_strategy import CONSUMER, PikaRPC
from tests.support.parts import pipeline_to, started
from tests.support.stack import RabbitMQ, free_port
from tests.support.waiting import eventually

pytestmark = pytest.mark.usefixtures("each_loop", "patient")


class Losing:
    """Has the next connections of redis-py's pools lost once they were looked at."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch):
        pool = redis.asyncio.ConnectionPool
        ensure, self.lost = pool.ensure_connection, 0
        self.more = 0

        async def ensure_connection(this, connection) -> None:
            await ensure(this, connection)
            if self.more:
                self.more -= 1
                self.lost += 1
                connection._writer.transport.abort()
                await connection._writer.wait_closed()

        monkeypatch.setattr(pool, "ensure_connection", ensure_connection)


@pytest.fixture
def losing(monkeypatch) -> Losing:
    return Losing(monkeypatch)


async def test_a_broker_that_resets_connections_at_once_leaves_nothing_behind(monkeypatch):
    # Given a broker that resets whatever it accepts, and connectors that have little time,
    monkeypatch.setattr(broker, "CONNECT_TIMEOUT", 0.2)
    errors: list[dict] = []

    with socket.create_server(("127.0.0.1", 0)) as resetting:
        thread = Thread(target=reset_all, args=[resetting])
        thread.start()
        before = sockets()
        try:
            loop = asyncio.get_running_loop()
            loop.set_exception_handler(lambda _, context: errors.append(context))
            url = f"amqp://127.0.0.1:{resetting.getsockname()[1]}//"

            # when one connection after the other is tried,
            for _ in range(100):
                with pytest.raises(broker.ERRORS):
                    await broker.open_connection(
                        url, TLS(), lambda *_: None, ReadThrottling(lambda: 0)
                    )
            await asyncio.sleep(2 * broker.CONNECT_TIMEOUT)  # until every connector's time is up
            after = sockets()
        finally:
            resetting.shutdown(socket.SHUT_RDWR)
            thread.join()

    # then each one has failed, none fails once more when that is over, and all is closed.
    assert errors == []
    # What earlier tests have left open may be closed by now.
    assert after <= before


def sockets() -> set[str]:
    """Return the inodes of the sockets that this process has open."""
    return {str(link.readlink()) for link in Path("/proc/self/fd").iterdir() if link.is_socket()}


def reset_all(listening: socket.socket) -> None:
    """Reset each connection as soon as it is there, until `listening` is shut down."""
    while True:
        try:
            accepted, _ = listening.accept()
        except OSError:
            return
        with accepted:
            accepted.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


async def test_commands_fail_with_their_connection_and_the_next_do_not(losing, redis_server):
    async with started(pipeline_to(redis_server.url)) as some:
        losing.more = 1
        with pytest.raises(Unanswered):
            await some.run("PING")
        assert await some.run("PING") == b"PONG"
    assert losing.lost == 1


async def test_a_store_is_missed_and_found_again(losing, redis_server, metrics, monkeypatch):
    monkeypatch.setattr(pipeline, "PING", 0.01)
    config = Config(result_backend=redis_server.url)

    store = results_of(config, metrics)
    found = asyncio.Event()
    store.on_connected.append(found.set)
    losing.more = 2
    async with started(store):
        await found.wait()
        assert losing.lost == 2 and not store.error
        assert await store.run("MGET", "a", "b") == [None, None]


async def test_an_end_of_tls_without_an_answer_ends_nothing_else(redis_server, monkeypatch):
    async def close(client: redis.asyncio.Redis, *_: object) -> None:
        raise redis.exceptions.TimeoutError("Timed out closing connection after 1")

    async with started(pipeline_to(redis_server.url)) as some:
        me = await some.run("CLIENT", "ID")
        monkeypatch.setattr(redis.asyncio.Redis, "aclose", close)
        ended = some.run("CLIENT", "KILL", "ID", me, "SKIPME", "no")
        with pytest.raises(Unanswered):
            await some.run("PING")
        assert await ended == 1
        assert await some.run("PING") == b"PONG"


@pytest.mark.parametrize("scheme", ["rediss://{}", "sentinel://{};sentinel://{}?ssl=true"])
async def test_a_store_that_is_away_costs_one_context_of_tls(certificates, monkeypatch, scheme):
    url = scheme.format(*(f"127.0.0.1:{free_port()}" for _ in range(2)))
    config = Config(result_backend=url, tls=certificates.client)
    made, make = [], ssl.create_default_context
    monkeypatch.setattr(ssl, "create_default_context", lambda: made.append(0) or make())
    monkeypatch.setattr(pipeline, "REFUSED", 0.0)
    redis_client._context.cache_clear()

    for number in (1, 2):
        async with pipeline.asking(config) as run:
            for _ in range(5):
                with pytest.raises(GatewayError):
                    await run("PING")
        assert len(made) == number
        # Whoever replaces a file is served with what is in it now.
        os.utime(config.tls.ca, (number, number))


async def test_who_asks_once_is_told(losing, redis_server):
    config = Config(result_backend=redis_server.url)

    losing.more = 2
    async with pipeline.asking(config) as ask:
        with pytest.raises(GatewayError, match="start it, or correct result_backend"):
            await ask("PING")


async def test_a_subscription_is_lost_and_opened_again(losing, redis_server):
    config = Config(result_backend=redis_server.url)

    losing.more = 2
    async with started(Subscription(lambda: result_store.connect(config), "test")) as subscription:
        await eventually(lambda: losing.lost == 2 and not subscription.error)


async def test_a_reply_queue_that_comes_too_late_is_not_consumed(rabbitmq: RabbitMQ, metrics):
    # Given a connection that is closed, as it took too long, while it declares its reply queue,
    loop, errors = asyncio.get_running_loop(), []
    loop.set_exception_handler(lambda _, context: errors.append(context))
    closed = loop.create_future()
    connection = await broker.open_connection(
        rabbitmq.url, TLS(), lambda *_: closed.set_result(None), ReadThrottling(lambda: 0)
    )
    channel = await broker.open_channel(connection)
    scanner = connection.scan(channel.channel_number, lambda *_: None)
    strategy = PikaRPC(Config(strategy="pika", broker_url=rabbitmq.url), metrics, "prefix")
    consuming = asyncio.create_task(strategy._consume(channel, scanner))
    await asyncio.sleep(0)
    connection.close()

    # when the queue is there before the end of the connection,
    await closed

    # then only what opens the connection hears of it.
    with pytest.raises(pika.exceptions.AMQPError):
        await consuming
    assert errors == []


async def test_a_reply_queue_that_goes_while_its_connection_closes(rabbitmq: RabbitMQ, metrics):
    strategy = PikaRPC(Config(strategy="pika", broker_url=rabbitmq.url), metrics, "prefix")
    await strategy.start()
    await eventually(lambda: not strategy.checks()["broker"])
    connection = strategy.publisher.connection
    number = strategy.publisher._channel._channel.channel_number
    gone = pika.frame.Method(number, pika.spec.Basic.Cancel(CONSUMER, True)).marshal()
    # The broker's last words come after the beginning of the end.
    connection.close()
    connection._on_data_available(gone)
    publisher = strategy.publisher
    await eventually(lambda: not publisher.error and publisher.connection is not connection)
    assert connection.is_closed
    await strategy.stop()


async def test_a_queue_for_answers_that_is_deleted_is_replaced(rabbitmq: RabbitMQ, metrics):
    publisher = Publisher(Config(broker_url=rabbitmq.url), metrics)
    control = RemoteControl(publisher, list)
    async with started(publisher, control), asyncio.timeout(30):
        await control._opened.wait()
        first = control._reply_to
        rabbitmq.ctl("delete_queue", first)  # as an operator may, though it is exclusive
        await eventually(lambda: not control._opened.is_set())
        await control._opened.wait()
        assert control._reply_to != first


async def test_what_is_written_to_a_lost_broker_goes_nowhere(rabbitmq: RabbitMQ, metrics):
    async with started(Publisher(Config(broker_url=rabbitmq.url), metrics)) as publisher:
        await eventually(lambda: not publisher.error)
        connection = publisher._connection
        number = connection._transport.get_extra_info("socket").fileno()
        with socket.socket(fileno=os.dup(number)) as same:
            same.shutdown(socket.SHUT_RDWR)
        while connection._transport is not None:
            connection._send_frame(pika.frame.Heartbeat())
            await asyncio.sleep(0)
        connection.send(b"frames")
        connection._flush()
        connection.limit_writes(1)
        await eventually(lambda: not publisher.error and publisher._connection is not connection)


async def test_a_refused_client_that_resets_leaves_nothing_behind():
    gone = asyncio.Event()
    stream = Stream(60, 60, Limits(Config()), lambda _stream: gone.set())
    ours, theirs = tcp_pair()
    await asyncio.get_running_loop().connect_accepted_socket(lambda: stream, ours)
    # Given a client that resets its connection, which the loop has not seen yet,
    theirs.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    theirs.close()
    # when its request is refused, then it is closed, and can be written to and closed again.
    stream._refused = True
    stream.close()
    await gone.wait()
    stream.send(b"late")
    stream.close()
    stream.abort()


def tcp_pair() -> tuple[socket.socket, socket.socket]:
    """Return both ends of a connection, the accepting one first."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        theirs = socket.create_connection(listener.getsockname())
        ours, _ = listener.accept()
    ours.setblocking(False)
    return ours, theirs
