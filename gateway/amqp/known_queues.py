"""The dynamic queues that a process knows: a table for each name's template."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from gateway.amqp.dynamic_queue import DynamicQueue
from gateway.clock import monotonic
from gateway.config.route import Route
from gateway.errors import QueueLimit
from gateway.metrics import Metrics


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
