"""Publish on one open channel, and confirm or time out what was published.

A connection whose other end is gone, without a word, takes everything that is written to it. So
where a confirm is late and the broker is silent as well, it is asked something that it answers at
once. If it says nothing for `confirm_timeout` after that, the connection is given up, long before
heartbeats would show that it is dead.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from functools import partial
from itertools import takewhile
from typing import Any, Self

from pika import BasicProperties
from pika.channel import Channel

from gateway.amqp import broker
from gateway.amqp.connection import TurnConnection
from gateway.amqp.frames import Template, fields
from gateway.celery_message import CONTENT_ENCODING, CONTENT_TYPE, Message, common_headers
from gateway.clock import monotonic
from gateway.errors import (
    BodyTooLarge,
    BrokerUnavailable,
    NotConfirmed,
    Rejected,
    RequestError,
    Unroutable,
    URITooLong,
)
from gateway.metric_table import PUBLISHED, RABBITMQ, SENT
from gateway.metrics import Metrics
from gateway.pending_task import PendingTask

log = logging.getLogger(__name__)

PROBE = "gateway.probe"  # a routing key that no queue has
_SWEEP = 0.1  # seconds between checks for overdue confirms
_QUIET = 0.5  # seconds without a confirm, or anything else, after which a broker is asked
_TEMPLATES = 1_000  # at most: a few for each route
_QUEUES = 1_000  # at most remembered: those of routes with dynamic queues have ever new names

#: A task's id and a delivery's id. Both are needed: a later try may publish a task again before the
#: return of the earlier message with the same task id has arrived.
Published = tuple[str, str]


class PublishingChannel:
    """Publishes mandatory messages, each of which is confirmed, and never published twice.

    `channel` is in no other use, but `scanner` may read replies on it. `confirm_timeout` is in
    seconds, `largest` in bytes of a body. `on_silence` is called when the broker does not answer
    any more, and `on_rejected` as `Confirms` does.
    """

    def __init__(
        self,
        channel: Channel,
        metrics: Metrics,
        confirm_timeout: float,
        largest: float,
        on_silence: Callable[[], object],
        on_rejected: Callable[[str], None],
    ):
        self._channel = channel
        self._connection: TurnConnection = channel.connection
        # New for each channel: an earlier channel's late confirms must not settle its messages.
        self.confirms = Confirms(metrics, on_rejected)
        self.scanner = self._connection.scan(channel.channel_number, self.confirms.confirm)
        self._metrics, self._sent = metrics, metrics.place(SENT, *RABBITMQ)
        self._confirm_timeout = confirm_timeout
        self._on_silence = on_silence
        # When the broker was asked whether it answers (monotonic), and how many sweeps ago. Time
        # alone would not do: this process may have been stopped itself.
        self._asked, self._sweeps = 0.0, 0
        self._templates = Templates(
            channel.channel_number, self._connection.params.frame_max, largest
        )
        self._sweeper: asyncio.TimerHandle | None = None

    async def open(self) -> Self:
        """Put the channel in confirm mode; raises pika's AMQPError."""
        self._channel.add_on_return_callback(self.confirms.on_return)
        # The scanner reads the confirms, not pika.
        await broker.rpc(self._channel, partial(self._channel.confirm_delivery, lambda _: None))
        return self

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
        self.confirms.add(pending)
        self._metrics.count_at(self._sent)
        if self._sweeper is None:
            self._sweeper = asyncio.get_running_loop().call_later(_SWEEP, self._sweep)

    def check(self, message: Message) -> None:
        """Raise `URITooLong` or `BodyTooLarge` where `message` is too large for the broker."""
        self._templates.encode(message)

    def probe(self) -> None:
        """Publish a message that no queue gets."""
        if self._channel.is_open:
            self._channel.basic_publish("", PROBE, b"")
            self.confirms.skip()

    def _sweep(self) -> None:
        now = monotonic()
        try:
            asks = self._ask(now)
            self.confirms.give_up(now - self._confirm_timeout)
        finally:  # an error of one message must not end the timeouts of the others
            self._sweeper = None
            if self.confirms or asks:
                self._sweeper = asyncio.get_running_loop().call_later(_SWEEP, self._sweep)

    def _ask(self, now: float) -> bool:
        """Ask a silent broker whether it answers; return whether its answer is awaited."""
        heard = self._connection.heard
        if self._asked > heard:
            self._sweeps += 1
            if self._sweeps * _SWEEP < self._confirm_timeout:
                return True
            self._on_silence()
        elif self.confirms.oldest and now - max(heard, self.confirms.oldest) > _QUIET:
            self._asked, self._sweeps = now, 0
            self.probe()
            return True
        return False


class Confirms:
    """Confirms or fails each `PendingTask` when its ack, nack or return arrives.

    The broker numbers the messages of a channel from 1; so does this class. `on_rejected` is called
    with the name of a queue that has rejected a message and confirmed none yet on this channel.
    """

    def __init__(self, metrics: Metrics, on_rejected: Callable[[str], None]):
        self._metrics = metrics
        for error in (BrokerUnavailable, NotConfirmed, Rejected, Unroutable):
            metrics.place(PUBLISHED, *RABBITMQ, error.type)  # so that it is there, at zero
        self._confirmed = metrics.place(PUBLISHED, *RABBITMQ, "")
        self._on_rejected = on_rejected
        self._taken: set[str] = set()
        self._tag = 0
        self._pending: dict[int, PendingTask] = {}
        # Messages that were returned and not acknowledged yet, and when (monotonic seconds).
        self._returned: dict[Published, float] = {}

    def __len__(self) -> int:
        return len(self._pending) + len(self._returned)

    @property
    def oldest(self) -> float:
        """When the oldest message that is not settled was sent (monotonic); 0: there is none."""
        return next((pending.sent for pending in self._pending.values()), 0.0)

    def add(self, pending: PendingTask) -> None:
        """Expect the confirm of a message that has just been published."""
        self._tag += 1
        self._pending[self._tag] = pending

    def skip(self) -> None:
        """Count a message whose confirm is ignored."""
        self._tag += 1

    def confirm(self, tag: int, multiple: bool, acked: bool) -> None:
        """Settle the message `tag`, and with `multiple` also all before it."""
        tags: Iterable[int] = (tag,)
        if multiple:
            tags = list(takewhile(lambda each: each <= tag, self._pending))
        now = monotonic()
        for each in tags:
            pending = self._pending.pop(each, None)
            if pending is None:  # settled, or timed out
                continue
            if not acked:
                self._refuse(pending, Rejected())
                if pending.message.queue not in self._taken:
                    self._on_rejected(pending.message.queue)
            elif self._returned and self._returned.pop(_published(pending.message), 0.0):
                self._refuse(pending, Unroutable(pending.message.nowhere))
            else:
                self._taken.add(pending.message.queue)
                self._metrics.observe_at(self._confirmed, now - pending.sent)
                pending.confirm()

    def on_return(self, _channel: Any, method: Any, properties: Any, _body: bytes) -> None:
        """Remember a returned message: its ack follows. Called by pika."""
        delivery = properties.headers["delivery"]
        self._returned[properties.correlation_id, delivery.get("id", "")] = monotonic()
        log.warning(
            "the broker returned a message: %s (queue %s)", method.reply_text, method.routing_key
        )

    def give_up(self, sent_before: float) -> None:
        """Fail the messages sent before `sent_before` (monotonic seconds) and not confirmed."""
        if len(self._taken) > _QUEUES:
            self._taken.clear()
        overdue = takewhile(lambda item: item[1].sent <= sent_before, self._pending.items())
        for tag, pending in list(overdue):
            del self._pending[tag]
            self._refuse(pending, NotConfirmed())
        # The messages that were returned before then have all been settled or failed.
        stale = takewhile(lambda item: item[1] <= sent_before, self._returned.items())
        for published, _ in list(stale):
            del self._returned[published]

    def fail(self, error: RequestError) -> None:
        """Fail all messages with `error`: the channel is closed, and no confirm will come."""
        lost, self._pending = self._pending, {}
        self._returned.clear()
        for pending in lost.values():
            self._refuse(pending, error)

    def _refuse(self, pending: PendingTask, error: RequestError) -> None:
        seconds = monotonic() - pending.sent
        self._metrics.observe(seconds, PUBLISHED, *RABBITMQ, error.type)
        pending.fail(error)


def _published(message: Message) -> Published:
    return message.task_id, message.delivery.get("id", "")


class Templates:
    """Encodes messages for a channel.

    `frame_max` is the frame size that was agreed with the broker, `largest` the largest body that
    it takes, both in bytes.
    """

    def __init__(self, channel: int, frame_max: int, largest: float):
        self._channel = channel
        self._frame_max = frame_max
        self._largest = largest
        self._made: dict[Any, Template] = {}

    def encode(self, message: Message, reply_to: str | None = None) -> bytes:
        """Return `message` as frames.

        Raises `BodyTooLarge`, and `URITooLong` where its headers do not fit: of the headers, only
        the query string and the path's parameters can be too long (see `Delivery.table`).
        """
        if len(message.body) > self._largest:
            raise BodyTooLarge(
                f"The message would have {len(message.body)} bytes; the broker takes "
                f"{self._largest}."
            )
        key = (
            message.task, message.queue, message.persistent, reply_to, message.options,
            message.priority,
        )  # fmt: skip
        template = self._made.get(key)
        if template is None:
            template = self._make(message, reply_to)
            if len(self._made) >= _TEMPLATES:
                self._made.clear()
            self._made[key] = template
        headers = fields(message.own_headers())
        if len(headers) > template.room:
            raise URITooLong(
                f"The query string and the path's parameters are too long: the message would have "
                f"{len(headers)} bytes of headers, and the broker takes {template.room}."
            )
        return template.message(message.task_id, headers, message.body)

    def _make(self, message: Message, reply_to: str | None) -> Template:
        exchange, queue = message.options.exchange, message.queue
        shared = BasicProperties(
            content_type=CONTENT_TYPE,
            content_encoding=CONTENT_ENCODING,
            headers=common_headers(message.task, message.options),
            delivery_mode=2 if message.persistent else 1,
            priority=message.priority,
            reply_to=reply_to,
        )
        return Template(self._channel, self._frame_max, exchange, queue, shared)
