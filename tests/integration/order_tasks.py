"""Tasks that record in Redis that they have run, for a delivery that starts several."""

from __future__ import annotations

import os
from typing import Any

import redis

from appserver import app

# Without a timeout, as a task waits in Redis for the test.
results = redis.Redis.from_url(os.environ["GATEWAY_RESULT_BACKEND"], socket_timeout=None)


def record(self: Any, key: str) -> None:
    results.rpush(f"ran:{key}", f"{self.name} {self.request.id}")


@app.task(name="order.own", bind=True)
def own(self: Any, key: str, fails: int = 0) -> str:
    """Fail so many times, and then answer."""
    record(self, key)
    if results.incr(f"runs:{key}") <= fails:
        raise LookupError("not yet")
    return key


@app.task(name="order.bill", bind=True)
def bill(self: Any, key: str) -> None:
    record(self, key)


@app.task(name="order.mail", bind=True)
def mail(self: Any, key: str, address: str) -> None:
    record(self, key)


@app.task(name="order.hold", bind=True)
def hold(self: Any, key: str) -> str:
    """Record the beginning, and wait until the test lets it end."""
    record(self, key)
    results.blpop(f"end:{key}", 60)
    return key
