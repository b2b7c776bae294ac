"""The contract of every waiting strategy."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from gateway.background import Service
from gateway.celery_message import Message
from gateway.config.settings import Config
from gateway.metrics import Metrics
from gateway.pending_task import PendingTask

if TYPE_CHECKING:
    from gateway.amqp.kombu_publisher import KombuPublisher
    from gateway.amqp.publisher import Publisher


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
    - A lost connection is restored automatically.
    - `publisher` is the asynchronous publisher, which `publisher_for` returns; a strategy on
      Celery's client (`CeleryStrategy`) has a `Publisher`. `publish` uses it for routes that
      accept.
    - `uses` has what it connects, the publisher first: `start` begins that without waiting for
      servers, and `stop` closes it when no task is pending any more.
    """

    #: With an AMQP broker it is a `Publisher`.
    publisher: Publisher | KombuPublisher
    #: The pending tasks whose results are waited for, where the strategy keeps them.
    _waiting: Collection[Any] = ()

    def __init__(self, config: Config, metrics: Metrics, prefix: str):
        """Open nothing; the ids of this process' tasks begin with `prefix`."""

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

    @abstractmethod
    def checks(self) -> dict[str, str]:
        """Return for each server that it needs (``broker``, ``results``) what is wrong with it.

        An empty text means that it is ready.
        """


class KeepsByTaskId(Strategy):
    """A strategy that keeps the pending tasks whose results it waits for, by their ids."""

    def __init__(self, config: Config, metrics: Metrics, prefix: str):
        super().__init__(config, metrics, prefix)
        self._waiting: dict[str, PendingTask] = {}

    def _release(self, pending: PendingTask) -> None:
        self._waiting.pop(pending.message.task_id, None)
