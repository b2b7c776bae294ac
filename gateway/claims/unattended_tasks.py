"""Write the results of unattended tasks, for which no request waits any more, to their claims.

So the next try gets the answer, however long the task has taken, and nothing runs twice. A process
that ends leaves its claims to others, which look for such ones while results are still stored. If
it is killed, the next try still finds a result while it is stored.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import partial

from gateway.background import Service, Tasks, Work
from gateway.celery_message import decode_result
from gateway.claims.claim import Claim
from gateway.claims.store import Claims
from gateway.clock import monotonic
from gateway.config.route import Reading
from gateway.config.settings import Config
from gateway.errors import StoreError
from gateway.outcome import Outcome
from gateway.stores.results import Results

log = logging.getLogger(__name__)

#: The shortest and the longest pause between queries for missed results, in seconds. Within these
#: it is a third of the time for which results are kept.
_PAUSES = (0.1, 60.0)
OTHER_RUN = 5.0  # seconds for which a success is listened for after a failure
RETRY = 1.0  # seconds after a query that Redis has not answered


@dataclass(slots=True, eq=False)
class _Task:
    """A task whose result is listened for, until ``until`` (monotonic seconds)."""

    claim: Claim
    reading: Reading
    until: float
    on_message: Callable[[bytes | None], object]
    failed: bool = False


class UnattendedTasks(Service):
    """Listens for the results of at most `Config.max_in_flight` unattended tasks.

    When there are more, the oldest is dropped.
    """

    def __init__(self, config: Config, claims: Claims, results: Results):
        self._claims = claims
        self._results = results
        self._subscription = results.subscription
        self._prefix = results.prefix
        self._most = config.max_in_flight
        self._window = config.idempotency_window
        self._pause = min(max(config.result_expires / 3, _PAUSES[0]), _PAUSES[1])
        self._waiting: dict[str, _Task] = {}
        self._begun = Tasks()
        #: Results may have been missed.
        self._missed = asyncio.Event()

    @property
    def awaited(self) -> Collection[str]:
        """The ids of the tasks whose results are listened for."""
        return self._waiting.keys()

    def _work(self) -> Work:
        yield "unattended tasks", self._sweep()
        yield "missed results of unattended tasks", self._catch_up()

    async def stop(self) -> None:
        await super().stop()
        await self._begun.stop()
        await self._claims.hand_over((t.claim, t.reading) for t in self._waiting.values())

    def listen(self, claim: Claim, reading: Reading) -> None:
        """Write the end of its task to `claim`, if it comes within the claim's window."""
        if (task := self._waiting.get(claim.task_id)) is not None:
            if claim.redacted is not None:  # which the first try need not know after a reload
                task.claim = claim
            return
        if len(self._waiting) >= self._most:
            self._forget(next(iter(self._waiting)))
        on_message = partial(self._on_message, claim.task_id)
        until = monotonic() + self._window - claim.age
        self._waiting[claim.task_id] = _Task(claim, reading, until, on_message)
        self._subscription.add(self._prefix + claim.task_id, on_message)
        self._begun.run(self._look(claim.task_id))

    async def _look(self, task_id: str) -> None:
        """Fetch a result that was published before its channel is subscribed."""
        await self._subscription.ready(self._prefix + task_id)
        await self._fetch([task_id])

    def _on_message(self, task_id: str, payload: bytes | None) -> None:
        if payload is None:
            self._missed.set()
        else:
            self._ended(task_id, decode_result(payload))

    def _ended(self, task_id: str, outcome: Outcome | None) -> None:
        if outcome is None or (task := self._waiting.get(task_id)) is None:
            return
        answer, final = task.reading.read(outcome)
        if final:
            self._forget(task_id)
        elif task.failed:
            return
        else:
            # The broker may have had the message twice, and another run of it may succeed.
            task.failed = True
            asyncio.get_running_loop().call_later(OTHER_RUN, self._give_up, task_id, task)
        self._claims.settle(task.claim, outcome, answer, final)

    def _give_up(self, task_id: str, task: _Task) -> None:
        if self._waiting.get(task_id) is task:
            self._forget(task_id)

    def _forget(self, task_id: str) -> _Task:
        task = self._waiting.pop(task_id)
        self._subscription.remove(self._prefix + task_id, task.on_message)
        return task

    async def _fetch(self, task_ids: list[str]) -> None:
        try:
            async for task_id, payload in self._results.stored(task_ids):
                self._ended(task_id, decode_result(payload))
        except StoreError as exc:
            log.warning("cannot fetch the results of unattended tasks: %s", exc)
            self._missed.set()

    async def _catch_up(self) -> None:
        """Fetch what was missed, until Redis answers."""
        while True:
            await self._missed.wait()
            self._missed.clear()
            await self._fetch(list(self._waiting))
            if self._missed.is_set():
                await asyncio.sleep(RETRY)

    async def _sweep(self) -> None:
        """Fetch missed results, and prolong the claims while this process listens."""
        while True:
            await self._take_over()
            await asyncio.sleep(self._pause)
            now = monotonic()
            for task_id in [t for t, task in self._waiting.items() if task.until <= now]:
                self._forget(task_id)
            await self._fetch(list(self._waiting))
            await self._claims.prolong([task.claim for task in self._waiting.values()])

    async def _take_over(self) -> None:
        """Listen for results that ended processes have listened for, as far as there is room."""
        try:
            more = True
            while more and (room := self._most - len(self._waiting)) > 0:
                more = await self._claims.take_over(room, self.listen)
        except StoreError as exc:
            log.warning("claims of ended processes cannot be taken over: %s", exc)
