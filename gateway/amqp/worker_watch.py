"""Watch workers: which queues of the routes none consumes, and how many results they have lost.

A result that a worker can neither reply nor store is known to that worker only, and the result
store is away. So it is asked over the broker, by Celery's remote control.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

from pika.exceptions import ChannelClosedByBroker

from gateway.amqp import broker
from gateway.amqp.connection import TurnConnection
from gateway.amqp.publisher import AnyPublisher
from gateway.amqp.workers import ask_one
from gateway.background import Service, Work
from gateway.clock import monotonic
from gateway.config.settings import Config
from gateway.metrics import Metrics

log = logging.getLogger(__name__)

CONSUMERS = 5.0  # seconds between questions to the broker for the consumers of queues
PAUSE = 60.0  # seconds between questions to workers; each costs a worker a millisecond
_SHOWN = 20  # queues without a consumer that are named
LOST = "gateway_worker_results_lost"


class WorkerWatch(Service):
    """Asks on channels of its own, because a missing queue or exchange closes the channel."""

    def __init__(self, config: Config, publisher: AnyPublisher, metrics: Metrics):
        self._paths = config.paths_by_queue
        self._publisher = publisher
        self._metrics = metrics
        #: A text for each queue that no worker consumed when the broker was last asked.
        self.warnings: list[str] = []

    def _work(self) -> Work:
        yield "worker watch", self._watch()

    async def _watch(self) -> None:
        due = monotonic() + PAUSE
        while True:
            await self._guarded(self._count_consumers)
            if monotonic() >= due:
                await self.look()
                due = monotonic() + PAUSE
            await asyncio.sleep(CONSUMERS)

    async def look(self) -> None:
        """Ask workers for lost results, and set the gauge where any answers."""
        await self._guarded(self._count_lost)

    async def _guarded(self, step: Callable[[TurnConnection], Awaitable[None]]) -> None:
        """Take a step where there is a connection; what it cannot ask now it asks later."""
        if (connection := self._publisher.connection) is not None:
            # Not a warning: an account may do without this, and the publisher logs each outage.
            await broker.guarded(log.debug, "workers are not watched", step(connection))

    async def _count_consumers(self, connection: TurnConnection) -> None:
        """Ask the broker for the consumers of each queue."""
        found = []
        async with broker.looking(connection) as look:
            for queue, paths in sorted(self._paths.items()):
                # What may be said of a queue that cannot be seen is said by the publisher.
                with suppress(ChannelClosedByBroker):
                    _, consumers = await look(queue)
                    if not consumers:
                        found.append(_unconsumed(queue, paths))
        more = [f"... and {len(found) - _SHOWN} more"] if len(found) > _SHOWN else []
        self.warnings = found[:_SHOWN] + more

    async def _count_lost(self, connection: TurnConnection) -> None:
        answers = await ask_one(connection, "stats")
        # Workers without the app server do not count them.
        if lost := [worker.lost.number for worker in answers.workers.values() if worker.lost]:
            self._metrics.set(LOST, sum(lost))


def _unconsumed(queue: str, paths: Sequence[str]) -> str:
    return (
        f"no worker consumes the queue {queue} (route {', '.join(paths)}): start one with "
        f"-Q {queue}, or correct `queue`; `gateway check` says more"
    )
