"""The oracle notices each promise that a row or a seed breaks, and nothing else."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.faults.client import PersistentSender
from tests.faults.faults import CHILD, CONNECTIONS, FROZEN, KILLED, RELOADED, SUBSCRIBERS
from tests.faults.oracle import (
    RULES,
    Execution,
    Judge,
    Remains,
    RowJudge,
    RowResult,
    SeedResult,
    judge_remains,
    rules_of,
)
from tests.faults.trial import Row
from tests.simulation.records import GONE, REFUSED, RESET, SILENT, Injected, Try

FAULT = Injected("fault", "all", 100, 110)
ROW = Row(1, "a fault", lambda trial: None, (503,))


def sent(name: str, at: float = 50, took: float = 0.1, status: int | str = 200) -> Try:
    return Try(name, 1, "/echo", "gateway", at, answered=at + took, status=status, body=name)


def execution(name: str, attempt: int = 1, task: str = "") -> Execution:
    return Execution(name, task or f"task-of-{name}", attempt > 1, attempt)


SENT = [sent("before"), sent("inside", 105, status=503), sent("after", 112)]
DONE = [execution("before"), execution("after")]


def of_row(requests=SENT, done=DONE, row=ROW, excused=()) -> RowResult:
    result = RowResult(row=1, title="a fault", strategy="pika")
    result.judge(RowJudge(row, "pika", requests, done, FAULT, excused), rules_of(row))
    return result


def test_the_promises_that_a_row_keeps_hold():
    result = of_row()

    assert result.holds
    figures = (result.sent, result.acknowledged, result.executed, result.lost, result.late)
    assert figures == (3, 2, 2, 0, 0)
    assert result.recovery == 0
    assert result.statuses == {"200": 2, "503": 1}


def test_recovery_is_counted_from_the_faults_end_to_the_last_that_failed():
    assert of_row([*SENT, sent("late 503", 113.5, status=503)]).recovery == 3.5


@pytest.mark.parametrize(
    ("requests", "done", "problem"),
    [
        (SENT, DONE[:1], "lost: 1 (after.1"),
        ([sent("x", 105, status=503)], [], "nothing was acknowledged"),
        (SENT, [*DONE, execution("after", 2)], "executed again: 1 (after 2 times)"),
        (SENT, [*DONE, execution("after", 1, "another task")], "second task ids: 1 (after"),
        ([*SENT, sent("x", took=8.6)], [*DONE, execution("x")], "late: 1 (x.1"),
        ([*SENT, sent("x", 90, status=503)], DONE, "failed before the first fault: 1 (x.1"),
        ([*SENT, sent("x", 126.0, status=503)], DONE, "recovered only after 16.0 s"),
        ([*SENT, sent("x", 105, status=502)], DONE, "a status that no fault explains: 1 (x.1"),
        ([*SENT, sent("x", 105, status=RESET)], DONE, "a status that no fault explains: 1 (x.1"),
        ([*SENT, replace(sent("x"), body="before")], [*DONE, execution("x")], "another's answer"),
    ],
)
def test_a_promise_that_a_row_breaks_is_told(requests, done, problem):
    result = of_row(requests, done)

    assert not result.holds
    assert any(problem in line for line in result.problems), result.problems


def test_what_a_row_allows_is_no_problem():
    again = of_row(done=[*DONE, execution("after", 2)], row=replace(ROW, again=True))
    excused = of_row([*SENT, sent("x", 105, status=502)], excused=["x"])

    assert again.holds and again.duplicated == 1
    assert excused.holds and excused.sent == 3
    # A second try of the same delivery, whose claim was lost.
    tried = [*SENT, sent("after", 114)]
    second = replace(ROW, second=True)
    for task in (execution("after", 2), execution("after", 2, "another task")):
        assert of_row(tried, [*DONE, task], second).holds
        assert not of_row(tried, [*DONE, task, task], second).holds
        assert not of_row(tried, [*DONE, task]).holds


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
    result = RowResult(row=1, title="a fault", strategy="pika")
    judge_remains(result, BEFORE, BEFORE, same=True)
    assert result.holds

    judge_remains(result, BEFORE, replace(BEFORE, **changes), same=True)
    assert result.problems == [problem]


def test_other_processes_are_allowed_where_some_are_replaced_but_no_more_of_them():
    result = RowResult(row=25, title="a fault", strategy="pika")
    judge_remains(result, BEFORE, replace(BEFORE, pids=[8]), same=False)
    assert result.holds

    judge_remains(result, BEFORE, replace(BEFORE, pids=[8, 9]), same=False)
    assert result.problems == ["2 processes, 1 before"]


# Seeds --------------------------------------------------------------------------------------

#: From 100 to 130 s; nobody has cut a worker or the broker off before 110 s.
FAULTS = [
    Injected(RELOADED, "gateway-1", 100, 100),
    Injected(SUBSCRIBERS, "redis", 105, 105),
    Injected(FROZEN, "gateway-1", 110, 118, "for 8.0 s"),
    Injected(KILLED, "gateway-2", 121, 124),
    Injected(CHILD, "gateway-1", 126, 126),
    Injected(CONNECTIONS, "broker", 129, 130),
]


def tried(name: str, at: float = 103, status: int | str = 200, took: float = 0.2, **more) -> Try:
    """Make a try: ``d1.2`` is the second of the delivery d1."""
    delivery, _, number = name.partition(".")
    one = Try(delivery, int(number), "/wait", "gateway-1", at, answered=at + took, status=status)
    if status == 200:
        one.body = f"{delivery} nonce-of-{delivery}"
    for field, value in more.items():
        setattr(one, field, value)
    return one


def ran(name: str, at: float = 103.1, **more) -> Execution:
    delivery = name.partition(".")[0]
    one = Execution(
        delivery, f"task-of-{delivery}", False, by=name, nonce=f"nonce-of-{delivery}", at=at
    )
    return replace(one, **more)


TRIES = [tried("d1.1"), tried("d2.1", status=503, type="full"), tried("d2.2", 104, 202)]
RAN = [ran("d1.1"), ran("d2.2")]


def evidence(tries=(), done=(), strategy="pika", **more) -> Judge:
    deadlines = PersistentSender.DEADLINES
    return Judge(strategy, [*TRIES, *tries], [*RAN, *done], FAULTS, deadlines, **more)


def of_seed(judge: Judge) -> SeedResult:
    result = SeedResult(seed=1, strategy=judge.seen.strategy, seconds=30)
    result.judge(judge)
    return result


def test_the_promises_that_a_seed_keeps_hold():
    result = of_seed(evidence(read={"d2": "d2 nonce-of-d2"}))

    assert result.problems == []
    assert (result.sent, result.tries, result.acknowledged, result.executed) == (2, 3, 2, 2)
    assert result.statuses == {"200": 1, "202": 1, "503": 1}
    assert result.recovery == 0


AFTER = 130  # the last fault's end

#: For each rule, what breaks it.
BROKEN = {
    "lost": [evidence([tried("d3.1", status=202)])],
    "never acknowledged": [evidence([tried("d3.1", status=504), tried("d3.2", 112, status=504)])],
    "another's answer, or nobody's": [
        evidence([tried("d3.1", body="d1 nonce-of-d1")], [ran("d3.1")]),
        evidence([tried("d3.1", body="d3 nonce-of-nobody")], [ran("d3.1")]),
        evidence(read={"d2": "d1 nonce-of-d1"}),
        evidence(read={"d2": "d2 nonce-of-nobody"}),
    ],
    "different answers": [
        evidence(
            [tried("d3.1"), tried("d3.2", 112, body="d3 other")],
            [ran("d3.1"), ran("d3.1", 112, nonce="other")],
        ),
        evidence([tried("d3.1", body="d3 other")], [ran("d3.1", nonce="other"), ran("d3.1", 112)],
                 read={"d3": "d3 nonce-of-d3"}),
    ],
    "second task ids": [
        evidence([tried("d3.1"), tried("d3.2")], [ran("d3.1"), ran("d3.2", task="second")]),
        # A failure of the second one excuses nothing, in whichever order they ran.
        evidence(
            [tried("d3.1"), tried("d3.2", status=502, type="task-failed", task="second")],
            [ran("d3.2", task="second"), ran("d3.1", 112)],
        ),
    ],
    "refused, and run": [
        evidence([tried("d3.1", status=503, type=kind), tried("d3.2")], [ran("d3.1")])
        for kind in ("state-unavailable", "broker-unavailable", "broker-blocked", "full",
                     "draining", "unroutable", "rejected", "results-unavailable")
    ],
    "run again without a cause": [evidence([tried("d3.1")], [ran("d3.1"), ran("d3.1", 104)])],
    "late": [
        evidence([tried("d3.1", took=5.6)], [ran("d3.1")]),
        evidence([tried("d3.1", 122, took=5.6)], [ran("d3.1")]),
        evidence([tried("d3.1", took=5.6, delay=0.2)], [ran("d3.1")]),
        evidence([tried("d3.1", took=6, status=SILENT), tried("d3.2")], [ran("d3.2")]),
        evidence([tried("d3.1", 104, 202, took=2.6, route="/wait-then-accept")], [ran("d3.1")]),
    ],
    "errors of its own": [evidence([tried("d3.1", status=500), tried("d3.2")], [ran("d3.2")])],
    "dropped by a gateway that was not killed": [
        evidence([tried("d3.1", at, status=status, gateway=gateway), tried("d3.2")], [ran("d3.2")])
        for at, status, gateway in [(103, RESET, "gateway-1"), (112, RESET, "gateway-1"),
                                    (122, REFUSED, "gateway-1"), (126, RESET, "gateway-2")]
    ],
    "a status that no fault explains": [
        evidence([tried("d3.1", status=status), tried("d3.2")], [ran("d3.2")])
        for status in (404, 409, 429)
    ],
    "failed before the first fault": [
        evidence([tried("d3.1", 99, status=503), tried("d3.2")], [ran("d3.2")])
    ],
}  # fmt: skip


def test_each_rule_is_tried():
    assert BROKEN.keys() == RULES.keys()


@pytest.mark.parametrize(
    ("rule", "seen"), [(rule, seen) for rule, broken in BROKEN.items() for seen in broken]
)
def test_a_broken_promise_is_told_by_its_rule_and_by_no_other(rule: str, seen: Judge):
    result = of_seed(seen)

    assert [problem.partition(":")[0] for problem in result.problems] == [rule]


def test_findings_are_counted():
    tries = [tried("d3.1", status=202), tried("d4.1", status=500), tried("d4.2", took=6)]
    done = [ran("d4.2"), ran("d4.3", task="second", nonce="other"), ran("d1.1", 104)]
    result = of_seed(evidence([*tries, tried("d4.3", body="d4 other")], done))

    figures = (result.lost, result.late, result.errors_500, result.second_ids)
    assert figures == (1, 1, 1, 1)
    assert (result.different_answers, result.duplicated) == (1, 1)


LOST = "The connection to the broker was lost."
EXCUSED = {
    "a first task that failed, as its sender was told": evidence(
        [tried("d3.1", status=502, type="task-failed", task="task-of-d3"), tried("d3.2")],
        [ran("d3.1", nonce="unread"), ran("d3.2", task="second")],
    ),
    "a first task whose result is a failure": evidence(
        [tried("d3.1")],
        [ran("d3.1", nonce="unread"), ran("d3.2", task="second")],
        failed={"task-of-d3"},
    ),
    "a try that was not confirmed, and ran": evidence(
        [tried("d3.1", status=503, type="not-confirmed"), tried("d3.2")], [ran("d3.1")]
    ),
    "a connection that was lost before the confirm": evidence(
        [tried("d3.1", status=503, type="broker-unavailable", detail=LOST), tried("d3.2")],
        [ran("d3.1")],
    ),
    "a strategy that does not say which of the two it was": evidence(
        [tried("d3.1", status=503, type="broker-unavailable"), tried("d3.2")],
        [ran("d3.1")],
        strategy="gevent",
    ),
    "a task that ran again after the broker had closed connections": evidence(
        [tried("d3.1", 128)], [ran("d3.1", 128.1), ran("d3.1", 130)]
    ),
    "a late answer of a frozen gateway": evidence([tried("d3.1", 109, took=10)], [ran("d3.1")]),
    "a late answer on a machine that stood still": evidence(
        [tried("d3.1", took=6, delay=0.4)], [ran("d3.1")]
    ),
    "a sender that did not wait": evidence(
        [tried("d3.1", AFTER + 20, status=GONE, took=1), tried("d3.2", AFTER + 20)], [ran("d3.1")]
    ),
    "a connection of a gateway that was killed": evidence(
        [tried("d3.1", 120, RESET, 1.1, gateway="gateway-2"), tried("d3.2")], [ran("d3.2")]
    ),
    "a connection of a child that was killed": evidence(
        [tried("d3.1", 125.9, RESET), tried("d3.2")], [ran("d3.2")]
    ),
}


@pytest.mark.parametrize("seen", EXCUSED.values(), ids=EXCUSED)
def test_what_faults_excuse_is_no_problem(seen: Judge):
    assert of_seed(seen).problems == []


@pytest.mark.parametrize(("seconds", "holds"), [(14.9, True), (15.1, False)])
def test_everything_serves_15_s_after_the_last_fault(seconds: float, holds: bool):
    again = tried("d3.2", AFTER + seconds + 1)
    failed = tried("d3.1", AFTER + seconds, status=503, type="not-confirmed")
    result = of_seed(evidence([failed, again], [ran("d3.2")]))

    assert result.recovery == seconds
    assert result.problems == ([] if holds else [f"recovered only after {seconds} s"])


def test_what_is_shown_says_when_it_was():
    result = of_seed(evidence([tried("d3.1", 122.5, status=202)]))

    assert result.problems == ["lost: 1 (d3.1 at 22.500 s /wait gateway-1 202 after 0.200 s)"]
    assert result.injected[2] == "  10.0 to   18.0 s  gateway-1 frozen for 8.0 s"
