"""Where a worker differs from Celery's: lost children, reconnection, silence between workers."""

from __future__ import annotations

import logging
import time
from functools import partial
from uuid import uuid4

import amqp
from billiard.einfo import ExceptionWithTraceback
from celery import Task, signals
from celery.exceptions import Ignore, Reject, SoftTimeLimitExceeded, WorkerLostError
from celery.worker.consumer import Consumer, delayed_delivery
from celery.worker.request import Request

from appserver import dead_letters
from appserver.attempts import TakeBack, attempts
from appserver.dead_letters import DeadLetters
from appserver.queues import DEAD_LETTER_EXCHANGE

RECONNECT_INTERVAL_MAX = 5  # seconds
#: Losses of a redelivered message after which it is not begun any more. The first may be a
#: deployment's and the next the same machine's; the third time the reason is the task.
BEGUN_AGAIN = 3
PATIENCE = 5.0  # seconds for a dead letter, the pause before its next try included
REDELIVERY = "redelivery"  # among the properties of a redelivered message

log = logging.getLogger(__name__)


class PoisonAwareRequest(Request):
    """Give a redelivered message to the pool with what it takes to put it away there.

    A quorum queue counts deliveries, and its own limit decides.
    """

    attempt: str | None = None
    _worker_lost = False

    def __init__(self, message, **options):
        super().__init__(message, **options)
        if (
            self.delivery_info["redelivered"]
            and self.task.acks_late
            and not message.headers.get("x-delivery-count")
            and isinstance(message.channel, amqp.Channel)
        ):
            self.attempt = uuid4().hex
            # Among the properties, as Celery sends unknown keys along when a task is retried.
            self._request_dict["properties"] = {
                **message.properties,
                REDELIVERY: {
                    "attempt": self.attempt,
                    "lost": attempts(self.app).receive(self),
                    "body": message.body,
                    "store": self.store_errors,
                },
            }

    def on_failure(self, exc_info, send_failed_event=True, return_ok=False):
        exc = exc_info.exception
        if isinstance(exc, ExceptionWithTraceback):
            exc = exc.exc
        self._worker_lost = isinstance(exc, (SystemExit, KeyboardInterrupt, WorkerLostError))
        super().on_failure(exc_info, send_failed_event, return_ok)

    def acknowledge(self):
        super().acknowledge()
        if self.attempt is not None:
            attempts(self.app).end(self)

    def reject(self, requeue=False):
        super().reject(requeue)
        if self.attempt is None:
            return
        if not requeue:
            attempts(self.app).end(self)
        elif self._worker_lost:
            attempts(self.app).lose(self)
        else:
            attempts(self.app).take_back(self)


class PoisonAwareTask(Task):
    """The base class of tasks whose message is put away when it keeps losing its worker.

    A class that has its own `before_start` or `on_bound` calls these.
    """

    abstract = True
    Request = f"{__name__}:{PoisonAwareRequest.__qualname__}"

    @classmethod
    def on_bound(cls, app):
        """Add the worker's part to it: whoever names this class for its tasks needs no more."""
        app.steps["consumer"].update((DeadLetters, TakeBack))

    def before_start(self, task_id, args, kwargs):
        """Begin, or put the message away; runs in the pool, where waiting holds up no one else.

        A message that was lost too often is published as a dead letter, and only then recorded
        as FAILURE and acknowledged. While it cannot be published, it goes back to its queue.
        """
        redelivery = (self.request.properties or {}).get(REDELIVERY)
        if redelivery is None:
            return
        noted = attempts(self.app).begin(task_id, redelivery["attempt"])
        lost = max(noted, redelivery["lost"])
        if lost < BEGUN_AGAIN:
            return
        self._publish_dead_letter(task_id, redelivery["body"], lost)
        self._record_loss(task_id, redelivery["store"], lost)
        raise Ignore()

    def _publish_dead_letter(self, task_id, body, lost):
        info, seconds = self.request.delivery_info, self._patience()
        why = {
            "reason": "worker-lost",
            "lost": lost,
            "exchange": info["exchange"],
            "routing_key": info["routing_key"],
        }
        end = time.monotonic() + seconds
        try:
            dead_letters.publish(self.app, self.request.properties, body, why, seconds / 2)
        except (*dead_letters.ERRORS, SoftTimeLimitExceeded) as exc:
            log.error("Task %s keeps losing its worker, and cannot be put away: %s", task_id, exc)
            # The broker sends a message that is given back again at once.
            time.sleep(max(end - time.monotonic(), 0))
            raise Reject(str(exc), requeue=True) from exc

    def _record_loss(self, task_id, store, lost):
        error = WorkerLostError(
            f"The worker was lost {lost} times with this message after it had been redelivered;"
            f" it lies in {DEAD_LETTER_EXCHANGE!r} now."
        )
        log.error("Task %s was put away: %s", task_id, error)
        self.backend.mark_as_failure(task_id, error, request=self.request, store_result=store)
        signals.task_failure.send(
            sender=self,
            task_id=task_id,
            exception=error,
            args=self.request.args,
            kwargs=self.request.kwargs,
            traceback=None,
            einfo=None,
        )

    def _patience(self) -> float:
        """Return how long putting away may take: in seconds, well within the time limits."""
        limits = (*(self.request.timelimit or ()), self.time_limit, self.soft_time_limit)
        return min([PATIENCE, *(limit / 2 for limit in limits if limit)])


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
