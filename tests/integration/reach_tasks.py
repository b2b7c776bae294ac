"""An app that was there before the gateway: tasks with signatures of their own."""

from __future__ import annotations

import os
from typing import Any

import redis

import appserver
from appserver import app, delivery


@app.task(name="shop.pay")
def pay(order: int, email: str = "", **more: Any) -> dict:
    return {"order": order, "email": email, **more}


@app.task(name="shop.raw")
def raw(payload: bytes | str) -> list:
    return [type(payload).__name__, len(payload)]


@app.task(name="shop.about")
def about(*_args: Any) -> dict:
    found = delivery()
    return {"params": found.params, "queries": found.queries, "at": found.received_at.isoformat()}


@app.task(name="shop.options", bind=True)
def options(self, *_args: Any) -> dict:
    request, info = self.request, self.request.delivery_info
    return {
        "timelimit": request.timelimit, "eta": request.eta, "expires": request.expires,
        "priority": info["priority"], "exchange": info["exchange"],
        "routing_key": info["routing_key"], "ignore_result": request.ignore_result,
        "region": getattr(request, "region", None),
    }  # fmt: skip


@app.task(name="shop.breaks")
def breaks(*_args: Any) -> None:
    raise LookupError("as it was told")


@app.task(name="shop.noted")
def noted(task_id: str) -> None:
    """A task's errback: note which task has failed."""
    with redis.Redis.from_url(os.environ["GATEWAY_RESULT_BACKEND"]) as client:
        client.rpush("failed", task_id)


@app.task(name="shop.quiet")
def quiet(text: str) -> appserver.Answer:
    with redis.Redis.from_url(os.environ["GATEWAY_RESULT_BACKEND"]) as client:
        client.rpush("quiet", text)
    return appserver.Answer(200, "nobody reads this")
