"""kombu, and `AsyncResult.get()` on the loop: the baseline, one request at a time."""

from __future__ import annotations

import logging

from gateway.celery_message import Message
from gateway.config.strategies import StrategyInfo
from gateway.errors import RequestError
from gateway.pending_task import PendingTask
from gateway.strategies.celery_base import CeleryStrategy

INFO = StrategyInfo(subscribes="key", blocks=True, publishing=1, reading=3)

log = logging.getLogger(__name__)


class Blocking(CeleryStrategy):
    """Waits for one task on the loop; everything else in the process stops meanwhile."""

    async def start(self) -> None:
        log.warning(
            "the strategy blocking answers one request at a time: it is a baseline for comparison; "
            "use another one in production"
        )
        await super().start()

    def send(self, message: Message, deadline: float) -> PendingTask:
        self._admit(message)
        pending = PendingTask(message, deadline)
        try:
            result = self._begin(pending)
            self._confirm(pending)
            pending.settle(self._client.wait(result, deadline))
        except RequestError as exc:
            pending.fail(exc)
        return pending
