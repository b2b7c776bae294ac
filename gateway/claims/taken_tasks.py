"""Which further tasks of a delivery the broker has taken, in Redis beside the claims."""

from __future__ import annotations

import asyncio
import logging
from asyncio import Future
from collections.abc import Collection
from typing import Any

from gateway.clock import monotonic
from gateway.config.settings import Config
from gateway.delivery import identity_digest
from gateway.errors import StateUnavailable, StoreError
from gateway.stores.state_store import StateStore

log = logging.getLogger(__name__)

# In one step, so that no key is left without an expiry. Arguments: life (ms), task ids
_ADD = """
redis.call('SADD', KEYS[1], unpack(ARGV, 2))
redis.call('PEXPIRE', KEYS[1], ARGV[1])
"""


class TakenTasks:
    """Remembers the task ids for as long as the gateway recognizes a delivery's later tries."""

    def __init__(self, config: Config, redis: StateStore):
        self._redis = redis
        self._prefix = config.prefix
        self._window = int(config.idempotency_window * 1000)
        self._refuse = config.without_state == "refuse"

    async def of(self, identity: str, deadline: float) -> set[str]:
        """Return the ids of the tasks that earlier tries published, and the broker confirmed.

        If Redis fails, raises `StateUnavailable`. With ``without_state = "relay"`` none is known
        then, and also if Redis has not answered after half of the time until `deadline` (monotonic
        seconds): the other half is left for publishing.
        """
        timeout = None if self._refuse else (deadline - monotonic()) / 2
        try:
            async with asyncio.timeout(timeout):
                found = await self._redis.run("SMEMBERS", self._key(identity))
        except (StoreError, TimeoutError) as exc:
            if self._refuse:
                raise StateUnavailable from exc
            reason = str(exc) or "no answer in time"
            log.warning("it is not known which further tasks were taken: %s", reason)
            return set()
        return {each.decode() for each in found}

    def add(self, identity: str, task_ids: Collection[str]) -> Future[Any]:
        """Write that the broker has taken these tasks; the future ends when Redis has them."""
        key = self._key(identity)
        reply = self._redis.run("EVAL", _ADD, 1, key, self._window, *task_ids)
        reply.add_done_callback(_written)
        return reply

    def _key(self, identity: str) -> bytes:
        return self._prefix.encode() + b"also:" + identity_digest(identity)


def _written(reply: Future[Any]) -> None:
    # The next try then publishes the tasks again, under the same ids.
    if not reply.cancelled() and (exc := reply.exception()) is not None:
        log.warning("it could not be written which further tasks were taken: %s", exc)
