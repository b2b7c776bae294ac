"""Ask workers and other gateways about dynamic queues, over the publisher's connection."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any

from pika import BasicProperties
from pika.channel import Channel
from pika.exceptions import ChannelClosedByBroker

from gateway.amqp import broker, pidbox
from gateway.amqp.broker import describe
from gateway.amqp.connection import TurnConnection
from gateway.amqp.publisher import Publisher
from gateway.amqp.reply_channel import ANSWERS, ReplyChannel
from gateway.amqp.workers import Answers, ask_one
from gateway.background import Service, Work
from gateway.backoff import Backoff
from gateway.errors import BrokerUnavailable

log = logging.getLogger(__name__)

#: The exchange for questions to the gateways of a virtual host.
GATEWAYS = "gateway.siblings"

_SETTLED = 0.1  # seconds after a worker's answer in which those of other idle workers come
_LOOK_AGAIN = 0.1  # seconds until it looks for a connection again
_PAUSE = (0.5, 30.0)  # seconds before the channel is opened again: the first, the longest
_LONGEST = 63  # characters of a ticket, and of a queue for answers: AMQP allows 255 bytes


class RemoteControl(Service):
    """Is asked on one channel, which is opened again after each loss, and asks on others.

    `in_use` tells which of the queues that another gateway asks about are in use here.
    """

    def __init__(self, publisher: Publisher, in_use: Callable[[Collection[str]], list[str]]):
        self._publisher = publisher
        self._in_use = in_use
        self._channel: Channel | None = None
        self._opened = asyncio.Event()
        self._reply_to = ""

    def _work(self) -> Work:
        yield "remote control", self._keep_open()

    async def stop(self) -> None:
        await super().stop()
        if self._channel is not None and self._channel.is_open:
            self._channel.close()

    def tell(self, command: str, workers: Collection[str], arguments: Mapping[str, Any]) -> None:
        """Send a command to `workers`. Raises `BrokerUnavailable`."""
        pidbox.publish(self._ready(), command, arguments, sorted(workers))

    async def consumed(self, hurry: bool = False) -> Answers:
        """Return the answers of workers, each with the queues that it consumes.

        `hurry`: it does not wait for workers that answer much later than the first. Raises
        `BrokerUnavailable`, or pika's AMQPError.
        """
        await self._opened.wait()
        connection, settled = self._ready().connection, _SETTLED if hurry else ANSWERS
        try:
            return await ask_one(connection, "active_queues", settled)
        except ChannelClosedByBroker as exc:  # the account may not ask
            log.info("workers cannot be asked about dynamic queues: %s", describe(exc))
            return Answers()

    async def used(self, queues: Collection[str]) -> set[str]:
        """Return those of `queues` that gateways use. Raises as `consumed` does."""
        await self._opened.wait()
        async with broker.own_channel(self._ready().connection) as own:
            channel = await ReplyChannel(own).open()
            about = BasicProperties(headers={"reply_to": channel.reply_to})
            await channel.publish(GATEWAYS, "", json.dumps(sorted(queues)).encode(), about)
            return {queue for answer in await channel.answers() for queue in _texts(answer)}

    def _ready(self) -> Channel:
        """Return the channel; raises `BrokerUnavailable` while it is not open."""
        if self._channel is None or not self._channel.is_open:
            raise BrokerUnavailable
        return self._channel

    # Channel ----------------------------------------------------------------------------

    async def _keep_open(self) -> None:
        backoff = Backoff(*_PAUSE)
        while True:
            connection = self._publisher.connection
            if connection is None:
                await asyncio.sleep(_LOOK_AGAIN)
                continue
            closed = asyncio.Event()
            try:
                async with asyncio.timeout(broker.CONNECT_TIMEOUT):
                    self._channel = await self._open(connection, closed)
                backoff.reset()
                self._opened.set()
                await closed.wait()
            except broker.ERRORS as exc:
                log.warning("cannot ask workers about dynamic queues: %s", describe(exc))
            self._channel = None
            self._opened.clear()
            await asyncio.sleep(backoff.next())

    async def _open(self, connection: TurnConnection, closed: asyncio.Event) -> Channel:
        channel = await broker.open_channel(connection)

        def on_closed(_channel: Channel, exc: BaseException) -> None:
            log.info("the channel for remote control was closed: %s", describe(exc))
            closed.set()

        channel.add_on_close_callback(on_closed)
        try:
            declare = partial(channel.exchange_declare, GATEWAYS, "fanout", durable=True)
            await broker.rpc(channel, declare)
            self._reply_to = await broker.consume_replies(channel, self._on_message)
            await broker.rpc(channel, partial(channel.queue_bind, self._reply_to, GATEWAYS))
        except asyncio.CancelledError:  # it took too long
            if channel.is_open:
                channel.close()
            raise
        return channel

    def _on_message(self, channel: Channel, _method: Any, properties: Any, body: bytes) -> None:
        """Answer a gateway that asks which queues are in use. Called by pika."""
        headers, asked = properties.headers or {}, pidbox.decode(body)
        # Cut off, as whoever sends what is too long would end the connection of all messages.
        ticket, reply_to = (str(headers.get(x, ""))[:_LONGEST] for x in ("ticket", "reply_to"))
        if asked is None:
            # Not a warning: whoever may publish to the virtual host could fill the log.
            log.debug("a message to the queue for questions is not JSON, and is ignored")
        elif reply_to and (used := self._in_use(_texts(asked))):
            # The first question may come before `_open` has returned the channel.
            about = BasicProperties(headers={"ticket": ticket})
            channel.basic_publish("", reply_to, json.dumps(used).encode(), about)


def _texts(value: Any) -> list[str]:
    return [each for each in value if isinstance(each, str)] if isinstance(value, list) else []
