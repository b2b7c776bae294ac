"""What RabbitMQ needs to hold a queue, an exchange, a connection and a channel."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from kombu import Connection

from loadtest.stack import RabbitMQ

#: Kinds of objects -> how many of them are made, in multiples of the number that is asked for: more
#: of what is small. Some of what quorum queues need is given back later, so they are
#: last.
KINDS = {
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


def measure(broker: RabbitMQ, number: int) -> dict[str, Cost]:
    """Make so many objects of each kind, one kind after the other, and remove all at the end.

    Before it the broker should have done nothing else, which it would give back meanwhile. Raises
    AMQPError, OSError, and StackError where rabbitmqctl fails.
    """
    costs = {}
    with ExitStack() as made:
        link = made.enter_context(Connection(broker.url, heartbeat=0))
        channel = link.channel()
        for kind in KINDS:
            _make(kind, f"lab.memory.{kind}", link, channel, made)
        _memory(broker)  # the first object and the first look need more than others
        before = _memory(broker)
        for kind, multiple in KINDS.items():
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
