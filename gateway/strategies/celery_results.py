"""The result backends of Celery's client, which read what any worker has stored.

Celery's own read what its own workers store. Without a ``status``, a ``result`` or a ``task_id``
in it, or an exception's name in a failure, they raise: in whichever thread reads the socket,
which may wait for another request's result, or in the drainer, which that ends.
"""

from __future__ import annotations

from typing import Any

from celery.backends.redis import RedisBackend, ResultConsumer, SentinelBackend
from celery.states import PENDING

from gateway.celery_message import decode_result


class _Consumer(ResultConsumer):
    """Goes by a result's channel or key, and not by the task id that is written in the result."""

    def on_state_change(self, meta: dict[str, Any], message: dict[str, Any] | None) -> None:
        if message is not None:
            meta["task_id"] = self._task_id(message["channel"])
        # What Celery fetches once it has connected again has none, and is fetched below.
        if "task_id" in meta:
            super().on_state_change(meta, message)

    def _reconnect_pubsub(self) -> None:
        super()._reconnect_pubsub()
        keys = list(self.subscribed_to)
        payloads = self.backend.mget(keys) if keys else []
        for key, payload in zip(keys, payloads, strict=True):
            if payload is not None:
                meta = self.backend.decode_result(payload)
                self.on_state_change({**meta, "task_id": self._task_id(key)}, None)

    def _task_id(self, key: bytes) -> str:
        return key[len(self.backend.task_keyprefix) :].decode()


class _AnyWorkers:
    """Mixed into one of Celery's Redis backends: a result's value is its `Outcome`.

    It is None, and the state PENDING, while the task has not ended.
    """

    ResultConsumer = _Consumer

    def decode_result(self, payload: bytes) -> dict[str, Any]:
        outcome = decode_result(payload)
        return {"status": outcome.state if outcome else PENDING, "result": outcome}

    def meta_from_decoded(self, meta: dict[str, Any]) -> dict[str, Any]:
        return meta

    def _get_task_meta_for(self, task_id: str) -> dict[str, Any]:
        meta: dict[str, Any] = super()._get_task_meta_for(task_id)  # type: ignore[misc]
        return {**meta, "task_id": task_id}


class Results(_AnyWorkers, RedisBackend):
    """What workers have stored in Redis."""


class SentinelResults(_AnyWorkers, SentinelBackend):
    """What workers have stored in the Redis that Sentinel names."""


def result_backend(url: str) -> str:
    """Return what names the result store at `url` and one of these for Celery; empty: none."""
    kind = SentinelResults if url.startswith("sentinel:") else Results
    return f"{__name__}:{kind.__name__}+{url}" if url else ""
