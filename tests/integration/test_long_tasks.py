"""A task that takes longer than RabbitMQ's `consumer_timeout` begins again, but not without end."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from gateway.cli import main
from gateway.stack.server import poll
from tests.integration.losses import TIMEOUT, Servers, accept, result
from tests.integration.test_poison import RUNS
from tests.support.stack import RabbitMQ

LIMIT, TICK = 1_500, 500  # milliseconds


@pytest.fixture(scope="module")
def broker(own_rabbitmq: RabbitMQ) -> Iterator[RabbitMQ]:
    with (
        own_rabbitmq.setting("consumer_timeout", LIMIT),
        own_rabbitmq.setting("channel_tick_interval", TICK),
    ):
        yield own_rabbitmq


@pytest.fixture
def servers(stack, broker, results, tmp_path_factory) -> Servers:
    return Servers(stack, broker, results.url, tmp_path_factory.mktemp("long"))


@pytest.mark.parametrize("pool", ["prefork", "threads", "gevent"])
def test_a_task_that_takes_too_long_begins_four_times(servers, pool, capsys):
    worker = servers.worker(pool, concurrency=2 * RUNS)
    gateway = servers.gateway()
    location = accept(gateway, "until=go", "long")

    assert poll(lambda: len(servers.noted()) == 1, TIMEOUT)
    neighbour = accept(gateway, "", "neighbour")
    status, problem = result(gateway, location)

    assert status == 502 and "WorkerLostError" in problem
    assert result(gateway, neighbour) == (200, "neighbour")
    assert [body for _, body in servers.dead_letters()] == ["long"]
    said = re.findall(r"delivers the messages of this worker again, .*: (.*)", worker.output())
    assert len(said) >= RUNS - 1 and all("faults.run" in tasks for tasks in said)
    main(["check", *servers.urls])
    assert re.search(r"has lost its messages \d+ times since its start", capsys.readouterr().out)
    (servers.directory / "go").touch()
    assert poll(lambda: len(servers.executions("long")) == RUNS, TIMEOUT)
    assert poll(lambda: servers.messages() == (0, 0), TIMEOUT)


def test_the_result_of_a_task_that_took_too_long_is_its_own(servers):
    servers.worker(concurrency=2 * RUNS)
    gateway = servers.gateway()

    location = accept(gateway, f"seconds={2 * LIMIT / 1000}", "slow")

    assert poll(lambda: [body for _, body in servers.dead_letters()] == ["slow"], TIMEOUT)
    assert poll(lambda: len(servers.executions("slow")) == RUNS, TIMEOUT)
    assert result(gateway, location) == (200, "slow")
