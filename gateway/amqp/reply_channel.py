"""Questions to workers and gateways; connections for the checks, and an alarm of the broker."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any, Self

from kombu.utils.url import maybe_sanitize_url
from pika import BasicProperties
from pika.channel import Channel
from pika.exceptions import ChannelClosedByBroker
from pika.spec import Connection

from gateway.amqp import broker, pidbox
from gateway.amqp.connection import TurnConnection
from gateway.amqp.publishing_channel import PROBE
from gateway.background import happens
from gateway.config.settings import Config
from gateway.errors import GatewayError
from gateway.read_throttling import ReadThrottling

ANSWERS = 1.0  # seconds in which workers and gateways usually answer
_FAREWELL = 0.2  # seconds for closing, for which a broker in an alarm does not answer


@asynccontextmanager
async def connected(url: str, config: Config) -> AsyncIterator[TurnConnection]:
    """Open a connection to the broker at `url`; raises one of `broker.ERRORS`."""
    closed = asyncio.Event()
    connection = await broker.open_connection(
        url, config.tls, lambda *_: closed.set(), ReadThrottling(lambda: 0)
    )
    try:
        yield connection
    finally:
        broker.close(connection)
        await happens(closed, _FAREWELL)
        connection.abort()
        await happens(closed, _FAREWELL)


@asynccontextmanager
async def connected_to_any(config: Config) -> AsyncIterator[TurnConnection]:
    """Open a connection to the first broker of the list that answers.

    Raises `GatewayError` with what is wrong at which broker, also where the connection is lost.
    """
    if not config.amqp:
        raise GatewayError("broker_url leads to no AMQP broker, which is needed for this")
    problems: list[str] = []
    async with AsyncExitStack() as stack:
        for url in config.brokers:
            try:
                async with asyncio.timeout(broker.CONNECT_TIMEOUT):
                    connection = await stack.enter_async_context(connected(url, config))
                break
            except broker.ERRORS as exc:
                problems.append(_problem(url, exc))
        else:
            remedy = "start it, or correct broker_url (GATEWAY_BROKER_URL, --broker)"
            raise GatewayError(f"{'; '.join(problems)}; {remedy}")
        try:
            yield connection
        except broker.ERRORS as exc:
            raise GatewayError(_problem(url, exc)) from exc


def _problem(url: str, exc: BaseException) -> str:
    what = "no answer in time" if isinstance(exc, TimeoutError) else broker.describe(exc)
    return f"{maybe_sanitize_url(url)}: {what}"


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

    def __init__(self, channel: Channel):
        self.connection: TurnConnection = channel.connection
        self._channel = channel
        self.reply_to = ""
        #: Properties and body of each reply.
        self.replies: asyncio.Queue[tuple[BasicProperties, bytes]] = asyncio.Queue()
        self._returned = False

    async def open(self) -> Self:
        """Raises pika's AMQPError, with 403 where the account may not consume."""
        self._channel.add_on_return_callback(self._on_return)
        self.reply_to = await broker.consume_replies(self._channel, self._on_reply)
        return self

    async def publish(
        self, exchange: str, key: str, body: bytes, properties: BasicProperties
    ) -> bool:
        """Publish to `exchange`; tell whether any queue has got the message.

        Raises pika's AMQPError, with 403 where the exchange may not be used, and 404 where it is
        missing.
        """
        self._returned = False
        self._channel.basic_publish(exchange, key, body, properties, mandatory=True)
        # The broker answers this after it has returned the message, or closed the channel. A
        # confirm would wait for the queues, and so for one whose node is frozen.
        await broker.rpc(self._channel, self._channel.basic_qos)
        return not self._returned

    async def ask(self, question: str, arguments: Mapping[str, Any]) -> bool:
        """Send a command to all workers; tell whether any receives it.

        The ticket of their answers is the `question`. Raises pika's AMQPError, with 403 where the
        account may not ask.
        """
        body = pidbox.encode(question, arguments, reply_to=self.reply_to)
        try:
            return await self.publish(pidbox.EXCHANGE, "", body, pidbox.PROPERTIES)
        except ChannelClosedByBroker as exc:
            if exc.reply_code == 404:  # no worker has ever been connected to this broker
                return False
            raise

    async def collect(self, take: Callable[[str, Any], float], until: float) -> None:
        """Pass the ticket and the content of each answer to `take`; None: it is not JSON.

        It ends at `until` (loop time), which `take` returns anew.
        """
        with suppress(TimeoutError):
            while True:
                async with asyncio.timeout_at(until):
                    properties, body = await self.replies.get()
                until = take(str((properties.headers or {}).get("ticket")), pidbox.decode(body))

    async def answers(self, settled: float = ANSWERS) -> list[Any]:
        """Return what is answered within `ANSWERS`, or until `settled` seconds after the first."""
        loop, found = asyncio.get_running_loop(), list[Any]()
        end = loop.time() + ANSWERS

        def take(_ticket: str, answer: Any) -> float:
            nonlocal end
            found.append(answer)
            end = min(end, loop.time() + settled)
            return end

        await self.collect(take, end)
        return found

    def _on_return(self, *_: Any) -> None:
        self._returned = True

    def _on_reply(self, _: Any, __: Any, properties: BasicProperties, body: bytes) -> None:
        self.replies.put_nowait((properties, body))
