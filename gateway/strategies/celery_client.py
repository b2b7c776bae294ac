"""Publish with kombu and read results with Celery's client, for the strategies built on it."""

from __future__ import annotations

import asyncio
import logging
import select
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from queue import Empty, LifoQueue
from typing import Any

import celery.exceptions
from amqp.exceptions import MessageNacked
from celery import Celery
from celery.result import AsyncResult
from kombu import Producer
from kombu.exceptions import KombuError, OperationalError
from redis.backoff import NoBackoff
from redis.exceptions import RedisError
from redis.retry import Retry

from gateway.amqp.reply_channel import ANSWERS
from gateway.amqp.workers import QUESTIONS, Answers
from gateway.celery_message import Message
from gateway.clock import monotonic
from gateway.config.settings import Config
from gateway.config.urls import master_name, redis_tls, without_options
from gateway.errors import (
    BrokerBlocked,
    BrokerUnavailable,
    GatewayError,
    NotConfirmed,
    Rejected,
    RequestError,
    ResultsLost,
    ResultsUnavailable,
    Unroutable,
)
from gateway.outcome import Outcome
from gateway.stores.redis_client import sentinel_options
from gateway.strategies.celery_results import result_backend

log = logging.getLogger(__name__)

CONNECT_TIMEOUT = 3  # seconds for TCP, TLS and AMQP together
RESULT_TIMEOUT = 3  # seconds for one command to the result store
_ERRORS = (RedisError, OSError, RuntimeError)  # of the result store


def broker_tls(config: Config) -> dict[str, Any] | None:
    """Return `broker_use_ssl`."""
    if not config.brokers[0].startswith("amqps:"):
        return None
    tls = config.tls
    return {
        "ca_certs": tls.ca and str(tls.ca),
        "certfile": tls.cert and str(tls.cert),
        "keyfile": tls.key and str(tls.key),
        "cert_reqs": ssl.CERT_REQUIRED if tls.verify else ssl.CERT_NONE,
        # py-amqp verifies a name only if it gets one; kombu replaces None by the host.
        **({"server_hostname": None} if tls.verify else {}),
    }


def sentinel(config: Config) -> dict[str, Any]:
    """Return those `result_backend_transport_options` that Celery does not take from the URL."""
    if not config.results.startswith("sentinel:"):
        return {}
    # A Sentinel that does not answer is skipped without retries.
    asking = sentinel_options(config, config.results, RESULT_TIMEOUT)
    asking["retry"] = Retry(NoBackoff(), 0)
    return {"master_name": master_name(config.results), "sentinel_kwargs": asking}


class _Result(AsyncResult):
    """An AsyncResult without a destructor.

    Celery's destructor unsubscribes. The garbage collector may run it on gevent's hub, which must
    not wait for a connection.
    """

    def __del__(self) -> None:
        pass


class CeleryClient:
    """A Celery app that only publishes and waits, safe to share between threads.

    Each publish has a connection of its own while it lasts, because Celery's pool limits concurrent
    publishes and returns broken connections. `broker` returns the URL to connect to; without it,
    the first broker is used. `check_broker` is called when the broker has not confirmed.
    """

    def __init__(
        self,
        config: Config,
        broker: Callable[[], str] | None = None,
        check_broker: Callable[[], object] = lambda: None,
    ):
        self._config = config
        self._check_broker = check_broker
        self._broker = broker or (lambda: config.brokers[0])
        self._idle: LifoQueue[_Wire] = LifoQueue()
        self.app = app = Celery("gateway", set_as_current=False)
        app.conf.update(
            broker_url=config.brokers,
            broker_connection_timeout=CONNECT_TIMEOUT,
            # No thread sends heartbeats on an idle connection; TCP_USER_TIMEOUT ends a dead one.
            broker_heartbeat=0,
            broker_transport_options={"confirm_publish": True, "max_retries": 0},
            broker_use_ssl=broker_tls(config),
            result_backend=result_backend(without_options(config.results)),
            # One backend for all threads: creating one in each costs more time than a request.
            result_backend_thread_safe=True,
            result_backend_transport_options={
                "global_keyprefix": config.result_key_prefix,
                "retry_policy": {"timeout": RESULT_TIMEOUT, "max_retries": 2},
                **sentinel(config),
            },
            redis_backend_use_ssl=redis_tls(config.results, config.tls) or None,
            redis_socket_connect_timeout=RESULT_TIMEOUT,
            redis_socket_timeout=RESULT_TIMEOUT,
            redis_max_connections=max(256, 2 * config.threads),
        )
        # Otherwise each thread that needs the backend before there is one would create its own, and
        # Celery would keep the last one: a thread that has subscribed with another one would get no
        # result. The same is true of the backend's connections.
        _ = app.backend.client

    def subscribe(self, task_id: str) -> AsyncResult:
        """Subscribe to the result of a task that is about to be published.

        Raises `ResultsUnavailable`.
        """
        with failing_as(ResultsUnavailable):
            self.app.backend.on_task_call(None, task_id)
        return _Result(task_id, app=self.app)

    def publish(self, message: Message, deadline: float) -> None:
        """Publish `message` and wait for its confirm, until `deadline` at the latest.

        Raises a `RequestError` with status 503 where it was returned, refused or not confirmed.
        """
        wire = self._wire()
        patience = min(self._config.confirm_timeout, deadline - monotonic())
        try:
            wire.publish(message, max(patience, 0.001))
        except BaseException as exc:
            # py-amqp would use the late ack of a failed publish for the next message.
            wire.close()
            if isinstance(exc, (BrokerBlocked, NotConfirmed)):
                self._check_broker()
            raise
        self._idle.put(wire)

    def wait(self, result: AsyncResult, deadline: float) -> Outcome | None:
        """Block until the task has ended; None: `deadline` (monotonic seconds) has passed.

        Raises `ResultsLost` where the result store fails meanwhile.
        """
        try:
            with failing_as(ResultsLost):
                # A result is read after a timeout, too: its message may have been missed.
                with suppress(celery.exceptions.TimeoutError):
                    result.get(timeout=max(deadline - monotonic(), 0), propagate=False)
                return outcome_of(result)
        finally:
            self.forget(result)

    def forget(self, result: AsyncResult) -> None:
        """Unsubscribe from a result; a stored result stays in the store."""
        try:
            self.app.backend.remove_pending_result(result)
        except _ERRORS as exc:
            # A lost connection has ended the subscription already.
            log.info("cannot unsubscribe: %s", exc)
        # It contains the result itself. Such a reference cycle would keep the value in memory until
        # the garbage collector runs.
        result.on_ready.value = None

    def leave_store(self) -> None:
        """Give up the connections to a result store that is not to be used any more."""
        self.app.backend.client.connection_pool.disconnect()

    def _wire(self) -> _Wire:
        url = self._broker()
        while True:
            try:
                wire = self._idle.get_nowait()
            except Empty:
                return _Wire(self.app, url)
            if wire.url == url and wire.quiet():
                return wire
            wire.close()

    def close(self) -> None:
        while True:
            try:
                self._idle.get_nowait().close()
            except Empty:
                break
        self.app.close()


async def ask_over_redis(config: Config) -> Answers:
    """Return the workers' answers within `ANSWERS`, where the broker is a Redis.

    It cannot be cancelled. Raises `GatewayError`.
    """
    client = CeleryClient(config)
    inspect = client.app.control.inspect(timeout=ANSWERS)
    answers = Answers()

    async def one(question: str) -> None:
        arguments = dict(QUESTIONS[question])
        items = arguments.pop("taskinfoitems", [])  # Celery's client takes them one by one
        call = partial(getattr(inspect, question), *items, **arguments)
        try:
            said = await asyncio.get_running_loop().run_in_executor(None, call)
        except (KombuError, OperationalError, RedisError, OSError) as exc:
            raise GatewayError(f"the broker: {exc}; workers cannot be asked") from exc
        answers.take(question, said)

    await asyncio.gather(*map(one, QUESTIONS))
    return answers


@contextmanager
def failing_as(error: type[RequestError]) -> Iterator[None]:
    """Raise `error` where the result store fails."""
    try:
        yield
    except _ERRORS as exc:
        raise error from exc


def outcome_of(result: AsyncResult) -> Outcome | None:
    """Return the outcome that `result` already has; None if the task has not ended."""
    return result.result


class _Wire:
    """A connection to the broker with a producer on it."""

    def __init__(self, app: Celery, url: str):
        self.url = url
        # A copy, because kombu writes the first host into it as the name to verify.
        tls = app.conf.broker_use_ssl
        self._connection = app.connection_for_write(
            url, ssl=tls and dict(tls), transport_options={"on_blocked": _blocked}
        )
        self._returned: list[str] = []
        self._producer: Producer | None = None

    def publish(self, message: Message, confirm_timeout: float) -> None:
        connection = self._connection
        try:
            if self._producer is None:
                self._producer = Producer(connection, auto_declare=False, on_return=self._on_return)
            self._producer.publish(
                **message.for_kombu(),
                delivery_mode=2 if message.persistent else 1,
                mandatory=True,
                confirm_timeout=confirm_timeout,
            )
        except MessageNacked as exc:
            raise Rejected from exc
        except TimeoutError as exc:
            raise NotConfirmed from exc
        except (OperationalError, *connection.connection_errors, *connection.channel_errors) as exc:
            raise BrokerUnavailable from exc
        if self._returned:
            raise Unroutable(message.nowhere)

    def quiet(self) -> bool:
        """Tell whether nothing is to be read, such as the end of the connection."""
        poll = select.poll()
        poll.register(self._connection.connection.sock, select.POLLIN)
        return not poll.poll(0)

    def close(self) -> None:
        # Without AMQP's closing handshake, which a frozen broker would not answer.
        self._connection.collect()

    def _on_return(self, exc: Exception, *_message: Any) -> None:
        self._returned.append(str(exc))


def _blocked(reason: str, *_: Any) -> None:
    # Called while a publish waits for its confirm, which will not come.
    raise BrokerBlocked(f"The broker takes no messages: {reason}.")
