"""Choose the shorter of the two queues that a publisher has, by what this process knows of them.

How many messages a queue has is known from two sides. The broker tells once a second how many are
ready in the queues that were used lately; this process adds what it has published since. That
counts the messages of all gateways, but not those that workers hold: a task that hangs leaves its
queue empty. This process's own messages that are not answered yet count those as well. The larger
of the two numbers decides.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress

from pika.exceptions import ChannelClosedByBroker

from gateway.amqp import broker
from gateway.amqp.connection import TurnConnection
from gateway.amqp.publisher import AnyPublisher
from gateway.background import Service, Work
from gateway.pending_task import PendingTask

INTERVAL = 1.0  # seconds between questions


class Fairness(Service):
    """Chooses between two of the fair `queues`.

    The broker is asked for their lengths on the connection of `publisher`, on a channel of its own:
    at first for all, then for those of publishers that have sent since, and those that were not
    empty. A broker that is not AMQP is not asked.
    """

    def __init__(self, queues: Iterable[str], publisher: AnyPublisher):
        self._publisher = publisher
        #: The messages that are ready in each queue, as far as they are known.
        self.lengths: Counter[str] = Counter()
        self._used = set(queues)
        self._unanswered: Counter[str] = Counter()
        self._turn = False

    def _work(self) -> Work:
        yield "lengths of queues", self._keep_asking()

    def shorter(self, pair: tuple[str, str]) -> str:
        """Return the shorter of both queues; of queues that are equally long, each in turn."""
        one, other = pair
        difference = self._length(one) - self._length(other)
        if not difference:
            self._turn = not self._turn
        chosen = one if difference < 0 or (not difference and self._turn) else other
        self.lengths[chosen] += 1
        self._used.update(pair)
        return chosen

    def _length(self, queue: str) -> int:
        return max(self.lengths[queue], self._unanswered[queue])

    def follow(self, pending: PendingTask) -> None:
        """Count a message as unanswered until the wait for it ends."""
        if not pending.ended:
            queue = pending.message.queue
            self._unanswered[queue] += 1
            pending.also_release(lambda _pending: self._unanswered.subtract((queue,)))

    async def _keep_asking(self) -> None:
        while True:
            await asyncio.sleep(INTERVAL)
            connection = self._publisher.connection
            if connection is not None and (self._used or self.lengths):
                await self._ask(connection)

    async def _ask(self, connection: TurnConnection) -> None:
        asked, self._used = self._used.union(self.lengths), set()
        try:
            async with broker.looking(connection) as look:
                for queue in asked:
                    # A queue that was deleted is refused; publishing to it tells the sender.
                    before, length = self.lengths[queue], 0
                    with suppress(ChannelClosedByBroker):
                        length, _consumers = await look(queue)
                    self.lengths[queue] += length - before
                    if not self.lengths[queue]:
                        del self.lengths[queue]
        except broker.ERRORS:  # the publisher reports that the connection is lost
            self._used.update(asked)
