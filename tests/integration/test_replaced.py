"""Tasks that put others in their place have one answer with every strategy."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from gateway.config.strategies import STRATEGIES
from tests.support.requests import post_each
from tests.support.stack import RabbitMQ, Server, Stack

TASKS = ("by_task", "by_chain", "by_group", "by_chord", "odd")
ROUTES = "".join(
    f'[[routes]]\npath = "/{name}"\ntask = "replacing.{name}"\ndeadline = 10\n' for name in TASKS
)


@pytest.fixture(scope="module")
def worker(stack: Stack, rabbitmq: RabbitMQ, redis_server: Server) -> Iterator[Server]:
    app = "tests.integration.replacing_tasks"
    worker = stack.worker(rabbitmq.url, redis_server.url, app=app)
    yield worker
    worker.kill()


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_the_task_in_its_place_answers(stack, rabbitmq, redis_server, worker, tmp_path, strategy):
    (tmp_path / "gateway.toml").write_text(ROUTES)
    urls = ("--broker", rabbitmq.url, "--result-backend", redis_server.url)
    config = ("--config", str(tmp_path / "gateway.toml"))
    gateway = stack.gateway("--strategy", strategy, *urls, *config)

    answers = post_each([(f"{gateway.url}/{name}", b"x") for name in TASKS])

    assert [answer.code for answer in answers] == [200] * 4 + [502]
    assert b"could not encode" in answers[-1].body
    assert [answer.body for answer in answers[:4]] == [b"x", b"x", b'["x","x"]', b"xx"]
    gateway.kill()
