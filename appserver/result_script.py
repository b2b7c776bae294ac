"""Store results in Redis in one round trip.

Celery reads what is stored already, then stores and publishes in a transaction. These are two round
trips, and a result that another worker stores between them is overwritten. One script does it all.
If the server refuses it because it has become a replica, or is no longer the one to write to, the
script is sent once more on a new connection: a name may lead to a new primary while connections to
the old one live on.
docs/decisions/0015-results-in-one-round-trip.md has the figures.
https://redis.io/docs/latest/develop/programmability/eval-intro/
"""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import partial
from hashlib import sha1
from typing import TYPE_CHECKING, Any

from celery import states
from celery.exceptions import BackendStoreError
from kombu.utils.encoding import bytes_to_str
from kombu.utils.objects import cached_property
from redis.exceptions import (
    BusyLoadingError,
    ClusterDownError,
    MasterDownError,
    MovedError,
    NoScriptError,
    ReadOnlyError,
    RedisError,
)

from appserver.held_results import Stored
from appserver.lost_results import store_or_count
from appserver.private_parts import PrivateParts
from appserver.reply_connection import reply_connection
from appserver.together import Together

if TYPE_CHECKING:
    from redis.commands.core import Script

# A success is final, as in Celery: if two workers have run a task, a later failure does not replace
# the success. And the end of a later try is not replaced by what an earlier one says: retry()
# publishes the message before the state RETRY is stored, and the next try may have failed by then.
# The comparison is for JSON only; results in other forms are replaced.
_STORE = """\
local stored = redis.call('GETRANGE', KEYS[1], 0, 19)
if stored == '{"status": "SUCCESS"' then
  return 0
end
if stored == '{"status": "FAILURE"' or stored == '{"status": "REVOKED"' then
  local function retries(text)
    return tonumber(string.match(text, '"retries": (%d+)}$') or 0)
  end
  if string.sub(ARGV[1], 1, 20) ~= '{"status": "SUCCESS"'
      and retries(redis.call('GETRANGE', KEYS[1], -40, -1)) > retries(ARGV[1]) then
    return 0
  end
end
if ARGV[2] == '0' then
  redis.call('SET', KEYS[1], ARGV[1])
else
  redis.call('SET', KEYS[1], ARGV[1], 'EX', ARGV[2])
end
return redis.call('PUBLISH', KEYS[1], ARGV[1])
"""

_ELSEWHERE = (BusyLoadingError, ClusterDownError, MasterDownError, MovedError, ReadOnlyError)
# redis-py has no class for the first two. Scripts of Redis 6 have the error of their command behind
# their own.
_elsewhere = re.compile(
    r"^(?:NOREPLICAS|UNBLOCKED)\b|: -(?:READONLY|NOREPLICAS|MASTERDOWN|LOADING|CLUSTERDOWN)\b"
).search

_SHA = sha1(_STORE.encode()).hexdigest()

log = logging.getLogger(__name__)

_PARTS = PrivateParts(
    "results are stored in two round trips",
    "celery.backends.base:BaseKeyValueStoreBackend._store_result",
    "celery.backends.base:Backend._get_result_meta",
    "celery.backends.base:BaseKeyValueStoreBackend._set_with_state",
    "celery.backends.redis:RedisBackend._set",
)

_RedisBackend: Any = object  # for mypy: the class of the backend with which the mixin is combined


class ResultScript(_RedisBackend):
    """Mixin for Celery's Redis backends; Celery itself stores results that are not plain JSON."""

    def _store_result(
        self,
        task_id: str,
        result: Any,
        state: str,
        traceback: str | None = None,
        request: Any = None,
        **kwargs: Any,
    ) -> Any:
        # Celery can compress results since 5.7.
        compressed = getattr(self, "compression", None)
        if self.serializer != "json" or compressed or not _PARTS.there:
            return super()._store_result(task_id, result, state, traceback, request, **kwargs)
        task_id = bytes_to_str(task_id)
        if self._extended:
            meta = self._get_result_meta(result, state, traceback, request) | {"task_id": task_id}
        else:
            meta = meta_of(self, task_id, result, state, traceback, request)
        with_retries(meta, state, request)
        key, value = self.get_key_for_task(task_id), self.encode(meta)
        if held := reply_connection(self.app).held:
            # With Celery's retries; what was held once is not held again.
            store = partial(super().store_result, task_id, result, state, traceback, request)
            otherwise = partial(store_or_count, self.app, task_id, store)
            if held.hold_stored(Stored(key, value, self.expires or 0), otherwise):
                return result
        try:
            self._set_with_state(key, value, state)
        except BackendStoreError as exc:
            raise BackendStoreError(str(exc), state=state, task_id=task_id) from exc
        return result

    def get(self, key: bytes) -> Any:
        self._write_held()
        return super().get(key)

    def mget(self, keys: Sequence[bytes]) -> Any:
        self._write_held()
        return super().mget(keys)

    def delete(self, key: bytes) -> None:
        self._write_held()
        super().delete(key)

    def _write_held(self) -> None:
        # A task may look for the result of a task before it, or forget it.
        if held := reply_connection(self.app).held:
            held.flush()

    def _set(self, key: bytes, value: str | bytes, expires: int | None = None) -> None:
        seconds = (self.expires if expires is None else expires) or 0
        exc = self._together.write(Stored(key, value, seconds))
        if exc is None:
            return
        if not isinstance(exc, NoScriptError):
            if not (isinstance(exc, _ELSEWHERE) or _elsewhere(str(exc))):
                raise exc
            # Other threads find out by themselves on the connections that they use.
            self.client.connection_pool.disconnect(inuse_connections=False)
        self._script(keys=[key], args=[value, seconds], client=self.client)

    def store_all(self, results: Sequence[Stored]) -> list[bool]:
        """Store results in one round trip; tell for each whether that was done."""
        return [error is None for error in self._store_all(results)]

    def _store_all(self, results: Sequence[Stored]) -> list[Exception | None]:
        pipeline = self.client.pipeline(transaction=False)
        for key, value, seconds in results:
            pipeline.evalsha(_SHA, 1, key, value, seconds)
        try:
            answers = pipeline.execute(raise_on_error=False)
        except (RedisError, OSError) as exc:
            if len(results) > 1:
                log.warning("%d results are stored one by one: %s", len(results), exc)
            return [exc] * len(results)
        return [answer if isinstance(answer, RedisError) else None for answer in answers]

    @cached_property
    def _extended(self) -> bool:
        return bool(self.app.conf.find_value_for_key("extended", "result"))

    @cached_property
    def _together(self) -> Together[Stored]:
        return Together(self._store_all)

    @cached_property
    def _script(self) -> Script:
        script: Script = self.client.register_script(_STORE)
        return script


def meta_of(
    backend: Any, task_id: str, result: Any, state: str, traceback: str | None, request: Any
) -> dict[str, Any]:
    """Return what is written of a task's state, as Celery does without ``result_extended``.

    Celery looks up settings and a time zone for each result.
    """
    parents = {"group_id": "group", "parent_id": "parent_id"}
    return {
        "status": state,
        "result": result,
        "traceback": traceback,
        "children": backend.current_task_children(request),
        "date_done": datetime.now(UTC).isoformat() if state in states.READY_STATES else None,
        **{key: value for key, name in parents.items() if (value := getattr(request, name, None))},
        "task_id": task_id,
    }


def with_retries(meta: dict[str, Any], state: str, request: Any) -> dict[str, Any]:
    """Return the `meta` of a result with its ``retries`` at the end, if it has failed or has any.

    Celery adds them only with ``result_extended``, together with all arguments.
    """
    retries = getattr(request, "retries", 0) or 0
    if retries or state == states.FAILURE:
        meta.pop("retries", None)
        meta["retries"] = retries
    return meta
