"""Ask workers and other gateways about dynamic queues, over the publisher's connection."""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import pika
from pika.channel import Channel

from gateway.amqp import broker, pidbox
from gateway.amqp.broker import describe
from gateway.amqp.connection import TurnConnection
from gateway.amqp.publisher import Publisher
from gateway.background import Service, Work
from gateway.backoff import Backoff
from gateway.errors import BrokerUnavailable

log = logging.getLogger(__name__)

#: The exchange for questions to the gateways of a virtual host.
GATEWAYS = "gateway.siblings"
#: The exchange to which workers bind dynamic queues, as Celery binds each queue to one. Nothing is
#: published to it, so that its many changes disturb no publisher. `appserver.queues` knows it, too.
DYNAMIC = "gateway.dynamic"

ANSWERS = 1.0  # seconds in which workers and gateways answer
_SETTLED = 0.1  # seconds after a worker's answer in which those of other idle workers come
_LOOK_AGAIN = 0.1  # seconds until it looks for a connection again
_PAUSE = (0.5, 30.0)  # seconds before the channel is opened again: the first, the longest
_LONGEST = 63  # characters of a ticket, and of a queue for answers: AMQP allows 255 bytes

#: The queues that a worker consumes, and whether each of them is dynamic.
Consumed = dict[str, bool]


class RemoteControl(Service):
    """Has one channel, which is opened again after each loss; questions wait for it.

    `in_use` tells which of the queues that another gateway asks about are in use here.
    """

    def __init__(self, publisher: Publisher, in_use: Callable[[Collection[str]], list[str]]):
        self._publisher = publisher
        self._in_use = in_use
        self._channel: Channel | None = None
        self._opened = asyncio.Event()
        self._reply_to = ""
        self._asked: dict[str, asyncio.Queue[Any]] = {}

    def _work(self) -> Work:
        yield "remote control", self._keep_open()

    async def stop(self) -> None:
        await super().stop()
        if self._channel is not None and self._channel.is_open:
            self._channel.close()

    def tell(self, command: str, workers: Collection[str], arguments: Mapping[str, Any]) -> None:
        """Send a command to `workers`. Raises `BrokerUnavailable`."""
        pidbox.publish(self._ready(), command, arguments, sorted(workers))

    async def consumed(self, hurry: bool = False) -> dict[str, Consumed]:
        """Return for each worker that answers which queues it consumes.

        `hurry`: it does not wait for workers that answer much later than the first. Raises
        `BrokerUnavailable`.
        """
        found: dict[str, Consumed] = {}
        await self._opened.wait()
        with self._ticket() as (ticket, answers):
            reply = {"ticket": ticket, "reply_to": self._reply_to}
            pidbox.publish(self._ready(), "active_queues", {}, **reply)
            async for answer in _until(answers, _SETTLED if hurry else ANSWERS):
                for worker, queues in answer.items() if isinstance(answer, dict) else ():
                    if isinstance(queues, list):  # an error is a dict
                        known = [each for each in queues if isinstance(each, dict)]
                        found[worker] = {str(each.get("name")): _dynamic(each) for each in known}
        return found

    async def used_elsewhere(self, queues: Collection[str]) -> set[str]:
        """Return those of `queues` that other gateways use. Raises `BrokerUnavailable`."""
        used: set[str] = set()
        await self._opened.wait()
        with self._ticket() as (ticket, answers):
            asked = sorted(queues)
            _publish(self._ready(), GATEWAYS, "", asked, ticket=ticket, reply_to=self._reply_to)
            async for answer in _until(answers, ANSWERS):
                used.update(_texts(answer))
        return used

    def _ready(self) -> Channel:
        """Return the channel; raises `BrokerUnavailable` while it is not open."""
        if self._channel is None or not self._channel.is_open:
            raise BrokerUnavailable
        return self._channel

    @contextmanager
    def _ticket(self) -> Iterator[tuple[str, asyncio.Queue[Any]]]:
        """Give a ticket and the queue of the answers that have it."""
        ticket, answers = secrets.token_hex(16), asyncio.Queue[Any]()
        self._asked[ticket] = answers
        try:
            yield ticket, answers
        finally:
            del self._asked[ticket]

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
            except (*broker.ERRORS, TimeoutError) as exc:
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
        """Take an answer, or answer another gateway. Called by pika."""
        headers, answer = properties.headers or {}, pidbox.decode(body)
        # Cut off, as whoever sends what is too long would end the connection of all messages.
        ticket, reply_to = (str(headers.get(x, ""))[:_LONGEST] for x in ("ticket", "reply_to"))
        if answer is None:
            # Not a warning: whoever may publish to the virtual host could fill the log.
            log.debug("a message to the queue for answers is not JSON, and is ignored")
            return
        if ticket in self._asked:
            if not reply_to:  # it is not our own question
                self._asked[ticket].put_nowait(answer)
        elif reply_to and (used := self._in_use(_texts(answer))):
            # The first question may come before `_open` has returned the channel.
            _publish(channel, "", reply_to, used, ticket=ticket)


def _publish(channel: Channel, exchange: str, routing_key: str, body: Any, **headers: Any) -> None:
    properties = pika.BasicProperties(headers=headers)
    channel.basic_publish(exchange, routing_key, json.dumps(body).encode(), properties)


def _dynamic(queue: Mapping[str, Any]) -> bool:
    exchange = queue.get("exchange")
    return isinstance(exchange, dict) and exchange.get("name") == DYNAMIC


def _texts(value: Any) -> list[str]:
    return [each for each in value if isinstance(each, str)] if isinstance(value, list) else []


async def _until(answers: asyncio.Queue[Any], settled: float) -> AsyncIterator[Any]:
    """Yield answers for `ANSWERS` seconds, or until none has come for `settled` after the first."""
    loop = asyncio.get_running_loop()
    end = loop.time() + ANSWERS
    while True:
        try:
            async with asyncio.timeout_at(end):
                answer = await answers.get()
        except TimeoutError:
            return
        yield answer
        end = min(end, loop.time() + settled)
