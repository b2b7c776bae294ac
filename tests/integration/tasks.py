"""The app server with tasks that tests call: ``celery -A tests.integration.tasks worker``."""

from __future__ import annotations

import json
import os
import signal
from functools import cache
from pathlib import Path
from typing import Any

import redis
from celery import chord, group
from celery.exceptions import Ignore

from appserver import Answer, delivery
from appserver.reply_backend import REPLY_PREFIXES
from appserver.reply_connection import reply_connection
from gateway.stack.server import poll
from tests.faults import tasks

app = tasks.app


@cache
def results() -> redis.Redis:
    """Return a client of the result store, without a timeout, as tasks wait there for tests."""
    return redis.Redis.from_url(os.environ["GATEWAY_RESULT_BACKEND"], socket_timeout=None)


# What a task got ------------------------------------------------------------------------------

RECORD = "tests.record"
_FILE = "records"


@app.task(name="tests.seen", bind=True)
def seen(self, query: dict, headers: dict, body: str) -> dict:
    about = self.request.headers["delivery"]
    queue = self.request.delivery_info["routing_key"]
    return {"query": query, "headers": headers, "body": body, "delivery": about, "queue": queue}


@app.task(name="tests.said")
def said(query: dict, headers: dict, body: str) -> str:
    """Return how long the body was, as text."""
    return f"größe {len(body)}"


@app.task(name=RECORD, bind=True)
def record(self, query: dict[str, str], headers: dict[str, str], body: str | bytes) -> Any:
    """Note the call as a line in the directory FAULTS_DIRECTORY.

    Returns the body, with the status that the query asks for.
    """
    raw = body.encode() if isinstance(body, str) else body
    remote = self.request.headers["delivery"]["remote"]
    call = {"query": query, "headers": headers, "body": raw.hex(), "remote": remote}
    with open(f"{os.environ['FAULTS_DIRECTORY']}/{_FILE}", "a") as file:
        file.write(json.dumps(call) + "\n")
    return Answer(int(query["status"]), body) if "status" in query else body


def records(directory: Path) -> list[dict[str, Any]]:
    """Read the calls in the order of their execution, with bodies as bytes."""
    path = directory / _FILE
    if not path.exists():
        return []
    calls = [json.loads(line) for line in path.read_text().splitlines()]
    return [{**call, "body": bytes.fromhex(call["body"])} for call in calls]


@app.task(name="dynamic.known")
def known(query: dict[str, str], headers: dict[str, str], body: str) -> list[str]:
    """Return the names of all queues in Celery's table (pool solo only)."""
    return sorted(app.amqp.queues)


# What a task returns --------------------------------------------------------------------------


@app.task(name="tests.returned")
def returned(query: dict, headers: dict, body: str) -> Any:
    """Return what the body says in JSON."""
    return json.loads(body)


@app.task(name="tests.stored", bind=True)
def stored(self, query: dict, headers: dict, body: str | bytes) -> None:
    """Store the body as the result, or reply it, as somebody else's worker might."""
    payload = body.encode() if isinstance(body, str) else body
    reply_to, task_id = self.request.reply_to or "", self.request.id
    if reply_to.startswith(REPLY_PREFIXES):
        reply_connection(app).publish_all([(reply_to, task_id, payload)])
    else:
        key, client = app.backend.get_key_for_task(task_id), app.backend.client
        client.set(key, payload, ex=60)
        client.publish(key, payload)
    raise Ignore()


@app.task(name="retries.answer", bind=True)
def answer(self, query: dict[str, str], headers: dict[str, str], body: str) -> dict:
    """Answer with the statuses in the query's ``statuses``, one after the other, then with 200.

    The body names the delivery; the answer's body is the task's id. Its ``seconds`` and ``until``
    are those of `tasks.take_time`.
    """
    directory = tasks.take_time(query)
    attempt = tasks.take_effect(directory, f"attempts-{body}")
    statuses = query["statuses"].split(",")
    status = int(statuses[attempt - 1]) if attempt <= len(statuses) else 200
    return Answer(status, self.request.id)


@app.task(name="retries.odd")
def no_answer(query: dict[str, str], headers: dict[str, str], body: str) -> dict:
    """Return what can be no answer, or with ``quotes`` in the query one with a long header."""
    if "quotes" not in query:
        return {"status": 1, "body": ""}
    tasks.take_time(query)
    return Answer(200, body, {"Link": '"' * int(query["quotes"])})


# A task that succeeds, fails, hangs or ends its worker ----------------------------------------

REPAIRED, RELEASED, RAN = "repaired", "released", "ran"
LONGEST = 1_200.0  # seconds that a task hangs at the most


@app.task(name="lifecycle.run")
def run(query: dict[str, str], headers: dict[str, str], body: str) -> str:
    """Do what the first word of the body says; note each run that was not a failure.

    ``fails`` fails until the file `REPAIRED` is in the directory FAULTS_DIRECTORY, ``hangs`` waits
    there for the file `RELEASED`. ``rambles`` fails with a word that is longer than a line, and
    that turns the direction of what follows.
    """
    directory = Path(os.environ["FAULTS_DIRECTORY"])
    kind = body.partition(" ")[0]
    if kind == "fails" and not (directory / REPAIRED).exists():
        raise RuntimeError("not repaired yet")
    if kind == "rambles":
        raise RuntimeError("\u202e" + "x" * 400)
    if kind == "hangs":
        poll((directory / RELEASED).exists, LONGEST)
    if kind == "kills":
        os.kill(os.getpid(), signal.SIGKILL)
    with (directory / RAN).open("a") as file:
        file.write(f"{body}\n")
    return body


# Tasks that record in Redis that they have run, for a delivery that starts several -------------


def note(self: Any, key: str) -> None:
    results().rpush(f"ran:{key}", f"{self.name} {self.request.id}")


@app.task(name="order.own", bind=True)
def own(self: Any, key: str, fails: int = 0) -> str:
    """Fail so many times, and then answer."""
    note(self, key)
    if results().incr(f"runs:{key}") <= fails:
        raise LookupError("not yet")
    return key


@app.task(name="order.bill", bind=True)
def bill(self: Any, key: str) -> None:
    note(self, key)


@app.task(name="order.mail", bind=True)
def mail(self: Any, key: str, address: str) -> None:
    note(self, key)


@app.task(name="order.hold", bind=True)
def hold(self: Any, key: str) -> str:
    """Record the beginning, and wait until the test lets it end."""
    note(self, key)
    results().blpop(f"end:{key}", 60)
    return key


# Tasks with signatures of their own, as of an app that was there before the gateway ------------


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
    results().rpush("failed", task_id)


@app.task(name="shop.quiet")
def quiet(text: str) -> Answer:
    results().rpush("quiet", text)
    return Answer(200, "nobody reads this")


# Tasks that leave their answer to others ------------------------------------------------------


@app.task(name="replacing.part")
def part(text: str) -> str:
    return text


@app.task(name="replacing.joined")
def joined(parts: list[str]) -> str:
    return "".join(parts)


@app.task(name="replacing.by_task", bind=True)
def by_task(self, query: dict, headers: dict, body: str) -> str:
    return self.replace(part.si(body))


@app.task(name="replacing.by_chain", bind=True)
def by_chain(self, query: dict, headers: dict, body: str) -> str:
    return self.replace(part.si("lost") | part.si(body))


@app.task(name="replacing.by_group", bind=True)
def by_group(self, query: dict, headers: dict, body: str) -> str:
    return self.replace(group(part.si(body), part.si(body)))


@app.task(name="replacing.by_chord", bind=True)
def by_chord(self, query: dict, headers: dict, body: str) -> str:
    return self.replace(chord([part.si(body), part.si(body)], joined.s()))


@app.task(name="replacing.by_failing_group", bind=True)
def by_failing_group(self, query: dict, headers: dict, body: str) -> str:
    return self.replace(group(part.si(body), odd.si({}, {}, body)))


@app.task(name="replacing.by_failing_chord", bind=True)
def by_failing_chord(self, query: dict, headers: dict, body: str) -> str:
    """Be replaced by a task, and then two at once, of which one fails, before two others."""
    parts = group(part.si(body), odd.si({}, {}, body))
    return self.replace(part.si(body) | parts | part.si(body) | part.si(body))


@app.task(name="replacing.odd")
def odd(query: dict, headers: dict, body: str) -> object:
    return object()
