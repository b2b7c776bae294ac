"""py-amqp: a blocking connection in each thread."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from time import perf_counter
from typing import Any

import amqp

from loadtest.lab.consumers.drivers import Broker, Run
from loadtest.lab.consumers.part import Part


def consume(broker: Broker, parts: Sequence[Part], prefetch: int, run: Run) -> None:
    """Consume with py-amqp."""
    consume_by(_connect, broker, parts, prefetch, run)


def consume_by(
    connect: Callable[[Broker], Any], broker: Broker, parts: Sequence[Part], prefetch: int, run: Run
) -> None:
    """Consume with connections that `connect` opens and that are used as py-amqp's are."""
    links = [connect(broker) for _ in parts]
    channels = [link.channel() for link in links]
    for channel in channels:
        channel.basic_qos(0, prefetch, False)
    run.begin()
    with ThreadPoolExecutor(len(parts)) as threads:
        for _ in threads.map(_drain, links, channels, parts):
            pass  # raises what a thread has raised
    run.end()


def _connect(broker: Broker) -> Any:
    link = amqp.Connection(
        f"{broker['hostname']}:{broker['port']}",
        userid=broker["userid"],
        password=broker["password"],
        virtual_host=broker["virtual_host"],
    )
    link.connect()
    return link


def _drain(link: Any, channel: Any, part: Part) -> None:
    def on_message(message: Any) -> None:
        if part.due(message.body):
            begin = perf_counter()
            channel.basic_ack(message.delivery_info["delivery_tag"], part.multiple)
            part.acknowledged(begin)

    for queue in part.queues:
        channel.basic_consume(queue, callback=on_message)
    while part.left:
        link.drain_events()
    channel.close()
