"""What a strategy on Celery's client has beside it: the publisher that watches the broker."""

from __future__ import annotations

import asyncio

from gateway.amqp.publisher import Publisher
from gateway.celery_message import Message
from gateway.config.settings import Config
from gateway.errors import BrokerBlocked, BrokerUnavailable, ResultsUnavailable
from gateway.metrics import Metrics
from gateway.pending_task import PendingTask
from gateway.stores.result_store import ResultStore
from gateway.strategies.base import Strategy
from gateway.strategies.celery_client import CeleryClient


class CeleryStrategy(Strategy):
    """Knows on the loop, without blocking, whether broker and results are there.

    The asynchronous publisher looks at the queues and hears that the broker is blocked or
    gone, so that nobody has to find that out by hanging.
    """

    _publisher: Publisher

    def __init__(self, config: Config, metrics: Metrics, prefix: str):
        self._config = config
        self._metrics = metrics
        self._publisher = Publisher(config, metrics)
        self._store = ResultStore(config)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._client = self._new_client()

    async def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        await self._publisher.start()
        await self._store.start()

    async def stop(self) -> None:
        await self._store.stop()
        await self._publisher.stop()
        self._client.close()

    def checks(self) -> dict[str, str]:
        return {"broker": self._publisher.error, "results": self._store.error}

    def _new_client(self) -> CeleryClient:
        # Publishes where the queues have been looked at, and what the watcher says is true.
        return CeleryClient(self._config, lambda: self._publisher.url, self._check_broker)

    def _confirm(self, pending: PendingTask) -> None:
        """Tell `pending` of its confirm; called on the loop."""
        self._metrics.add("gateway_messages_published_total")
        self._metrics.add("gateway_messages_confirmed_total")
        pending.confirm()

    def _check_broker(self) -> None:
        """Have the watcher find out whether the broker is blocked; called in any thread."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._publisher.probe)

    def _admit(self, message: Message) -> None:
        """Raise what is already known to keep `message` from being taken and answered."""
        if self._publisher.blocked:
            raise BrokerBlocked
        if self._publisher.error:
            raise BrokerUnavailable
        if self._store.error:
            raise ResultsUnavailable
        if message.delivery["query_string"] or message.delivery["params"]:
            # py-amqp does not look at the length of what it writes.
            self._publisher.check(message)
