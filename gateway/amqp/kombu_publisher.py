"""Publish to a broker that is not AMQP: the Redis server that `gateway dev` embeds.

kombu blocks, so it runs in a thread of its own. There are no confirms: a message counts as
confirmed when the server has answered.
"""

from __future__ import annotations

import asyncio
import logging
from concurrent.futures import ThreadPoolExecutor

from kombu import Connection, Producer
from kombu.exceptions import OperationalError

from gateway.clock import monotonic
from gateway.config.settings import Config
from gateway.config.urls import redis_tls, without_options
from gateway.errors import BrokerUnavailable, RequestError
from gateway.metric_table import REDIS
from gateway.metrics import Metrics
from gateway.pending_task import PendingTask

log = logging.getLogger(__name__)


class KombuPublisher:
    """Publishes and revokes as `publisher.Publisher` does, but without its guarantees."""

    unconfirmed = 0  # there are no confirms
    connection = None  # there is none of AMQP: what is asked of a broker is not asked

    def __init__(self, config: Config, metrics: Metrics):
        self._url = without_options(config.brokers[0])
        self._tls = redis_tls(config.brokers[0], config.tls)
        self._metrics = metrics
        self._thread = ThreadPoolExecutor(1, "publisher")
        self._loop: asyncio.AbstractEventLoop | None = None
        self._producer: Producer | None = None
        self.error = "not connected yet"

    async def start(self) -> None:
        log.warning("the broker is not AMQP: messages are not confirmed; use it for trials only")
        self._loop = asyncio.get_running_loop()
        self._loop.run_in_executor(self._thread, self._connect)

    async def stop(self) -> None:
        await asyncio.get_running_loop().run_in_executor(self._thread, self._close)
        self._thread.shutdown()

    def publish(self, pending: PendingTask, reply_to: str | None = None) -> None:
        self._thread.submit(self._publish, pending)

    def revoke(self, task_id: str) -> None:
        """Do nothing: routes that revoke tasks need an AMQP broker."""

    # In the thread ----------------------------------------------------------------------

    def _connect(self) -> None:
        assert self._loop is not None
        try:
            connection = Connection(self._url, ssl=self._tls, connect_timeout=3)
            connection.ensure_connection(max_retries=1, reraise_as_library_errors=True)
        except (OperationalError, UnicodeError) as exc:  # the latter: of a wrong name
            self.error = str(exc)
            log.warning("cannot connect to the broker: %s", exc)
            return
        self._producer = Producer(connection, auto_declare=False)
        self._loop.call_soon_threadsafe(self._metrics.connected, "broker")
        self.error = ""

    def _close(self) -> None:
        if self._producer is not None:
            self._producer.connection.release()
            self._producer = None

    def _publish(self, pending: PendingTask) -> None:
        assert self._loop is not None
        if pending.ended:  # its sender has got an error already
            return
        if self._producer is None:
            self._connect()
        if self._producer is None:
            self._loop.call_soon_threadsafe(pending.fail, BrokerUnavailable())
            return
        pending.sent = monotonic()
        connection = self._producer.connection
        try:
            self._producer.publish(**pending.message.for_kombu(), delivery_mode=2)
        except Exception as exc:
            if not isinstance(exc, connection.connection_errors + connection.channel_errors):
                log.exception("a message could not be published")  # the pool would drop it
            self.error = str(exc)
            self._close()
            self._loop.call_soon_threadsafe(self._failed, pending, BrokerUnavailable())
        else:
            self._loop.call_soon_threadsafe(self._published, pending)

    # On the loop ------------------------------------------------------------------------

    def _published(self, pending: PendingTask) -> None:
        self._metrics.published(REDIS, pending.sent)
        pending.confirm()

    def _failed(self, pending: PendingTask, error: RequestError) -> None:
        self._metrics.published(REDIS, pending.sent, error.type)
        pending.fail(error)
