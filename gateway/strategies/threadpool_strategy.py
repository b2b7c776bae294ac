"""kombu, and `AsyncResult.get()` in a bounded pool of threads."""

from __future__ import annotations

import logging
from concurrent.futures import ThreadPoolExecutor

from gateway.celery_message import Message
from gateway.clock import monotonic
from gateway.config.settings import Config
from gateway.config.strategies import StrategyInfo
from gateway.errors import RequestError
from gateway.metrics import Metrics
from gateway.pending_task import PendingTask
from gateway.strategies.celery_base import CeleryStrategy

INFO = StrategyInfo(subscribes="key", threads=True, publishing=1)

log = logging.getLogger(__name__)


class ThreadPool(CeleryStrategy):
    """One thread publishes a message and waits for its result.

    The pool's size limits the tasks in flight. Time in the pool's queue counts: a message that no
    thread has taken by its deadline is never published. A thread whose client has disconnected
    still waits until the deadline.
    """

    def __init__(self, config: Config, metrics: Metrics, prefix: str):
        super().__init__(config, metrics, prefix)
        self._pool = ThreadPoolExecutor(config.threads, "threadpool")

    async def stop(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)
        await super().stop()

    def send(self, message: Message, deadline: float) -> PendingTask:
        self._admit(message)
        pending = PendingTask(message, deadline)
        work = [pending]
        self._pool.submit(self._relay, work)
        # The pool keeps its work, and not the message of a sender that has left.
        pending.on_release = lambda _pending: work.clear()
        return pending

    def _relay(self, work: list[PendingTask]) -> None:
        """Publish and wait, in a thread of the pool."""
        assert self._loop is not None
        try:
            pending = work.pop()
        except IndexError:
            return
        tell = self._loop.call_soon_threadsafe
        if monotonic() >= pending.deadline:
            return
        try:
            result = self._begin(pending)
            tell(self._confirm, pending)
            tell(pending.settle, self._client.wait(result, pending.deadline))
        except RequestError as exc:
            tell(pending.fail, exc)
        except Exception:
            log.exception("a task could not be relayed")
            tell(pending.fail, RequestError())
