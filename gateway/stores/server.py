"""What a Redis says of itself, and whether it is the one to use.

A name may lead to a new primary while connections to the old one live on. What that one answers to
a write says so; to a subscriber it says nothing at all.
https://redis.io/docs/latest/commands/hello/
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from gateway.errors import StoreError

#: Host and port.
Address = tuple[str, int]

#: Errors of a lost connection. For a write to a closed transport uvloop raises RuntimeError, and
#: asyncio of Python 3.12 and 3.13 TypeError (https://github.com/python/cpython/issues/136234).
LOST = (StoreError, OSError, RuntimeError, TypeError)

CONNECT_TIMEOUT = 3.0  # seconds

#: The command whose reply says what a server is; Redis has it since version 6.
HELLO = "HELLO"

# Scripts of Redis 6 have the error of their command behind their own.
_elsewhere = re.compile(
    r"(?:^|: -)(?:READONLY|NOREPLICAS|MASTERDOWN|LOADING|UNBLOCKED|CLUSTERDOWN|CROSSSLOT|MOVED|ASK"
    r"|TRYAGAIN)\b"
).search


def elsewhere(error: str) -> bool:
    """Does a server's error say that this is not, or no longer, the server to ask?"""
    return _elsewhere(error) is not None


def about(hello: Sequence[Any]) -> dict[bytes, Any]:
    """Return the fields of a reply to HELLO."""
    return dict(zip(hello[::2], hello[1::2], strict=False))


def product(info: Mapping[str, Any]) -> str:
    """Return a server's product and version, from the fields of its INFO."""
    name = "Valkey" if "valkey_version" in info else "Redis"
    version = info.get("valkey_version") or info.get("redis_version", "of no known version")
    return f"{name} {version}"


def numbers(info: object) -> dict[str, int]:
    """Return the numbers of a reply to INFO; a server like Redis may leave some out."""
    text = info.decode(errors="replace") if isinstance(info, bytes) else str(info)
    pairs = (line.partition(":") for line in text.splitlines())
    return {name: int(value) for name, _, value in pairs if value.isascii() and value.isdigit()}


def unusable(hello: Sequence[Any], clusters: bool = False, primary: bool = True) -> str:
    """Return why a server is not to be used, from its reply to HELLO; empty where it is.

    `clusters`: a node of a cluster may be; without `primary` also one that takes no writes.
    """
    fields = about(hello)
    if fields.get(b"mode") == b"cluster":
        if not clusters:
            return (
                "it is in cluster mode: Celery stores no results there; use the strategy pika, or "
                "another Redis as result_backend and this one as state_url"
            )
        if not primary:
            return ""
    if fields.get(b"role", b"master") != b"master":
        return "it is a replica, which takes no writes"
    return ""


def described(exc: Exception) -> str:
    """Return the error of a connection in words."""
    text = str(exc) or "no answer in time"
    return text if isinstance(exc, StoreError) else f"{type(exc).__name__}: {text}"
