"""Base of the strategies on Celery's client, with an asynchronous publisher beside it."""

from __future__ import annotations

import asyncio

from celery.result import AsyncResult

from gateway.amqp.publisher import Publisher
from gateway.celery_message import Message
from gateway.clock import monotonic
from gateway.config.settings import Config
from gateway.errors import BrokerBlocked, BrokerUnavailable, RequestError, ResultsUnavailable
from gateway.metric_table import RABBITMQ
from gateway.metrics import Metrics
from gateway.pending_task import PendingTask
from gateway.stores.pipeline import Pipeline, results_of
from gateway.strategies.base import Strategy
from gateway.strategies.celery_client import CeleryClient


class CeleryStrategy(Strategy):
    """Knows on the loop, without blocking, whether the broker and the result store are available.

    The asynchronous publisher declares missing queues, and is told immediately when the broker is
    blocked or its connection is lost. So no thread has to wait for a timeout to find that out.
    """

    publisher: Publisher
    results: Pipeline

    def __init__(self, config: Config, metrics: Metrics, prefix: str):
        self._config = config
        self._metrics = metrics
        self.publisher = Publisher(config, metrics)
        self.results = results_of(config, metrics)
        self.uses = (self.publisher, self.results)
        self.results.on_left.append(lambda _: self._client.leave_store())
        self._loop: asyncio.AbstractEventLoop | None = None
        self._client = self._new_client()

    async def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        await super().start()

    async def stop(self) -> None:
        await super().stop()
        self._client.close()

    def _new_client(self) -> CeleryClient:
        # The client publishes to the broker to which the publisher is connected, because the
        # queues were declared there, and its state is known.
        return CeleryClient(self._config, lambda: self.publisher.url, self._check_broker)

    def _begin(self, pending: PendingTask) -> AsyncResult:
        """Subscribe to the result, and publish; called in any thread."""
        result = self._client.subscribe(pending.message.task_id)
        try:
            self._send(pending)
        except BaseException:
            self._client.forget(result)
            raise
        return result

    def _send(self, pending: PendingTask) -> None:
        """Publish, and wait for the confirm; called in any thread."""
        assert self._loop is not None
        pending.sent = monotonic()
        try:
            self._client.publish(pending.message, pending.deadline)
        except RequestError as exc:
            refused = (RABBITMQ, pending.sent, exc.type)
            self._loop.call_soon_threadsafe(self._metrics.published, *refused)
            raise

    def _confirm(self, pending: PendingTask) -> None:
        """Confirm `pending`; called on the loop."""
        self._metrics.published(RABBITMQ, pending.sent)
        pending.confirm()

    def _check_broker(self) -> None:
        """Let the publisher find out whether the broker is blocked; called in any thread."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self.publisher.probe)

    def _admit(self, message: Message) -> None:
        """Raise a `RequestError` where it is known that `message` cannot be taken or answered."""
        if self.publisher.blocked:
            raise BrokerBlocked
        if self.publisher.error:
            raise BrokerUnavailable
        if self.results.error:
            raise ResultsUnavailable
        delivery = message.delivery
        if delivery["query_string"] or delivery["params"] or message.options.exchange:
            # py-amqp checks neither the length of the headers nor the exchange.
            self.publisher.check(message)
