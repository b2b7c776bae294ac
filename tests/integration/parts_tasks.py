"""Tasks that note in Redis that they have run, for a delivery that starts several."""

from __future__ import annotations

import os
from typing import Any

import redis

from appserver import app

# Without a timeout, as a task waits in Redis for the test.
results = redis.Redis.from_url(os.environ["GATEWAY_RESULT_BACKEND"], socket_timeout=None)


def note(self: Any, key: str) -> None:
    results.rpush(f"parts:{key}", f"{self.name} {self.request.id}")


@app.task(name="parts.own", bind=True)
def own(self: Any, key: str, fails: int = 0) -> str:
    """Fail so many times, and then answer."""
    note(self, key)
    if results.incr(f"runs:{key}") <= fails:
        raise LookupError("not yet")
    return key


@app.task(name="parts.bill", bind=True)
def bill(self: Any, key: str) -> None:
    note(self, key)


@app.task(name="parts.mail", bind=True)
def mail(self: Any, key: str, address: str) -> None:
    note(self, key)


@app.task(name="parts.holds", bind=True)
def holds(self: Any, key: str) -> str:
    """Note the beginning, and wait until the test lets it end."""
    note(self, key)
    results.blpop(f"end:{key}", 60)
    return key
