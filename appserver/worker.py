"""Where a worker differs from Celery's: lost children, reconnection, silence between workers."""

from __future__ import annotations

from functools import partial

from billiard.einfo import ExceptionWithTraceback
from celery import Task, signals
from celery.exceptions import WorkerLostError
from celery.worker.consumer import Consumer, delayed_delivery
from celery.worker.request import Request

RECONNECT_INTERVAL_MAX = 5  # seconds


class PoisonAwareRequest(Request):
    """Reject a message that loses its worker process a second time on a classic queue.

    Celery requeues it without a limit. A quorum queue counts deliveries, and its own limit
    decides. The outcome is recorded before the rejection, as Celery does before it acknowledges.
    """

    def on_failure(self, exc_info, send_failed_event=True, return_ok=False):
        poison = self._is_poison(exc_info.exception)
        if poison:
            lost = WorkerLostError(
                "The worker process was lost again with a message that had been redelivered."
            )
            self.task.backend.mark_as_failure(
                self.id, lost, request=self._context, store_result=self.store_errors
            )
            # Celery's own decision below finds the message settled.
            self.reject(requeue=False)
        super().on_failure(exc_info, send_failed_event, return_ok)
        if poison:
            signals.task_failure.send(
                sender=self.task,
                task_id=self.id,
                exception=lost,
                args=self.args,
                kwargs=self.kwargs,
                traceback=exc_info.traceback,
                einfo=exc_info,
            )

    def _is_poison(self, exc: BaseException) -> bool:
        if isinstance(exc, ExceptionWithTraceback):
            exc = exc.exc
        exited = isinstance(exc, (SystemExit, KeyboardInterrupt)) and not (
            self._already_cancelled or self._already_revoked
        )
        return (
            (exited or isinstance(exc, WorkerLostError))
            and bool(self.delivery_info["redelivered"])
            and "x-delivery-count" not in self.request_dict
            and self.task.acks_late
            and self.task.reject_on_worker_lost
            and not self.task.retry_on_worker_lost
            and not self._success_was_stored()
        )


class PoisonAwareTask(Task):
    """The base class of tasks whose requests are `PoisonAwareRequest`."""

    abstract = True
    Request = f"{__name__}:{PoisonAwareRequest.__qualname__}"


class DelayedDelivery(delayed_delivery.DelayedDelivery):
    """Declare what delays tasks, where queues are quorum queues, on the connected node only.

    The nodes of one list are one cluster. Celery declares on each of the list, and tries a node
    that is away for 17 s before the worker begins to consume.
    """

    def start(self, c):
        self._connected = c.connection.as_uri(include_password=True)
        super().start(c)

    def _validate_broker_urls(self, broker_urls):
        return {self._connected}


class QuietConsumer(Consumer):
    """A consumer that neither listens to other workers nor tells them of itself.

    Gossip, mingle and event heartbeats cost a connection, messages for every worker from every
    worker, and a second at start. The broker's own heartbeat stays.
    """

    class Blueprint(Consumer.Blueprint):
        default_steps = [
            DelayedDelivery if "delayed_delivery" in step else step
            for step in Consumer.Blueprint.default_steps
        ]

    def __init__(self, *args, worker_options=None, **kwargs):
        quiet = dict.fromkeys(("without_gossip", "without_mingle", "without_heartbeat"), True)
        super().__init__(*args, worker_options={**(worker_options or {}), **quiet}, **kwargs)

    def ensure_connected(self, conn):
        """Connect, trying again every 1 to 5 s where Celery's pause grows to 30 s."""
        conn.ensure_connection = partial(
            conn.ensure_connection,
            interval_start=1,
            interval_step=1,
            interval_max=RECONNECT_INTERVAL_MAX - 1,
        )
        return super().ensure_connected(conn)
