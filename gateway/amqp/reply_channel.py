"""AMQP connections for the checks, an alarm of the broker, and confirmed messages with replies."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from pika import BasicProperties
from pika.channel import Channel
from pika.spec import Connection

from gateway.amqp import broker
from gateway.amqp.connection import TurnConnection
from gateway.amqp.publishing_channel import PROBE
from gateway.background import happens
from gateway.config.settings import Config
from gateway.metrics import Metrics
from gateway.read_throttling import ReadThrottling

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
            await happens(closed, _FAREWELL)
            connection.abort()
            await happens(closed, _FAREWELL)
    finally:
        metrics.close()


async def blocked(connection: TurnConnection) -> str:
    """Publish a message that no queue gets; return the alarm that blocks the broker, or "".

    The broker tells only connections that publish, and then does not read from them any more.
    Raises pika's AMQPError, with 403 where the account may not publish.
    """
    channel = await broker.open_channel(connection)

    def call(callback: Callable[[Any], None]) -> None:
        connection.add_on_connection_blocked_callback(lambda _, frame: callback(frame))
        channel.confirm_delivery(callback)
        channel.basic_publish("", PROBE, b"")

    answer = (await broker.rpc(channel, call)).method
    return answer.reason if isinstance(answer, Connection.Blocked) else ""


class ReplyChannel:
    """Publishes messages, one after the other, and collects the replies to them.

    `channel` is in no other use. `reply_to` is the queue for the replies.
    """

    def __init__(self, connection: TurnConnection, channel: Channel):
        self.connection = connection
        self._channel = channel
        self.reply_to = ""
        #: Properties and body of each reply.
        self.replies: asyncio.Queue[tuple[BasicProperties, bytes]] = asyncio.Queue()
        self._returned = False
        self._confirmed: Callable[[Any], None] = lambda _: None

    async def open(self) -> None:
        """Raises pika's AMQPError, with 403 where the account may not consume."""
        self._channel.add_on_return_callback(self._on_return)
        self.reply_to = await broker.consume_replies(self._channel, self._on_reply)
        confirmed = partial(self._channel.confirm_delivery, lambda frame: self._confirmed(frame))
        await broker.rpc(self._channel, confirmed)

    async def publish(
        self, exchange: str, key: str, body: bytes, properties: BasicProperties
    ) -> bool:
        """Publish to `exchange`; tell whether any queue has got the message.

        Raises pika's AMQPError, with 403 where the exchange may not be used, and 404 where it is
        missing.
        """
        self._returned = False

        def call(callback: Callable[[Any], None]) -> None:
            self._confirmed = callback
            self._channel.basic_publish(exchange, key, body, properties, mandatory=True)

        await broker.rpc(self._channel, call)
        return not self._returned

    def _on_return(self, *_: Any) -> None:
        self._returned = True

    def _on_reply(self, _: Any, __: Any, properties: BasicProperties, body: bytes) -> None:
        self.replies.put_nowait((properties, body))
