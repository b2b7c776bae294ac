"""kombu in greenlets, and Celery's gevent drainer.

The process was patched before anything else was imported (see `gateway.process.child_handle`), so
that Celery chooses its gevent drainer, and kombu's sockets yield. The loop itself runs on gevent's
hub: a greenlet has to use `call_soon_threadsafe`, because nothing else wakes the loop.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial

import gevent
from celery.result import AsyncResult
from gevent.lock import Semaphore
from gevent.queue import SimpleQueue

from gateway.celery_message import Message
from gateway.clock import monotonic
from gateway.config.settings import Config
from gateway.config.strategies import StrategyInfo
from gateway.errors import RequestError, ResultsLost, ResultsUnavailable, Unavailable
from gateway.metrics import Metrics
from gateway.pending_task import PendingTask
from gateway.strategies.celery_base import CeleryStrategy
from gateway.strategies.celery_client import failing_as, outcome_of

# The log is written by a greenlet: where nobody reads it, that must not stop the process.
INFO = StrategyInfo(
    subscribes="key", publishing=64, patches="gevent.monkey:patch_all gevent.monkey:patch_sys"
)

log = logging.getLogger(__name__)


class GeventDrainer(CeleryStrategy):
    """Publishes in several greenlets; one further greenlet, the drainer, receives all results."""

    def __init__(self, config: Config, metrics: Metrics, prefix: str):
        super().__init__(config, metrics, prefix)
        self._queue: SimpleQueue[tuple[Callable[[PendingTask], None], PendingTask]] = SimpleQueue()
        self._greenlets: list[gevent.Greenlet] = []
        self._starting = Semaphore()
        self._waiting: dict[PendingTask, AsyncResult] = {}

    async def start(self) -> None:
        # Each has a connection; they do not limit the number of waits.
        publishers = range(self._config.strategy_info.publishing)
        self._greenlets = [gevent.spawn(self._run) for _ in publishers]
        await super().start()

    async def stop(self) -> None:
        gevent.killall(self._greenlets, block=False)
        await super().stop()

    def send(self, message: Message, deadline: float) -> PendingTask:
        self._admit(message)
        # Not set later, in the greenlet: others may have added to it by then.
        pending = PendingTask(message, deadline, self._release)
        self._queue.put((self._publish, pending))
        return pending

    # In the publishing greenlets ----------------------------------------------------------

    def _run(self) -> None:
        while True:
            # Not in names of this frame, which waits here: they would keep the last message.
            self._handle(*self._queue.get())

    def _handle(self, work: Callable[[PendingTask], None], pending: PendingTask) -> None:
        assert self._loop is not None
        error: RequestError | None = None
        try:
            if monotonic() < pending.deadline and not pending.ended:
                work(pending)
        except RequestError as exc:
            # After the confirm the task runs in any case, so the error is not a 503.
            lost = pending.confirmed and exc.status == Unavailable.status
            error = ResultsLost() if lost else exc
        except Exception:
            log.exception("a task could not be relayed")
            error = RequestError()
        if error is not None:
            self._loop.call_soon_threadsafe(pending.fail, error)

    def _publish(self, pending: PendingTask) -> None:
        assert self._loop is not None
        if self._subscribe(pending) is not None:
            self._send(pending)
            self._loop.call_soon_threadsafe(self._confirm, pending)

    def _subscribe(self, pending: PendingTask) -> AsyncResult | None:
        """Subscribe to the result; None where the task is not waited for any more."""
        # Before the drainer is started: without a subscription it sleeps for a second.
        result = self._client.subscribe(pending.message.task_id)
        if pending.ended:
            self._client.forget(result)
            return None
        self._waiting[pending] = result
        with failing_as(ResultsUnavailable):
            self._start_drainer()
            result.then(partial(self._on_result, pending))
        return result

    def _start_drainer(self) -> None:
        """Start the client's drainer unless it runs; raises RuntimeError where it has failed."""
        drainer = self._client.app.backend.result_consumer.drainer
        with self._starting:  # otherwise several greenlets would start one each
            drainer.spawn = partial(gevent.spawn, self._drain)
            drainer.start()

    def _fetch(self, pending: PendingTask) -> None:
        """Subscribe again to the result of a task that is already published."""
        assert self._loop is not None
        result = self._subscribe(pending)
        with failing_as(ResultsLost):
            outcome = result and outcome_of(result)
        if outcome:
            self._client.forget(result)
            self._loop.call_soon_threadsafe(pending.settle, outcome)

    # In the drainer's greenlet ------------------------------------------------------------

    def _drain(self, run: Callable[[], None]) -> None:
        """Run Celery's drainer; if it fails, continue with a new client.

        Celery does not start a failed drainer again, so all waits would last until their deadline.
        """
        try:
            run()
        except Exception as exc:  # noqa: BLE001 - all waits depend on it, whatever the error is
            log.error("Celery's drainer failed, starting another: %r", exc.__cause__ or exc)
            self._client.close()
            self._client = self._new_client()
            for pending in list(self._waiting):
                self._queue.put((self._fetch, pending))

    def _on_result(self, pending: PendingTask, result: AsyncResult) -> None:
        assert self._loop is not None
        self._loop.call_soon_threadsafe(pending.settle, outcome_of(result))

    # On the loop ---------------------------------------------------------------------------

    def _release(self, pending: PendingTask) -> None:
        result = self._waiting.pop(pending, None)
        if result is not None and pending.outcome is None:
            gevent.spawn(self._client.forget, result)
