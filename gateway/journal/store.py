"""Write the journal: what was received, how it was answered, and what became of it, in Redis.

A request never fails with the journal. Only an acceptance waits for it, and not for long.
"""

from __future__ import annotations

import asyncio
import logging
from asyncio import Future
from collections.abc import Callable
from functools import partial
from typing import Any

from gateway.celery_message import Message
from gateway.config.settings import Config
from gateway.journal import scripts
from gateway.journal.entry import OPEN, RECEIVED, described
from gateway.journal.follower import FIRST_LOOK, Follower
from gateway.journal.keys import Keys
from gateway.journal.refusals import Refusals
from gateway.journal.size_watch import SizeWatch
from gateway.metrics import Metrics
from gateway.stores import result_store
from gateway.stores.pipeline import Arg, Pipeline

log = logging.getLogger(__name__)

Run = Callable[..., Future[Any]]

#: Seconds after the confirm by which an acceptance is answered, whether it is written or not.
LATEST = 0.5


class Journal:
    """Writes deliveries, of which Redis keeps the last `Config.journal`."""

    def __init__(self, config: Config, metrics: Metrics):
        self._redis = Pipeline(lambda: result_store.connect(config, config.state), "journal")
        self._follower = Follower(config, self._redis, metrics) if config.results else None
        self._stored = config.strategy_info.stored
        self._keys = Keys(config)
        self._size = SizeWatch(self._keys, metrics, self._redis)
        self._bounds = (config.journal, config.journal_bytes, int(config.journal_age * 1000))
        self._metrics = metrics
        self._most_bytes = config.max_in_flight_bytes
        self._bytes = 0  # of bodies that wait for Redis
        self._error = ""
        #: Not None if refused requests are kept.
        self.refusals = Refusals(config, self._keys, self._keep) if config.most_refused else None

    async def start(self) -> None:
        await self._redis.start()
        await self._size.start()
        if self._follower is not None:
            await self._follower.start()

    async def stop(self) -> None:
        if self._follower is not None:
            await self._follower.stop()
        await self._size.stop()
        await self._redis.stop()

    def begin(self, message: Message, task_id: str, identity: str) -> Future[Any]:
        """Write a delivery before it is answered; the future ends when Redis has it.

        `identity` is the same for all tries of the delivery; "": it is not known.
        For those that may be answered before their task has ended: so they are in the journal even
        if this process is killed right after the answer.
        """
        return self._write(self._redis.run, message, identity, RECEIVED, ["task_id", task_id])

    def when_written(self, written: Future[Any], then: Callable[[], None]) -> None:
        """Call `then` when `written`, which is from `begin`, has ended, or after `LATEST`.

        Immediately where the journal has failed lately.
        """
        if self._error or written.done():
            then()
            return
        waiting = True

        def end(*_: object) -> None:
            nonlocal waiting
            if waiting:
                waiting = False
                timer.cancel()
                then()

        timer = asyncio.get_running_loop().call_later(LATEST, end)
        written.add_done_callback(end)

    def write(
        self,
        message: Message,
        task_id: str,
        identity: str,
        state: str,
        status: int,
        seconds: float,
        error: str,
        begun: Future[Any] | None = None,
    ) -> None:
        """Write how the delivery of `message` was answered; `task_id` is the task that runs it.

        `begun` is from `begin`, where the delivery may be there already.
        """
        answer: list[Arg] = ["status", status, "seconds", f"{seconds:.6f}", "error", error]
        there = (
            begun is not None
            and begun.done()
            and not begun.cancelled()
            and begun.exception() is None
        )
        fields = ["task_id", task_id, *answer]
        self._write(self._redis.run_later, message, identity, state, fields, whole=not there)

    def _write(
        self,
        run: Run,
        message: Message,
        identity: str,
        state: str,
        fields: list[Arg],
        whole: bool = True,
    ) -> Future[Any]:
        keys, delivery_id = self._keys, message.delivery["id"]
        stored = message.delivery["store"] or (self._stored and not message.options.ignore_result)
        followed = self._follower is not None and stored and state in OPEN
        return self._send(
            run,
            len(message.body) if whole else 0,
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
            *(("about", described(message, identity), "call", message.body) if whole else ()),
        )

    def _keep(self, size: int, *command: Arg) -> Future[Any]:
        return self._send(self._redis.run_later, size, *command)

    def _send(self, run: Run, size: int, *command: Arg) -> Future[Any]:
        """Run a command that has a body of `size` bytes, unless too many wait for Redis."""
        if self._bytes + size > self._most_bytes:
            self._lose("more bytes wait for Redis than max_in_flight_bytes")
            lost = asyncio.get_running_loop().create_future()
            lost.cancel()
            return lost
        self._bytes += size
        reply = run(*command)
        reply.add_done_callback(partial(self._written, size))
        return reply

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
