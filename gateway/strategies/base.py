"""The contract of every waiting strategy."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from gateway.background import Service
from gateway.celery_message import Message, decode_result
from gateway.config.settings import Config
from gateway.errors import ResultsUnavailable
from gateway.metrics import Metrics
from gateway.pending_task import PendingTask

if TYPE_CHECKING:
    from gateway.amqp.publisher import AnyPublisher
    from gateway.stores.connection import Connection


class Strategy(Service, ABC):
    """Publishes a task and waits for its result.

    One object serves one process and runs on its asyncio loop; everything that it needs
    is passed to its constructor, which opens nothing. An implementation has these duties:

    - `send` never blocks (except in `blocking`), and raises a `RequestError` with status 503
      where it is known immediately that the message cannot be taken.
    - Every message is published mandatory and confirmed. An error before the confirm has
      status 503; after it, 504.
    - A `PendingTask`'s `confirm`, `settle` and `fail` are called on the loop's thread. Only
      SUCCESS, FAILURE and REVOKED end it.
    - When a task is ended or abandoned, everything that was kept for it is freed, by the
      `PendingTask`'s `on_release`: see `KeepsByTaskId`.
    - A lost connection is restored automatically. A second one to the result store is renewed
      when `results` calls its `on_left`.
    - `publisher` is the asynchronous publisher, which `publisher_for` returns; a strategy on
      Celery's client (`CeleryStrategy`) has a `Publisher`. `publish` uses it for routes that
      accept.
    - `uses` has what it connects, the publisher first, then `results`: `start` begins that without
      waiting for servers, and `stop` closes it when no task is pending any more.
    """

    #: With an AMQP broker it is a `Publisher`.
    publisher: AnyPublisher
    #: What reads its results, if it reads any.
    results: Connection | None = None
    #: The pending tasks whose results are waited for, where the strategy keeps them.
    _waiting: Collection[Any] = ()

    def __init__(self, config: Config, metrics: Metrics, prefix: str):
        """Open nothing; the ids of this process' tasks begin with `prefix`."""

    async def start(self) -> None:
        for name in ("publisher", "results"):
            if getattr(self, name) not in (None, *self.uses):
                raise TypeError(f"{type(self).__name__}.uses lacks its {name}: nothing connects it")
        await super().start()

    @abstractmethod
    def send(self, message: Message, deadline: float) -> PendingTask:
        """Publish `message` and wait for its result until `deadline` (monotonic seconds)."""

    def publish(self, message: Message, deadline: float) -> PendingTask:
        """Publish `message` through the asynchronous publisher and wait for its confirm only."""
        pending = PendingTask(message, deadline)
        self.publisher.publish(pending)
        return pending

    def revoke(self, task_id: str) -> None:
        """Tell the workers not to begin a task that nobody waits for any more."""
        self.publisher.revoke(task_id)

    def held(self) -> dict[str, int]:
        """Return how many messages and results are waited for."""
        return {
            "confirms awaited": self.publisher.unconfirmed,
            "results awaited": len(self._waiting),
        }

    def checks(self) -> dict[str, str]:
        """Return for each server that it needs (``broker``, ``results``) what is wrong with it.

        An empty text means that it is ready.
        """
        found = {"broker": self.publisher.error}
        return found if self.results is None else {**found, "results": self.results.error}


class KeepsByTaskId(Strategy):
    """A strategy that keeps the pending tasks whose results it waits for, by their ids."""

    #: The queue for replies; None: workers store results.
    _reply_to: str | None = None

    def __init__(self, config: Config, metrics: Metrics, prefix: str):
        super().__init__(config, metrics, prefix)
        self._metrics = metrics
        self._waiting: dict[str, PendingTask] = {}
        self._on_release = self._release  # one method for all tasks, as each would keep its own

    def send(self, message: Message, deadline: float) -> PendingTask:
        if self.results is not None and self.results.error:
            raise ResultsUnavailable
        pending = PendingTask(message, deadline, self._on_release)
        self.publisher.publish(pending, self._reply_to)
        self._waiting[message.task_id] = pending
        return pending

    def _receive(self, task_id: str, payload: bytes | int) -> None:
        pending = self._waiting.get(task_id)
        if pending is None:
            self._metrics.add("gateway_results_unclaimed_total")
        else:
            pending.settle(decode_result(payload))

    def _release(self, pending: PendingTask) -> None:
        self._waiting.pop(pending.message.task_id, None)
