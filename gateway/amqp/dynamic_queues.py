"""Publish to dynamic queues, which are declared on first use.

No message is lost, whatever happens to gateways and workers, because a queue never expires while a
message may be in it (`gateway.config.dynamic`): a message is published only if this process has
declared the queue shortly before, which renews its expiry, and a message that waits for too long
moves to the static queue. That tasks begin soon, and that idle queues expire, is left to
`queue_consumers.py`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from math import inf

from pika.exceptions import ChannelClosedByBroker

from gateway import background
from gateway.amqp import broker
from gateway.amqp.broker import describe
from gateway.amqp.publisher import Publisher
from gateway.amqp.queue_consumers import DynamicQueue, KnownQueues, QueueConsumers
from gateway.background import Service
from gateway.celery_message import Message
from gateway.clock import monotonic
from gateway.config.route import Route
from gateway.config.settings import Config
from gateway.errors import BrokerBlocked, BrokerUnavailable, NotConfirmed, RequestError, Unroutable
from gateway.metrics import Metrics
from gateway.pending_task import PendingTask

log = logging.getLogger(__name__)

#: Publishes a message, as a strategy's `send` or `publish` does.
Send = Callable[[Message, float], PendingTask]


class DynamicQueues(Service):
    """Publishes to dynamic queues, each of which it declares first; has workers consume them."""

    def __init__(self, config: Config, metrics: Metrics, publisher: Publisher):
        self._publisher = publisher
        self._timeout = config.confirm_timeout
        self._blocks = config.strategy_info.blocks
        routes = [route for route in config.routes if route.dynamic]
        self._known = KnownQueues(routes, metrics)
        self._consumers = QueueConsumers(publisher, routes, self._known)
        self.uses = (self._consumers,)
        self._room = asyncio.Semaphore(broker.AT_ONCE)

    async def stop(self) -> None:
        for queue in self._known:
            await background.stop(queue.task)
        await super().stop()

    def send(self, route: Route, message: Message, deadline: float, send: Send) -> PendingTask:
        """Publish `message` by `send` as soon as its queue is declared, in order.

        Raises `QueueLimit`, or `BrokerUnavailable` or `BrokerBlocked` where that is known.
        """
        if self._publisher.blocked:
            raise BrokerBlocked
        if self._publisher.connection is None:
            raise BrokerUnavailable
        queue = self._known.find(route, message.queue)
        pending = PendingTask(message, deadline)
        self._publish(queue, pending, send, again=False)
        return pending

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
        pending.also_release(lambda _pending: inner.abandon())

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
                    await self._consumers.assign()
                    await self._renew(queue)  # an answer comes after the command was sent
            queue.used = monotonic()
        except TimeoutError:
            error = NotConfirmed(f"The broker did not declare the queue {queue.name} in time.")
        except ChannelClosedByBroker as exc:
            log.warning("the broker refuses the queue %s: %s", queue.name, exc.reply_text)
            error = Unroutable(f"The broker refuses the queue {queue.name}: {exc.reply_text}")
        except (*broker.ERRORS, BrokerUnavailable) as exc:
            error = BrokerUnavailable(f"The queue {queue.name} was not declared: {describe(exc)}")
        except Exception:  # without an end, nothing would declare this queue again
            log.exception("the queue %s could not be declared", queue.name)
            error = RequestError()
        waiting, queue.waiting, queue.task = queue.waiting, [], None
        for publish in waiting:
            try:
                publish(error)
            except Exception:
                # One message's failure must not keep the others; its own deadline answers it.
                log.exception("a message for the queue %s could not be published", queue.name)
        if error is not None:
            self._known.remove_expired()
        elif not queue.consumers:
            self._consumers.assign_soon()

    async def _renew(self, queue: DynamicQueue) -> None:
        connection = self._publisher.connection
        if connection is None:
            raise BrokerUnavailable
        begun = monotonic()
        queue.messages, queue.consumers = await broker.declare_alone(
            connection, queue.name, queue.route.dynamic_arguments()
        )
        queue.declared = begun
