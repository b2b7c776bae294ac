"""pika, and one poller a process, which reads all pending results."""

from __future__ import annotations

import asyncio
import logging

from gateway.amqp.publisher import publisher_for
from gateway.background import Work
from gateway.celery_message import Message, decode_result
from gateway.config.settings import Config
from gateway.config.strategies import StrategyInfo
from gateway.errors import StoreError
from gateway.metrics import Metrics
from gateway.pending_task import PendingTask
from gateway.stores import result_store
from gateway.stores.pipeline import Pipeline, results_of
from gateway.strategies.base import KeepsByTaskId

INFO = StrategyInfo(amqp_only=False, reading=1)

log = logging.getLogger(__name__)

#: Seconds between two queries: the shortest while results come, the longest while none do.
PAUSE = (0.001, 0.05)


class IOLoop(KeepsByTaskId):
    """Queries all pending keys at once, less often while no results come."""

    results: Pipeline

    def __init__(self, config: Config, metrics: Metrics, prefix: str):
        super().__init__(config, metrics, prefix)
        self.publisher = publisher_for(config, metrics)
        self.results = results_of(config, metrics)
        self._prefix = result_store.key_prefix(config)
        self._waited_for = asyncio.Event()
        self.uses = (self.publisher, self.results)

    def _work(self) -> Work:
        yield "result poller", self._poll()

    def send(self, message: Message, deadline: float) -> PendingTask:
        pending = super().send(message, deadline)
        self._waited_for.set()
        return pending

    async def _poll(self) -> None:
        pause = PAUSE[0]
        while True:
            if not self._waiting:
                self._waited_for.clear()
                await self._waited_for.wait()
                pause = PAUSE[0]
            came, task_ids = False, list(self._waiting)
            try:
                found = result_store.stored(self.results.run, self._prefix, task_ids)
                async for task_id, payload in found:
                    if pending := self._waiting.get(task_id):
                        pending.settle(decode_result(payload))
                        came = came or pending.ended
            except StoreError as exc:
                log.warning("cannot fetch results from the result store: %s", exc)
                pause = PAUSE[1]
                await asyncio.sleep(1)
            if came:
                pause = PAUSE[0]
            await asyncio.sleep(pause)
            pause = min(pause * 1.5, PAUSE[1])
