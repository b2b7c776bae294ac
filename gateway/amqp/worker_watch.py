"""Ask workers once a minute how many results they have lost, and set the gauge.

A result that a worker can neither reply nor store is known to that worker only, and the result
store is away. So it is asked over the broker, by Celery's remote control.
"""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
from collections.abc import Iterable
from functools import partial
from typing import Any

from pika.channel import Channel

from gateway import background
from gateway.amqp import broker, pidbox
from gateway.amqp.broker import describe
from gateway.amqp.connection import TurnConnection
from gateway.amqp.publisher import Publisher
from gateway.metrics import Metrics

log = logging.getLogger(__name__)

PAUSE = 60.0  # seconds between questions; each costs a worker a millisecond
ANSWERS = 1.0  # seconds in which workers answer
LOST = "gateway_worker_results_lost"


class WorkerWatch:
    """Asks on a channel of its own, because a missing exchange would close it."""

    def __init__(self, publisher: Publisher, metrics: Metrics):
        self._publisher = publisher
        self._metrics = metrics
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        self._task = background.start(self._watch(), "worker watch")

    async def stop(self) -> None:
        await background.stop(self._task)

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
                numbers = [number for each in await _ask(connection) for number in _lost(each)]
        except (*broker.ERRORS, TimeoutError) as exc:
            # Not a warning: an account may do without this, and the publisher logs each outage.
            log.debug("workers are not asked for lost results: %s", describe(exc))
            return
        if numbers:
            self._metrics.set(LOST, sum(numbers))


async def _ask(connection: TurnConnection) -> list[bytes]:
    """Return the answers that come in time. Raises one of `broker.ERRORS`."""
    channel = await broker.open_channel(connection)
    answers: list[bytes] = []

    def take(_channel: Channel, _method: Any, _properties: Any, body: bytes) -> None:
        answers.append(body)

    try:
        own = f"gateway.reply.{secrets.token_hex(8)}"
        declare = partial(channel.queue_declare, own, exclusive=True, auto_delete=True)
        consume = partial(channel.basic_consume, own, take, auto_ack=True)
        await broker.rpc(channel, lambda done: declare(callback=done))
        await broker.rpc(channel, lambda done: consume(callback=done))
        reply_to = {"exchange": "", "routing_key": own}
        pidbox.publish(channel, "stats", {}, ticket=own, reply_to=reply_to)
        await asyncio.sleep(ANSWERS)
    finally:
        if channel.is_open:
            channel.close()
    return answers


def _lost(body: bytes) -> Iterable[int]:
    """Yield the number of each worker of an answer; others than the app server's have none."""
    try:
        said = json.loads(body)
    except (ValueError, RecursionError):
        return
    for stats in said.values() if isinstance(said, dict) else ():
        lost = stats.get("lost_results") if isinstance(stats, dict) else None
        number = lost.get("number") if isinstance(lost, dict) else None
        if isinstance(number, int):
            yield number
