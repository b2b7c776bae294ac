"""`blocking`: `AsyncResult.get()` on the loop. The baseline that the others are measured by."""

from __future__ import annotations

import logging

from gateway.celery_message import Message
from gateway.errors import RequestError
from gateway.pending_task import PendingTask
from gateway.strategies.celery_strategy import CeleryStrategy

log = logging.getLogger(__name__)


class Blocking(CeleryStrategy):
    """Everything else in the process stands still while one task is waited for."""

    name = "blocking"

    async def start(self) -> None:
        log.warning("blocking answers one request at a time: it is the baseline, not for use")
        await super().start()

    def send(self, message: Message, deadline: float) -> PendingTask:
        self._admit(message)
        pending = PendingTask(message, deadline)
        result = self._client.subscribe(message.task_id)
        try:
            try:
                self._client.publish(message, deadline)
            except BaseException:
                self._client.forget(result)
                raise
            self._confirm(pending)
            pending.settle(self._client.wait(result, deadline))
        except RequestError as exc:
            pending.fail(exc)
        return pending
