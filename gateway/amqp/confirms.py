"""The messages of one channel that are not confirmed yet."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from itertools import takewhile
from typing import Any

from gateway.celery_message import Message
from gateway.clock import monotonic
from gateway.errors import BrokerUnavailable, NotConfirmed, Rejected, RequestError, Unroutable
from gateway.metric_table import PUBLISHED, RABBITMQ
from gateway.metrics import Metrics
from gateway.pending_task import PendingTask

log = logging.getLogger(__name__)

_MOST = 1_000  # queues: those of routes with dynamic queues have ever new names

#: A task's id and a delivery's id. Both are needed: a later try may publish a task again before the
#: return of the earlier message with the same task id has arrived.
Published = tuple[str, str]


class Confirms:
    """Confirms or fails each `PendingTask` when its ack, nack or return arrives.

    The broker numbers the messages of a channel from 1; so does this class. `on_rejected` is called
    with the name of a queue that has rejected a message and confirmed none yet on this channel.
    """

    def __init__(self, metrics: Metrics, on_rejected: Callable[[str], None]):
        self._metrics = metrics
        for error in (BrokerUnavailable, NotConfirmed, Rejected, Unroutable):
            metrics.histogram(PUBLISHED, *RABBITMQ, error.type)  # so that it is there, at zero
        self._confirmed = metrics.histogram(PUBLISHED, *RABBITMQ, "")
        self._on_rejected = on_rejected
        self._taken: set[str] = set()
        self._tag = 0
        self._pending: dict[int, PendingTask] = {}
        # Messages that were returned and not acknowledged yet, and when (monotonic seconds).
        self._returned: dict[Published, float] = {}

    def __len__(self) -> int:
        return len(self._pending) + len(self._returned)

    @property
    def oldest(self) -> float:
        """When the oldest message that is not settled was sent (monotonic); 0: there is none."""
        return next((pending.sent for pending in self._pending.values()), 0.0)

    def add(self, pending: PendingTask) -> None:
        """Expect the confirm of a message that has just been published."""
        self._tag += 1
        self._pending[self._tag] = pending

    def skip(self) -> None:
        """Count a message whose confirm is ignored."""
        self._tag += 1

    def confirm(self, tag: int, multiple: bool, acked: bool) -> None:
        """Settle the message `tag`, and with `multiple` also all before it."""
        tags: Iterable[int] = (tag,)
        if multiple:
            tags = list(takewhile(lambda each: each <= tag, self._pending))
        now = monotonic()
        for each in tags:
            pending = self._pending.pop(each, None)
            if pending is None:  # settled, or timed out
                continue
            if not acked:
                self._refuse(pending, Rejected())
                if pending.message.queue not in self._taken:
                    self._on_rejected(pending.message.queue)
            elif self._returned and self._returned.pop(_published(pending.message), 0.0):
                self._refuse(pending, Unroutable(pending.message.nowhere))
            else:
                self._taken.add(pending.message.queue)
                self._confirmed.observe(now - pending.sent)
                pending.confirm()

    def on_return(self, _channel: Any, method: Any, properties: Any, _body: bytes) -> None:
        """Remember a returned message: its ack follows. Called by pika."""
        delivery = properties.headers["delivery"]
        self._returned[properties.correlation_id, delivery.get("id", "")] = monotonic()
        log.warning(
            "the broker returned a message: %s (queue %s)", method.reply_text, method.routing_key
        )

    def give_up(self, sent_before: float) -> None:
        """Fail the messages sent before `sent_before` (monotonic seconds) and not confirmed."""
        if len(self._taken) > _MOST:
            self._taken.clear()
        overdue = takewhile(lambda item: item[1].sent <= sent_before, self._pending.items())
        for tag, pending in list(overdue):
            del self._pending[tag]
            self._refuse(pending, NotConfirmed())
        # The messages that were returned before then have all been settled or failed.
        stale = takewhile(lambda item: item[1] <= sent_before, self._returned.items())
        for published, _ in list(stale):
            del self._returned[published]

    def fail(self, error: RequestError) -> None:
        """Fail all messages with `error`: the channel is closed, and no confirm will come."""
        lost, self._pending = self._pending, {}
        self._returned.clear()
        for pending in lost.values():
            self._refuse(pending, error)

    def _refuse(self, pending: PendingTask, error: RequestError) -> None:
        seconds = monotonic() - pending.sent
        self._metrics.observe(seconds, PUBLISHED, *RABBITMQ, error.type)
        pending.fail(error)


def _published(message: Message) -> Published:
    return message.task_id, message.delivery.get("id", "")
