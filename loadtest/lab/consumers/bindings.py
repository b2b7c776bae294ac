"""How long RabbitMQ takes to bind a queue, or an exchange, to an exchange with many bindings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any

from kombu import Connection

SOURCE, TARGET = "lab.bindings.source", "lab.bindings.target"
QUEUES = [f"lab.bindings.{n:03}" for n in range(10)]
#: What is bound to a topic exchange.
KINDS = ("queue", "exchange")
BINDS = 100  # that are timed, one after the other

#: Kind and number of bindings that are there -> seconds of a bind, one figure for each repeat.
Times = dict[tuple[str, int], list[float]]


def measure(url: str, sizes: Sequence[int], repeats: int) -> Times:
    """Time binds to a topic exchange that has so many bindings, of durable queues with keys of
    their own; `sizes` are in ascending order.

    Each bind is removed before the next one. Raises AMQPError and OSError.
    """
    times: Times = {}
    with Connection(url, heartbeat=0) as link:
        channel = link.channel()
        try:
            for exchange in (SOURCE, TARGET):
                channel.exchange_declare(exchange, "topic", durable=True, auto_delete=False)
            for queue in QUEUES:
                channel.queue_declare(queue, durable=True, auto_delete=False)
            there = 0
            for size in sizes:
                _fill(channel, there, size)
                there = size
                for _ in range(repeats):
                    for kind in KINDS:
                        times.setdefault((kind, size), []).append(_seconds(channel, kind))
        finally:
            for exchange in (SOURCE, TARGET):
                channel.exchange_delete(exchange)
            for queue in QUEUES:
                channel.queue_delete(queue)
    return times


def _fill(channel: Any, begin: int, end: int) -> None:
    for n in range(begin, end):
        queue = QUEUES[n % len(QUEUES)]
        # Only the last one is waited for: the broker does them in order.
        channel.queue_bind(queue, SOURCE, f"filled.{n}", nowait=n + 1 < end)


def _seconds(channel: Any, kind: str) -> float:
    bind: Callable[..., object]
    if kind == "queue":
        bind, unbind, target = channel.queue_bind, channel.queue_unbind, QUEUES[0]
    else:
        bind, unbind, target = channel.exchange_bind, channel.exchange_unbind, TARGET
    spent = 0.0
    for n in range(BINDS):
        begin = perf_counter()
        bind(target, SOURCE, f"timed.{n}")
        spent += perf_counter() - begin
        unbind(target, SOURCE, f"timed.{n}")
    return spent / BINDS
