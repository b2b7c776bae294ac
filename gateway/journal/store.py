"""Write the journal: what was received, how it was answered, and what became of it, in Redis.

A request never fails with the journal. Only an acceptance waits for it, and not for long.
"""

from __future__ import annotations

import asyncio
import logging
from asyncio import Future, TimerHandle
from collections.abc import Callable
from dataclasses import dataclass, field
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

#: Seconds after the confirm by which an acceptance is answered, whether it is written or not.
LATEST = 0.5

#: Seconds for which answered deliveries gather.
GATHER = 0.005
#: The most deliveries of one command, and the bytes of their bodies from which on no more are
#: added: its script holds up Redis.
_MOST, _MOST_BYTES = 100, 1 << 20
_WORDS = 9  # for each delivery


@dataclass(slots=True)
class _Batch:
    """Deliveries that one command writes; `written` ends with True when Redis has them.

    ``size`` is in bytes; ``answered`` is how many of them are not written again.
    """

    written: Future[bool]
    timer: TimerHandle
    words: list[Arg] = field(default_factory=list)
    size: int = 0
    answered: int = 0

    def __len__(self) -> int:
        return len(self.words) // _WORDS


class Journal:
    """Writes deliveries, of which Redis keeps the last `Config.journal`."""

    def __init__(self, config: Config, metrics: Metrics):
        self._redis = Pipeline(lambda: result_store.connect(config, config.state), "journal")
        self._follower = Follower(config, self._redis, metrics) if config.results else None
        self._stored = config.strategy_info.stored
        self._keys = Keys(config)
        self._size = SizeWatch(self._keys, metrics, self._redis, config.journal_age)
        self._bounds = (config.journal, config.journal_bytes, int(config.journal_age * 1000))
        self._metrics = metrics
        self._most_bytes = config.max_in_flight_bytes
        self._bytes = 0  # of bodies that wait for Redis
        self._batch: _Batch | None = None
        self._soon = False
        self._error = ""
        self._silent = False
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
        self._flush()
        await self._redis.stop()

    def begin(self, message: Message, task_id: str, identity: str) -> Future[bool]:
        """Write a delivery before it is answered; the future says whether Redis has it.

        `identity` is the same for all tries of the delivery; "": it is not known.
        For those that may be answered before their task has ended: so they are in the journal even
        if this process is killed right after the answer.
        """
        written = self._add(message, task_id, identity, RECEIVED, ("", "", ""))
        if not self._soon:
            self._soon = True
            asyncio.get_running_loop().call_soon(self._flush)
        return written

    def when_written(self, written: Future[bool], then: Callable[[], None]) -> None:
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
        begun: Future[bool] | None = None,
    ) -> None:
        """Write how the delivery of `message` was answered; `task_id` is the task that runs it.

        `begun` is from `begin`, where the delivery may be there already.
        """
        there = begun is not None and begun.done() and begun.result()
        answer = str(status), f"{seconds:.6f}", error
        self._add(message, task_id, identity, state, answer, whole=not there)

    def _add(
        self,
        message: Message,
        task_id: str,
        identity: str,
        state: str,
        answer: tuple[str, str, str],
        whole: bool = True,
    ) -> Future[bool]:
        """Let a delivery be written with others, unless too many bytes wait for Redis."""
        loop = asyncio.get_running_loop()
        size = len(message.body) if whole else 0
        answered = int(state != RECEIVED)
        if not self._reserve(size, answered):
            lost = loop.create_future()
            lost.set_result(False)
            return lost
        batch = self._batch
        if batch is None:
            batch = _Batch(loop.create_future(), loop.call_later(GATHER, self._flush))
            self._batch = batch
        stored = message.delivery["store"] or (self._stored and not message.options.ignore_result)
        followed = self._follower is not None and stored and state in OPEN
        about, call = (described(message, identity), message.body) if whole else ("", b"")
        batch.words += message.delivery["id"], state, int(followed), task_id, *answer, about, call
        batch.size += size
        batch.answered += answered
        if len(batch) == _MOST or batch.size >= _MOST_BYTES:
            self._flush()
        return batch.written

    def _flush(self) -> None:
        """Send what has gathered."""
        self._soon = False
        batch, self._batch = self._batch, None
        if batch is None:
            return
        batch.timer.cancel()
        keys = self._keys
        reply = self._redis.run(
            "EVAL", scripts.WRITE, 3, keys.deliveries, keys.open, keys.bytes,
            *self._bounds, FIRST_LOOK, keys.prefix, keys.changes, *batch.words,
        )  # fmt: skip
        reply.add_done_callback(partial(self._written, batch))

    def _keep(self, size: int, *command: Arg) -> None:
        """Send a command that has a body of `size` bytes, unless too many wait for Redis."""
        self._flush()  # first, so that the journal is in order
        if self._reserve(size, 1):
            self._redis.run(*command).add_done_callback(partial(self._release, size, 1))

    def _reserve(self, size: int, lost: int) -> bool:
        """Reserve `size` bytes until `_release`; False: too many wait for Redis, and `lost` are."""
        if self._bytes + size > self._most_bytes:
            self._lose("more bytes wait for Redis than max_in_flight_bytes", lost)
            return False
        self._bytes += size
        return True

    def _written(self, batch: _Batch, reply: Future[Any]) -> None:
        batch.written.set_result(self._release(batch.size, batch.answered, reply))

    def _release(self, size: int, lost: int, reply: Future[Any]) -> bool:
        """Release `size` bytes; tell whether Redis has written them, otherwise `lost` are."""
        self._bytes -= size
        if reply.cancelled():
            return False
        if (exc := reply.exception()) is not None:
            # Redis adds which line of a script it was.
            self._lose(str(exc).partition(" script:")[0], lost)
            return False
        self._error = ""
        if unpublished := reply.result():
            if not self._silent:
                log.warning("changes of the journal are not published: %s", unpublished.decode())
            self._silent = True
        return True

    def _lose(self, error: str, lost: int) -> None:
        self._metrics.add("gateway_journal_lost_total", lost)
        if error != self._error:
            log.warning("deliveries cannot be written to the journal: %s", error)
            self._error = error
