"""The processes of a prefork pool have several jobs: none is lost, none waits for a slow one."""

from __future__ import annotations

import os
import signal
import uuid
from collections import Counter

import psutil
import pytest
import redis

from appserver.processes import AHEAD
from tests.integration.test_appserver import ROOT, Requester
from tests.integration.test_task_stream import at_once, messages
from tests.support.waiting import until

TASKS = 1_500
KILLS = 6

SHOP = """
import os, time
import appserver, redis
from celery import Celery

RESULTS = os.environ["GATEWAY_RESULT_BACKEND"]
app = Celery("shop", broker=os.environ["GATEWAY_BROKER_URL"], backend=RESULTS)
app.conf.update(accept_content=["json"], worker_prefetch_multiplier=16)
appserver.setup(app)

def note(body):
    with open(os.environ["RAN"], "a") as ran:
        ran.write(body + "\\n")
    return body

@app.task
def late(query, headers, body):
    return note(body)

@app.task(acks_late=False)
def early(query, headers, body):
    return note(body)

@app.task
def gate(query, headers, body):
    if query:
        redis.Redis.from_url(RESULTS, socket_timeout=None).blpop(query["gate"])
    return body

@app.task(time_limit=1)
def limited(query, headers, body):
    if query:
        time.sleep(60)
    return body
"""


@pytest.fixture
def started(stack, rabbitmq, redis_server, tmp_path):
    (tmp_path / "shop.py").write_text(SHOP)
    queue = f"processes-{uuid.uuid4()}"
    server = stack.worker(
        rabbitmq.url, redis_server.url, "shop", "prefork", 2, [queue],
        env={"PYTHONPATH": ROOT, "RAN": str(tmp_path / "ran")}, cwd=tmp_path,
    )  # fmt: skip
    requester = Requester(rabbitmq.url, queue)
    yield server, requester
    requester.close()
    server.kill()


def processes(server) -> list[psutil.Process]:
    return psutil.Process(server.pid).children()


def test_a_killed_process_loses_nothing(started, rabbitmq, tmp_path):
    # Given a worker that has run so many tasks that its processes have several at once,
    server, requester = started
    ran = tmp_path / "ran"
    for number in range(20):
        requester.call("shop.late", body=f"first-{number}")
    late = {str(n): requester.send("shop.late", str(n)) for n in range(TASKS)}
    early = [requester.send("shop.early", f"early-{n}") for n in range(TASKS // 10)]

    # when its processes are killed one after the other,
    for kill in range(1, KILLS + 1):
        until(lambda kill=kill: len(ran.read_text().split()) > kill * TASKS / (KILLS + 1))
        os.kill(processes(server)[kill % 2].pid, signal.SIGKILL)

    # then each task is answered, and nothing remains to be run.
    assert {requester.reply(task_id)[1]["result"] for task_id in late.values()} == set(late)
    answers = Counter(requester.reply(task_id)[1]["status"] for task_id in early)
    assert answers["SUCCESS"] >= len(early) - KILLS
    until(lambda: messages(rabbitmq, requester.queue) == 0)
    # What was not acknowledged early runs again, if its end was not told yet; nothing else does.
    times = Counter(ran.read_text().split())
    assert set(late) <= set(times)
    again = [name for name, number in times.items() if number > 1]
    assert len(again) <= KILLS * AHEAD
    assert not [name for name in again if name.startswith("early")]


def test_no_job_waits_behind_a_slow_one(started, redis_server):
    # Given tasks that were quick so far,
    server, requester = started
    gate = f"gate-{uuid.uuid4()}"
    for _ in range(20):
        requester.call("shop.gate")

    # when one is slow, and others have come with it,
    slow, *quick = at_once(
        server,
        lambda: requester.send("shop.gate", query={"gate": gate}),
        *[lambda: requester.send("shop.gate")] * 30,
    )

    # then these end before it.
    assert [requester.reply(task_id)[1]["status"] for task_id in quick] == ["SUCCESS"] * 30
    assert not requester.replied(slow)
    with redis.Redis.from_url(redis_server.url) as client:
        client.rpush(gate, "go")
    assert requester.reply(slow)[1]["status"] == "SUCCESS"


def test_a_time_limit_ends_its_own_job_only(started):
    server, requester = started
    for _ in range(20):
        requester.call("shop.limited")

    slow, *quick = at_once(
        server,
        lambda: requester.send("shop.limited", query={"seconds": "60"}),
        *[lambda: requester.send("shop.limited")] * 30,
    )

    assert [requester.reply(task_id)[1]["status"] for task_id in quick] == ["SUCCESS"] * 30
    assert requester.reply(slow)[1]["result"]["exc_type"] == "TimeLimitExceeded"
    assert requester.call("shop.limited")["result"] == "hello"


def test_a_worker_that_is_told_to_end_runs_what_has_begun(started, rabbitmq, redis_server):
    server, requester = started
    gate = f"gate-{uuid.uuid4()}"
    for _ in range(20):
        requester.call("shop.gate")
    slow = [requester.send("shop.gate", query={"gate": gate}) for _ in range(2)]
    waiting = [requester.send("shop.gate") for _ in range(5)]
    with redis.Redis.from_url(redis_server.url) as client:
        until(lambda: client.info("clients")["blocked_clients"] == 2)

        os.kill(server.pid, signal.SIGTERM)
        client.rpush(gate, "go", "go")

    assert [requester.reply(task_id)[1]["status"] for task_id in slow] == ["SUCCESS"] * 2
    server.stop()
    left = len(waiting) - sum(requester.replied(task_id) for task_id in waiting)
    until(lambda: messages(rabbitmq, requester.queue) == left)


def test_a_long_job_is_passed_as_a_file(started):
    _, requester = started
    bodies = ["x" * size for size in (40_000, 1, 1_000_000, 2)] * 3
    ids = [requester.send("shop.gate", body) for body in bodies]
    assert [requester.reply(task_id)[1]["result"] for task_id in ids] == bodies
