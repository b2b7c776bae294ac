"""Leave a Redis that has become a replica, or that is no more the one to write to.

A name may lead to a new primary while connections to the old one live on, and what that one answers
would be taken for the error of one command. A result that was refused so is written once more, on a
new connection.
"""

from __future__ import annotations

import re
from typing import Any

from redis.exceptions import (
    BusyLoadingError,
    ClusterDownError,
    MasterDownError,
    MovedError,
    ReadOnlyError,
    RedisError,
)

_ELSEWHERE = (BusyLoadingError, ClusterDownError, MasterDownError, MovedError, ReadOnlyError)
# For the first redis-py has no class. Scripts of Redis 6 have the error of their command behind
# their own.
_elsewhere = re.compile(
    r"^(?:NOREPLICAS|UNBLOCKED)\b|: -(?:READONLY|NOREPLICAS|MASTERDOWN|LOADING|CLUSTERDOWN)\b"
).search

_Backend: Any = object  # for mypy: the class of the backend with which the mixin is combined


class PrimaryOnly(_Backend):
    """Mixin for Celery's Redis backends that writes a result again on a new connection."""

    def _set(self, *args: Any, **options: Any) -> None:
        try:
            super()._set(*args, **options)
        except RedisError as exc:
            if not elsewhere(exc):
                raise
            # Those in use, by other threads, find it out by themselves.
            self.client.connection_pool.disconnect(inuse_connections=False)
            super()._set(*args, **options)


def elsewhere(error: RedisError) -> bool:
    """Does this error say that the server is not, or no more, the one to write to?"""
    return isinstance(error, _ELSEWHERE) or _elsewhere(str(error)) is not None
