"""Have workers consume the dynamic queues that are in use, and no others.

Each queue in use that has no consumer is given to one worker, and a queue that no gateway uses any
more is taken from its workers, so that it expires.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Collection, Sequence
from hashlib import blake2b
from math import inf

from pika.exceptions import ChannelClosedByBroker

from gateway.amqp import broker
from gateway.amqp.broker import describe
from gateway.amqp.known_queues import DynamicQueue, KnownQueues
from gateway.amqp.publisher import Publisher
from gateway.amqp.remote_control import DYNAMIC, Consumed, RemoteControl
from gateway.background import Service, Work
from gateway.clock import monotonic
from gateway.config.dynamic import IDLE
from gateway.config.route import Route
from gateway.errors import BrokerUnavailable

log = logging.getLogger(__name__)

CHECK_INTERVAL = 1.0  # seconds between checks of the queues in use
_KNOWN = 10.0  # seconds for which the workers' answers are used
_LONGEST_SWEEP = 60.0  # seconds between two sweeps, at the most


class QueueConsumers(Service):
    """Watches the `queues` of `routes`; `publisher` has the connection on which it asks."""

    def __init__(self, publisher: Publisher, routes: Sequence[Route], queues: KnownQueues):
        self._publisher = publisher
        self._queues = queues
        self._control = RemoteControl(publisher, queues.in_use)
        self.uses = (self._control,)
        self._sweep_every = min(
            _LONGEST_SWEEP, *(IDLE / 2 * route.queue_expires for route in routes)
        )
        self._unconsumed = asyncio.Event()
        self._workers: dict[str, Consumed] = {}
        self._workers_known = -inf

    def _work(self) -> Work:
        yield "dynamic queues", self._watch()
        yield "sweep of dynamic queues", self._sweep_regularly()

    def assign_soon(self) -> None:
        """Have the queues without a consumer assigned now, instead of at the next check."""
        self._unconsumed.set()

    async def assign(self) -> None:
        """Tell one worker each to consume the queues that have no consumer.

        Raises `BrokerUnavailable`, or pika's AMQPError.
        """
        now = monotonic()
        unconsumed = [
            queue
            for queue in self._queues
            if queue.declared > -inf
            and not queue.consumers
            and queue.in_use(now)
            and now - queue.told >= CHECK_INTERVAL
        ]
        if not unconsumed:
            return
        stale = any(queue.told > self._workers_known for queue in unconsumed)
        if not self._workers or stale or now - self._workers_known > _KNOWN:
            self._workers = await self._control.consumed(hurry=True)
            self._workers_known = monotonic()
        for queue in unconsumed:
            static = queue.route.static_queue
            able = [name for name, queues in self._workers.items() if static in queues]
            if not able:
                log.warning(
                    "no worker that answers consumes %s: nobody consumes %s", static, queue.name
                )
                continue
            queue.told = monotonic()
            self._control.tell("add_consumer", [_chosen(queue.name, able)], _consumer(queue))

    # Queues in use ----------------------------------------------------------------------

    async def _watch(self) -> None:
        """Check queues each second, and have workers consume those that have no consumer."""
        checked = monotonic()
        while True:
            try:
                async with asyncio.timeout(max(checked + CHECK_INTERVAL - monotonic(), 0)):
                    await self._unconsumed.wait()
            except TimeoutError:
                checked = monotonic()
                await self._guard(self._check())
            self._unconsumed.clear()
            await self._guard(self.assign())

    async def _guard(self, step: Awaitable[None]) -> None:
        """Await `step`; what it cannot do without the broker is done later."""
        try:
            async with asyncio.timeout(broker.CONNECT_TIMEOUT):
                await step
        except (*broker.ERRORS, BrokerUnavailable, TimeoutError) as exc:
            log.info("dynamic queues are not watched for now: %s", describe(exc))

    async def _check(self) -> None:
        """Renew the queues that are due, and note their messages and consumers."""
        self._queues.remove_expired()
        now, connection = monotonic(), self._publisher.connection
        due = [queue for queue in self._queues if queue.due(now)]
        if connection is None or not due:
            return
        async with broker.looking(connection) as look:
            for queue in due:
                begun = monotonic()
                try:
                    queue.messages, queue.consumers = await look(queue.name)
                    queue.declared = begun
                except ChannelClosedByBroker as exc:
                    if exc.reply_code != 404:
                        raise
                    queue.declared, queue.messages = -inf, 0

    # Idle queues ------------------------------------------------------------------------

    async def _sweep_regularly(self) -> None:
        while True:
            await asyncio.sleep(self._sweep_every)
            await self._guard(self._sweep())

    async def _sweep(self) -> None:
        """Have workers stop consuming queues that no gateway uses, also those of other gateways."""
        workers: dict[str, list[str]] = {}
        for worker, queues in (await self._control.consumed()).items():
            for name, is_dynamic in queues.items():
                if is_dynamic:
                    workers.setdefault(name, []).append(worker)
        now = monotonic()
        for queue in self._queues:
            if queue.name in workers:
                queue.consumed = now
        idle = workers.keys() - self._queues.in_use(workers)
        if not idle:
            return
        used = await self._control.used_elsewhere(idle)
        used.update(self._queues.in_use(idle))  # by now
        for name in sorted(idle - used):
            self._control.tell("cancel_consumer", workers[name], {"queue": name})
            log.debug("nobody uses the queue %s", name)


def _chosen(queue: str, workers: Collection[str]) -> str:
    """Choose one of `workers` by the queue's name, so that all processes choose the same."""
    return max(workers, key=lambda worker: blake2b(f"{queue} {worker}".encode()).digest())


def _consumer(queue: DynamicQueue) -> dict[str, object]:
    """Return the arguments of Celery's `add_consumer`; the worker declares the queue, too."""
    return {
        "queue": queue.name,
        "exchange": DYNAMIC,
        "exchange_type": "direct",
        "routing_key": queue.name,
        "durable": True,
        "queue_arguments": queue.route.dynamic_arguments(),
    }
