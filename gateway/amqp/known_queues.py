"""The dynamic queues that a process knows, and what follows from what it knows of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterator, Sequence
from math import inf

from gateway.clock import monotonic
from gateway.config.dynamic import IDLE, RENEWED
from gateway.config.route import Route
from gateway.errors import QueueLimit, RequestError
from gateway.metrics import Metrics

_WATCHED = 10.0  # seconds after a message in which its queue is checked each time


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
