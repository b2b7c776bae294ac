"""A Celery app that knows nothing of this project serves the strategies as it is."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.config.strategies import STRATEGIES
from tests.support.requests import post_all
from tests.support.stack import RabbitMQ, Server, Stack

APP = """
import os
from celery import Celery

app = Celery("x", broker=os.environ["BROKER"], backend=os.environ["BACKEND"])

@app.task(name="shop.take_order")
def take_order(query, headers, body):
    return {"body": body, "query": query, "host": headers["host"]}
"""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("stock")
    (home / "shop.py").write_text(APP)
    for queue in ("stock-redis", "stock-rpc"):
        (home / f"{queue}.toml").write_text(
            f'[[routes]]\npath = "/"\ntask = "shop.take_order"\nqueue = "{queue}"\n'
        )
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
    assert workers[queue].alive()
    gateway.stop()
