"""How often a redelivered message was begun and not ended, which is what loses a worker looks like.

AMQP's ``redelivered`` says that a message was sent before, not that it was begun: whatever a
worker has prefetched when it loses its connection comes again with that flag. So the beginning
of each redelivered message is noted in the result store's Redis, in a set named after its task.
It is taken back when the message is given back, and when the worker loses its connection or is
told to end: what becomes of a task from then on is not its own doing, and its message may be
begun elsewhere while it still runs. What remains in the set are the workers lost, until the task
has ended in any way.

A message that is sent for the first time costs nothing of this.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any
from weakref import WeakSet

from celery import bootsteps
from celery.backends.redis import RedisBackend
from redis.backoff import NoBackoff
from redis.client import Pipeline, Redis
from redis.exceptions import RedisError
from redis.retry import Retry

TIMEOUT = 1.0  # seconds for Redis: the worker's own loop waits for it
RETRY_AFTER = 10.0  # seconds without a new try once Redis could not be reached
EXPIRES = 86_400  # seconds after the last beginning
REMEMBERED = 1_000  # tasks whose losses a worker's main process keeps in memory

log = logging.getLogger(__name__)


def attempts(app: Any) -> Attempts:
    """Return the one `Attempts` of `app` in this process."""
    try:
        found: Attempts = app.attempts
    except AttributeError:
        # Threads that come here at once agree on the first one's.
        found = vars(app).setdefault("attempts", Attempts(app))
    return found


class Attempts:
    """The redelivered messages of one process: what it has begun, and what was lost before.

    Where results are not stored in Redis, and while Redis is away, nothing is noted, and only
    what this worker itself has lost is known.
    """

    def __init__(self, app: Any):
        self._app = app
        self._client: Redis | None = None
        self._not_before = 0.0
        self._requests: WeakSet[Any] = WeakSet()
        self._lost: dict[str, int] = {}

    # In the worker's main process ------------------------------------------------------------

    def receive(self, request: Any) -> int:
        """Keep a request until it ends; return how often this process lost its like before."""
        self._requests.add(request)
        return self._lost.get(request.id, 0)

    def lose(self, request: Any) -> None:
        """Remember that the pool's process was lost with this request."""
        self._lost[request.id] = self._lost.get(request.id, 0) + 1
        if len(self._lost) > REMEMBERED:
            del self._lost[next(iter(self._lost))]

    def end(self, request: Any) -> None:
        """Forget a task that has ended, and whatever was lost with it before."""
        self._lost.pop(request.id, None)
        self._execute(lambda pipe, key: pipe.delete(key(request.id)))

    def take_back(self, *requests: Any) -> None:
        """Take the beginnings of requests back, and keep what was lost before."""

        def commands(pipe: Pipeline, key: Callable[[str], bytes]) -> None:
            for request in requests:
                pipe.srem(key(request.id), request.attempt)

        if requests:
            self._execute(commands)

    def take_all_back(self) -> None:
        """Take back the beginnings of all requests that this process has."""
        self.take_back(*self._requests)

    # Where the task runs ---------------------------------------------------------------------

    def begin(self, task_id: str, attempt: str) -> int:
        """Note a beginning; return how many others of this task have not ended.

        0 where that cannot be known.
        """

        def commands(pipe: Pipeline, key: Callable[[str], bytes]) -> None:
            pipe.sadd(key(task_id), attempt)
            pipe.expire(key(task_id), EXPIRES)
            pipe.scard(key(task_id))

        answers = self._execute(commands)
        return answers[-1] - 1 if answers else 0

    def _execute(self, commands: Callable[[Pipeline, Callable[[str], bytes]], object]) -> list[Any]:
        backend = self._app.backend
        if not isinstance(backend, RedisBackend) or time.monotonic() < self._not_before:
            return []
        if self._client is None:
            self._client = _client(backend)
        try:
            with self._client.pipeline() as pipe:
                commands(pipe, lambda task_id: backend.get_key_for_task(task_id, ".begun"))
                return pipe.execute()
        except (RedisError, OSError) as exc:
            self._not_before = time.monotonic() + RETRY_AFTER
            log.warning("Redelivered messages are not counted for %g s: %s", RETRY_AFTER, exc)
            return []


def _client(backend: RedisBackend) -> Redis:
    """Return a client of the backend's Redis that gives up after `TIMEOUT`.

    The backend's own waits and tries again for as long as a result is worth.
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


class TakeBack(bootsteps.StartStopStep):
    """Take back what is begun when the connection is lost, and when the worker is told to end."""

    requires = ("celery.worker.consumer.connection:Connection",)

    def stop(self, parent: Any) -> None:
        attempts(parent.app).take_all_back()
