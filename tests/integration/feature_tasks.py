"""Tasks that use what Celery has, for the rows of docs/celery.md."""

from __future__ import annotations

import os
import signal
from typing import Any

import redis
from celery import Celery, states
from celery.exceptions import Ignore

from appserver import app

app.conf.update(
    task_routes={"features.*": {"queue": "elsewhere"}},  # which has no worker
    worker_max_tasks_per_child=5,
)
RESULTS = os.environ["GATEWAY_RESULT_BACKEND"]
# Without a timeout, as a task waits in Redis for another one.
results = redis.Redis.from_url(RESULTS, socket_timeout=None)


@app.task(name="features.seen", bind=True)
def seen(self: Any) -> dict:
    info = self.request.delivery_info
    return {
        "id": self.request.id, "pid": os.getpid(), "stamps": self.request.stamps,
        "exchange": info["exchange"], "routing_key": info["routing_key"],
        "routed": app.amqp.router.route({}, self.name)["queue"].name,
    }  # fmt: skip


@app.task(name="features.stamps", bind=True)
def stamps(self: Any) -> dict:
    return self.replace(seen.si().set(queue="features").stamp(shop="main"))


@app.task(name="features.noted")
def noted(name: str) -> str:
    results.rpush(f"features:{name}", "ran")
    return name


@app.task(name="features.meet")
def meet(name: str) -> str:
    """Wait until a second one runs at the same time."""
    if results.incr(f"features:{name}") == 2:
        results.rpush(f"features:{name}:go", "go")
    else:
        results.blpop(f"features:{name}:go", 60)
    return name


@app.task(name="features.limited", rate_limit="1/h")
def limited() -> str:
    return "ran"


@app.task(name="features.overruns")
def overruns() -> None:
    while True:
        signal.pause()


@app.task(name="features.retries", bind=True)
def retries(self: Any) -> int:
    """Ask for two more tries, and return the number of them."""
    if self.request.retries < 2:
        raise self.retry(countdown=0)
    return self.request.retries


@app.task(
    name="features.fails_once",
    bind=True,
    autoretry_for=(LookupError,),
    retry_kwargs={"countdown": 0},
)
def fails_once(self: Any) -> int:
    """Fail at the first try, and return the number of further ones."""
    if not self.request.retries:
        raise LookupError("at first")
    return self.request.retries


@app.task(name="features.stored", bind=True)
def stored(self: Any, settings: dict) -> None:
    """Store the result as the worker of an app with these settings does."""
    with Celery(backend=RESULTS, set_as_current=False) as other:
        other.conf.update(settings)
        other.backend.store_result(self.request.id, "done", states.SUCCESS)
    raise Ignore()
