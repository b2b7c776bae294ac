"""The gateway's own connection: pika opens it, a scanner finds deliveries by their offsets."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import count
from struct import Struct
from time import perf_counter

from pika.channel import Channel

from gateway.amqp.broker import open_connection
from gateway.amqp.frames import ACK, METHOD, frame
from gateway.config.urls import TLS
from gateway.read_throttling import ReadThrottling
from loadtest.lab.consumers.drivers import Broker, Ending, Run
from loadtest.lab.consumers.drivers.event_loop import close, open_limited
from loadtest.lab.consumers.part import Part

#: What all consumer tags begin with, and their length.
_PREFIX, _LENGTH = b"c", 4

_ack = Struct(">IQB").pack


class _NoPauses(ReadThrottling):
    """Joins the writes of one turn of the loop, but never pauses reading."""

    few = False

    def rest(self, transport: asyncio.Transport | None) -> None:
        """Go on reading."""


def consume(broker: Broker, parts: Sequence[Part], prefetch: int, run: Run) -> None:
    """Consume with the gateway's connection, on asyncio's loop as the others."""
    asyncio.run(_consume(broker, parts, prefetch, run))


async def _consume(broker: Broker, parts: Sequence[Part], prefetch: int, run: Run) -> None:
    ending = Ending(parts)
    url = "amqp://{userid}:{password}@{hostname}:{port}/{virtual_host}".format_map(broker)
    channels = []
    for part in parts:
        connection = await open_connection(url, TLS(), ending.lost, _NoPauses(lambda: 0))
        channel = await open_limited(connection, prefetch, ending)
        _scan(channel, part, ending)
        channels.append(channel)
    run.begin()
    for channel, part in zip(channels, parts, strict=True):
        for n, queue in enumerate(part.queues):
            tag = f"{_PREFIX.decode()}{n:0{_LENGTH - 1}}"
            channel.basic_consume(queue, lambda *_: None, consumer_tag=tag)  # pika gets no message
    await ending.wait()
    await close(channels)
    run.end()


def _scan(channel: Channel, part: Part, ending: Ending) -> None:
    connection, number = channel.connection, channel.channel_number
    tags = count(1)  # RabbitMQ numbers a channel's deliveries so

    def on_message(_correlation_id: str, body: bytes) -> None:
        tag = next(tags)
        if part.due(body):
            begin = perf_counter()
            connection.send(frame(METHOD, number, _ack(ACK, tag, part.multiple)))
            ending.acknowledged(part, begin)

    scanner = connection.scan(number, lambda *_: None)
    scanner.consume("", on_message)
    # The scanner compares the beginning of a short string: one consumer's for the gateway, that of
    # all consumers here.
    scanner._consumer = bytes((_LENGTH,)) + _PREFIX
