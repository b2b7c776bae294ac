"""The Redis that the Sentinels name, which are asked again and again.

redis-py asks them when it connects, and believes the first that answers. A primary that a partition
has cut off still takes what is written, and a Sentinel on its side knows of no other one.

https://redis.io/docs/latest/operate/oss_and_stack/management/sentinel/#configuration-epochs
"""

# mypy: disable-error-code="no-untyped-call"
from __future__ import annotations

import logging
from contextlib import suppress
from time import monotonic
from typing import Any

from redis import sentinel
from redis.exceptions import RedisError

EVERY = 1.0  # seconds after which the Sentinels are asked again, when a connection is needed
SILENT = 30.0  # seconds for which a Sentinel that has not answered is not asked again

log = logging.getLogger(__name__)


class Sentinel(sentinel.Sentinel):
    """Asks all Sentinels, and believes the one with the latest configuration."""

    def __init__(self, *args: Any, **options: Any):
        super().__init__(*args, **options)
        self._silent: dict[int, float] = {}

    def master_for(self, service_name: str, *args: Any, **options: Any) -> Any:
        return super().master_for(service_name, *args, **{"connection_pool_class": Pool, **options})

    def discover_master(self, service_name: str) -> tuple[str, int]:
        """Return the master's host and port. Raises MasterNotFoundError where none is known."""
        now, states = monotonic(), []
        # All of them where none is known to answer.
        asked = [s for s in self.sentinels if self._silent.get(id(s), 0) <= now] or self.sentinels
        problems = []
        for each in asked:
            try:
                masters: Any = each.sentinel_masters()
            except (RedisError, OSError) as exc:
                self._silent[id(each)] = now + SILENT
                problems.append(str(exc))
                continue
            if (state := masters.get(service_name)) is not None:
                states.append(state)
        latest = max(states, key=lambda state: int(state["config-epoch"]), default=None)
        if latest is None or not self.check_master_state(latest, service_name):
            known = "; ".join(problems) or "it is unknown or down there"
            raise sentinel.MasterNotFoundError(
                f"the Sentinels tell no master {service_name!r}: {known}"
            )
        return latest["ip"], int(latest["port"])


class Pool(sentinel.SentinelConnectionPool):
    """Leaves a primary when the Sentinels name another one, though it still answers."""

    _next = 0.0

    def get_connection(self, *args: Any, **options: Any) -> Any:
        now = monotonic()
        if self.master_address is not None and now >= self._next:
            self._next = now + EVERY
            # Where they cannot tell, the connection itself does.
            with suppress(RedisError, OSError):
                before = self.master_address
                # It closes all idle connections where the address has changed.
                if before != (after := self.get_master_address()):
                    log.warning("The Sentinels name %s:%s in the place of %s:%s", *after, *before)
        return super().get_connection(*args, **options)
