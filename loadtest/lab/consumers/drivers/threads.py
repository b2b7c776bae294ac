"""py-amqp, or librabbitmq, which is written in C: a blocking connection in each thread."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from time import perf_counter
from typing import Any

from loadtest.lab.consumers.drivers import Broker, Run
from loadtest.lab.consumers.part import Part


def consume(broker: Broker, parts: Sequence[Part], prefetch: int, run: Run) -> None:
    """Consume with py-amqp."""

    def connect() -> Any:
        import amqp

        link = amqp.Connection(
            f"{broker['hostname']}:{broker['port']}",
            userid=broker["userid"],
            password=broker["password"],
            virtual_host=broker["virtual_host"],
        )
        link.connect()
        return link

    _consume(connect, parts, prefetch, run)


def consume_in_c(broker: Broker, parts: Sequence[Part], prefetch: int, run: Run) -> None:
    """Consume with librabbitmq, which is used as py-amqp is."""

    def connect() -> Any:
        import librabbitmq

        names = ("userid", "password", "virtual_host", "port")
        return librabbitmq.Connection(broker["hostname"], **{name: broker[name] for name in names})

    _consume(connect, parts, prefetch, run)


def _consume(connect: Callable[[], Any], parts: Sequence[Part], prefetch: int, run: Run) -> None:
    links = [connect() for _ in parts]
    channels = [link.channel() for link in links]
    for channel in channels:
        channel.basic_qos(0, prefetch, False)
    run.begin()
    with ThreadPoolExecutor(len(parts)) as threads:
        for _ in threads.map(_drain, links, channels, parts):
            pass  # raises what a thread has raised
    run.end()


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
