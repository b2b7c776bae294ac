"""Find out what became of deliveries that were answered before their task had ended.

Their results are read from the result store until they are there, at longer and longer intervals,
but often enough that none expires unseen. Every process of a deployment takes part, and each look
is taken by one of them. So this works with workers that know nothing of the journal, and goes on
after a restart of everything.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import Any

from gateway.background import Service, Work
from gateway.celery_message import decode_result
from gateway.config.settings import Config
from gateway.errors import GatewayError
from gateway.journal.entry import RUNNING, End, ended
from gateway.journal.store import FIRST_LOOK, JournalStore
from gateway.metric_table import LATE
from gateway.metrics import Metrics
from gateway.stores.results import Results

log = logging.getLogger(__name__)

_LONGEST = 60_000  # ms between two looks; a third of the time for which results are kept, if less
_PAUSE = 0.5  # seconds between two queries for those whose look is due
_MOST = 200  # deliveries of one query


class Follower(Service):
    """Writes the ends of tasks to the journal's `store`, and counts them."""

    def __init__(self, config: Config, store: JournalStore, metrics: Metrics, results: Results):
        self._store = store
        self._metrics = metrics
        self._results = results
        longest = int(min(_LONGEST, max(config.result_expires * 1000 / 3, 1)))
        self._pauses = (min(FIRST_LOOK, longest), longest)

    def _work(self) -> Work:
        yield "journal follower", self._keep_looking()

    async def _keep_looking(self) -> None:
        failed = ""
        while True:
            found = 0
            try:
                found = await self._look()
                failed = ""
            except GatewayError as exc:
                if str(exc) != failed:
                    log.warning("the ends of deliveries cannot be written: %s", exc)
                    failed = str(exc)
            if found < _MOST:
                await asyncio.sleep(_PAUSE)

    async def _look(self) -> int:
        """Write what became of those whose time has come; return how many these were."""
        due = await self._store.due(_MOST, *self._pauses)
        deliveries: dict[str, list[str]] = {}  # several tries may have one task
        for delivery_id, task_id in due:
            deliveries.setdefault(task_id, []).append(delivery_id)
        async for task_id, payload in self._results.stored([*deliveries]):
            if (found := read(payload)) is not None:
                for delivery_id in deliveries[task_id]:
                    reply = asyncio.ensure_future(self._store.settle(delivery_id, task_id, found))
                    reply.add_done_callback(partial(self._settled, found.state))
        return len(due)

    def _settled(self, state: str, reply: asyncio.Future[Any]) -> None:
        if reply.cancelled():
            return
        if (exc := reply.exception()) is not None:  # it is looked at again, as it stays open
            log.warning("the end of a delivery cannot be written: %s", exc)
        elif (answer := reply.result()) is not None:
            self._metrics.count(LATE, state, answer.decode())


def read(payload: bytes | int) -> End | None:
    """Return what became of a delivery's task, from its stored result.

    None: a worker has not begun the task yet, or will try again.
    """
    outcome = decode_result(payload)
    if outcome is None:
        begun = isinstance(payload, bytes) and b'"STARTED"' in payload[:200]
        return End(RUNNING) if begun else None
    return ended(outcome)
