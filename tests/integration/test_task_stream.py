"""Workers read many messages at once, and no reply waits for a slow task."""

from __future__ import annotations

import json
import os
import signal
import uuid

import pika
import pytest
import redis

from tests.integration.test_appserver import ROOT, Requester
from tests.support.waiting import until

SHOP = """
import os
import appserver, redis
from celery import Celery
from celery.exceptions import Reject

RESULTS = os.environ["GATEWAY_RESULT_BACKEND"]
app = Celery("shop", broker=os.environ["GATEWAY_BROKER_URL"], backend=RESULTS)
app.conf.accept_content = ["json"]
appserver.setup(app)

@app.task
def gate(query, headers, body):
    if query:
        redis.Redis.from_url(RESULTS, socket_timeout=None).blpop(query["gate"])
    return body

@app.task
def refuse(query, headers, body):
    raise Reject("as asked")
"""


@pytest.fixture
def start(stack, rabbitmq, redis_server, tmp_path):
    (tmp_path / "shop.py").write_text(SHOP)
    started = []

    def start(pool="solo", **env):
        queue = f"stream-{uuid.uuid4()}"
        server = stack.worker(
            rabbitmq.url, redis_server.url, "shop", pool, 2, [queue],
            env={"PYTHONPATH": ROOT, **env}, cwd=tmp_path,
        )  # fmt: skip
        requester = Requester(rabbitmq.url, queue)
        started.append((server, requester))
        return server, requester

    yield start
    for server, requester in started:
        requester.close()
        server.kill()


def at_once(server, *sends):
    """Let all messages be there before the worker reads one."""
    os.kill(server.pid, signal.SIGSTOP)
    ids = [send() for send in sends]
    os.kill(server.pid, signal.SIGCONT)
    return ids


def test_no_reply_waits_for_a_slow_task(start, redis_server):
    # Given a task that was quick so far,
    server, requester = start()
    gate = f"gate-{uuid.uuid4()}"
    for _ in range(3):
        assert requester.call("shop.gate")["result"] == "hello"

    # when it is slow once, after others that have come with it,
    *quick, slow = at_once(
        server,
        *[lambda: requester.send("shop.gate")] * 5,
        lambda: requester.send("shop.gate", query={"gate": gate}),
    )

    # then their replies are there before it ends.
    assert [requester.reply(task_id)[1]["status"] for task_id in quick] == ["SUCCESS"] * 5
    assert not requester.replied(slow)
    with redis.Redis.from_url(redis_server.url) as client:
        client.rpush(gate, "go")
    assert requester.reply(slow)[1]["status"] == "SUCCESS"


@pytest.mark.parametrize("pool", ["solo", "prefork", "threads"])
@pytest.mark.parametrize("switch", ["1", "0"])
def test_messages_of_any_size_are_read(start, rabbitmq, pool, switch):
    server, requester = start(pool, GATEWAY_WORKER_STREAM=switch)
    bodies = ["x" * size for size in (0, 300_000, 1, 65_000, 131_000, 5_000, 140_000, 64_000)] * 3

    ids = at_once(server, *[lambda body=body: requester.send("shop.gate", body) for body in bodies])

    assert [requester.reply(task_id)[1]["result"] for task_id in ids] == bodies
    # Then all are acknowledged, so that nothing would run again.
    until(lambda: messages(rabbitmq, requester.queue) == 0)


def messages(rabbitmq, queue: str) -> int:
    """Return how many messages are in the queue or not acknowledged."""
    listed = rabbitmq.ctl("list_queues", "name", "messages", "--no-table-headers").split()
    return int(listed[listed.index(queue) + 1])


def test_what_cannot_be_run_stops_nothing(start, rabbitmq):
    server, requester = start()

    def publish(body: bytes, content_type: str = "application/json", **headers) -> None:
        headers = {"task": "shop.gate", "id": str(uuid.uuid4()), **headers}
        properties = pika.BasicProperties(
            content_type=content_type, content_encoding="utf-8", headers=headers
        )
        requester._channel.basic_publish("", requester.queue, body, properties)

    call = json.dumps([[{}, {}, "x"], {}, {}]).encode()
    at_once(
        server,
        lambda: publish(b"no JSON"),
        lambda: publish(call, "application/x-python-serialize"),
        lambda: publish(call, eta="never"),
        lambda: publish(call, task="unknown"),
        lambda: requester.send("shop.refuse"),
    )

    assert requester.call("shop.gate")["result"] == "hello"
    until(lambda: messages(rabbitmq, requester.queue) == 0)
