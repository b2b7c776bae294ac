"""The contract of every waiting strategy."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from gateway.celery_message import Message
from gateway.config.settings import Config
from gateway.metrics import Metrics
from gateway.pending_task import PendingTask

if TYPE_CHECKING:
    from gateway.amqp.kombu_publisher import KombuPublisher
    from gateway.amqp.publisher import Publisher


class Strategy(ABC):
    """Publishes a task and waits for its result.

    One object serves one process and runs on its asyncio loop; everything that it needs
    is handed to its constructor, which opens nothing. An implementer's duties:

    - `send` never blocks (`blocking` excepted, which is what it is there to show), and
      raises a `RequestError` with status 503 where it is known at once that the message
      cannot be taken.
    - Every message is published mandatory and confirmed. An error before the confirm is
      one with status 503; after it, 504.
    - The pending result is told of its confirm and its end on the loop's thread. Only
      SUCCESS, FAILURE and REVOKED end it.
    - Waiting costs nothing that lasts: what is ended or abandoned is forgotten.
    - A lost connection is restored without anyone's asking.
    """

    #: The name in `--strategy` and in the table of strategies.
    name: str
    _publisher: Publisher | KombuPublisher

    def __init__(self, config: Config, metrics: Metrics, prefix: str):  # noqa: B027
        """Open nothing; `prefix` is what the ids of this process' tasks begin with."""

    @abstractmethod
    async def start(self) -> None:
        """Begin to connect; servers that are away are waited for in the background."""

    @abstractmethod
    def send(self, message: Message, deadline: float) -> PendingTask:
        """Publish `message` and wait for its result until `deadline` (monotonic seconds)."""

    def publish(self, message: Message, deadline: float) -> PendingTask:
        """Publish `message` through the asynchronous publisher and wait for its confirm only."""
        pending = PendingTask(message, deadline)
        self._publisher.publish(pending)
        return pending

    @abstractmethod
    async def stop(self) -> None:
        """Close what `start` opened; nothing is pending any more."""

    @abstractmethod
    def checks(self) -> dict[str, str]:
        """Say for each server that it needs (``broker``, ``results``) what is wrong with it;
        an empty text means that it is ready."""
