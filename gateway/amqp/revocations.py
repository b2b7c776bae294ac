"""Tell Celery's workers by remote control which tasks nobody waits for any more."""

from __future__ import annotations

import asyncio
import logging

from pika.channel import Channel

from gateway.amqp import broker, pidbox
from gateway.amqp.connection import TurnConnection

log = logging.getLogger(__name__)

_COLLECT = 0.02  # seconds; each command costs every worker, so one names many tasks
_MOST = 10_000  # tasks in one command


class Revocations:
    """Sends revocations on a channel of its own, because a missing exchange would close it.

    They are sent once and not confirmed: a worker that misses one runs the task for nobody.
    """

    def __init__(self, connection: TurnConnection):
        self._connection = connection
        self._channel: Channel | None = None
        self._task_ids: list[str] = []
        self._sending: asyncio.Task[None] | None = None

    def revoke(self, task_id: str) -> None:
        """Revoke a task, soon and together with others."""
        if len(self._task_ids) < _MOST:
            self._task_ids.append(task_id)
        if self._sending is None or self._sending.done():
            self._sending = asyncio.create_task(self._send())

    async def _send(self) -> None:
        while self._task_ids:
            await asyncio.sleep(_COLLECT)
            task_ids, self._task_ids = self._task_ids, []
            if not self._connection.writable:
                continue
            try:
                if self._channel is None or not self._channel.is_open:
                    self._channel = await broker.open_channel(self._connection)
                    # The broker closes it where there is no such exchange, and so no worker.
                    self._channel.add_on_close_callback(_on_closed)
                pidbox.publish(self._channel, "revoke", {"task_id": task_ids, "terminate": False})
            except broker.ERRORS as exc:
                log.info("tasks could not be revoked: %s", broker.describe(exc))


def _on_closed(_channel: Channel, exc: BaseException) -> None:
    log.info("the channel for revocations was closed: %s", broker.describe(exc))
