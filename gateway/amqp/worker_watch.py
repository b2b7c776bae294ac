"""Ask workers once a minute how many results they have lost, and set the gauge.

A result that a worker can neither reply nor store is known to that worker only, and the result
store is away. So it is asked over the broker, by Celery's remote control.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any, NamedTuple

from pika.channel import Channel

from gateway.amqp import broker, pidbox
from gateway.amqp.broker import describe
from gateway.amqp.connection import TurnConnection
from gateway.amqp.publisher import Publisher
from gateway.background import Service, Work
from gateway.metrics import Metrics

log = logging.getLogger(__name__)

PAUSE = 60.0  # seconds between questions; each costs a worker a millisecond
ANSWERS = 1.0  # seconds in which workers answer
LOST = "gateway_worker_results_lost"
_FAR = 1e11  # seconds since the epoch; a time that can be written


class Lost(NamedTuple):
    """The results that a worker has lost since its start; `last`: seconds since the epoch."""

    number: int
    last: float


class WorkerWatch(Service):
    """Asks on a channel of its own, because a missing exchange would close it."""

    def __init__(self, publisher: Publisher, metrics: Metrics):
        self._publisher = publisher
        self._metrics = metrics

    def _work(self) -> Work:
        yield "worker watch", self._watch()

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(PAUSE)
            await self.look()

    async def look(self) -> None:
        """Ask, and set the gauge where any worker answers."""
        connection = self._publisher.connection
        if connection is None:
            return
        try:
            async with asyncio.timeout(broker.CONNECT_TIMEOUT):
                answers = await _ask(connection)
        except (*broker.ERRORS, TimeoutError) as exc:
            # Not a warning: an account may do without this, and the publisher logs each outage.
            log.debug("workers are not asked for lost results: %s", describe(exc))
            return
        replies = [stats for each in answers if isinstance(each, dict) for stats in each.values()]
        # Workers without the app server do not count them.
        if counts := [lost.number for stats in replies if (lost := lost_results(stats))]:
            self._metrics.set(LOST, sum(counts))


async def _ask(connection: TurnConnection) -> list[Any]:
    """Return the answers that come in time. Raises one of `broker.ERRORS`."""
    channel = await broker.open_channel(connection)
    answers: list[Any] = []

    def take(_channel: Channel, _method: Any, _properties: Any, body: bytes) -> None:
        answers.append(pidbox.decode(body))

    try:
        own = await broker.consume_replies(channel, take)
        pidbox.publish(channel, "stats", {}, ticket=own, reply_to=own)
        await asyncio.sleep(ANSWERS)
    finally:
        if channel.is_open:
            channel.close()
    return answers


def lost_results(stats: Any) -> Lost | None:
    """Read what a worker tells in its answer to `stats`; None: it does not count them."""
    lost = stats.get("lost_results") if isinstance(stats, dict) else None
    if not isinstance(lost, dict):
        return None
    number, last = lost.get("number"), lost.get("last") or 0
    if not isinstance(number, int) or not isinstance(last, int | float):
        return None
    return Lost(number, last) if number >= 0 and 0 <= last < _FAR else None
