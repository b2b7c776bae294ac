"""Dynamic queues: declared on first use, consumed by a worker that is told to, deleted when idle.

No message is lost, whatever happens to gateways and workers, because a queue never expires while a
message may be in it (`gateway.config.dynamic`): a message is published only if this process has
declared the queue shortly before, which renews its expiry, and a message that waits for too long
moves to the static queue. Everything else here only serves that tasks begin soon, and that idle
queues expire.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterator
from functools import partial
from hashlib import blake2b
from math import inf
from time import monotonic

from pika.exceptions import ChannelClosedByBroker

from gateway import background
from gateway.amqp import broker
from gateway.amqp.broker import describe
from gateway.amqp.dynamic_queue import DynamicQueue
from gateway.amqp.publisher import Publisher
from gateway.amqp.remote_control import DYNAMIC, Consumed, RemoteControl
from gateway.celery_message import Message
from gateway.config import dynamic
from gateway.config.dynamic import IDLE
from gateway.config.route import Route
from gateway.config.settings import Config
from gateway.errors import (
    BrokerBlocked,
    BrokerUnavailable,
    NotConfirmed,
    QueueLimit,
    RequestError,
    Unroutable,
)
from gateway.metrics import Metrics
from gateway.pending_task import PendingTask

log = logging.getLogger(__name__)

CHECK_INTERVAL = 1.0  # seconds between checks of the queues in use
_KNOWN = 10.0  # seconds for which the workers' answers are used
_LONGEST_SWEEP = 60.0  # seconds between two sweeps, at the most
_AT_ONCE = 16  # queues that are declared at the same time: each needs a channel

#: Publishes a message, as a strategy's `send` or `publish` does.
Send = Callable[[Message, float], PendingTask]


class DynamicQueues:
    """The dynamic queues of a process: a table for each route, bounded by its `queue_limit`."""

    def __init__(self, config: Config, metrics: Metrics, publisher: Publisher):
        self._metrics = metrics
        self._publisher = publisher
        self._timeout = config.confirm_timeout
        self._blocks = config.strategy_info.blocks
        self._routes = [route for route in config.routes if route.dynamic]
        #: By the name's template, which several routes may share; then by the name.
        self._tables: dict[str, dict[str, DynamicQueue]] = {
            route.queue: {} for route in self._routes
        }
        self._control = RemoteControl(publisher, self._in_use)
        self._sweep_every = min(
            _LONGEST_SWEEP, *(IDLE / 2 * route.queue_expires for route in self._routes)
        )
        self._room = asyncio.Semaphore(_AT_ONCE)
        self._unconsumed = asyncio.Event()
        self._workers: dict[str, Consumed] = {}
        self._workers_known = -inf
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        await self._control.start()
        self._tasks = [
            background.start(self._watch(), "dynamic queues"),
            background.start(self._sweep_regularly(), "sweep of dynamic queues"),
        ]

    async def stop(self) -> None:
        for task in self._tasks:
            await background.stop(task)
        for queue in list(self._all()):
            await background.stop(queue.task)
        await self._control.stop()

    # Publishing -------------------------------------------------------------------------

    def send(self, route: Route, message: Message, deadline: float, send: Send) -> PendingTask:
        """Publish `message` by `send` as soon as its queue is declared, in order.

        Raises `QueueLimit`, or `BrokerUnavailable` or `BrokerBlocked` where that is known.
        """
        if self._publisher.blocked:
            raise BrokerBlocked
        if self._publisher.connection is None:
            raise BrokerUnavailable
        queue = self._find(route, message.queue)
        pending = PendingTask(message, deadline)
        self._publish(queue, pending, send, again=False)
        return pending

    def _find(self, route: Route, name: str) -> DynamicQueue:
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

    def _publish(self, queue: DynamicQueue, pending: PendingTask, send: Send, again: bool) -> None:
        now = monotonic()
        publish = partial(self._publish_now, queue, pending, send, again)
        if queue.ready(now):
            queue.used = now
            publish(None)
            return
        queue.waiting.append(publish)
        if queue.task is None:
            queue.task = asyncio.create_task(self._declare(queue))

    def _publish_now(
        self,
        queue: DynamicQueue,
        pending: PendingTask,
        send: Send,
        again: bool,
        error: RequestError | None,
    ) -> None:
        if pending.ended:  # its sender has got an error already
            return
        if error is not None:
            pending.fail(error)
            return
        try:
            inner = send(pending.message, pending.deadline)
        except RequestError as exc:
            pending.fail(exc)
            return
        # The request has `pending`, and the strategy settles `inner`.
        pending.on_release = lambda _pending: inner.abandon()

        def changed(inner: PendingTask) -> None:
            if inner.confirmed:
                pending.confirm()
            if inner.outcome is not None:
                pending.settle(inner.outcome)
            elif isinstance(inner.error, Unroutable) and not again:
                # Somebody has deleted the queue, or the broker has lost it.
                queue.declared = -inf
                self._publish(queue, pending, send, again=True)
            elif inner.error is not None:
                pending.fail(inner.error)

        inner.watch(changed)

    async def _declare(self, queue: DynamicQueue) -> None:
        """Declare `queue`, then do what waits for that; a failure is an error of each message."""
        error: RequestError | None = None
        try:
            async with asyncio.timeout(self._timeout), self._room:
                await self._renew(queue)
                if self._blocks and not queue.consumers:
                    # The loop can tell no worker while it is blocked by the wait for the result.
                    await self._assign_consumers()
                    await self._renew(queue)  # an answer comes after the command was sent
            queue.used = monotonic()
        except TimeoutError:
            error = NotConfirmed(f"The broker did not declare the queue {queue.name} in time.")
        except ChannelClosedByBroker as exc:
            log.warning("the broker refuses the queue %s: %s", queue.name, exc.reply_text)
            error = Unroutable(f"The broker refuses the queue {queue.name}: {exc.reply_text}")
        except (*broker.ERRORS, BrokerUnavailable) as exc:
            error = BrokerUnavailable(f"The queue {queue.name} was not declared: {describe(exc)}")
        waiting, queue.waiting, queue.task = queue.waiting, [], None
        for publish in waiting:
            try:
                publish(error)
            except Exception:
                # One message's failure must not keep the others; its own deadline answers it.
                log.exception("a message for the queue %s could not be published", queue.name)
        if error is not None:
            self._remove_expired()
        elif not queue.consumers:
            self._unconsumed.set()

    async def _renew(self, queue: DynamicQueue) -> None:
        connection = self._publisher.connection
        if connection is None:
            raise BrokerUnavailable
        begun = monotonic()
        channel = await broker.open_channel(connection)
        try:
            arguments = dynamic.arguments(queue.route)
            queue.messages, queue.consumers = await broker.declare(channel, queue.name, arguments)
        finally:
            if channel.is_open:
                channel.close()
        queue.declared = begun

    # Watching ---------------------------------------------------------------------------

    async def _watch(self) -> None:
        """Check queues each second, and have workers consume those that have no consumer."""
        checked = monotonic()
        while True:
            try:
                async with asyncio.timeout(max(checked + CHECK_INTERVAL - monotonic(), 0)):
                    await self._unconsumed.wait()
            except TimeoutError:
                checked = monotonic()
                await self._guard(self._check_queues())
            self._unconsumed.clear()
            await self._guard(self._assign_consumers())

    async def _guard(self, step: Awaitable[None]) -> None:
        """Await `step`; what it cannot do without the broker is done later."""
        try:
            async with asyncio.timeout(broker.CONNECT_TIMEOUT):
                await step
        except (*broker.ERRORS, BrokerUnavailable, TimeoutError) as exc:
            log.info("dynamic queues are not watched for now: %s", describe(exc))

    async def _check_queues(self) -> None:
        """Renew the queues that are due, and note their messages and consumers."""
        self._remove_expired()
        now, connection = monotonic(), self._publisher.connection
        due = [queue for queue in self._all() if queue.due(now)]
        if connection is None or not due:
            return
        channel = await broker.open_channel(connection)
        try:
            for queue in due:
                begun = monotonic()
                try:
                    queue.messages, queue.consumers = await broker.declare(
                        channel, queue.name, None
                    )
                    queue.declared = begun
                except ChannelClosedByBroker as exc:
                    if exc.reply_code != 404:
                        raise
                    queue.declared, queue.messages = -inf, 0
                    channel = await broker.open_channel(connection)
        finally:
            if channel.is_open:
                channel.close()

    async def _assign_consumers(self) -> None:
        """Tell one worker each to consume the queues that have no consumer."""
        now = monotonic()
        unconsumed = [
            queue
            for queue in self._all()
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
        for queue in self._all():
            if queue.name in workers:
                queue.consumed = now
        idle = workers.keys() - self._in_use(workers)
        if not idle:
            return
        used = await self._control.used_elsewhere(idle)
        used.update(self._in_use(idle))  # by now
        for name in sorted(idle - used):
            self._control.tell("cancel_consumer", workers[name], {"queue": name})
            log.debug("nobody uses the queue %s", name)

    def _in_use(self, names: Collection[str]) -> list[str]:
        """Return those of the queues `names` that this process uses."""
        now, wanted = monotonic(), set(names)
        return [q.name for q in self._all() if q.name in wanted and q.in_use(now)]

    def _remove_expired(self) -> None:
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

    def _all(self) -> Iterator[DynamicQueue]:
        return (queue for table in self._tables.values() for queue in list(table.values()))


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
        "queue_arguments": dynamic.arguments(queue.route),
    }
