"""Write the journal: what was received, how it was answered, and what became of it.

A request never fails with the journal. Only an acceptance waits for it, and not for long. What the
store does not answer is sent again, for a while: it may have it already, and is then as it was.
"""

from __future__ import annotations

import asyncio
import logging
from asyncio import Future, TimerHandle
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

from gateway import background
from gateway.background import Service, Work, keep_on
from gateway.celery_message import Message, decode_result
from gateway.clock import monotonic
from gateway.config.settings import Config
from gateway.errors import Unanswered
from gateway.journal.entry import OPEN, RECEIVED, RUNNING, STATES, WELL, End, described, ended
from gateway.journal.refusals import Refusals
from gateway.journal.store import (
    FIRST_LOOK,
    NOT_ANSWERED,
    Answered,
    JournalStore,
    Refusal,
    Row,
    Size,
)
from gateway.metric_table import LATE
from gateway.metrics import Metrics
from gateway.stores.results import Results
from gateway.stores.state_store import StateStore

log = logging.getLogger(__name__)

#: Seconds for which answered deliveries gather.
GATHER = 0.005
#: The most deliveries that are written together, and the bytes from which on none is added: such
#: a write holds up the store. The same limits are for writes that are sent again.
_MOST, _MOST_BYTES = 100, 1 << 20
#: Bytes of memory that an entry takes beside its own: measured, with the smallest bodies.
_BESIDE = 1_000
#: Seconds for which a write is sent again that the store does not answer, between two attempts, and
#: for which the end of the process waits for that.
KEPT, _AGAIN, _LAST = 60.0, 0.2, 1.0


@dataclass(slots=True)
class _Batch:
    """Deliveries that are written together; `written` ends with True when the store has them.

    ``size`` is in bytes; ``answered`` is how many of them are not written again.
    """

    written: Future[bool]
    timer: TimerHandle
    rows: list[Row] = field(default_factory=list)
    size: int = 0
    answered: int = 0


class _Write(NamedTuple):
    """A write of `size` bytes; ``lost`` is how many are counted if it is lost.

    ``written`` ends with True when the store has it, with False if that is not known yet, or not.
    """

    send: Callable[[], Awaitable[bytes | None]]
    size: int
    lost: int
    written: Future[bool]


class Journal(Service):
    """Writes deliveries, of which the store keeps the last `Config.journal`.

    With `results` it finds the ends of tasks.
    """

    def __init__(self, config: Config, metrics: Metrics, results: Results | None = None):
        self._redis = redis = StateStore(config, "journal")
        # `run` is another one once it is known that there is a cluster.
        self.store = JournalStore(config, lambda *command: redis.run(*command))
        self._follower = results and Follower(config, self.store, metrics, results)
        self.stored = config.strategy_info.stored
        size = SizeWatch(config, self.store, metrics)
        self.uses = (size, self._follower) if self._follower else (size,)
        self._metrics = metrics
        #: The states whose calls are not kept.
        self._keep_bodies = keep = config.keep_bodies
        self._bodiless = {"failed": WELL, "none": frozenset(STATES)}.get(keep, ())
        self._most_bytes = config.max_in_flight_bytes
        #: Those that wait for the store.
        self.bytes = 0
        self._batch: _Batch | None = None
        #: What the store has not answered, and when each is given up (monotonic).
        self._unanswered: deque[tuple[float, _Write]] = deque()
        self._catching_up: asyncio.Task[None] | None = None
        self._ends = False
        self._soon = False
        self._error = ""
        self._silent = False
        #: Not None if the journal has room for requests without a message.
        self.refusals = Refusals(config, self._keep) if config.most_without_message else None

    async def start(self) -> None:
        await self._redis.start()
        await super().start()

    async def stop(self) -> None:
        await super().stop()
        self._flush()
        if self._catching_up is not None:
            await asyncio.wait((self._catching_up,), timeout=_LAST)
        self._ends = True
        await background.stop(self._catching_up)
        for _, write in self._unanswered:
            self._lose("the store does not answer, and the process ends", write.lost)
        await self._redis.stop()

    def begin(self, message: Message, task_id: str, identity: str) -> Future[bool]:
        """Write a delivery before it is answered; the future says whether the store has it.

        `identity` is the same for all tries of the delivery; "": it is not known.
        For those that may be answered before their task has ended: so they are in the journal even
        if this process is killed right after the answer.
        """
        written = self._add(message, task_id, identity, RECEIVED, NOT_ANSWERED)
        if not self._soon:
            self._soon = True
            asyncio.get_running_loop().call_soon(self._flush)
        return written

    def when_written(
        self, written: Future[bool], then: Callable[[], None], deadline: float
    ) -> None:
        """Call `then` as `background.when_done` does, with what `begin` has returned.

        Immediately where the journal has failed lately.
        """
        if self._error:
            then()
        else:
            background.when_done(written, then, deadline)

    async def settle(self, delivery_id: str, task_id: str, end: End) -> None:
        """Write what became of a delivery's task, or of its late answer; raises `GatewayError`."""
        await self.store.settle(delivery_id, task_id, end, counts=False)

    def write(
        self,
        message: Message,
        task_id: str,
        identity: str,
        state: str,
        answered: Answered,
        whole: bool = True,
    ) -> None:
        """Write how the delivery of `message` was answered; `task_id` is the task that runs it.

        Not the `whole` message, where `begin` has surely written it.
        """
        self._add(message, task_id, identity, state, answered, whole)

    def _add(
        self,
        message: Message,
        task_id: str,
        identity: str,
        state: str,
        answer: Answered,
        whole: bool = True,
    ) -> Future[bool]:
        """Let a delivery be written with others, unless too many bytes wait for the store."""
        loop = asyncio.get_running_loop()
        about, asked, call = "", "", b""
        if whole:
            about, asked = described(message, identity, self._keep_bodies)
            call = message.body
            if state in self._bodiless:
                asked, call = "", b""
        size, answered = _BESIDE + len(about) + len(asked) + len(call), int(state != RECEIVED)
        if not self._reserve(size, answered):
            lost = loop.create_future()
            lost.set_result(False)
            return lost
        batch = self._batch
        if batch is None:
            batch = _Batch(loop.create_future(), loop.call_later(GATHER, self._flush))
            self._batch = batch
        stored = message.delivery["store"] or (self.stored and not message.options.ignore_result)
        followed = self._follower is not None and stored and state in OPEN
        delivery_id = message.delivery["id"]
        batch.rows.append((delivery_id, state, int(followed), task_id, *answer, about, asked, call))
        batch.size += size
        batch.answered += answered
        if len(batch.rows) == _MOST or batch.size >= _MOST_BYTES:
            self._flush()
        return batch.written

    def _flush(self) -> None:
        """Send what has gathered."""
        self._soon = False
        batch, self._batch = self._batch, None
        if batch is None:
            return
        batch.timer.cancel()
        send = partial(self.store.write, batch.rows)
        self._send(_Write(send, batch.size, batch.answered, batch.written))

    def _keep(self, refusal: Refusal) -> None:
        """Write a request without a message, unless too many bytes wait for the store."""
        self._flush()  # first, so that the journal is in order
        if refusal.state in self._bodiless:
            refusal = refusal._replace(call=b"")
        size = _BESIDE + len(refusal.about) + len(refusal.call)
        if self._reserve(size, 1):
            written = asyncio.get_running_loop().create_future()
            self._send(_Write(partial(self.store.refuse, refusal), size, 1, written))

    def _send(self, write: _Write) -> None:
        if self._unanswered:
            self._postpone(write)  # it comes after them
        else:
            reply = asyncio.ensure_future(write.send())
            reply.add_done_callback(partial(self._sent, write))

    def _sent(self, write: _Write, reply: Future[Any]) -> None:
        if not self._ends and _is_unanswered(reply):
            self._tell(str(reply.exception()))
            self._postpone(write)
        else:
            write.written.set_result(self._release(write, reply))

    def _postpone(self, write: _Write) -> None:
        write.written.set_result(False)
        self._unanswered.append((monotonic() + KEPT, write))
        if self._catching_up is None or self._catching_up.done():
            catching_up = background.start(self._catch_up(), "journal", needed=False)
            self._catching_up = catching_up

    async def _catch_up(self) -> None:
        """Send again what the store has not answered, until it has."""
        waiting = self._unanswered
        while waiting:
            some, size = [], 0
            for end, write in waiting:
                reply = asyncio.ensure_future(write.send())
                reply.add_done_callback(_is_unanswered)  # looked at, even if this is cancelled
                some.append((end, write, reply))
                size += write.size
                if len(some) == _MOST or size >= _MOST_BYTES:
                    break
            await asyncio.wait([reply for *_, reply in some])
            again = []
            for end, write, reply in some:
                waiting.popleft()
                if _is_unanswered(reply) and monotonic() < end:
                    again.append((end, write))
                else:
                    self._release(write, reply)
            waiting.extendleft(reversed(again))
            if again:
                await asyncio.sleep(_AGAIN)

    def _reserve(self, size: int, lost: int) -> bool:
        """Reserve `size` bytes until `_release`; False: too many wait already, and `lost` are."""
        if self.bytes + size > self._most_bytes:
            self._lose("more bytes wait to be written than max_in_flight_bytes", lost)
            return False
        self.bytes += size
        return True

    def _release(self, write: _Write, reply: Future[Any]) -> bool:
        """Release the bytes of a write; tell whether the store has it, otherwise it is lost."""
        self.bytes -= write.size
        if reply.cancelled():
            return False
        if (exc := reply.exception()) is not None:
            self._lose(str(exc), write.lost)
            return False
        self._error = ""
        if unpublished := reply.result():
            if not self._silent:
                log.warning("the journal's changes cannot be announced: %s", unpublished.decode())
            self._silent = True
        return True

    def _lose(self, error: str, lost: int) -> None:
        self._metrics.add("gateway_journal_lost_total", lost)
        self._tell(error)

    def _tell(self, error: str) -> None:
        if error != self._error:
            log.warning("deliveries cannot be written to the journal: %s", error)
            self._error = error


def _is_unanswered(reply: Future[Any]) -> bool:
    return not reply.cancelled() and isinstance(reply.exception(), Unanswered)


_LONGEST = 60_000  # ms between two looks; a third of the time for which results are kept, if less
_LOOKING = 0.5  # seconds between two queries for those whose look is due
_DUE = 200  # deliveries of one query


class Follower(Service):
    """Writes to the `store` what became of deliveries that were answered before their task's end.

    Their results are read from the result store until they are there, at longer and longer
    intervals, but often enough that none expires unseen. Every process of a deployment takes part,
    and each look is taken by one of them. So this works with workers that know nothing of the
    journal, and goes on after a restart of everything. It also counts the ends.
    """

    def __init__(self, config: Config, store: JournalStore, metrics: Metrics, results: Results):
        self._store = store
        self._metrics = metrics
        self._results = results
        longest = int(min(_LONGEST, max(config.result_expires * 1000 / 3, 1)))
        self._pauses = (min(FIRST_LOOK, longest), longest)

    def _work(self) -> Work:
        problem = "the ends of deliveries cannot be written"
        yield "journal follower", keep_on(self._look, _LOOKING, log.warning, problem)

    async def _look(self) -> bool:
        """Write what became of those whose time has come; tell whether there may be more."""
        due = await self._store.due(_DUE, *self._pauses)
        deliveries: dict[str, list[str]] = {}  # several tries may have one task
        for delivery_id, task_id in due:
            deliveries.setdefault(task_id, []).append(delivery_id)
        async for task_id, payload in self._results.stored([*deliveries]):
            if (found := end_of(payload)) is not None:
                for delivery_id in deliveries[task_id]:
                    reply = asyncio.ensure_future(self._store.settle(delivery_id, task_id, found))
                    reply.add_done_callback(partial(self._settled, found.state))
        return len(due) == _DUE

    def _settled(self, state: str, reply: asyncio.Future[Any]) -> None:
        if reply.cancelled():
            return
        if (exc := reply.exception()) is not None:  # it is looked at again, as it stays open
            log.warning("the end of a delivery cannot be written: %s", exc)
        elif (answer := reply.result()) is not None:
            self._metrics.count(LATE, state, answer.decode())


def end_of(payload: bytes | int) -> End | None:
    """Return what became of a delivery's task, from its stored result.

    None: a worker has not begun the task yet, or will try again.
    """
    outcome = decode_result(payload)
    if outcome is None:
        begun = isinstance(payload, bytes) and b'"STARTED"' in payload[:200]
        return End(RUNNING) if begun else None
    return ended(outcome)


TRIM_PAUSE = 10.0  # seconds between two queries
_TRIMMED = 200  # deliveries that are removed at once


class SizeWatch(Service):
    """Trims the journal's `store`, and sets its gauges."""

    def __init__(self, config: Config, store: JournalStore, metrics: Metrics):
        self._config = config
        self._store = store
        self._metrics = metrics

    def _work(self) -> Work:
        # Only a debug line: whoever writes to the journal logs its errors.
        problem = "the size of the journal cannot be queried"
        yield "journal size", keep_on(self._look, TRIM_PAUSE, log.debug, problem)

    def _room_used(self, size: Size) -> float:
        """Return how much of what the journal may hold waits for the archive, from 0 to 1."""
        config, share = self._config, size.waiting / max(size.deliveries, 1)
        return max(
            size.waiting / config.journal,
            min(share, 1.0) * size.bytes / config.journal_bytes,
            size.lag / config.journal_age,
        )

    async def _look(self) -> bool:
        size = await self._store.trim(_TRIMMED)
        self._metrics.set("gateway_journal_deliveries", size.deliveries)
        self._metrics.set("gateway_journal_open", size.open)
        self._metrics.set("gateway_journal_bytes", size.bytes)
        self._metrics.set("gateway_archive_waiting", size.waiting)
        self._metrics.set("gateway_archive_lag_seconds", size.lag)
        self._metrics.set("gateway_archive_missed", size.missed)
        self._metrics.set("gateway_archive_room_used", self._room_used(size))
        return size.removed == _TRIMMED
