"""AMQP connections for the checks, with functions that return the broker's replies."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any

import pika
from pika.channel import Channel

from gateway.amqp import broker
from gateway.amqp.connection import TurnConnection
from gateway.amqp.publishing_channel import PROBE
from gateway.celery_message import CONTENT_ENCODING, CONTENT_TYPE
from gateway.config.settings import Config
from gateway.metrics import Metrics
from gateway.read_throttling import ReadThrottling
from gateway.strategies.pika_rpc import REPLY_PREFIX

_FAREWELL = 0.2  # seconds for closing, for which a broker in an alarm does not answer


@asynccontextmanager
async def connected(url: str, config: Config) -> AsyncIterator[TurnConnection]:
    """Open a connection to the broker at `url`; raises one of `broker.ERRORS`."""
    closed = asyncio.Event()
    metrics = Metrics()
    try:
        connection = await broker.open_connection(
            url, config.tls, lambda *_: closed.set(), ReadThrottling(metrics)
        )
        try:
            yield connection
        finally:
            broker.close(connection)
            with suppress(TimeoutError):
                await asyncio.wait_for(closed.wait(), _FAREWELL)
            connection.abort()
            with suppress(TimeoutError):
                await asyncio.wait_for(closed.wait(), _FAREWELL)
    finally:
        metrics.close()


async def blocked(connection: TurnConnection) -> str:
    """Publish a message that no queue gets; return the alarm that blocks the broker, or "".

    The broker tells only connections that publish, and then does not read from them any more.
    Raises pika's AMQPError, with 403 where the account may not publish.
    """
    answered: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def resolve(reason: str) -> None:
        if not answered.done():
            answered.set_result(reason)

    def fail(exc: BaseException) -> None:
        if not answered.done():
            answered.set_exception(exc)

    connection.add_on_connection_blocked_callback(lambda _, frame: resolve(frame.method.reason))
    channel = await broker.open_channel(connection)
    confirmed = partial(channel.confirm_delivery, lambda _: resolve(""))
    await broker.rpc(channel, confirmed)
    channel.add_on_close_callback(lambda _, exc: fail(exc))
    channel.basic_publish("", PROBE, b"")
    return await answered


async def declare(connection: TurnConnection, queue: str, **options: Any) -> Any:
    """Declare `queue` on a channel of its own; return the broker's reply.

    Raises pika's AMQPError, with the reason why the broker refuses it.
    """
    channel = await broker.open_channel(connection)
    replies = []

    def call(callback: Any) -> None:
        def declared(frame: Any) -> None:
            replies.append(frame.method)
            callback(frame)

        channel.queue_declare(queue, callback=declared, **options)

    await broker.rpc(channel, call)
    channel.close()
    return replies[0]


class Exchange:
    """Publishes messages and collects the replies to them."""

    def __init__(self, connection: TurnConnection, channel: Channel, reply_to: str):
        self.connection = connection
        self._channel = channel
        self.reply_to = reply_to
        #: Properties and body of each reply.
        self.replies: asyncio.Queue[tuple[pika.BasicProperties, bytes]] = asyncio.Queue()
        self._returned = False
        self._confirmed: asyncio.Future[None] | None = None

    async def publish(
        self, exchange: str, key: str, body: bytes, headers: Mapping[str, Any], **options: Any
    ) -> bool:
        """Publish to `exchange`; tell whether any queue has got the message.

        Raises pika's AMQPError, with 403 where the exchange may not be used, and 404 where it is
        missing.
        """
        self._returned = False
        properties = pika.BasicProperties(
            CONTENT_TYPE, CONTENT_ENCODING, dict(headers), delivery_mode=1, **options
        )
        self._channel.basic_publish(exchange, key, body, properties, mandatory=True)
        self._confirmed = asyncio.get_running_loop().create_future()
        await self._confirmed
        return not self._returned

    def _on_return(self, *_: Any) -> None:
        self._returned = True

    def _on_confirm(self, _: Any) -> None:
        if self._confirmed is not None and not self._confirmed.done():
            self._confirmed.set_result(None)

    def _on_close(self, _: Channel, exc: BaseException) -> None:
        if self._confirmed is not None and not self._confirmed.done():
            self._confirmed.set_exception(exc)

    def _on_reply(self, _: Any, __: Any, properties: pika.BasicProperties, body: bytes) -> None:
        self.replies.put_nowait((properties, body))


async def open_exchange(connection: TurnConnection) -> Exchange:
    """Declare a queue for replies, which exists as long as `connection`, and consume it.

    Raises pika's AMQPError, with 403 where the account may not do that.
    """
    channel = await broker.open_channel(connection)
    exchange = Exchange(connection, channel, f"{REPLY_PREFIX}check-{secrets.token_hex(8)}")
    channel.add_on_return_callback(exchange._on_return)
    channel.add_on_close_callback(exchange._on_close)
    queue = {"exclusive": True, "auto_delete": True}
    await broker.rpc(
        channel, lambda done: channel.queue_declare(exchange.reply_to, callback=done, **queue)
    )
    await broker.rpc(
        channel,
        lambda done: channel.basic_consume(
            exchange.reply_to, exchange._on_reply, auto_ack=True, callback=done
        ),
    )
    await broker.rpc(channel, partial(channel.confirm_delivery, exchange._on_confirm))
    return exchange
