"""Tell the Redis that is to be used from a replica, and a node of a cluster from others.

A name may lead to a new primary while connections to the old one live on. What that one answers to
a write says so; to a subscriber it says nothing at all.
https://redis.io/docs/latest/commands/hello/
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from redis.exceptions import ConnectionError, ResponseError

#: The command whose reply says what a server is; Redis has it since version 6.
HELLO = "HELLO"

# Scripts of Redis 6 have the error of their command behind their own.
_elsewhere = re.compile(
    r"(?:^|: -)(?:READONLY|NOREPLICAS|MASTERDOWN|LOADING|UNBLOCKED|CLUSTERDOWN|CROSSSLOT|MOVED|ASK"
    r"|TRYAGAIN)\b"
).search


def elsewhere(error: str) -> bool:
    """Does the text of a server's error say that this is not, or no more, the server to ask?"""
    return _elsewhere(error) is not None


def unusable(hello: Sequence[Any], clusters: bool = False, primary: bool = True) -> str:
    """Return why a server is not to be used, from its reply to HELLO; empty where it is.

    `clusters`: a node of a cluster may be; without `primary` also one that takes no writes.
    """
    about = _about(hello)
    if about.get(b"mode") == b"cluster":
        if not clusters:
            return (
                "it is in cluster mode: Celery stores no results there; use the strategy pika, or "
                "another Redis as result_backend and this one as state_url"
            )
        if not primary:
            return ""
    if about.get(b"role", b"master") != b"master":
        return "it is a replica, which takes no writes"
    return ""


def _about(hello: Sequence[Any]) -> dict[bytes, Any]:
    return dict(zip(hello[::2], hello[1::2], strict=False))


async def greet(connection: Any, clusters: bool = False, primary: bool = True) -> None:
    """Greet the server of a new `connection` of redis-py (its `redis_connect_func`).

    Raises `redis.exceptions.ConnectionError` where it is not to be used: see `unusable`.
    """
    await connection.on_connect()
    await connection.send_command(HELLO)
    try:
        hello = await connection.read_response()
    except ResponseError:  # an older Redis, a proxy, an account that may not
        return
    connection.greeted = _about(hello)
    if problem := unusable(hello, clusters, primary):
        raise ConnectionError(problem)


def is_clustered(connection: Any) -> bool:
    """Tell whether the server of a greeted connection is a node of a cluster."""
    return bool(getattr(connection, "greeted", {}).get(b"mode") == b"cluster")
