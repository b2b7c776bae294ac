"""What one connection of a consumer has to consume, and when it acknowledges; no I/O."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from time import perf_counter

#: The queues of all consumers.
QUEUES = [f"lab.consumers.{n:03}" for n in range(100)]


def queue_of(number: int) -> str:
    """Return the queue of the message with this number."""
    return QUEUES[number % len(QUEUES)]


class Part:
    """One connection's `queues` and the `numbers` of their messages.

    Every `prefetch`-th message is acknowledged, with all before it, and so is the last one.
    """

    def __init__(self, queues: Sequence[str], numbers: Iterable[int], prefetch: int):
        self.queues = queues
        #: Whether an acknowledgement is for all messages before it as well.
        self.multiple = prefetch > 1
        #: Messages that came twice, or that belong to another connection.
        self.wrong = 0
        self.acks = 0
        self.ack_seconds = 0.0
        self._missing = set(numbers)
        self._prefetch = prefetch
        self._open = 0  # messages since the last acknowledgement

    @property
    def left(self) -> int:
        """How many messages have not come yet."""
        return len(self._missing)

    def due(self, body: bytes | str) -> bool:
        """Count a message by its number; returns whether it has to be acknowledged now."""
        number = int(body)
        if number in self._missing:
            self._missing.remove(number)
        else:
            self.wrong += 1
        self._open += 1
        if self._open < self._prefetch and self._missing:
            return False
        self._open = 0
        return True

    def acknowledged(self, begin: float) -> None:
        """Count an acknowledgement for which the library was called at `begin`."""
        self.acks += 1
        self.ack_seconds += perf_counter() - begin


def divide(messages: int, connections: int, prefetch: int) -> list[Part]:
    """Divide the queues and all `messages` among so many connections."""
    return [
        Part(
            QUEUES[first::connections],
            (n for n in range(messages) if n % len(QUEUES) % connections == first),
            prefetch,
        )
        for first in range(connections)
    ]
