"""The asynchronous AMQP publisher: one connection a process, every message confirmed.

pika runs the connection; this class restores it, looks after the routes' queues, and turns
acks, nacks, returns and losses into the ends of `Pending` messages.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import cycle
from time import monotonic
from typing import Any

import pika
from kombu.utils.url import maybe_sanitize_url, parse_url
from pika.adapters.asyncio_connection import AsyncioConnection
from pika.adapters.utils.connection_workflow import AMQPConnectorException
from pika.channel import Channel

from gateway import background, celery_message
from gateway.config import Config, Route
from gateway.errors import (
    BrokerBlocked,
    BrokerUnavailable,
    NotConfirmed,
    Rejected,
    RequestError,
    Unroutable,
)
from gateway.metrics import Metrics
from gateway.pending import Pending

log = logging.getLogger(__name__)

HEARTBEAT = 10  # seconds; a silent broker is given up after twice that
CONNECT_TIMEOUT = 5  # seconds for TCP, TLS and AMQP together
BACKOFF = (0.1, 5.0)  # seconds between attempts: the first, the longest
_SWEEP = 0.1  # seconds between looks at overdue confirms


class TurnConnection(AsyncioConnection):
    """Sends what one turn of the loop has written with one system call, not one a frame."""

    def __init__(self, *args: Any, **kwargs: Any):
        self._turn: list[bytes] = []
        super().__init__(*args, **kwargs)

    def _adapter_emit_data(self, data: bytes) -> None:
        if not self._turn:
            asyncio.get_running_loop().call_soon(self._flush)
        self._turn.append(data)

    def _flush(self) -> None:
        data = b"".join(self._turn)
        self._turn.clear()
        if self._transport is not None:
            super()._adapter_emit_data(data)


class Publisher:
    """Publishes to the default exchange: mandatory, confirmed, never twice.

    `on_channel` is called with each new channel before anything is published on it, so that
    a reply consumer stands on the same one; it calls back when it is ready. `on_lost` is
    called when the connection has gone.
    """

    def __init__(
        self,
        config: Config,
        metrics: Metrics,
        on_channel: Callable[[Channel, Callable[[], None]], None] | None = None,
        on_lost: Callable[[], None] | None = None,
    ):
        self._config = config
        self._metrics = metrics
        self._on_channel = on_channel
        self._on_lost = on_lost
        self._brokers = cycle(config.brokers)
        #: The broker that it is connected to, or was last.
        self.url = config.brokers[0]
        self._connection: TurnConnection | None = None
        self._channel: Channel | None = None
        self._lost = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._sweeper: asyncio.TimerHandle | None = None
        self._trouble = "not connected yet"
        self.blocked = ""
        self._tag = 0
        self._unconfirmed: dict[int, Pending] = {}
        self._returned: set[str] = set()

    @property
    def trouble(self) -> str:
        """What keeps it from publishing, in words; empty when nothing does."""
        return self._trouble or self.blocked

    async def start(self) -> None:
        self._task = background.start(self._keep_connected(), "broker connection")

    async def stop(self) -> None:
        await background.stop(self._task)
        if self._sweeper is not None:
            self._sweeper.cancel()
        if self._connection is not None and self._connection.is_open:
            self._trouble = "stopping"
            self._connection.close()
            # A frozen broker does not say goodbye: the process ends without.
            with suppress(TimeoutError):
                await asyncio.wait_for(self._lost.wait(), CONNECT_TIMEOUT)

    def publish(self, pending: Pending, reply_to: str | None = None) -> None:
        """Publish ``pending.message``; its confirm or error is told to `pending`.

        Raises `BrokerUnavailable` or `BrokerBlocked` where it is known not to be taken.
        """
        if self._channel is None or not self._channel.is_open:
            raise BrokerUnavailable
        if self.blocked:
            raise BrokerBlocked
        message = pending.message
        self._channel.basic_publish(
            "",
            message.queue,
            message.body,
            pika.BasicProperties(
                content_type=celery_message.CONTENT_TYPE,
                content_encoding=celery_message.CONTENT_ENCODING,
                correlation_id=message.task_id,
                reply_to=reply_to,
                delivery_mode=2 if message.persistent else 1,
                headers=message.headers(),
            ),
            mandatory=True,
        )
        pending.sent = monotonic()
        self._tag += 1
        self._unconfirmed[self._tag] = pending
        self._metrics.add("gateway_messages_published_total")
        if self._sweeper is None:
            self._sweeper = asyncio.get_running_loop().call_later(_SWEEP, self._sweep)

    # Confirms ---------------------------------------------------------------------------

    def _on_confirm(self, frame: Any) -> None:
        method = frame.method
        if method.multiple:
            tags = [tag for tag in self._unconfirmed if tag <= method.delivery_tag]
        else:
            tags = [method.delivery_tag]
        acked = isinstance(method, pika.spec.Basic.Ack)
        for tag in tags:
            pending = self._unconfirmed.pop(tag, None)
            if pending is None:  # given up before
                continue
            if not acked:
                self._refuse(pending, Rejected())
            elif self._returned and pending.message.task_id in self._returned:
                self._returned.discard(pending.message.task_id)
                self._refuse(pending, Unroutable(f"The queue {pending.message.queue} is missing."))
            else:
                self._metrics.add("gateway_messages_confirmed_total")
                pending.confirm()

    def _on_return(self, _channel: Channel, method: Any, properties: Any, _body: bytes) -> None:
        # The return comes before the ack of the same message.
        self._returned.add(properties.correlation_id)
        log.warning("message returned: %s (queue %s)", method.reply_text, method.routing_key)

    def _refuse(self, pending: Pending, error: RequestError) -> None:
        self._metrics.add("gateway_messages_refused_total")
        pending.fail(error)

    def _sweep(self) -> None:
        overdue = monotonic() - self._config.confirm_timeout
        for tag, pending in list(self._unconfirmed.items()):
            if pending.sent > overdue:
                break
            del self._unconfirmed[tag]
            self._refuse(pending, NotConfirmed())
        self._sweeper = None
        if self._unconfirmed:
            self._sweeper = asyncio.get_running_loop().call_later(_SWEEP, self._sweep)

    # Connection -------------------------------------------------------------------------

    async def _keep_connected(self) -> None:
        pause = BACKOFF[0]
        while True:
            url = next(self._brokers)
            self._lost.clear()
            try:
                async with asyncio.timeout(CONNECT_TIMEOUT):
                    await self._connect(url)
            except (OSError, pika.exceptions.AMQPError, AMQPConnectorException) as exc:
                self._drop(f"{maybe_sanitize_url(url)}: {_describe(exc)}")
                log.warning("no broker at %s", self._trouble)
                # Jitter keeps processes that lost one broker together from coming back together.
                await asyncio.sleep(pause * random.uniform(0.5, 1.0))
                pause = min(pause * 2, BACKOFF[1])
                continue
            log.info("connected to the broker at %s", maybe_sanitize_url(url))
            self.url = url
            pause = BACKOFF[0]
            await self._lost.wait()

    async def _connect(self, url: str) -> None:
        """Open connection and channel, look at the queues, and begin to publish."""
        loop = asyncio.get_running_loop()
        opened = loop.create_future()
        self._connection = connection = TurnConnection(
            self._parameters(url),
            on_open_callback=lambda c: _resolve(opened, c),
            on_open_error_callback=lambda c, exc: _reject(opened, exc),
            on_close_callback=self._on_closed,
        )
        try:
            await opened
            connection.add_on_connection_blocked_callback(self._on_blocked)
            connection.add_on_connection_unblocked_callback(self._on_unblocked)
            await look_at_queues(connection, self._config.routes)
            channel = await open_channel(connection)
            channel.add_on_return_callback(self._on_return)
            channel.add_on_close_callback(self._on_channel_closed)
            selected = loop.create_future()
            channel.confirm_delivery(self._on_confirm, callback=lambda f: _resolve(selected, f))
            await selected
            if self._on_channel is not None:
                consuming = loop.create_future()
                self._on_channel(channel, lambda: _resolve(consuming, None))
                await consuming
        except BaseException:
            if not (connection.is_closing or connection.is_closed):
                connection.close()
            raise
        self._metrics.add("gateway_broker_connections_total")
        self._channel, self._tag, self._trouble, self.blocked = channel, 0, "", ""

    def _parameters(self, url: str) -> pika.ConnectionParameters:
        # As kombu reads it: in `amqp://host//` and `amqp://host` the virtual host is `/`.
        parts = parse_url(url)
        tls = parts["transport"] == "amqps"
        return pika.ConnectionParameters(
            host=parts["hostname"] or "localhost",
            port=parts["port"] or (5671 if tls else 5672),
            virtual_host=parts["virtual_host"] or "/",
            credentials=pika.PlainCredentials(
                parts["userid"] or "guest", parts["password"] or "guest", erase_on_connect=True
            ),
            heartbeat=HEARTBEAT,
            socket_timeout=CONNECT_TIMEOUT,
            stack_timeout=CONNECT_TIMEOUT,
            ssl_options=pika.SSLOptions(self._config.tls.context(), parts["hostname"])
            if tls
            else None,
            client_properties={"connection_name": "gateway"},
        )

    def _on_closed(self, connection: Any, exc: BaseException) -> None:
        if connection is self._connection:
            if not self._trouble:
                log.warning("connection to the broker lost: %s", _describe(exc))
            self._drop(_describe(exc))
            self._lost.set()

    def _on_channel_closed(self, channel: Channel, exc: BaseException) -> None:
        # A channel alone never comes back: begin anew with the connection.
        if not (channel.connection.is_closing or channel.connection.is_closed):
            log.warning("channel closed: %s", _describe(exc))
            channel.connection.close(reply_text="channel closed")

    def _drop(self, trouble: str) -> None:
        """Give up the connection: nothing unconfirmed on it will ever be confirmed."""
        self._trouble, self._channel = trouble, None
        lost, self._unconfirmed = self._unconfirmed, {}
        self._returned.clear()
        for pending in lost.values():
            self._refuse(pending, BrokerUnavailable("The connection to the broker was lost."))
        if self._on_lost is not None:
            self._on_lost()

    def _on_blocked(self, _connection: Any, method: Any) -> None:
        reason = method.method.reason
        log.warning("the broker takes no messages: %s", reason)
        self.blocked = f"blocked: {reason}"

    def _on_unblocked(self, _connection: Any, _method: Any) -> None:
        log.info("the broker takes messages again")
        self.blocked = ""


async def open_channel(connection: AsyncioConnection) -> Channel:
    """Open a channel; raises pika's AMQPError where the connection goes meanwhile."""
    opened = asyncio.get_running_loop().create_future()
    channel = connection.channel(on_open_callback=lambda c: _resolve(opened, c))
    channel.add_on_close_callback(lambda c, exc: _reject(opened, exc))
    return await opened


async def look_at_queues(connection: AsyncioConnection, routes: Sequence[Route]) -> None:
    """Declare each route's queue that is missing, unless the route says ``declare = false``."""
    for route in {route.queue: route for route in routes}.values():
        if await _declare(connection, route.queue, passive=True):
            continue
        if not route.declare:
            log.warning("the queue %s is missing and not ours to declare", route.queue)
        elif await _declare(connection, route.queue, arguments=route.arguments()):
            log.info("declared the queue %s", route.queue)


async def _declare(
    connection: AsyncioConnection, queue: str, passive: bool = False, arguments: Any = None
) -> bool:
    """Declare `queue` durable on a channel of its own, which a refusal closes."""
    channel = await open_channel(connection)
    declared = asyncio.get_running_loop().create_future()
    channel.add_on_close_callback(lambda c, exc: _reject(declared, exc))
    channel.queue_declare(
        queue,
        passive=passive,
        durable=True,
        arguments=arguments,
        callback=lambda frame: _resolve(declared, frame),
    )
    try:
        await declared
    except pika.exceptions.ChannelClosedByBroker as exc:
        if not (passive and exc.reply_code == 404):
            log.warning("queue %s: %s", queue, exc.reply_text)
        return False
    channel.close()
    return True


def _resolve(future: asyncio.Future[Any], value: Any) -> None:
    if not future.done():
        future.set_result(value)


def _reject(future: asyncio.Future[Any], exc: BaseException) -> None:
    if not future.done():
        future.set_exception(exc)


def _parts(exc: BaseException) -> list[Any]:
    return [*exc.args, *getattr(exc, "exceptions", ()), getattr(exc, "exception", None)]


def _describe(exc: BaseException) -> str:
    """Say what happened; pika wraps the error that a person needs in others."""
    while inner := [e for e in _parts(exc) if isinstance(e, BaseException)]:
        exc = inner[-1]
    text = str(exc)
    return f"{type(exc).__name__}: {text}" if text else type(exc).__name__
