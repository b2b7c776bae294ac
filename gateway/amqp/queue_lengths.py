"""Ask the broker for the lengths of the fair queues that are in use."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress

from pika.exceptions import ChannelClosedByBroker

from gateway.amqp import broker
from gateway.amqp.connection import TurnConnection
from gateway.amqp.publisher import Publisher
from gateway.background import Service, Work

INTERVAL = 1.0  # seconds between questions


class QueueLengths(Service):
    """The messages that are ready in each of the `queues`, as far as they are known.

    They are asked for once a second on the connection of `publisher`, on a channel of its own: at
    first all, then those of publishers that have sent since, and those that were not empty. What is
    published after the question is added. A queue that is not known has the length 0. Without a
    publisher, as the broker is not AMQP, nothing is asked.
    """

    def __init__(self, queues: Iterable[str] = (), publisher: Publisher | None = None):
        self._publisher = publisher
        self._lengths: Counter[str] = Counter()
        self._used = set(queues)

    def _work(self) -> Work:
        if self._publisher is not None:
            yield "lengths of queues", self._follow(self._publisher)

    def __getitem__(self, queue: str) -> int:
        return self._lengths[queue]

    def add(self, queue: str) -> None:
        """Add a message that is about to be published."""
        self._lengths[queue] += 1

    def use(self, *queues: str) -> None:
        """Let these queues be asked for."""
        self._used.update(queues)

    async def _follow(self, publisher: Publisher) -> None:
        while True:
            await asyncio.sleep(INTERVAL)
            connection = publisher.connection
            if connection is not None and (self._used or self._lengths):
                await self._ask(connection)

    async def _ask(self, connection: TurnConnection) -> None:
        asked, self._used = self._used.union(self._lengths), set()
        try:
            channel = await broker.open_channel(connection)
            for queue in asked:
                if not channel.is_open:
                    channel = await broker.open_channel(connection)
                # A queue that was deleted closes the channel; publishing to it tells the sender.
                before, length = self._lengths[queue], 0
                with suppress(ChannelClosedByBroker):
                    length, _consumers = await broker.declare(channel, queue, None)
                self._lengths[queue] += length - before
                if not self._lengths[queue]:
                    del self._lengths[queue]
            if channel.is_open:
                channel.close()
        except broker.ERRORS:  # the publisher reports that the connection is lost
            self._used.update(asked)
