"""Count how often a redelivered message was begun and not ended, to find tasks that crash workers.

AMQP's ``redelivered`` says that a message was delivered before, not that it was begun: messages
that a worker had prefetched when it lost its connection are redelivered with that flag, too. So the
beginning of each redelivered message is written to the result store's Redis, in a set named after
its task. It is removed when the message is returned to its queue, and when the worker loses its
connection or is told to end: what happens after that is not the task's fault, and its message may
be begun by another worker while it still runs. The entries that remain are the lost workers. They
are removed when the task has ended in any way.

A task that takes longer than RabbitMQ's ``consumer_timeout`` makes RabbitMQ close the channel and
deliver its message again. That is the task's fault: the beginnings of what runs then remain, and
its end, whose acknowledgement reaches nobody, removes none.

A message that is delivered for the first time is not counted, and costs nothing.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable
from functools import partial
from typing import Any
from weakref import WeakSet

from celery import bootsteps, states
from celery.backends.redis import RedisBackend
from celery.worker import state
from redis.backoff import NoBackoff
from redis.client import Pipeline, Redis
from redis.exceptions import RedisError
from redis.retry import Retry

from appserver.private_parts import PrivateParts
from appserver.singletons import one_of_app

TIMEOUT = 1.0  # seconds for Redis, for which the worker's own loop waits
RETRY_AFTER = 10.0  # seconds until the next attempt after Redis could not be reached
EXPIRES = 86_400  # seconds after the last beginning
#: The name in the answer to ``stats``, which `gateway check` reads.
TIMEOUTS = "consumer_timeouts"
REMEMBERED = 1_000  # tasks whose losses a worker's main process keeps in memory

log = logging.getLogger(__name__)

_PARTS = PrivateParts(
    "messages with which workers are lost are counted in each worker only",
    "celery.backends.redis:RedisBackend._create_client",
)

Key = Callable[..., bytes]


class Beginnings:
    """The redelivered messages of one process: those it has begun, and those that were lost.

    Where results are not stored in Redis, and while Redis cannot be reached, nothing is written,
    and only the losses of this worker itself are known.
    """

    def __init__(self, app: Any):
        self._app = app
        self._client: Redis | None = None
        self._not_before = 0.0
        self._requests: WeakSet[Any] = WeakSet()
        self._lost: dict[str, int] = {}
        #: How often RabbitMQ has taken back this process's messages because of its time limit.
        self.timeouts = 0

    # In the worker's main process ------------------------------------------------------------

    def receive(self, request: Any) -> int:
        """Keep a request until it ends; return how often this process has lost the same task."""
        self._requests.add(request)
        return self._lost.get(request.id, 0)

    def count_loss(self, request: Any) -> None:
        """Count that a process of the pool was lost with this request."""
        self._lost[request.id] = self._lost.get(request.id, 0) + 1
        if len(self._lost) > REMEMBERED:
            del self._lost[next(iter(self._lost))]

    def forget(self, request: Any) -> None:
        """Forget a task that has ended, and its losses."""
        self._lost.pop(request.id, None)
        self._execute(lambda pipe, key: pipe.delete(key(request.id)))

    def remove(self, *requests: Any) -> None:
        """Remove the beginnings of these requests, and keep earlier losses."""

        def commands(pipe: Pipeline, key: Key) -> None:
            for request in requests:
                pipe.srem(key(request.id), request.beginning)

        if requests:
            self._execute(commands)

    def remove_all(self) -> None:
        """Remove the beginnings of all requests of this process."""
        self.remove(*self._requests)

    def keep_all(self) -> list[str]:
        """Keep all beginnings, and count a loss of what runs; return its tasks and their ids."""
        self.timeouts += 1
        # Threads of a pool add to it meanwhile, so its own iterator cannot be used.
        active = [reference() for reference in tuple(state.active_requests.data)]
        running = [one for one in active if one is not None and not one.acknowledged]
        for request in running:
            if getattr(request, "beginning", None):
                self.count_loss(request)
        for request in self._requests:
            request.beginning = None
        self._requests.clear()
        return [f"{request.name} {request.id}" for request in running]

    # Where the task runs ---------------------------------------------------------------------

    def add(self, task_id: str, beginning: str) -> int:
        """Write a beginning; return how many other beginnings of this task have not ended.

        It is 0 where that cannot be known.
        """

        def commands(pipe: Pipeline, key: Key) -> None:
            pipe.sadd(key(task_id), beginning)
            pipe.expire(key(task_id), EXPIRES)
            pipe.scard(key(task_id))

        answers = self._execute(commands)
        return answers[-1] - 1 if answers else 0

    def store_started(self, task_id: str, worker: str) -> None:
        """Store the state STARTED, as Celery does with ``task_track_started``, but only once.

        Celery would wait for Redis much longer, and fail the task where that is away.
        """
        backend = self._app.backend
        meta = {"status": states.STARTED, "result": {"hostname": worker}, "task_id": task_id}

        def commands(pipe: Pipeline, key: Key) -> None:
            pipe.set(key(task_id, ""), json.dumps(meta), ex=backend.expires or None, nx=True)

        self._execute(commands)

    def _execute(self, commands: Callable[[Pipeline, Key], object]) -> list[Any]:
        backend = self._app.backend
        written = isinstance(backend, RedisBackend) and _PARTS.there
        if not written or time.monotonic() < self._not_before:
            return []
        if self._client is None:
            self._client = _client(backend)
        try:
            with self._client.pipeline() as pipe:
                commands(pipe, partial(_key, backend))
                return pipe.execute()
        except (RedisError, OSError) as exc:
            # A connection to a Redis that has become a replica would live on.
            self._client.connection_pool.disconnect(inuse_connections=False)
            self._not_before = time.monotonic() + RETRY_AFTER
            log.warning("Beginnings of tasks are not written for %g s: %s", RETRY_AFTER, exc)
            return []


#: Returns the `Beginnings` of an app in this process.
beginnings = one_of_app("beginnings", Beginnings)


def _key(backend: RedisBackend, task_id: str, kind: str = ".begun") -> bytes:
    """Return the key of a task's beginnings, or with another `kind` that of its result."""
    key: bytes = backend.get_key_for_task(task_id, kind)
    return key


def _client(backend: RedisBackend) -> Redis:
    """Return a client of the backend's Redis that gives up after `TIMEOUT`.

    The backend's own client waits and retries for much longer, because a result is worth that.
    """
    parameters = {
        **backend.connparams,
        "socket_timeout": TIMEOUT,
        "retry": Retry(NoBackoff(), 0),
        "retry_on_timeout": False,
    }
    if "socket_connect_timeout" in parameters:  # absent for a Unix socket
        parameters["socket_connect_timeout"] = TIMEOUT
    client: Redis = backend._create_client(**parameters)
    return client


class RemoveBeginnings(bootsteps.StartStopStep):
    """Remove all beginnings when the connection is lost, and when the worker is told to end."""

    requires = ("celery.worker.consumer.connection:Connection",)

    def info(self, parent: Any) -> dict[str, int]:
        """Return what the answer to Celery's command ``stats`` says."""
        return {TIMEOUTS: beginnings(parent.app).timeouts}

    def stop(self, parent: Any) -> None:
        beginnings(parent.app).remove_all()
