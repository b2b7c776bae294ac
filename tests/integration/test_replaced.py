"""Tasks that Celery's client hears of, and `pika` does not: what docs/appserver.md says of them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.requests import post_each
from tests.support.stack import RabbitMQ, Server, Stack

TASKS = ("by_task", "by_chain", "by_group", "odd")
ROUTES = "".join(
    f'[[routes]]\npath = "/{name}"\ntask = "replacing.{name}"\ndeadline = 2\n' for name in TASKS
)


@pytest.fixture(scope="module")
def worker(stack: Stack, rabbitmq: RabbitMQ, redis_server: Server) -> Iterator[Server]:
    app = "tests.integration.replacing_tasks"
    worker = stack.worker(rabbitmq.url, redis_server.url, app=app)
    yield worker
    worker.kill()


@pytest.mark.parametrize(
    ("strategy", "statuses", "odd"), [("redis", [200, 200, 200], 502), ("pika", [504] * 3, 502)]
)
def test_only_pika_does_not_hear_of_a_task_that_is_replaced(
    stack, rabbitmq, redis_server, worker, tmp_path, strategy, statuses, odd
):
    (tmp_path / "gateway.toml").write_text(ROUTES)
    urls = ("--broker", rabbitmq.url, "--result-backend", redis_server.url)
    config = ("--config", str(tmp_path / "gateway.toml"))
    gateway = stack.gateway("--strategy", strategy, *urls, *config)

    answers = post_each([(f"{gateway.url}/{name}", b"x") for name in TASKS])

    assert [answer.code for answer in answers] == [*statuses, odd]
    assert b"EncodeError" in answers[-1].body
    if strategy == "redis":
        assert [answer.body for answer in answers[:3]] == [b"x", b"x", b'["x","x"]']
    gateway.kill()
