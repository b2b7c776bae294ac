"""Commands to Celery's workers, in the form of `kombu.pidbox`.

https://docs.celeryq.dev/en/stable/userguide/workers.html#remote-control
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Mapping, Sequence
from typing import Any

import pika
from pika.channel import Channel

from gateway import background
from gateway.amqp import broker
from gateway.amqp.connection import TurnConnection

log = logging.getLogger(__name__)

#: The exchange to which workers bind their queues for commands, unless they have another
#: `control_exchange` than `celery`.
EXCHANGE = "celery.pidbox"

_COLLECT = 0.02  # seconds; each command costs every worker, so one revokes many tasks
_MOST = 10_000  # tasks that one command revokes

PROPERTIES = pika.BasicProperties(
    content_type="application/json",
    content_encoding="utf-8",
    headers={"clock": 0, "expires": 0},  # workers read no expiry
)


def encode(
    command: str,
    arguments: Mapping[str, Any],
    workers: Sequence[str] | None = None,
    reply_to: str = "",
) -> bytes:
    """Return the body of a `command` to `workers`; None: to all.

    They answer to the queue `reply_to` where it is given, with the command in the header `ticket`.
    """
    message: dict[str, Any] = {"method": command, "arguments": arguments, "destination": workers}
    if reply_to:
        own = {"exchange": "", "routing_key": reply_to}
        message |= {"ticket": command, "reply_to": own}
    return json.dumps(message).encode()


def publish(
    channel: Channel,
    command: str,
    arguments: Mapping[str, Any],
    workers: Sequence[str] | None = None,
) -> None:
    """Publish what `encode` returns, as a transient message that is not confirmed.

    If the exchange is missing, because no worker has declared it yet, the broker closes the
    channel.
    """
    channel.basic_publish(EXCHANGE, "", encode(command, arguments, workers), PROPERTIES)


def decode(body: bytes) -> Any:
    """Decode an answer; None where it is not JSON, as from a worker with another serializer."""
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return None


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

    async def stop(self) -> None:
        """Send nothing more."""
        await background.stop(self._sending)

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
                publish(self._channel, "revoke", {"task_id": task_ids, "terminate": False})
            except broker.ERRORS as exc:
                log.info("tasks could not be revoked: %s", broker.describe(exc))


def _on_closed(_channel: Channel, exc: BaseException) -> None:
    log.info("the channel for revocations was closed: %s", broker.describe(exc))
