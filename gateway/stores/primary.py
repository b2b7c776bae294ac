"""Tell the Redis that is to be used from a replica, and from a node of a cluster.

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


def unusable(hello: Sequence[Any]) -> str:
    """Return why a server is not to be used, from its reply to HELLO; empty where it is."""
    about = dict(zip(hello[::2], hello[1::2], strict=False))
    if about.get(b"mode") == b"cluster":
        return "it is in cluster mode, which is not supported"
    if about.get(b"role", b"master") != b"master":
        return "it is a replica, which takes no writes"
    return ""


async def only_primary(connection: Any) -> None:
    """Greet the server of a new `connection` of redis-py (its `redis_connect_func`).

    Raises `redis.exceptions.ConnectionError` where it is not to be used.
    """
    await connection.on_connect()
    await connection.send_command(HELLO)
    try:
        hello = await connection.read_response()
    except ResponseError:  # an older Redis, a proxy, an account that may not
        return
    if problem := unusable(hello):
        raise ConnectionError(problem)
