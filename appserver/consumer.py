"""The app server's consumers: messages of no task, reconnection, and queues to be forgotten."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import amqp
from celery.exceptions import NotRegistered
from celery.worker import state
from celery.worker.consumer import Consumer
from celery.worker.request import Request

from appserver.beginnings import beginnings
from appserver.frozen_nodes import Node, begin_elsewhere, node_of
from appserver.lost_results import lost_results
from appserver.poison import UNUSABLE, dispose, keep, record_failure
from appserver.private_parts import PrivateParts
from appserver.queues import DYNAMIC_EXCHANGE
from appserver.refused_queues import leave_out

RECONNECT_INTERVAL_MAX = 5  # seconds
LOCKED_PAUSE = 1.0  # seconds until a worker asks again for a queue that another connection has

#: The refusal of a limit for all queues of a channel, by a quorum queue.
_global_qos = re.compile(r"\bglobal[ _]qos\b", re.I).search

#: https://www.rabbitmq.com/docs/consumers#acknowledgement-timeout
_took_too_long = re.compile(r"delivery acknowledgement on channel \d+ timed out").search

log = logging.getLogger(__name__)

_CONSUMER_PARTS = PrivateParts(
    "the prefetch limit is raised by the pool's threads after a lost connection",
    "celery.worker.consumer.consumer:Consumer._restore_prefetch_count_after_connection_restart",
    "celery.worker.consumer.consumer:Consumer._maximum_prefetch_restored",
    "celery.worker.consumer.consumer:Consumer._new_prefetch_count",
    "kombu.common:QoS._mutex",
)


class _Kept:
    """A message that is a dead letter already, which Celery is not to reject."""

    def __init__(self, message: Any):
        self._message = message

    def reject_log_error(self, *args: object) -> None:
        """Do nothing: it is acknowledged when its failure is recorded."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._message, name)


class PromptConsumer(Consumer):
    """A consumer that reconnects quickly, declares delayed delivery on one node, forgets queues.

    Its connection is used by the loop's thread only.
    """

    _maximum_prefetch_restored: bool
    _limit_of_each_queue = False
    #: Where the last connection was lost.
    _left: Node | None = None
    #: The queues that the broker refuses.
    refused: frozenset[str] = frozenset()

    class Blueprint(Consumer.Blueprint):
        default_steps = [
            "appserver.delayed_delivery:DelayedDelivery" if "delayed_delivery" in step else step
            for step in Consumer.Blueprint.default_steps
        ]

    def connect(self) -> Any:
        """Connect; where a queue has asked for it, the prefetch limit is one of each queue.

        Celery asks that of the transport. It finds by itself only quorum queues that its app
        declares as such, and not those that are by the default of a virtual host or a node.
        """
        conn = super().connect()
        if self._limit_of_each_queue:
            conn.transport.qos_semantics_matches_spec = lambda _connection: True
        return conn

    def create_task_handler(self, *args: Any, **options: Any) -> Callable[[Any], Any]:
        """Return what handles messages; one that is no task's becomes a dead letter."""
        handle = super().create_task_handler(*args, **options)

        def on_task_received(message: Any) -> Any:
            try:
                return handle(message)
            except UNUSABLE as exc:
                if not message.acknowledged:
                    settle = message.ack_log_error, message.reject_log_error
                    return dispose(self, message, exc, *settle)
                # It is a task's that is not known, and its outcome could not be recorded.
                lost_results(self.app).add(message.headers.get("id", ""), repr(exc))

        return on_task_received

    def on_unknown_task(self, body: Any, message: Any, exc: Exception, **options: Any) -> None:
        """Record the failure of a task that this worker does not know, as Celery does."""
        unknown = NotRegistered(message.headers.get("task", ""))
        if (taken := self._taken(message, unknown)) is not None:
            super().on_unknown_task(body, taken, exc, **options)
            if taken is not message:
                message.ack_log_error(log, self.connection_errors)

    def on_invalid_task(self, body: Any, message: Any, exc: Exception, **options: Any) -> None:
        """Log a message whose content is not accepted, as Celery does; record its failure."""
        if (taken := self._taken(message, exc)) is not None:
            super().on_invalid_task(body, taken, exc, **options)
            if taken is not message:
                record_failure(self.app, message, exc)
                message.ack_log_error(log, self.connection_errors)

    def _taken(self, message: Any, exc: Exception) -> Any:
        """Return a message that Celery may reject, which drops it; None: it is returned later.

        That of a gateway is a dead letter before, if it is persistent: the sender of what is not
        has been told nothing, and gets an error.
        """
        delivered = isinstance(message.headers.get("delivery"), dict)
        persistent = message.properties.get("delivery_mode") == 2
        if not (delivered and persistent and isinstance(message.channel, amqp.Channel)):
            return message
        return _Kept(message) if keep(self, message, exc, message.reject_log_error) else None

    def on_connection_error_after_connected(self, exc: Exception) -> None:
        if not isinstance(exc, self.channel_errors):
            self._left = node_of(self.connection)
        super().on_connection_error_after_connected(exc)
        if isinstance(exc, amqp.AMQPNotImplementedError) and _global_qos(str(exc)):
            self._limit_of_each_queue = True
            log.warning(
                "A queue is a quorum queue by the default of its virtual host or node: the prefetch"
                " limit holds for each queue from now on, and tasks with a countdown count in it"
                " (%s)",
                exc.reply_text,
            )
        elif isinstance(exc, amqp.NotFound):
            leave_out(self, str(exc))
        elif isinstance(exc, amqp.ResourceLocked):
            log.error(
                "%s: if another worker is called %s, give this one a name of its own (-n NAME@%%h);"
                " otherwise the broker still knows a connection that was lost",
                exc.reply_text,
                self.hostname,
            )
            # It may be another node of the cluster that has not noticed the loss yet.
            time.sleep(LOCKED_PAUSE)
        elif isinstance(exc, amqp.PreconditionFailed) and _took_too_long(str(exc)):
            log.error(
                "RabbitMQ delivers the messages of this worker again, as a task takes longer than"
                " its consumer_timeout (%s): %s",
                exc.reply_text,
                ", ".join(beginnings(self.app).keep_all()) or "it has ended meanwhile",
            )
        elif isinstance(exc, amqp.PreconditionFailed):
            leave_out(self, str(exc))

    def ensure_connected(self, conn: Any) -> Any:
        """Connect, with pauses of 1 to 5 s between attempts; Celery's grow to 30 s.

        The node of the connection that was lost is tried last; Celery begins with the list's first.
        """
        begin_elsewhere(conn, self._left)
        conn.ensure_connection = partial(
            conn.ensure_connection,
            interval_start=1,
            interval_step=1,
            interval_max=RECONNECT_INTERVAL_MAX - 1,
        )
        return super().ensure_connected(conn)

    def _restore_prefetch_count_after_connection_restart(self, *args: object) -> None:
        """Raise the prefetch limit by a step; the loop tells the broker, as it does in general.

        Celery would tell it here, where a task has ended: with the pool `threads` in another
        thread, which then reads answers and messages at the same time as the loop. The loop may
        wait for an answer that the other thread has got, and a message may get another one's body.
        """
        if not _CONSUMER_PARTS.there:
            super()._restore_prefetch_count_after_connection_restart(*args)
            return
        with self.qos._mutex:
            if self._maximum_prefetch_restored:
                return
            most = self.max_prefetch_count
            self.qos.value = self.initial_prefetch_count = min(most, self._new_prefetch_count)
            self._maximum_prefetch_restored = self.qos.value == most
            if self._maximum_prefetch_restored:
                log.info("The prefetch limit is %d again", most)

    def cancel_task_queue(self, queue: str) -> None:
        """Stop consuming `queue`, as remote control asks for.

        A dynamic queue may expire when it has no consumer, and would take unacknowledged messages
        along. So it is kept while there are any: its gateway asks again. After that, its definition
        is dropped, too: Celery would keep it, which needs memory for each name.
        """
        known = self.app.amqp.queues.get(queue)
        dynamic = known is not None and known.exchange.name == DYNAMIC_EXCHANGE
        if dynamic and any(queue == key for key in self._unacknowledged()):
            log.debug("%s is still consumed: some of its messages are not acknowledged", queue)
            return
        super().cancel_task_queue(queue)
        if dynamic:
            del self.app.amqp.queues[queue]

    def _unacknowledged(self) -> Iterator[str]:
        """Yield the routing key of each message that is not acknowledged yet."""
        scheduled = [entry.entry.args for entry in self.timer.schedule.queue]
        waiting = [args[0] for args in scheduled if args and isinstance(args[0], Request)]
        for request in (*state.reserved_requests, *waiting):
            yield request.delivery_info["routing_key"]


class QuietConsumer(PromptConsumer):
    """A consumer that neither receives messages of other workers nor sends them any.

    Gossip, mingle and event heartbeats cost a connection, messages from every worker to every
    worker, and a second at the start. AMQP's heartbeat remains. If task events are on, event
    heartbeats are on as well, because Flower shows a worker without them as offline.
    """

    def __init__(
        self,
        *args: Any,
        worker_options: Mapping[str, Any] | None = None,
        task_events: bool = False,
        **kwargs: Any,
    ):
        quiet = dict.fromkeys(("without_gossip", "without_mingle"), True)
        if not task_events:
            quiet["without_heartbeat"] = True
        options = {**(worker_options or {}), **quiet}
        super().__init__(*args, worker_options=options, task_events=task_events, **kwargs)
