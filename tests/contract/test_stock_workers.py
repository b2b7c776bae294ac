"""A Celery app that knows nothing of this project serves the strategies as it is."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.config.strategies import STRATEGIES
from tests.support.config import route
from tests.support.requests import post, post_all
from tests.support.stack import RabbitMQ, Server, Stack

pytestmark = pytest.mark.long

APP = """
import os
from celery import Celery, chain

app = Celery("x", broker=os.environ["BROKER"], backend=os.environ["BACKEND"])

@app.task(name="shop.take_order")
def take_order(query, headers, body):
    return {"body": body, "query": query, "host": headers["host"]}

@app.task(name="shop.part")
def part(text):
    return text

@app.task(name="shop.replaced", bind=True)
def replaced(self, query, headers, body):
    queue = self.request.delivery_info["routing_key"]
    return self.replace(chain(part.si("lost").set(queue=queue), part.si(body).set(queue=queue)))
"""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("stock")
    (home / "shop.py").write_text(APP)
    for queue, deadline in (("stock-redis", 30), ("stock-rpc", 2)):
        replaced = route("/replaced", "shop.replaced", queue=queue, deadline=deadline)
        (home / f"{queue}.toml").write_text(route("/", "shop.take_order", queue=queue) + replaced)
    return home


@pytest.fixture(scope="module")
def workers(
    stack: Stack, rabbitmq: RabbitMQ, redis_server: Server, home: Path
) -> Iterator[dict[str, Server]]:
    """A worker for each way of giving results, on a queue of its own."""
    backends = {"stock-redis": redis_server.url, "stock-rpc": "rpc://"}
    workers = {
        queue: stack.worker(
            rabbitmq.url,
            app="shop",
            queues=(queue,),
            cwd=home,
            env={"BROKER": rabbitmq.url, "BACKEND": backend, "PYTHONPATH": str(home)},
        )
        for queue, backend in backends.items()
    }
    yield workers
    # A stock worker takes seconds to react to a signal.
    for worker in workers.values():
        worker.kill()


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_stock_worker_serves(
    strategy: str, stack: Stack, rabbitmq: RabbitMQ, redis_server: Server, home: Path, workers
):
    queue = "stock-rpc" if strategy == "pika" else "stock-redis"
    gateway = stack.gateway(
        f"--strategy={strategy}",
        "--broker", rabbitmq.url,
        "--result-backend", redis_server.url,
        "--config", str(home / f"{queue}.toml"),
    )  # fmt: skip

    answers = post_all(f"{gateway.url}/?a=1&a=2", [b"%d" % n for n in range(6)], at_once=2)

    host = gateway.url.removeprefix("http://")
    assert [a.body for a in answers] == [
        b'{"body":"%d","query":{"a":"2"},"host":"%s"}' % (n, host.encode()) for n in range(6)
    ]
    # The chain's last task has the answer. A stock worker stores it, but does not reply with it.
    replaced = post(f"{gateway.url}/replaced", b"x")
    assert (replaced.code, replaced.body == b"x") == (
        (504, False) if strategy == "pika" else (200, True)
    )
    assert workers[queue].alive()
    gateway.stop()
