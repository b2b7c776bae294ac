"""One query a request: each asks for its own result, again and again."""

from __future__ import annotations

import asyncio

from gateway.amqp.publisher import publisher_for
from gateway.celery_message import Message, decode_result
from gateway.config.settings import Config
from gateway.config.strategies import StrategyInfo
from gateway.errors import ResultsUnavailable, StoreError
from gateway.metrics import Metrics
from gateway.pending_task import PendingTask
from gateway.stores.pipeline import Pipeline, results_of
from gateway.stores.result_store import key_prefix, stored
from gateway.strategies.base import Strategy

INFO = StrategyInfo(amqp_only=False, reading=1)

#: Seconds between two queries of a request, and after a query that the store has not answered.
PAUSE, LONG_PAUSE = 0.02, 1.0


class Queries(Strategy):
    """Asks Redis for each result by itself, in a coroutine for each request."""

    results: Pipeline

    def __init__(self, config: Config, metrics: Metrics, prefix: str):
        self.publisher = publisher_for(config, metrics)
        self.results = results_of(config, metrics)
        self.uses = (self.publisher, self.results)
        self._prefix = key_prefix(config)
        self._waiting: set[asyncio.Task[None]] = set()

    def send(self, message: Message, deadline: float) -> PendingTask:
        if self.results.error:
            raise ResultsUnavailable
        pending = PendingTask(message, deadline)
        self.publisher.publish(pending)
        waiting = asyncio.create_task(self._wait(pending))
        self._waiting.add(waiting)
        waiting.add_done_callback(self._waiting.discard)
        return pending

    async def _wait(self, pending: PendingTask) -> None:
        task_ids = [pending.message.task_id]
        while not pending.ended:
            pause = PAUSE
            try:
                async for _, payload in stored(self.results.run, self._prefix, task_ids):
                    pending.settle(decode_result(payload))
            except StoreError:
                pause = LONG_PAUSE
            await asyncio.sleep(pause)
