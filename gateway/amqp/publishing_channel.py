"""Publish on one open channel, from templates, and time out what is not confirmed.

A connection whose other end is gone, without a word, takes everything that is written to it. So
where a confirm is late and the broker is silent as well, it is asked something that it answers at
once. If it says nothing for `confirm_timeout` after that, the connection is given up, long before
heartbeats would show that it is dead.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from gateway.amqp.templates import Templates
from gateway.clock import monotonic
from gateway.errors import BrokerUnavailable
from gateway.metric_table import RABBITMQ, SENT

if TYPE_CHECKING:
    from collections.abc import Callable

    from pika.channel import Channel

    from gateway.amqp.confirms import Confirms
    from gateway.amqp.connection import TurnConnection
    from gateway.celery_message import Message
    from gateway.errors import RequestError
    from gateway.metrics import Metrics
    from gateway.pending_task import PendingTask

PROBE = "gateway.probe"  # a routing key that no queue has
_SWEEP = 0.1  # seconds between checks for overdue confirms
_QUIET = 0.5  # seconds without a confirm, or anything else, after which a broker is asked


class PublishingChannel:
    """Publishes mandatory messages, each of which is confirmed, and never published twice.

    `channel` is in confirm mode and `confirms` has its messages. `confirm_timeout` is in seconds,
    `largest` in bytes of a body. `on_silence` is called when the broker does not answer any more.
    """

    def __init__(
        self,
        channel: Channel,
        confirms: Confirms,
        metrics: Metrics,
        confirm_timeout: float,
        largest: float,
        on_silence: Callable[[], object],
    ):
        self._channel = channel
        self._connection: TurnConnection = channel.connection
        self._confirms = confirms
        self._sent = metrics.counter(SENT, *RABBITMQ)
        self._confirm_timeout = confirm_timeout
        self._on_silence = on_silence
        # When the broker was asked whether it answers (monotonic), and how many sweeps ago. Time
        # alone would not do: this process may have been stopped itself.
        self._asked, self._sweeps = 0.0, 0
        self._templates = Templates(
            channel.channel_number, self._connection.params.frame_max, largest
        )
        self._sweeper: asyncio.TimerHandle | None = None

    @property
    def unconfirmed(self) -> int:
        """How many messages wait for their confirm."""
        return len(self._confirms)

    def publish(self, pending: PendingTask, reply_to: str | None = None) -> None:
        """Publish ``pending.message``; `pending` gets its confirm or error.

        Raises `BrokerUnavailable`, `BodyTooLarge` or `URITooLong` where the message cannot be sent.
        """
        if not self._channel.is_open:
            raise BrokerUnavailable
        if not self._connection.writable:
            raise BrokerUnavailable("The broker does not read what is sent to it.")
        self._connection.send(self._templates.encode(pending.message, reply_to))
        pending.sent = monotonic()
        self._confirms.add(pending)
        self._sent.add()
        if self._sweeper is None:
            self._sweeper = asyncio.get_running_loop().call_later(_SWEEP, self._sweep)

    def check(self, message: Message) -> None:
        """Raise `URITooLong` or `BodyTooLarge` where `message` is too large for the broker."""
        self._templates.encode(message)

    def probe(self) -> None:
        """Publish a message that no queue gets."""
        if self._channel.is_open:
            self._channel.basic_publish("", PROBE, b"")
            self._confirms.skip()

    def fail(self, error: RequestError) -> None:
        """Fail all messages that are not confirmed: the channel is closed."""
        self._confirms.fail(error)

    def _sweep(self) -> None:
        now = monotonic()
        try:
            asks = self._ask(now)
            self._confirms.give_up(now - self._confirm_timeout)
        finally:  # an error of one message must not end the timeouts of the others
            self._sweeper = None
            if self._confirms or asks:
                self._sweeper = asyncio.get_running_loop().call_later(_SWEEP, self._sweep)

    def _ask(self, now: float) -> bool:
        """Ask a silent broker whether it answers; return whether its answer is awaited."""
        heard = self._connection.heard
        if self._asked > heard:
            self._sweeps += 1
            if self._sweeps * _SWEEP < self._confirm_timeout:
                return True
            self._on_silence()
        elif self._confirms.oldest and now - max(heard, self._confirms.oldest) > _QUIET:
            self._asked, self._sweeps = now, 0
            self.probe()
            return True
        return False
