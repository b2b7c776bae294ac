"""Leave a Redis that has become a replica, or that is no more the one to write to.

A name may lead to a new primary while connections to the old one live on, and what that one answers
would be taken for the error of one command. It ends the connection here: the result is written
again on a new one.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Any

from celery.backends.redis import SentinelBackend
from redis import Connection
from redis.exceptions import (
    BusyLoadingError,
    ClusterCrossSlotError,
    ClusterDownError,
    ConnectionError,
    MasterDownError,
    MovedError,
    ReadOnlyError,
    RedisError,
    TryAgainError,
)
from redis.sentinel import SentinelManagedConnection

_ELSEWHERE = (
    BusyLoadingError,
    ClusterCrossSlotError,
    ClusterDownError,
    MasterDownError,
    MovedError,
    ReadOnlyError,
    TryAgainError,
)
# For the first redis-py has no class. Scripts of Redis 6 have the error of their command behind
# their own.
_elsewhere = re.compile(
    r"^(?:NOREPLICAS|UNBLOCKED)|: -(?:READONLY|NOREPLICAS|MASTERDOWN|LOADING|CLUSTERDOWN)\b"
).search

_Backend: Any = object  # for mypy: the class of the backend with which the mixin is combined
_Connection: Any = object


class PrimaryOnly(_Backend):
    """Mixin for Celery's Redis backends whose connections end with such an answer."""

    def _create_client(self, **parameters: Any) -> Any:
        usual = SentinelManagedConnection if isinstance(self, SentinelBackend) else Connection
        kind = leaving(parameters.get("connection_class", usual))
        return super()._create_client(**{**parameters, "connection_class": kind})


class _Leaving(_Connection):
    def read_response(self, *args: Any, **options: Any) -> Any:
        try:
            return super().read_response(*args, **options)
        except RedisError as exc:
            if isinstance(exc, _ELSEWHERE) or _elsewhere(str(exc)):
                self.disconnect()
                raise ConnectionError(f"this Redis is not the one to write to: {exc}") from exc
            raise


@cache
def leaving(kind: type) -> type:
    """Return a class of connections of this `kind` that end with such an answer."""
    return kind if issubclass(kind, _Leaving) else type(kind.__name__, (_Leaving, kind), {})
