"""The dynamic queues that a process knows; workers consume those that are in use, and no others.

Each queue in use that has no consumer is given to one worker, and a queue that no gateway uses any
more is taken from its workers, so that it expires.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from hashlib import blake2b
from math import inf

from pika.exceptions import ChannelClosedByBroker

from gateway.amqp import broker
from gateway.amqp.publisher import Publisher
from gateway.amqp.remote_control import RemoteControl
from gateway.amqp.workers import DYNAMIC, Answers
from gateway.background import Service, Work, happens
from gateway.clock import monotonic
from gateway.config.dynamic import IDLE, RENEWED
from gateway.config.route import Route
from gateway.errors import QueueLimit, RequestError
from gateway.metrics import Metrics

log = logging.getLogger(__name__)

CHECK_INTERVAL = 1.0  # seconds between checks of the queues in use
_KNOWN = 10.0  # seconds for which the workers' answers are used
_LONGEST_SWEEP = 60.0  # seconds between two sweeps, at the most
_WATCHED = 10.0  # seconds after a message in which its queue is checked each time

_guarded = partial(broker.guarded, log.info, "dynamic queues are not watched for now")


class DynamicQueue:
    """A dynamic queue that this process has declared, and that may still exist."""

    __slots__ = (
        "consumed", "consumers", "declared", "messages", "name", "route", "task", "told", "used",
        "waiting",
    )  # fmt: skip

    def __init__(self, name: str, route: Route):
        self.name = name
        self.route = route
        #: Monotonic seconds: declared, used, known to be consumed, and a worker told last.
        self.declared = self.used = self.consumed = self.told = -inf
        self.messages = self.consumers = 0
        #: What is done once it is declared; the argument is the error, if it could not be.
        self.waiting: list[Callable[[RequestError | None], None]] = []
        self.task: asyncio.Task[None] | None = None

    def ready(self, now: float) -> bool:
        """Was it declared so recently that a message cannot be in it when it expires?

        Without recent use it is not ready either, as workers may have cancelled its consumer.
        """
        recent = max(now - self.declared, now - self.used)
        return recent < RENEWED * self.route.queue_expires and not self.waiting

    def in_use(self, now: float) -> bool:
        """May it have messages, or get one soon?"""
        idle = now - self.used > IDLE * self.route.queue_expires
        return bool(self.waiting or self.messages) or not idle

    def due(self, now: float) -> bool:
        """Has its number of consumers to be asked for, and its expiry to be renewed?"""
        if not self.in_use(now) or self.declared == -inf:
            return False
        watched = self.messages or not self.consumers or now - self.used < _WATCHED
        return bool(watched) or now - self.declared > RENEWED / 4 * self.route.queue_expires

    def expired(self, now: float) -> bool:
        """Has it expired by now?"""
        unused = now - max(self.declared, self.consumed)
        return not self.waiting and unused > self.route.queue_expires


class KnownQueues:
    """The dynamic queues of `routes`, bounded by the `queue_limit` of each; counted in `metrics`.

    Iterating over it yields all queues; meanwhile queues may be added.
    """

    def __init__(self, routes: Sequence[Route], metrics: Metrics):
        self._routes = routes
        self._metrics = metrics
        #: By the name's template, which several routes may share; then by the name.
        self._tables: dict[str, dict[str, DynamicQueue]] = {route.queue: {} for route in routes}

    def __iter__(self) -> Iterator[DynamicQueue]:
        return (queue for table in self._tables.values() for queue in list(table.values()))

    def find(self, route: Route, name: str) -> DynamicQueue:
        """Return the queue `name` of `route`, which may be new; raises `QueueLimit`."""
        table = self._tables[route.queue]
        queue = table.get(name)
        if queue is None:
            if len(table) >= route.queue_limit:
                raise QueueLimit(
                    f"There are {len(table)} queues {route.queue}, which is the limit; one is free "
                    f"when it has been idle for {route.queue_expires:g} s."
                )
            queue = table[name] = DynamicQueue(name, route)
            self._count()
        return queue

    def in_use(self, names: Collection[str]) -> list[str]:
        """Return those of the queues `names` that this process uses."""
        now, wanted = monotonic(), set(names)
        return [queue.name for queue in self if queue.name in wanted and queue.in_use(now)]

    def remove_expired(self) -> None:
        """Forget the queues that have expired by now."""
        now = monotonic()
        for table in self._tables.values():
            for name in [name for name, queue in table.items() if queue.expired(now)]:
                del table[name]
        self._count()

    def _count(self) -> None:
        numbers: dict[str, int] = {}
        for path, template in {(route.path, route.queue) for route in self._routes}:
            numbers[path] = numbers.get(path, 0) + len(self._tables[template])
        for path, number in numbers.items():
            self._metrics.set_queues(path, number)


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
        self._workers = Answers()
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
        if not self._workers.consumed or stale or now - self._workers_known > _KNOWN:
            self._workers = await self._control.consumed(hurry=True)
            self._workers_known = monotonic()
        for queue in unconsumed:
            static = queue.route.static_queue
            able = self._workers.consuming(static)
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
            if not await happens(self._unconsumed, max(checked + CHECK_INTERVAL - monotonic(), 0)):
                checked = monotonic()
                await _guarded(self._check())
            self._unconsumed.clear()
            await _guarded(self.assign())

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
            await _guarded(self._sweep())

    async def _sweep(self) -> None:
        """Have workers stop consuming queues that no gateway uses, also those of other gateways."""
        workers: dict[str, list[str]] = {}
        for worker, told in (await self._control.consumed()).workers.items():
            for name in told.dynamic:
                workers.setdefault(name, []).append(worker)
        now = monotonic()
        for queue in self._queues:
            if queue.name in workers:
                queue.consumed = now
        idle = workers.keys() - self._queues.in_use(workers)
        if not idle:
            return
        used = await self._control.used(idle)
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
