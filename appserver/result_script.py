"""Results stored in Redis by one round trip.

Celery asks what is stored already, then stores and publishes in a transaction: two round trips,
between which another worker may store what is then overwritten. One script does all of it.
docs/decisions/0015-results-in-one-round-trip.md has the figures.
https://redis.io/docs/latest/develop/programmability/eval-intro/
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from celery.exceptions import BackendStoreError
from kombu.utils.encoding import bytes_to_str
from kombu.utils.objects import cached_property

if TYPE_CHECKING:
    from redis.commands.core import Script

# A success is final, as it is with Celery: of a task that two workers have run, the late one's
# failure changes nothing. Only JSON begins so; anything else is replaced.
_STORE = """\
if redis.call('GETRANGE', KEYS[1], 0, 19) == '{"status": "SUCCESS"' then
  return 0
end
if ARGV[2] == '0' then
  redis.call('SET', KEYS[1], ARGV[1])
else
  redis.call('SET', KEYS[1], ARGV[1], 'EX', ARGV[2])
end
return redis.call('PUBLISH', KEYS[1], ARGV[1])
"""

_RedisBackend: Any = object  # for mypy, the backend that it is mixed into


class ResultScript(_RedisBackend):
    """Mixed into one of Celery's Redis backends; other results than plain JSON go Celery's way."""

    def _store_result(
        self,
        task_id: str,
        result: Any,
        state: str,
        traceback: str | None = None,
        request: Any = None,
        **kwargs: Any,
    ) -> Any:
        # Celery compresses results since 5.7.
        if self.serializer != "json" or getattr(self, "compression", None):
            return super()._store_result(task_id, result, state, traceback, request, **kwargs)
        meta = self._get_result_meta(result, state, traceback, request)
        meta["task_id"] = bytes_to_str(task_id)
        try:
            self._set_with_state(self.get_key_for_task(task_id), self.encode(meta), state)
        except BackendStoreError as exc:
            raise BackendStoreError(str(exc), state=state, task_id=task_id) from exc
        return result

    def _set(self, key: bytes, value: str | bytes, expires: int | None = None) -> None:
        seconds = self.expires if expires is None else expires
        self._script(keys=[key], args=[value, seconds or 0], client=self.client)

    @cached_property
    def _script(self) -> Script:
        script: Script = self.client.register_script(_STORE)
        return script
