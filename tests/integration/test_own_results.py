"""Code that follows a task finds its result, in the pool that writes several results together."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from celery import Celery
from kombu import Connection, Queue

from gateway.stack.server import poll
from tests.support.stack import RabbitMQ, Server, Stack

TIMEOUT = 30  # seconds
TASKS = 20  # so many messages come together
KEY = "celery-task-meta-"

#: What follows a task notes the state in which it finds its result.
SHOP = """\
import os
import appserver
import redis
from celery import Celery, signals

app = Celery("shop", broker=os.environ["BROKER"], backend=os.environ["RESULTS"])
appserver.setup(app)
app.conf.update(result_expires=1000, result_failure_expires=60, worker_prefetch_multiplier=0)
notes = redis.Redis.from_url(os.environ["RESULTS"])

def note(task_id):
    notes.rpush("notes", app.AsyncResult(task_id).state)

def raw(task_id):
    # As another process sees it.
    notes.rpush("notes", "SUCCESS" if notes.exists("celery-task-meta-" + task_id) else "PENDING")

class Success(app.Task):
    def on_success(self, retval, task_id, args, kwargs):
        raw(task_id)

class Returned(app.Task):
    def after_return(self, status, retval, task_id, args, kwargs, einfo):
        raw(task_id)

class Forgetting(app.Task):
    def on_success(self, retval, task_id, args, kwargs):
        app.AsyncResult(task_id).forget()
        note(task_id)

def one(*args):
    return 1

for name, base in [("plain", app.Task), ("success", Success), ("returned", Returned),
                   ("forgets", Forgetting)]:
    app.task(one, name=name, base=base)

@app.task(name="gate", ignore_result=True)
def gate():
    notes.blpop("go", 30)

@app.task(name="fails")
def fails(*args):
    raise ValueError("always")

@app.task(name="previous")
def previous(task_id):
    note(task_id)

@app.task(name="forget")
def forget(task_id):
    app.AsyncResult(task_id).forget()
    note(task_id)

if signal := os.environ.get("SIGNAL"):
    @getattr(signals, signal).connect(weak=False)
    def follow(sender, **_):
        if sender.name != "gate":
            raw(sender.request.id)
"""


class Shop:
    """An app, the messages for its worker, and what that has noted."""

    def __init__(self, stack: Stack, broker: RabbitMQ, results: Server, directory: Path):
        self._stack, self._directory = stack, directory
        self._env = {"BROKER": broker.url, "RESULTS": results.url}
        self._queue = f"own-{uuid.uuid4()}"
        self._messages: list[tuple[str, tuple[str, ...], str]] = []
        self._app = Celery(broker=broker.url, set_as_current=False)
        with Connection(broker.url) as connection:
            Queue(self._queue, channel=connection.default_channel).declare()
        self.redis = redis.Redis.from_url(results.url, decode_responses=True)
        (directory / "shop.py").write_text(SHOP)

    def send(self, task: str, *args: str) -> str:
        """Note a message that `work` is to send; return its task's id."""
        self._messages.append((task, args, str(uuid.uuid4())))
        return self._messages[-1][-1]

    def work(self, **env: str) -> None:
        """Start a worker, which reads all messages at once after a task that waits for them."""
        options = {"cwd": self._directory, "queues": [self._queue], "env": {**self._env, **env}}
        self._stack.worker(self._env["BROKER"], app="shop", pool="solo", **options)
        for task, args, task_id in [("gate", (), None), *self._messages]:
            self._app.send_task(task, args, task_id=task_id, queue=self._queue)
        with Connection(self._env["BROKER"]) as connection:
            queue = Queue(self._queue, channel=connection.default_channel)
            assert poll(lambda: not queue.queue_declare(passive=True).message_count, TIMEOUT)
        self.redis.rpush("go", "")

    def notes(self, number: int) -> set[str]:
        """Return the different notes when there are so many."""
        assert poll(lambda: self.redis.llen("notes") >= number, TIMEOUT)
        return set(self.redis.lrange("notes", 0, -1))

    def meta(self, task_id: str) -> dict | None:
        found = self.redis.get(f"{KEY}{task_id}")
        return found and json.loads(found)

    def close(self) -> None:
        self._app.close()
        self.redis.close()


@pytest.fixture
def shop(stack, rabbitmq, redis_server, tmp_path) -> Iterator[Shop]:
    shop = Shop(stack, rabbitmq, redis_server, tmp_path)
    shop.redis.flushall()
    yield shop
    shop.close()


@pytest.mark.parametrize(
    ("task", "signal"),
    [("success", ""), ("returned", ""), ("plain", "task_success"), ("plain", "task_postrun")],
)
def test_what_follows_a_task_finds_its_result(shop, task, signal):
    for _ in range(TASKS):
        shop.send(task)
    shop.work(SIGNAL=signal)
    assert shop.notes(TASKS) == {"SUCCESS"}


def test_a_task_finds_the_results_of_those_before_it(shop):
    for _ in range(TASKS):
        shop.send("previous", shop.send("plain"))
    shop.work()
    assert shop.notes(TASKS) == {"SUCCESS"}


@pytest.mark.parametrize("itself", [True, False])
def test_what_a_task_has_forgotten_stays_forgotten(shop, itself):
    ids = [shop.send("forgets" if itself else "plain") for _ in range(TASKS)]
    for task_id in [] if itself else ids:
        shop.send("forget", task_id)
    last = shop.send("plain")
    shop.work()
    assert shop.notes(TASKS) == {"PENDING"}
    assert poll(lambda: shop.meta(last) is not None, TIMEOUT)
    assert [shop.meta(task_id) for task_id in ids] == [None] * TASKS


def test_failures_expire_in_their_own_time(shop):
    failures = [shop.send("fails") for _ in range(TASKS)]
    successes = [shop.send("plain") for _ in range(TASKS)]
    shop.work()
    assert poll(lambda: all(map(shop.meta, failures + successes)), TIMEOUT)
    lives = [[shop.redis.ttl(f"{KEY}{one}") for one in ids] for ids in (failures, successes)]
    assert min(lives[0]) > 0 and max(lives[0]) <= 60
    assert min(lives[1]) > 60 and max(lives[1]) <= 1000
