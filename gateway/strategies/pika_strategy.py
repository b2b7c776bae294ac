"""pika, and AMQP replies to one queue a process, whose `correlation_id` names the task."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Any

from pika.channel import Channel

from gateway.amqp import broker
from gateway.amqp.broker import REPLY_PREFIX
from gateway.amqp.frames import Scanner
from gateway.amqp.publisher import Publisher
from gateway.config.settings import Config
from gateway.config.strategies import StrategyInfo
from gateway.errors import ResultsLost
from gateway.metrics import Metrics
from gateway.strategies.base import KeepsByTaskId

INFO = StrategyInfo(stored=False, replies=True, reading=0)

CONSUMER = "gateway"  # the consumer tag, which is unique on its channel


class PikaRPC(KeepsByTaskId):
    """Publishes and receives replies on one channel; a lost connection loses its replies."""

    def __init__(self, config: Config, metrics: Metrics, prefix: str):
        super().__init__(config, metrics, prefix)
        self.publisher = Publisher(config, metrics, self._consume, self._lost)
        self.uses = (self.publisher,)

    def _consume(self, channel: Channel, scanner: Scanner, callback: Callable[[], None]) -> None:
        # A new name for each connection: the broker may not have noticed the end of the old one,
        # and replies to the old queue are not waited for any more.
        self._reply_to = f"{REPLY_PREFIX}{secrets.token_hex(8)}"

        # Called if the queue is deleted: reconnect, as every reply would be lost without an error.
        channel.add_on_cancel_callback(
            lambda _frame: broker.close(channel.connection, "the reply queue is gone")
        )

        def declared(_frame: Any) -> None:
            if not channel.is_open:  # connecting took too long, and was given up
                return
            scanner.consume(CONSUMER, self._receive)
            channel.basic_consume(
                self._reply_to,
                lambda *_: None,  # the scanner reads the replies, not pika
                auto_ack=True,
                exclusive=True,
                consumer_tag=CONSUMER,
                callback=lambda _frame: callback(),
            )

        channel.queue_declare(self._reply_to, exclusive=True, auto_delete=True, callback=declared)

    def _lost(self) -> None:
        for pending in list(self._waiting.values()):
            pending.fail(ResultsLost())
