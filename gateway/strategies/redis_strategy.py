"""pika, and one pattern subscription a process for all results; the default.

Celery's worker publishes each result on the channel that has the name of its key. The task ids of
this process share a prefix, so one PSUBSCRIBE receives all their results.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial

from gateway.amqp.publisher import publisher_for
from gateway.background import Work
from gateway.celery_message import Message
from gateway.config.settings import Config
from gateway.config.strategies import StrategyInfo
from gateway.errors import StoreError
from gateway.metrics import Metrics
from gateway.pending_task import PendingTask
from gateway.read_throttling import ReadThrottling
from gateway.stores import result_store
from gateway.stores.pipeline import Pipeline
from gateway.stores.server import CONNECT_TIMEOUT
from gateway.stores.subscription import Subscription
from gateway.strategies.base import KeepsByTaskId

INFO = StrategyInfo(subscribes="prefix", amqp_only=False)

log = logging.getLogger(__name__)

SWEEP = 1.0  # seconds between sweeps; each fetches the results that the next-to-last one awaited


class RedisPush(KeepsByTaskId):
    """Receives results by a subscription, and fetches those that may have been missed."""

    def __init__(self, config: Config, metrics: Metrics, prefix: str):
        super().__init__(config, metrics, prefix)
        self._throttling = ReadThrottling(partial(metrics.get, "gateway_in_flight"))
        self.publisher = publisher_for(config, metrics, self._throttling)
        self._results = Pipeline(
            lambda: result_store.connect(config), "results", patience=CONNECT_TIMEOUT
        )
        self._prefix = result_store.key_prefix(config)
        self._skip = len(self._prefix.encode())
        self._channels = self._prefix + prefix
        self.results = Subscription(
            lambda: result_store.connect(config),
            "result subscription",
            self._channels,
            self._on_result,
            self._opened,
            self._throttling,
        )
        self._results.on_left.append(self.results.renew)
        # The ids sent since the last sweep, and those of the sweep before it.
        self._young: list[str] = []
        self._older: list[str] = []
        self.uses = (self.publisher, self._results, self.results)

    def _work(self) -> Work:
        yield "result sweep", self._sweep()

    def send(self, message: Message, deadline: float) -> PendingTask:
        pending = super().send(message, deadline)
        self._young.append(message.task_id)
        return pending

    async def _opened(self) -> None:
        if self._waiting:
            await self._fetch(list(self._waiting))
        log.info("subscribed to %s*", self._channels)
        self._metrics.connected("results")

    def _on_result(self, channel: bytes, payload: bytes) -> None:
        # Any client of Redis may publish here, also on channels whose names are not UTF-8.
        self._receive(channel[self._skip :].decode(errors="replace"), payload)

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(SWEEP)
            stragglers = [task_id for task_id in self._older if task_id in self._waiting]
            self._older, self._young = self._young, []
            if stragglers:
                try:
                    await self._fetch(stragglers)
                except StoreError as exc:
                    log.warning("cannot fetch results from the result store: %s", exc)
                    self._older += stragglers

    async def _fetch(self, task_ids: list[str]) -> None:
        found = result_store.stored(self._results.run, self._prefix, task_ids)
        async for task_id, payload in found:
            if task_id in self._waiting:
                self._receive(task_id, payload)
