"""`gateway check` of workers: who answers, who has the tasks."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
import redis

from tests.docs.test_documents import ROOT
from tests.integration.checking import ROUTE, check, servers_at, write
from tests.support.stack import Server
from tests.support.waiting import until


@pytest.fixture
def client(redis_server: Server) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(redis_server.url, decode_responses=True) as client:
        yield client


# Who answers ----------------------------------------------------------------------------------


def test_no_worker_at_all(urls):
    checked = check(*urls)
    assert checked.code == 1
    assert "celery -A APP worker -n NAME@%h -Q celery" in checked.of("workers").text


def test_workers_on_the_queue_that_lack_its_task(
    stack, rabbitmq, redis_server, worker_with, tmp_path
):
    # Given a worker on the route's queue that lacks the task, and one elsewhere that has it,
    config = write(tmp_path, ROUTE + 'task = "faults.run"\n')
    other = {"app": "tests.faults.tasks", "queues": ["elsewhere"], "cwd": ROOT}
    elsewhere = stack.worker(rabbitmq.url, redis_server.url, **other)
    with worker_with():
        checked = check(*config, *servers_at(rabbitmq.url, redis_server.url))
    elsewhere.kill()
    assert checked.code == 1
    line = checked.of("task faults.run")
    assert re.search(r"\S+ on celery lacks it; \S+ has it", line.text)


def test_a_route_that_gives_its_task_other_arguments_than_it_takes(
    rabbitmq, redis_server, worker_with, tmp_path
):
    config = write(tmp_path, ROUTE + 'kwargs = { query = "body", header = "body" }\n')
    with worker_with():
        checked = check(*config, *servers_at(rabbitmq.url, redis_server.url))
    line = checked.of("task api.core.main")
    assert (checked.code, line.status) == (1, "FAIL")
    assert "it takes `headers`, and gets `header`" in line.text


def test_workers_without_remote_control_cannot_be_looked_at(urls, worker_with):
    with worker_with(lines="app.conf.worker_enable_remote_control = False"):
        checked = check(*urls)
    line = checked.of("workers")
    assert (checked.code, line.status) == (0, "warn")
    assert "worker_enable_remote_control" in line.text
    assert checked.of("task").status == "skip"


def test_workers_that_answer_in_another_form_are_no_error(urls, worker_with):
    with worker_with(
        lines="app.conf.update(task_serializer='yaml', accept_content=['yaml', 'json'])"
    ):
        checked = check(*urls)
    assert checked.of("workers").status in ("warn", "FAIL")


def test_a_fleet_is_one_line(urls, worker_with):
    with worker_with(), worker_with(), worker_with(), worker_with():
        checked = check(*urls)
    assert checked.well
    assert re.fullmatch(
        r"4 answered: (worker-\w+@localhost, ){2}worker-\w+@localhost and 1 more",
        checked.of("workers").text,
    )
    assert checked.of("stored results").text.startswith("4 of 4 ")


# Nothing is run, nothing stays ----------------------------------------------------------------


def test_no_task_is_run_and_nothing_stays(urls, rabbitmq, client, worker_with, tmp_path):
    client.flushall()
    with worker_with(lines=""):
        before = rabbitmq.ctl("list_queues", "name", "messages")
        assert check(*urls).well
        # A message is acknowledged after its reply.
        until(lambda: rabbitmq.ctl("list_queues", "name", "messages") == before, 30)
    assert client.keys("*") == []
    assert not (tmp_path / "ran").exists()
