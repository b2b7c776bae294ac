"""What RabbitMQ's bindings take in time, and what its other objects take in memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from time import perf_counter
from typing import Any

from kombu import Connection

from loadtest.stack import RabbitMQ

SOURCE, TARGET = "lab.bindings.source", "lab.bindings.target"
QUEUES = [f"lab.bindings.{n:03}" for n in range(10)]
#: What is bound to a topic exchange.
KINDS = ("queue", "exchange")
BINDS = 100  # that are timed, one after the other

#: Kind and number of bindings that are there -> seconds of a bind, one figure for each repeat.
Times = dict[tuple[str, int], list[float]]


def time_binds(url: str, sizes: Sequence[int], repeats: int) -> Times:
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


#: Kinds of objects -> how many of them are made, in multiples of the number that is asked for: more
#: of what is small. Some of what quorum queues need is given back later, so they are
#: last.
OBJECTS = {
    "exchange": 2.0,
    "classic queue": 1.0,
    "channel": 1.0,
    "connection": 1.0,
    "quorum queue": 1.0,
}

# Erlang's own count when every process has collected its garbage. Resident memory changes by more
# than most of these need. Not counted are binaries: each socket has a buffer of megabytes there,
# of which nothing is resident before it is filled.
_COUNT = "[garbage_collect(P) || P <- processes()], erlang:memory(total) - erlang:memory(binary)."


@dataclass(frozen=True)
class Cost:
    """What `number` objects of a kind have added to the broker's memory, in `size` bytes."""

    number: int
    size: int

    @property
    def each(self) -> float:
        """KB of one object."""
        return self.size / self.number / 1024


def weigh_objects(broker: RabbitMQ, number: int) -> dict[str, Cost]:
    """Make so many objects of each kind, one kind after the other, and remove all at the end.

    Before it the broker should have done nothing else, which it would give back meanwhile. Raises
    AMQPError, OSError, and StackError where rabbitmqctl fails.
    """
    costs = {}
    with ExitStack() as made:
        link = made.enter_context(Connection(broker.url, heartbeat=0))
        channel = link.channel()
        for kind in OBJECTS:
            _make(kind, f"lab.memory.{kind}", link, channel, made)
        _memory(broker)  # the first object and the first look need more than others
        before = _memory(broker)
        for kind, multiple in OBJECTS.items():
            count = max(1, int(number * multiple))
            for n in range(count):
                _make(kind, f"lab.memory.{kind}.{n}", link, channel, made)
            after = _memory(broker)
            costs[kind] = Cost(count, after - before)
            before = after
    return costs


def _make(kind: str, name: str, link: Connection, channel: Any, made: ExitStack) -> None:
    if kind == "exchange":
        channel.exchange_declare(name, "topic", durable=True, auto_delete=False)
        made.callback(channel.exchange_delete, name)
    elif kind == "connection":
        another = made.enter_context(Connection(link.as_uri(include_password=True), heartbeat=0))
        another.connect()
    elif kind == "channel":
        link.channel()
    else:
        arguments = {"x-queue-type": kind.partition(" ")[0]}
        channel.queue_declare(name, durable=True, auto_delete=False, arguments=arguments)
        made.callback(channel.queue_delete, name)


def _memory(broker: RabbitMQ) -> int:
    """Return bytes."""
    return int(broker.ctl("eval", _COUNT))
