"""pika, and AMQP replies to one queue a process, whose `correlation_id` names the task."""

from __future__ import annotations

from pika.channel import Channel

from gateway.amqp import broker
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

    async def _consume(self, channel: Channel, scanner: Scanner) -> None:
        scanner.consume(CONSUMER, self._receive)
        # The scanner reads the replies, not pika. Each connection has a new queue: the broker may
        # not have noticed the end of the old one, for whose replies nobody waits any more.
        self._reply_to = await broker.consume_replies(channel, lambda *_: None, CONSUMER)

    def _lost(self) -> None:
        for pending in list(self._waiting.values()):
            pending.fail(ResultsLost())
