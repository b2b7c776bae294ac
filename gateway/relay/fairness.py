"""Choose the shorter of the two queues that a publisher has, by what this process knows of them.

How many messages a queue has is known from two sides. The broker tells once a second how many are
ready in the queues that were used lately; this process adds what it has published since. That
counts the messages of all gateways, but not those that workers hold: a task that hangs leaves its
queue empty. This process's own messages that are not answered yet count those as well. The larger
of the two numbers decides.
"""

from __future__ import annotations

from collections import Counter

from gateway.amqp.queue_lengths import QueueLengths
from gateway.background import Service
from gateway.pending_task import PendingTask


class Fairness(Service):
    """Chooses between two queues; `lengths` is what the broker tells."""

    def __init__(self, lengths: QueueLengths):
        self._lengths = lengths
        self.uses = (lengths,)
        self._unanswered: Counter[str] = Counter()
        self._turn = False

    def shorter(self, pair: tuple[str, str]) -> str:
        """Return the shorter of both queues; of queues that are equally long, each in turn."""
        one, other = pair
        difference = self._length(one) - self._length(other)
        if not difference:
            self._turn = not self._turn
        chosen = one if difference < 0 or (not difference and self._turn) else other
        self._lengths.add(chosen)
        self._lengths.use(one, other)
        return chosen

    def _length(self, queue: str) -> int:
        return max(self._lengths[queue], self._unanswered[queue])

    def follow(self, pending: PendingTask) -> None:
        """Count a message as unanswered until the wait for it ends."""
        if pending.ended:
            return
        queue, release = pending.message.queue, pending.on_release
        self._unanswered[queue] += 1

        def on_release(pending: PendingTask) -> None:
            self._unanswered[queue] -= 1
            if release is not None:
                release(pending)

        pending.on_release = on_release
