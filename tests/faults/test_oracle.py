"""The oracle notices each promise that is broken, and nothing where all are kept."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.faults import oracle
from tests.faults.client import RESET, Sent
from tests.faults.oracle import Execution, Remains, Result, Window

DEADLINE = 8.0
WINDOW = Window(began=100, ended=110, statuses=frozenset({503}))


def sent(name: str, at: float = 50, took: float = 0.1, status: int | str = 200) -> Sent:
    return Sent(name, "/echo", at, at + took, status, body=name)


def execution(name: str, attempt: int = 1, task: str = "") -> Execution:
    return Execution(name, task or f"task-of-{name}", attempt > 1, attempt)


SENT = [sent("before"), sent("inside", 105, status=503), sent("after", 112)]
DONE = [execution("before"), execution("after")]


def judged(requests=SENT, done=DONE, window=WINDOW, **options) -> Result:
    result = Result(1, "a fault", "pika")
    oracle.judge(result, requests, done, window, DEADLINE, **options)
    return result


def test_kept_promises_hold():
    result = judged()

    assert result.holds
    figures = (result.sent, result.acknowledged, result.executed, result.lost, result.late)
    assert figures == (3, 2, 2, 0, 0)
    assert result.recovery == 0
    assert result.statuses == {"200": 2, "503": 1}


def test_recovery_is_counted_from_the_faults_end_to_the_last_that_failed():
    assert judged([*SENT, sent("late 503", 113.5, status=503)]).recovery == 3.5


@pytest.mark.parametrize(
    ("requests", "done", "problem"),
    [
        (SENT, DONE[:1], "lost: ['after']"),
        ([sent("x", 105, status=503)], [], "nothing was acknowledged"),
        (SENT, [*DONE, execution("after", 2)], "1 executed again"),
        (SENT, [*DONE, execution("after", 1, "another task")], "under a second id"),
        ([*SENT, sent("x", took=8.6)], [*DONE, execution("x")], "late: 1 (x"),
        ([*SENT, sent("x", 90, status=503)], DONE, "not 2xx outside of the fault: 1 (x"),
        ([*SENT, sent("x", 126.0, status=503)], DONE, "recovered only after 16.0 s"),
        ([*SENT, sent("x", 105, status=502)], DONE, "a status that the row does not name: 1 (x"),
        ([*SENT, sent("x", 105, status=RESET)], DONE, "a status that the row does not name: 1 (x"),
        ([*SENT, replace(sent("x"), body="before")], [*DONE, execution("x")], "another's answer"),
    ],
)
def test_a_broken_promise_is_told(requests, done, problem):
    result = judged(requests, done)

    assert not result.holds
    assert any(problem in line for line in result.problems), result.problems


def test_what_a_row_allows_is_no_problem():
    again = judged(done=[*DONE, execution("after", 2)], window=replace(WINDOW, again=True))
    excused = judged([*SENT, sent("x", 105, status=502)], excused=["x"])

    assert again.holds and again.duplicated == 1
    # A second try of the same delivery, whose claim was lost.
    tried = [*SENT, sent("after", 114)]
    second = replace(WINDOW, second=True)
    for task in (execution("after", 2), execution("after", 2, "another task")):
        assert judged(tried, [*DONE, task], second).holds
        assert not judged(tried, [*DONE, task, task], second).holds
        assert not judged(tried, [*DONE, task]).holds
    assert excused.holds and excused.sent == 3


BEFORE = Remains(pids=[7], descriptors=20, memory=50 * 2**20)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"in_flight": 1}, "1 requests are still under way"),
        ({"connections": 2}, "2 HTTP connections are still open"),
        ({"pids": [8]}, "a process was restarted"),
        ({"descriptors": 40}, "40 descriptors, 20 before"),
        ({"memory": 100 * 2**20}, "100 MB, 50 before"),
    ],
)
def test_what_stays_behind_is_told(changes, problem):
    result = Result(1, "a fault", "pika")
    oracle.judge_remains(result, BEFORE, BEFORE, same=True)
    assert result.holds

    oracle.judge_remains(result, BEFORE, replace(BEFORE, **changes), same=True)
    assert result.problems == [problem]


def test_other_processes_are_allowed_where_some_are_replaced_but_no_more_of_them():
    result = Result(25, "a fault", "pika")
    oracle.judge_remains(result, BEFORE, replace(BEFORE, pids=[8]), same=False)
    assert result.holds

    oracle.judge_remains(result, BEFORE, replace(BEFORE, pids=[8, 9]), same=False)
    assert result.problems == ["2 processes, 1 before"]
