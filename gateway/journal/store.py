"""Write the journal: what was received, how it was answered, and what became of it, in Redis.

A request never waits for the journal, nor fails with it.
"""

from __future__ import annotations

import logging
from asyncio import Future
from functools import partial
from typing import Any

from gateway.celery_message import Message
from gateway.config.settings import Config
from gateway.journal import scripts
from gateway.journal.entry import OPEN, RECEIVED, described
from gateway.journal.follower import FIRST_LOOK, Follower
from gateway.journal.keys import Keys
from gateway.metrics import Metrics
from gateway.stores import result_store
from gateway.stores.pipeline import Arg, Pipeline

log = logging.getLogger(__name__)


class Journal:
    """Writes deliveries, of which Redis keeps the last `Config.journal`."""

    def __init__(self, config: Config, metrics: Metrics):
        self._redis = Pipeline(lambda: result_store.connect(config, config.state), "journal")
        self._follower = Follower(config, self._redis) if config.results else None
        self._stored = config.strategy_info.stored
        self._keys = Keys(config)
        self._bounds = (config.journal, config.journal_bytes, int(config.journal_age * 1000))
        self._metrics = metrics
        self._most_bytes = config.max_in_flight_bytes
        self._bytes = 0  # of bodies that wait for Redis
        self._error = ""

    async def start(self) -> None:
        await self._redis.start()
        if self._follower is not None:
            await self._follower.start()

    async def stop(self) -> None:
        if self._follower is not None:
            await self._follower.stop()
        await self._redis.stop()

    def begin(self, message: Message) -> None:
        """Write a delivery before its message is published.

        For those that may be answered before their task has ended: so they are in the journal even
        if this process is killed right after the answer.
        """
        self._write(message, RECEIVED, "task_id", message.task_id)

    def write(
        self, message: Message, task_id: str, state: str, status: int, seconds: float, error: str
    ) -> None:
        """Write how the delivery of `message` was answered; `task_id` is the task that runs it."""
        answer: list[Arg] = ["status", status, "seconds", f"{seconds:.6f}", "error", error]
        self._write(message, state, "task_id", task_id, *answer)

    def _write(self, message: Message, state: str, *fields: Arg) -> None:
        size = len(message.body)
        if self._bytes + size > self._most_bytes:
            self._lose("more bytes wait for Redis than max_in_flight_bytes")
            return
        self._bytes += size
        keys, delivery_id = self._keys, message.delivery["id"]
        stored = message.delivery["store"] or (self._stored and not message.options.ignore_result)
        followed = self._follower is not None and stored and state in OPEN
        reply = self._redis.run(
            "EVAL",
            scripts.WRITE,
            4,
            keys.of(delivery_id),
            keys.deliveries,
            keys.open,
            keys.bytes,
            delivery_id,
            state,
            *self._bounds,
            FIRST_LOOK if followed else 0,
            keys.prefix,
            keys.changes,
            *fields,
            "about",
            described(message),
            "call",
            message.body,
        )
        reply.add_done_callback(partial(self._written, size))

    def _written(self, size: int, reply: Future[Any]) -> None:
        self._bytes -= size
        if not reply.cancelled():
            exc = reply.exception()
            if exc is not None:
                self._lose(str(exc))
            else:
                self._error = ""

    def _lose(self, error: str) -> None:
        self._metrics.add("gateway_journal_lost_total")
        if error != self._error:
            log.warning("deliveries cannot be written to the journal: %s", error)
            self._error = error
