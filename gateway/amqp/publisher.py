"""The asynchronous AMQP publisher: keeps one connection a process, with a channel to publish on.

pika runs the connection. This class restores it, and declares missing queues of the routes.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
import re
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from itertools import cycle
from typing import TYPE_CHECKING, Any, TypeAlias

import pika
from kombu.utils.url import maybe_sanitize_url
from pika.channel import Channel

from gateway import background
from gateway.amqp import broker
from gateway.amqp.broker import describe
from gateway.amqp.connection import TurnConnection
from gateway.amqp.frames import Scanner
from gateway.amqp.pidbox import Revocations
from gateway.amqp.publishing_channel import PublishingChannel
from gateway.background import Service, Work, happens
from gateway.backoff import Backoff
from gateway.celery_message import Message
from gateway.clock import monotonic
from gateway.config.settings import Config
from gateway.errors import BrokerBlocked, BrokerUnavailable, Unroutable
from gateway.metrics import Metrics
from gateway.pending_task import PendingTask
from gateway.read_throttling import ReadThrottling

if TYPE_CHECKING:
    from gateway.amqp.kombu_publisher import KombuPublisher

log = logging.getLogger(__name__)

#: What `publisher_for` returns.
AnyPublisher: TypeAlias = "Publisher | KombuPublisher"

BACKOFF = (0.1, 5.0)  # seconds between attempts: the first, the longest
STEADY = 1.0  # seconds; after a connection that lasted longer there is no pause
_LOOK_AGAIN = 1.0  # seconds until one looks again: for a missing exchange, for heartbeats
SETTLING = 10.0  # seconds after the end of an outage; see `Publisher._on_rejected`

REFUSED = 15.0  # seconds for which nothing is published to an exchange that was refused

# RabbitMQ's reasons for closing the channel, which are the only messages that have its limit, and
# to which exchange, or to which of its topics, the account may not publish.
_too_large = re.compile(r"message size \d+ .*larger than .*max size (\d+)").search
_refused = re.compile(r"ACCESS_REFUSED.* exchange '(.+)' in vhost").search


class Publisher(Service):
    """Publishes while it is connected, and otherwise refuses immediately.

    `on_channel` is awaited with each new channel and its scanner, before anything is published on
    the channel: a consumer of replies can begin on it. `on_lost` is called when the connection is
    lost. `throttling` is shared with the process's other connections.
    """

    def __init__(
        self,
        config: Config,
        metrics: Metrics,
        on_channel: Callable[[Channel, Scanner], Awaitable[None]] | None = None,
        on_lost: Callable[[], None] | None = None,
        throttling: ReadThrottling | None = None,
    ):
        self._config = config
        self._metrics = metrics
        self._on_channel = on_channel
        self._on_lost = on_lost
        self._throttling = throttling or ReadThrottling(partial(metrics.get, "gateway_in_flight"))
        # Each process begins with another node, or all connections of a cluster would be on one.
        first = random.randrange(len(config.brokers))
        urls = config.brokers[first:] + config.brokers[:first]
        self._brokers = cycle(urls)
        #: The broker that it is connected to, or was last.
        self.url = urls[0]
        self._connection: TurnConnection | None = None
        self._channel: PublishingChannel | None = None
        self._revocations: Revocations | None = None
        self._lost = asyncio.Event()
        self._error = "not connected yet"
        self.blocked = ""
        self._outage, self._unsettled_until = True, 0.0  # an outage may just end at the start
        self._missing: set[str] = set()  # exchanges
        self._refused: dict[str, float] = {}  # exchanges, and until when (monotonic seconds)
        self._looking: asyncio.Task[None] | None = None
        self._largest = math.inf  # bytes of a body; the broker tells its limit when it is exceeded

    @property
    def error(self) -> str:
        """Why it cannot publish, in words; empty when it can."""
        return self._error or self.blocked

    @property
    def connection(self) -> TurnConnection | None:
        """The connection on which others may open channels; None: it is not connected."""
        return None if self.error else self._connection

    @property
    def unconfirmed(self) -> int:
        """How many messages wait for their confirm."""
        return 0 if self._channel is None else len(self._channel.confirms)

    def _work(self) -> Work:
        yield "broker connection", self._keep_connected()

    async def stop(self) -> None:
        await super().stop()
        await background.stop(self._looking)
        if self._revocations is not None:
            await self._revocations.stop()
        if self._connection is not None and self._connection.is_open:
            self._error = "stopping"
            self._connection.close()
            # A frozen broker does not answer: the process does not wait longer for it.
            if not await happens(self._lost, broker.CONNECT_TIMEOUT):
                self._connection.abort()
                await happens(self._lost, 1)

    def publish(self, pending: PendingTask, reply_to: str | None = None) -> None:
        """Publish ``pending.message``; `pending` gets its confirm or error.

        Raises `BrokerUnavailable`, `BrokerBlocked`, `BodyTooLarge` or `URITooLong` where it is
        known that the broker would not take the message.
        """
        if self._channel is None:
            raise BrokerUnavailable
        if self.blocked:
            raise BrokerBlocked
        if self._missing or self._refused:
            self._check_exchange(pending.message)
        self._channel.publish(pending, reply_to)

    def check(self, message: Message) -> None:
        """Raise the error of a message that is too large, or whose exchange does not take it.

        For strategies that publish to the same broker with kombu.
        """
        if self._missing or self._refused:
            self._check_exchange(message)
        if self._channel is not None:
            self._channel.check(message)

    def _check_exchange(self, message: Message) -> None:
        """Raise `Unroutable` where the exchange is refused, or missing: then look again for it."""
        exchange = message.options.exchange
        if monotonic() < self._refused.get(exchange, 0.0):
            raise Unroutable(f"The broker refuses the exchange {exchange} to the gateway.")
        if exchange not in self._missing:
            return
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._look())
        raise Unroutable(f"The exchange {exchange} is missing.")

    async def _look(self) -> None:
        await asyncio.sleep(_LOOK_AGAIN)
        if self._connection is not None and not self._error:
            with suppress(*broker.ERRORS):  # a lost connection is handled in `_on_closed`
                self._missing = await broker.missing_exchanges(self._connection, self._config.tasks)

    def revoke(self, task_id: str) -> None:
        """Tell the workers not to begin a task; a broker that is not connected tells nobody."""
        if self._revocations is not None and not self.error:
            self._revocations.revoke(task_id)

    def probe(self) -> None:
        """Publish a message that no queue gets.

        The broker tells only connections that publish that they are blocked, and when they no
        longer are.
        """
        if not self.error and self._channel is not None:
            self._channel.probe()

    # Connection -------------------------------------------------------------------------

    async def _keep_connected(self) -> None:
        backoff = Backoff(*BACKOFF)
        while True:
            url = next(self._brokers)
            self._lost.clear()
            try:
                async with asyncio.timeout(broker.CONNECT_TIMEOUT):
                    await self._connect(url)
            except broker.ERRORS as exc:
                self._drop(f"{maybe_sanitize_url(url)}: {describe(exc)}")
                log.warning(
                    "cannot connect to the broker at %s; `gateway check` says what to do",
                    self._error,
                )
                await asyncio.sleep(backoff.next())
                continue
            log.info("connected to the broker at %s", maybe_sanitize_url(url))
            self.url = url
            connected = monotonic()
            await self._until_lost()
            if monotonic() - connected > STEADY:
                backoff.reset()
                continue
            # Without a pause a connection that ends as soon as it is used would be opened again
            # and again, at the rate of the requests.
            await asyncio.sleep(backoff.next())

    async def _until_lost(self) -> None:
        """Wait until the connection is lost; one without heartbeats for too long is aborted."""
        silent = 0
        while not await happens(self._lost, _LOOK_AGAIN):
            connection = self._connection
            # A process that was stopped itself reads what has come before it looks again.
            silent = silent + 1 if connection is not None and connection.silent else 0
            if connection is not None and silent > 1:
                _give_up(connection, "no heartbeats have come")

    def _on_silence(self, connection: TurnConnection) -> None:
        # A broker that takes no messages does not read the question either; and a connection that
        # was given up already is asked until its end is noticed.
        if connection is self.connection:
            _give_up(connection, "it neither confirms nor answers")

    async def _connect(self, url: str) -> None:
        """Open a connection and a channel, declare missing queues, and allow publishing."""
        connection = await broker.open_connection(
            url, self._config.tls, self._on_closed, self._throttling
        )
        self._connection = connection
        try:
            connection.limit_writes(self._config.max_in_flight_bytes)
            connection.add_on_connection_blocked_callback(self._on_blocked)
            connection.add_on_connection_unblocked_callback(self._on_unblocked)
            await broker.ensure_queues(connection, self._config.tasks_by_queue)
            self._missing = await broker.missing_exchanges(connection, self._config.tasks)
            for exchange in sorted(self._missing):
                log.warning("the exchange %s is missing: create it with its bindings", exchange)
            channel = await broker.open_channel(connection)
            channel.add_on_close_callback(self._on_channel_closed)
            publishing = await PublishingChannel(
                channel,
                self._metrics,
                self._config.confirm_timeout,
                self._largest,
                partial(self._on_silence, connection),
                self._on_rejected,
            ).open()
            if self._on_channel is not None:
                await self._on_channel(channel, publishing.scanner)
            if not channel.is_open:
                raise pika.exceptions.ChannelClosed(0, "the channel was closed immediately")
        except BaseException as exc:
            self._connection = None  # so that `_on_closed` ignores it
            if isinstance(exc, Exception):
                broker.close(connection)
            else:  # nobody waits any more, so nothing may use the metrics from now on
                connection.abort("given up while it was opened")
            raise
        self._metrics.connected("broker")
        self._channel = publishing
        self._revocations = Revocations(connection)
        self._error = self.blocked = ""
        # Not after a connection that `_on_rejected` has closed: that would repeat without end.
        if self._outage:
            self._outage, self._unsettled_until = False, monotonic() + SETTLING
        self.probe()

    def _on_closed(self, connection: Any, exc: BaseException) -> None:
        if connection is self._connection:
            if not self._error:
                log.warning("connection to the broker lost: %s", describe(exc))
                self._outage = True
            self._lost.set()
            self._drop(describe(exc))

    def _on_channel_closed(self, channel: Channel, exc: BaseException) -> None:
        if found := _too_large(str(exc)):
            self._largest = int(found[1])
        elif found := _refused(str(exc)):  # each message to it would fail all others
            self._refused[found[1]] = monotonic() + REFUSED
        # Only `_connect` opens a channel: close the connection, so that both are opened again.
        if channel.connection.is_open:
            log.warning("the broker closed the channel: %s", describe(exc))
            broker.close(channel.connection, "channel closed")

    def _on_rejected(self, queue: str) -> None:
        """Reconnect where a quorum queue has confirmed nothing since an outage.

        A channel that is opened before a new leader is elected remembers the lost leader until
        that one is back: https://github.com/rabbitmq/rabbitmq-server/pull/9241
        """
        quorum = (t.queue_type == "quorum" for t in self._config.tasks if queue in t.queue_names)
        if not self._error and monotonic() < self._unsettled_until and any(quorum):
            self._error = f"the queue {queue} has confirmed nothing since the outage"
            log.warning("%s: reconnecting to the broker", self._error)
            if self._connection is not None:
                broker.close(self._connection, "a queue confirms nothing")

    def _drop(self, error: str) -> None:
        """Give up the connection, and fail its unconfirmed messages."""
        self._error = error
        channel, self._channel = self._channel, None
        try:
            if channel is not None:
                channel.confirms.fail(BrokerUnavailable("The connection to the broker was lost."))
        finally:
            if self._on_lost is not None:
                self._on_lost()

    def _on_blocked(self, _connection: Any, method: Any) -> None:
        reason = method.method.reason
        log.warning("the broker takes no messages: %s", reason)
        self.blocked = f"blocked: {reason}"

    def _on_unblocked(self, _connection: Any, _method: Any) -> None:
        log.info("the broker takes messages again")
        self.blocked = ""


def _give_up(connection: TurnConnection, why: str) -> None:
    log.warning("the connection to the broker is given up: %s", why)
    connection.abort(why)


def publisher_for(
    config: Config, metrics: Metrics, throttling: ReadThrottling | None = None
) -> AnyPublisher:
    """Make an AMQP publisher, or kombu's for the embedded server of `gateway dev`."""
    if config.amqp:
        return Publisher(config, metrics, throttling=throttling)
    # Imported here, because kombu takes longer to import than everything else.
    from gateway.amqp.kombu_publisher import KombuPublisher

    return KombuPublisher(config, metrics)
