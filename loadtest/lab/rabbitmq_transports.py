"""Transports by a RabbitMQ server and py-amqp, Celery's own client."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from itertools import repeat
from typing import ClassVar

import amqp
from kombu import Connection

from loadtest.lab.transport import WINDOW, Counts, Run, Settings, Transport

#: Messages of which the last one's acknowledgement counts for all.
_ACKNOWLEDGED = 100


class RabbitMQ(Transport):
    """Transient messages that are neither confirmed nor acknowledged."""

    persistent: ClassVar[bool] = False

    def __init__(self, settings: Settings):
        super().__init__(settings)
        self.queue = f"transport-{os.getpid()}"

    @contextmanager
    def channel(self) -> Iterator[amqp.Channel]:
        with Connection(self.settings.url) as link:
            yield link.channel()

    def message(self, body: bytes) -> amqp.Message:
        return amqp.Message(body, delivery_mode=2 if self.persistent else 1)

    @contextmanager
    def sending(self) -> Iterator[Run]:
        with self.channel() as channel:
            yield partial(self.give, partial(self._publish, channel))

    def _publish(self, channel: amqp.Channel, body: bytes) -> None:
        channel.basic_publish(self.message(body), routing_key=self.queue)

    @contextmanager
    def receiving(self, index: int) -> Iterator[Run]:
        with self.channel() as channel:
            channel.queue_declare(
                self.queue,
                durable=self.persistent,
                exclusive=not self.persistent,
                auto_delete=False,
            )
            yield partial(self._consume, channel)
            channel.queue_delete(self.queue)

    def _consume(self, channel: amqp.Channel) -> Counts:
        got: list[amqp.Message] = []
        if self.persistent:
            channel.basic_qos(0, WINDOW, False)
        consumer = channel.basic_consume(
            self.queue, no_ack=not self.persistent, callback=got.append
        )
        unacknowledged = 0

        def receive() -> bytes:
            nonlocal unacknowledged
            while not got:
                channel.connection.drain_events()
            message = got.pop()  # one at a time comes
            body: bytes = message.body
            unacknowledged += 1
            if self.persistent and (unacknowledged == _ACKNOWLEDGED or body == self.settings.end):
                channel.basic_ack(message.delivery_tag, multiple=True)
                unacknowledged = 0
            return body

        counts = self.take(receive)
        channel.basic_cancel(consumer)
        return counts


class ConfirmedRabbitMQ(RabbitMQ):
    """Persistent messages in a durable queue, confirmed, `WINDOW` at once, and acknowledged."""

    persistent = True

    @contextmanager
    def sending(self) -> Iterator[Run]:
        with self.channel() as channel:
            channel.confirm_select()
            unconfirmed: set[int] = set()

            def confirmed(tag: int, multiple: bool) -> None:
                for each in [each for each in unconfirmed if each <= tag] if multiple else [tag]:
                    unconfirmed.remove(each)

            def refused(tag: int, multiple: bool) -> None:
                raise ConnectionError(f"RabbitMQ has refused message {tag}")

            channel.events["basic_ack"].add(confirmed)
            channel.events["basic_nack"].add(refused)
            yield partial(self._publish_all, channel, unconfirmed)

    def _publish_all(self, channel: amqp.Channel, unconfirmed: set[int]) -> Counts:
        bodies = [*repeat(self.settings.message, self.settings.number), self.settings.end]
        for tag, body in enumerate(bodies, 1):
            unconfirmed.add(tag)
            self._publish(channel, body)
            while len(unconfirmed) >= WINDOW:
                channel.connection.drain_events()
        while unconfirmed:
            channel.connection.drain_events()
        return Counts()


TRANSPORTS: dict[str, type[Transport]] = {
    "transient": RabbitMQ,
    "confirmed": ConfirmedRabbitMQ,
}
