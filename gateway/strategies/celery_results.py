"""Result backends for Celery's client that can read any worker's stored results.

Celery's own backends can read only results in the form that Celery's workers store. If a result has
no ``status``, ``result`` or ``task_id``, or a failure has no exception name, they raise an error in
the thread that reads the socket. That thread may wait for another request's result, or may be the
drainer, which ends then.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from threading import Lock
from typing import Any

from celery.backends.redis import RedisBackend, ResultConsumer, SentinelBackend
from celery.states import PENDING
from redis.exceptions import RedisError, ResponseError

from gateway.celery_message import decode_result
from gateway.clock import monotonic
from gateway.stores.result_store import TOGETHER, reading

log = logging.getLogger(__name__)

#: The private methods of Celery that are replaced here. `_socket_waiter` is not among them: it is
#: only set, and no Celery before 5.7 has it.
REPLACED = [(ResultConsumer, "_reconnect_pubsub"), (RedisBackend, "_get_task_meta_for")]
_INTERVAL = 1.0  # seconds, the longest that Celery waits for a message without looking up


class _Consumer(ResultConsumer):
    """Takes the task id from a result's channel or key, and not from the result itself.

    Celery publishes a task without waiting for Redis to confirm that it has subscribed to the
    result. On a busy machine a worker may be faster, and the message of its result is lost. So each
    result that is still awaited one to two intervals after its subscription is read once.
    """

    def __init__(self, *args: Any, **options: Any):
        super().__init__(*args, **options)
        self._reading = Lock()
        self._read_at = monotonic()
        self._new: set[bytes] = set()
        self._older: set[bytes] = set()
        #: Redis has refused something: errors for requests that have ended may follow that reply.
        self.refused = False

    def consume_from(self, task_id: str) -> None:
        if self.refused:
            self.refused = False
            self._reconnect_pubsub()
        super().consume_from(task_id)
        self._new.add(self.backend.get_key_for_task(task_id))

    def drain_events(self, timeout: float | None = None) -> None:
        if monotonic() - self._read_at >= _INTERVAL and self._reading.acquire(blocking=False):
            try:
                self._read_older()
            finally:
                self._reading.release()
        try:
            super().drain_events(timeout)
        except BaseException as exc:
            self.refused |= isinstance(exc, ResponseError)
            # The thread that is about to read first unsubscribes from others' results. If that
            # fails, Celery 5.7 still believes that this thread reads, so that none ever does.
            self._socket_waiter = False
            raise

    def on_state_change(self, meta: dict[str, Any], message: dict[str, Any] | None) -> None:
        if message is not None:
            meta["task_id"] = self._task_id(message["channel"])
        # Results that Celery fetches after a reconnection have no task id; they are fetched below.
        if "task_id" in meta:
            super().on_state_change(meta, message)

    def _reconnect_pubsub(self) -> None:
        super()._reconnect_pubsub()
        self._read(list(self.subscribed_to))

    def _read_older(self) -> None:
        self._read_at = monotonic()
        older, self._older, self._new = self._older, self._new, set()
        try:
            self._read([key for key in older if key in self.subscribed_to])
        except (RedisError, OSError) as exc:
            self._older |= older
            log.info("cannot read awaited results: %s", exc)

    def _read(self, keys: Sequence[bytes]) -> None:
        while keys:
            found = self.backend.stored(keys[:TOGETHER])
            for key, payload in zip(keys, found, strict=False):
                if payload is not None:
                    meta = self.backend.decode_result(payload)
                    self.on_state_change({**meta, "task_id": self._task_id(key)}, None)
            keys = keys[len(found) :]

    def _task_id(self, key: bytes) -> str:
        return key[len(self.backend.task_keyprefix) :].decode()


class _AnyWorkers:
    """Mixin for Celery's Redis backends that makes a result's value its `Outcome`.

    While the task has not ended, the value is None and the state PENDING.
    """

    ResultConsumer = _Consumer

    def stored(self, keys: Sequence[bytes]) -> Sequence[Any]:
        """Return what is stored at the first of `keys`, or at more of them."""
        try:
            return self.client.execute_command(*reading(keys))  # type: ignore[attr-defined]
        except ResponseError:
            self.result_consumer.refused = True  # type: ignore[attr-defined]
            raise

    def decode_result(self, payload: bytes | int) -> dict[str, Any]:
        outcome = decode_result(payload)
        return {"status": outcome.state if outcome else PENDING, "result": outcome}

    def meta_from_decoded(self, meta: dict[str, Any]) -> dict[str, Any]:
        return meta

    def _get_task_meta_for(self, task_id: str) -> dict[str, Any]:
        # Celery's own takes an empty result for one that is not stored yet.
        (payload,) = self.stored([self.get_key_for_task(task_id)])  # type: ignore[attr-defined]
        meta = {"status": PENDING, "result": None}
        if payload is not None:
            meta = self.decode_result(payload)
        return {**meta, "task_id": task_id}


class _AsCelery:
    """Mixin that makes a result's value its `Outcome`, and leaves all else to Celery's own code."""

    def decode_result(self, payload: bytes) -> dict[str, Any]:
        return {**super().decode_result(payload), "result": decode_result(payload)}  # type: ignore[misc]

    def meta_from_decoded(self, meta: dict[str, Any]) -> dict[str, Any]:
        return meta


class Results(_AnyWorkers, RedisBackend):
    """Reads results from Redis."""


class SentinelResults(_AnyWorkers, SentinelBackend):
    """Reads results from the Redis master that Sentinel names."""


class PlainResults(_AsCelery, RedisBackend):
    """Reads results from Redis as Celery does."""


class PlainSentinelResults(_AsCelery, SentinelBackend):
    """Reads results as Celery does, from the Redis master that Sentinel names."""


def result_backend(url: str) -> str:
    """Return Celery's `result_backend` for the store at `url`: one of these classes and the URL.

    It is empty where `url` is. Where Celery lacks what is replaced here, this is logged.
    """
    kinds = Results, SentinelResults
    if missing := [name for owner, name in REPLACED if not hasattr(owner, name)]:
        log.warning("%s is missing in this version: results are read as Celery does", missing[0])
        kinds = PlainResults, PlainSentinelResults
    kind = kinds[url.startswith("sentinel:")]
    return f"{__name__}:{kind.__name__}+{url}" if url else ""
