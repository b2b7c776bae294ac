"""Workers that the broker refuses at first: queues that it has otherwise, a name that is taken."""

from __future__ import annotations

import sys
import uuid
from collections.abc import Iterator

import pytest

from tests.integration.checking import ROUTE, check, servers_at, worker_of, write
from tests.support.config import route
from tests.support.requests import post
from tests.support.stack import RabbitMQ
from tests.support.waiting import until

SHOP = """
import os
import appserver
from celery import Celery
urls = {"broker": os.environ["GATEWAY_BROKER_URL"], "backend": os.environ["GATEWAY_RESULT_BACKEND"]}
app = Celery("shop", **urls)
appserver.setup(app)

@app.task(name="api.core.main")
def main(query, headers, body):
    return body
"""
DEAD = {"x-dead-letter-exchange": "gateway.dead", "x-delivery-limit": 20}
QUORUM = {"queue_type": "quorum", "queue_arguments": DEAD}


@pytest.fixture
def quorum_url(rabbitmq: RabbitMQ) -> Iterator[str]:
    """A virtual host where a queue that names no type is a quorum queue."""
    name = f"quorum-{uuid.uuid4().hex}"
    rabbitmq.ctl("add_vhost", name, "--default-queue-type", "quorum")
    rabbitmq.ctl("set_permissions", "-p", name, "guest", ".*", ".*", ".*")
    yield f"{rabbitmq.url.removesuffix('/')}{name}"
    rabbitmq.ctl("delete_vhost", name)


@pytest.mark.parametrize("lines", [None, "import appserver; appserver.setup(app)"])
def test_workers_consume_quorum_queues_by_default(stack, quorum_url, redis_server, tmp_path, lines):
    servers = servers_at(quorum_url, redis_server.url)
    gateway = stack.gateway(*servers)
    with worker_of(stack, quorum_url, tmp_path, redis_server.url, lines) as worker:
        until(lambda: "the prefetch limit holds for each queue" in worker.output(), 30)
        until(lambda: check(*servers).well, 30, said=worker.output)
        countdown = check(*write(tmp_path, ROUTE + "countdown = 1\n"), *servers)
        assert countdown.code == 1
        assert "it is a quorum queue by the default" in countdown.of("queue celery").text
        if lines is None:
            assert post(f"{gateway.url}/", b"hello").body == b"hello"
        assert worker.output().count("does not support global qos") <= 2  # Celery's line, and ours


def test_a_stock_worker_that_cannot_consume_it_is_told_what_to_set(stack, quorum_url, redis_server):
    stack.gateway("--broker", quorum_url, "--result-backend", redis_server.url)
    checked = check(*servers_at(quorum_url, redis_server.url))
    assert checked.code == 1
    text = checked.of("queue celery").text
    assert "no worker consumes it" in text and "task_default_queue_type" in text
    assert "appserver.setup(app)" in text


def test_a_queue_of_another_kind_is_left_out_until_deleted(
    stack, rabbitmq, redis_server, start_gateway, tmp_path
):
    known, other = f"known-{uuid.uuid4().hex}", f"other-{uuid.uuid4().hex}"
    start_gateway(route("/", None, queue=known)).stop()  # it has declared a classic queue
    (tmp_path / "shop.py").write_text(SHOP)
    options = {"app": "shop", "cwd": tmp_path, "queues": (known, other), "pool": "prefork"}
    worker = stack.worker(rabbitmq.url, redis_server.url, env={"GATEWAY_QUEUES": known}, **options)
    until(lambda: f"The queue {known} is not consumed" in worker.output(), 30, said=worker.output)
    gateway = start_gateway(route(f"/{other}", None, queue=other))
    assert post(f"{gateway.url}/{other}", b"hello").body == b"hello"  # the others are consumed
    gateway.stop()
    rabbitmq.ctl("delete_queue", known)
    until(lambda: f"The queue {known} is consumed again" in worker.output(), 30)
    gateway = start_gateway(route(f"/{known}", None, queue=known, **QUORUM))
    assert post(f"{gateway.url}/{known}", b"hello").body == b"hello"
    worker.stop()


def test_a_second_worker_of_a_name_says_so_and_does_not_spin(stack, rabbitmq, redis_server):
    env = {"GATEWAY_BROKER_URL": rabbitmq.url, "GATEWAY_RESULT_BACKEND": redis_server.url}
    name = f"twin-{uuid.uuid4().hex}@localhost"
    command = [sys.executable, "-m", "celery", "-A", "appserver", "worker", "-n", name]
    command += ["-P", "solo", "-Q", "celery", "-l", "INFO"]
    first = stack.spawn("worker", command, env=env, ready=f"{name} ready.")
    told = f"if another worker is called {name}, give this one a name of its own (-n NAME@%h)"
    second = stack.spawn("worker", command, env=env, ready=told)
    first.stop()
    until(lambda: f"{name} ready." in second.output(), 30, said=second.output)
    assert "Frequent restarts" not in second.output()
