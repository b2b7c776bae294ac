"""Messages that cannot be run: those that end their workers, and those that are no task's."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from pickle import PicklingError
from types import NoneType
from typing import Any
from uuid import uuid4

import amqp
from billiard.einfo import ExceptionInfo, ExceptionWithTraceback
from celery import Task, bootsteps, signals
from celery.app.task import Context
from celery.concurrency.solo import TaskPool
from celery.exceptions import (
    Ignore,
    InvalidTaskError,
    Reject,
    SoftTimeLimitExceeded,
    TaskRevokedError,
    WorkerLostError,
)
from celery.worker import state
from celery.worker.request import Request
from celery.worker.strategy import default
from kombu.asynchronous import get_event_loop

from appserver import dead_letters
from appserver.beginnings import beginnings
from appserver.private_parts import PrivateParts
from appserver.queues import DEAD_LETTER_EXCHANGE

#: Workers lost with a redelivered message after which it is not begun any more. A deployment may be
#: the cause of the first loss, and the machine of the second; of the third it is the task.
BEGUN_AGAIN = 3
#: The largest prefetch limit with messages that cannot be begun, nor published as dead letters.
HELD_MOST = 1_000
PATIENCE = 5.0  # seconds for publishing a dead letter, with the pause before the next attempt
#: The headers that are no headers of the task's own.
CELERY_HEADERS = frozenset(vars(Context)) | {
    *("lang", "task", "argsrepr", "kwargsrepr", "compression")
}
#: What is raised where a message cannot be begun: it is no task's, or cannot be pickled for a pool.
#: Connections, and pools that end, raise other errors.
UNUSABLE = (
    *(AttributeError, LookupError, OverflowError, RecursionError, TypeError, ValueError),
    PicklingError,
)
REDELIVERY = "redelivery"  # the property that is added to a redelivered message

log = logging.getLogger(__name__)

_REQUEST_PARTS = PrivateParts(
    "messages with which workers are lost do not become dead letters",
    "celery.worker.request:Request._payload",
    "celery.worker.request:Request._request_dict",
    "celery.worker.request:Request._body",
    "celery.worker.request:Request._content_type",
)

_Task: Any = object  # for mypy: the class of the task with which the mixin is combined


class PoisonAwareRequest(Request):
    """Passes a redelivered message to the pool with the data for a dead letter.

    This is not for quorum queues, which count deliveries and have a limit of their own.
    """

    #: The id of its beginning in the result store; None: it is not counted.
    beginning: str | None = None
    _worker_lost = False

    def __init_subclass__(cls, **options: Any):
        """Guard the subclass that Celery makes for each task, with its own `execute_using_pool`."""
        super().__init_subclass__(**options)
        if execute := vars(cls).get("execute_using_pool"):
            cls.execute_using_pool = _guarded(execute)

    def __init__(self, message: Any, **options: Any):
        super().__init__(message, **options)
        if not _REQUEST_PARTS.there:
            return
        # With the first three Celery runs no task, and tells nobody; with the limits it ends.
        (args, kwargs, embed), (hard, soft) = self._payload, self.time_limits
        if not (
            isinstance(args, (list, tuple))
            and isinstance(kwargs, dict)
            and isinstance(embed or {}, dict)
            and isinstance(hard, (int, float, NoneType))
            and isinstance(soft, (int, float, NoneType))
        ):
            raise TypeError("arguments, options or time limits are no task's")
        if self.content_type:  # else it is of protocol 1, and decoded
            # The pool would decode it once more.
            self._body, self._content_type = message.payload, None
            # The pool would look for them among a set of all names, which it makes for each task.
            own = {k: v for k, v in message.headers.items() if k not in CELERY_HEADERS}
            self._request_dict.setdefault("headers", own or None)
        if (
            self.delivery_info["redelivered"]
            and self.task.acks_late
            and not message.headers.get("x-delivery-count")
            and isinstance(message.channel, amqp.Channel)
        ):
            self.beginning = uuid4().hex
            # Added to the properties, because Celery copies other unknown keys to a task's retries.
            self._request_dict["properties"] = {
                **message.properties,
                REDELIVERY: {
                    "beginning": self.beginning,
                    "lost": beginnings(self.app).receive(self),
                    "body": message.body,
                    "store": self.store_errors,
                },
            }

    @property
    def tzlocal(self) -> Any:
        return _timezone(self.app)

    def on_failure(
        self, exc_info: ExceptionInfo, send_failed_event: bool = True, return_ok: bool = False
    ) -> None:
        exc = exc_info.exception
        if isinstance(exc, ExceptionWithTraceback):
            exc = exc.exc
        self._worker_lost = isinstance(exc, (SystemExit, KeyboardInterrupt, WorkerLostError))
        if isinstance(exc, MemoryError):
            # Celery would raise it again, which ends a worker whose pool has processes.
            exc_info.exception = RuntimeError(repr(exc))
        try:
            super().on_failure(exc_info, send_failed_event, return_ok)
        except Exception as exc:  # noqa: BLE001 - it is logged
            self._settle("failure", exc)

    def on_timeout(self, soft: bool, timeout: float) -> None:
        try:
            super().on_timeout(soft, timeout)
        except Exception as exc:
            if soft:
                raise
            self._settle("timeout", exc)

    def revoked(self) -> bool:
        try:
            return bool(super().revoked())
        except Exception as exc:  # noqa: BLE001 - it is logged
            self._settle("revocation", exc)
        return True

    def _settle(self, end: str, exc: Exception) -> None:
        """Acknowledge or reject the message, as Celery has failed before it has done so.

        Celery publishes, and calls an app's own code, before that as well as after it.
        """
        log.error("What follows the %s of task %s has failed", end, self.id, exc_info=exc)
        if self._acknowledged_after(end):
            self.acknowledge()
        else:
            self.reject(requeue=end == "timeout")

    def _acknowledged_after(self, end: str) -> bool:
        # Celery before 5.7 has one setting for both.
        both: bool = self.task.acks_on_failure_or_timeout
        return end == "revocation" or getattr(self.task, f"acks_on_{end}", both)

    def acknowledge(self) -> None:
        super().acknowledge()
        if self.beginning is not None:
            _after_this_turn(beginnings(self.app).forget, self)

    def reject(self, requeue: bool = False) -> None:
        super().reject(requeue)
        if self.beginning is None:
            return
        if not requeue:
            beginnings(self.app).forget(self)
        elif self._worker_lost:
            beginnings(self.app).count_loss(self)
        else:
            beginnings(self.app).remove(self)


def _after_this_turn(call: Callable[..., object], *args: object) -> None:
    """Call when acknowledgements are written, for which Celery waits until the loop's next turn.

    Otherwise the next message could end the process in between: a dead letter would come again, and
    would be counted from 0.
    """
    hub = get_event_loop()
    if hub is None:  # gevent and eventlet: they are written already
        call(*args)
    else:
        hub.call_soon(call, *args)


@lru_cache(maxsize=8)
def _timezone(app: Any) -> Any:
    """Return the setting, for which Celery's request searches all settings each time."""
    return app.conf.timezone


def _guarded(execute: Callable[..., Any]) -> Callable[..., Any]:
    """Return a method that gives a task to the pool by `execute`, or makes it a dead letter.

    It raises TaskRevokedError where it was not given to the pool, whose place is free again.
    """

    def execute_using_pool(request: PoisonAwareRequest, pool: Any, **options: Any) -> Any:
        if not pool.active:
            # The worker ends, and has got the message while it waits for the end of its consumer.
            # It returns to its queue with the connection.
            state.task_ready(request)
            raise TaskRevokedError(request.id)
        try:
            return execute(request, pool, **options)
        except UNUSABLE as exc:
            if not isinstance(request.message.channel, amqp.Channel) or not request.task.call_after:
                raise
            if dead_letters.publish_unusable(request.app, request.message, exc, PATIENCE / 2):
                request.on_failure(ExceptionInfo())
                request.acknowledge()
            else:
                request.task.call_after(PATIENCE, request.reject, (True,))
            raise TaskRevokedError(request.id) from exc

    return execute_using_pool


def begin_or_dispose(task: Any, app: Any, consumer: Any, **options: Any) -> Callable[..., Any]:
    """Return Celery's strategy for `task`; a message that cannot be begun becomes a dead letter.

    A worker would end because of it, and so would the next one that gets it.
    """
    begin = default(task, app, consumer, **options)
    task.call_after = consumer.timer.call_after
    # With `solo` the loop's next turn, in which messages are acknowledged, is after the task.
    at_once = not task.acks_late and isinstance(consumer.pool, TaskPool)

    def strategy(message: Any, body: Any, ack: Any, reject: Any, *others: Any) -> Any:
        ack = message.ack_log_error if at_once else ack
        try:
            return begin(message, body, ack, reject, *others)
        except UNUSABLE as exc:
            return dispose(consumer, message, exc, ack, reject)

    return strategy


def dispose(consumer: Any, message: Any, exc: Exception, ack: Any, reject: Any) -> None:
    """Make a `message` that cannot be begun because of `exc` a dead letter, or return it later."""
    if not isinstance(message.channel, amqp.Channel):
        raise exc
    if keep(consumer, message, exc, reject):
        record_failure(consumer.app, message, InvalidTaskError(repr(exc)))
        ack(log, consumer.connection_errors)


def keep(consumer: Any, message: Any, exc: Exception, reject: Any) -> bool:
    """Publish a `message` that cannot be begun as a dead letter; False: it is returned later."""
    if dead_letters.publish_unusable(consumer.app, message, exc, PATIENCE / 2):
        return True
    # Beside the prefetch limit, as what can be begun is behind it, and may be what ends an alarm.
    qos = consumer.qos
    if beside := 0 < qos.value < HELD_MOST:
        qos.increment_eventually()

    def give_back() -> None:
        reject(log, consumer.connection_errors, True)
        if beside:
            qos.decrement_eventually()

    consumer.timer.call_after(PATIENCE, give_back)
    return False


def record_failure(app: Any, message: Any, error: Exception) -> None:
    """Record the failure of a message of which no request could be made, if it has an id."""
    headers = message.headers
    if isinstance(task_id := headers.get("id"), str):
        own = {name: value for name, value in headers.items() if name not in CELERY_HEADERS}
        reply_to = message.properties.get("reply_to")
        request = Context({"id": task_id, "reply_to": reply_to, "headers": own})
        app.backend.mark_as_failure(task_id, error, request=request)


class PoisonAware(_Task):
    """Mixin for a task's class. A message with which workers are lost becomes a dead letter.

    So does a message that cannot be begun.
    """

    Request = f"{__name__}:{PoisonAwareRequest.__qualname__}"
    Strategy = f"{__name__}:{begin_or_dispose.__qualname__}"

    #: Calls a function in the worker's main process after some seconds; our strategy sets it.
    call_after: Callable[..., Any] | None = None

    def before_start(self, task_id: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Begin the task, unless its message has to become a dead letter.

        This runs in the pool, where waiting delays no other task.

        A message with which too many workers were lost is published as a dead letter, and only then
        recorded as FAILURE and acknowledged. While it cannot be published, it returns to its queue.
        """
        request = self.request
        redelivery = (request.properties or {}).get(REDELIVERY)
        if redelivery is not None:
            begun = beginnings(self.app).add(task_id, redelivery["beginning"])
            lost = max(begun, redelivery["lost"])
            if lost >= BEGUN_AGAIN:
                self._publish_dead_letter(task_id, redelivery["body"], lost)
                self._record_loss(task_id, redelivery["store"], lost)
                raise Ignore()
        if (request.headers or {}).get("track_started"):
            beginnings(self.app).store_started(task_id, request.hostname)
        super().before_start(task_id, args, kwargs)

    def _publish_dead_letter(self, task_id: str, body: str | bytes, lost: int) -> None:
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
            log.error(
                "The message of task %s has crashed its workers, and cannot be published as a dead"
                " letter: %s",
                task_id,
                exc,
            )
            # The broker would deliver a returned message again immediately.
            time.sleep(max(end - time.monotonic(), 0))
            raise Reject(str(exc), requeue=True) from exc

    def _record_loss(self, task_id: str, store: bool, lost: int) -> None:
        error = WorkerLostError(
            f"The worker was lost {lost} times with this message after it had been redelivered, or"
            f" the task took longer than RabbitMQ waits; it lies in {DEAD_LETTER_EXCHANGE!r} now."
        )
        log.error("The message of task %s is a dead letter now: %s", task_id, error)
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
        """Return the seconds for publishing a dead letter, well within the task's time limits."""
        limits: tuple[float | None, ...] = (
            *(self.request.timelimit or ()),
            self.time_limit,
            self.soft_time_limit,
        )
        return min([PATIENCE, *(limit / 2 for limit in limits if limit)])


class PoisonAwareTasks(bootsteps.Step):
    """Adds the mixin `PoisonAware` to the class of each task, whatever its base class is.

    A task with a request class of its own is not changed, and one with a strategy keeps that.
    """

    def create(self, worker: Any) -> None:
        for task in worker.app.tasks.values():
            cls = type(task)
            if cls.Request == Task.Request:
                own = {"__module__": cls.__module__}
                if cls.Strategy != Task.Strategy:
                    own["Strategy"] = cls.Strategy
                task.__class__ = type(cls.__name__, (PoisonAware, cls), own)
