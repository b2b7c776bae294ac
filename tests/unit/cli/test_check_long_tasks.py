"""Tasks that take longer than RabbitMQ's `consumer_timeout` are found by what workers tell."""

from __future__ import annotations

import time

import pytest

from gateway.amqp.workers import Answers
from gateway.cli.checks import long_tasks
from gateway.config.settings import Config


def problems(answers: Answers, **route) -> list[str]:
    found = long_tasks.judge(Config(routes=[{"path": "/", "queue": "q", **route}]), answers)
    assert all((one.status, one.check) == ("warn", long_tasks.LONG) for one in found)
    return [one.problem.split(";")[0] for one in found]


def told(question: str, said: object) -> Answers:
    answers = Answers()
    answers.take("active_queues", {"w": [{"name": "q"}]})
    answers.take(question, {"w": said})
    return answers


def running(task_id: str = "1", seconds: float = 0, acknowledged: bool = False) -> dict:
    about = {"id": task_id, "name": "shop.report", "acknowledged": acknowledged}
    return {**about, "time_start": time.time() - seconds}


@pytest.mark.parametrize(
    ("route", "found"),
    [
        ({}, []),
        ({"time_limit": 1799}, []),
        ({"time_limit": 1800}, ["task api.core.main has time_limit = 1800 in its route"]),
        ({"time_limit": 60, "queue_arguments": {"x-consumer-timeout": 60_000}},
         ["task api.core.main has time_limit = 60 in its route"]),
        ({"countdown": 1200, "time_limit": 600},
         ["task api.core.main has countdown = 1200 and time_limit = 600 in its route"]),
        ({"time_limit": 7200, "queue_arguments": {"x-consumer-timeout": 9_000_000}}, []),
    ],
)  # fmt: skip
def test_a_limit_of_a_route_is_below_the_timeout_of_its_queue(route, found):
    assert problems(Answers(), **route) == found


@pytest.mark.parametrize(
    ("late", "limit", "arguments", "number"),
    [
        (True, None, {}, 0),
        (True, 1799, {}, 0),
        (True, 1800, {}, 1),
        (False, 3600, {}, 0),
        (True, 3600, {"x-consumer-timeout": 7_200_000}, 0),
    ],
)
def test_a_worker_s_limit_is_below_the_timeout_where_it_acknowledges_late(
    late, limit, arguments, number
):
    settings = {"result_backend": None, "task_acks_late": late, "task_time_limit": limit}
    found = problems(told("conf", settings), queue_arguments=arguments)
    assert found == [f"w has task_acks_late and task_time_limit = {limit}"] * number


@pytest.mark.parametrize(
    ("task", "number"),
    [
        (lambda: running(seconds=800), 0),
        (lambda: running(seconds=910), 1),
        (lambda: running(seconds=9_000, acknowledged=True), 0),
        (lambda: {"id": "1"}, 0),
        (lambda: None, 0),
    ],
)
def test_a_task_that_runs_for_long_without_an_acknowledgement_is_named(task, number):
    found = problems(told("active", [task()]))
    assert [one.rpartition(" for ")[0] for one in found] == ["w has run shop.report 1"] * number


def test_a_task_that_runs_twice_at_once_is_named():
    answers = told("active", [running("1"), running("2")])
    answers.take("active", {"v": [running("1")]})
    assert problems(answers) == ["shop.report 1 runs 2 times at once (v, w)"]


@pytest.mark.parametrize(("said", "number"), [(0, 0), (3, 1), ("3", 0), (None, 0)])
def test_timeouts_that_a_worker_has_counted_are_told(said, number):
    found = problems(told("stats", {"consumer_timeouts": said}))
    assert found == ["w has lost its messages 3 times since its start"] * number
