"""The oracle of the random faults notices each promise that is broken, and nothing else."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.faults.client import REFUSED, RESET, SILENT
from tests.faults.combined import oracle
from tests.faults.combined.injection import Injected
from tests.faults.combined.oracle import Result
from tests.faults.combined.rules import RULES, Evidence
from tests.faults.combined.schedule import (
    CHILD,
    CONNECTIONS,
    FROZEN,
    KILLED,
    RELOADED,
    SUBSCRIBERS,
    Fault,
)
from tests.faults.combined.senders import GONE, Try
from tests.faults.oracle import Execution


def injected(target: str, kind: str, began: float, ended: float) -> Injected:
    return Injected(Fault(began - 100, target, kind, ended - began), began, ended)


#: From 100 to 130 s; nobody has cut a worker or the broker off before 110 s.
FAULTS = [
    injected("gateway-1", RELOADED, 100, 100),
    injected("redis", SUBSCRIBERS, 105, 105),
    injected("gateway-1", FROZEN, 110, 118),
    injected("gateway-2", KILLED, 121, 124),
    injected("gateway-1", CHILD, 126, 126),
    injected("broker", CONNECTIONS, 129, 130),
]


def tried(name: str, at: float = 103, status: int | str = 200, took: float = 0.2, **more) -> Try:
    """Make a try: ``d1.2`` is the second of the delivery d1."""
    delivery, _, number = name.partition(".")
    one = Try(delivery, int(number), "/wait", "gateway-1", at, at + took, status)
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
DONE = [ran("d1.1"), ran("d2.2")]


def evidence(tries=(), done=(), strategy="pika", **more) -> Evidence:
    return Evidence(strategy, [*TRIES, *tries], [*DONE, *done], FAULTS, **more)


def judged(seen: Evidence) -> Result:
    result = Result(1, seen.strategy, 30)
    oracle.judge(result, seen)
    return result


def test_kept_promises_hold():
    result = judged(evidence(read={"d2": "d2 nonce-of-d2"}))

    assert result.problems == []
    assert (result.sent, result.tries, result.acknowledged, result.executed) == (2, 3, 2, 2)
    assert result.statuses == {"200": 1, "202": 1, "503": 1}
    assert result.recovery == 0


AFTER = 130  # the last fault's end

#: For each rule, what breaks it.
BROKEN = {
    "lost": [evidence([tried("d3.1", status=202)])],
    "never acknowledged": [
        evidence([tried("d3.1", status=504), tried("d3.2", 112, status=504)]),
    ],
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
        for kind in (
            "state-unavailable",
            "broker-unavailable",
            "broker-blocked",
            "full",
            "draining",
            "unroutable",
            "rejected",
            "results-unavailable",
        )
    ],
    "run again without a cause": [evidence([tried("d3.1")], [ran("d3.1"), ran("d3.1", 104)])],
    "late": [
        evidence([tried("d3.1", took=5.6)], [ran("d3.1")]),
        evidence([tried("d3.1", 122, took=5.6)], [ran("d3.1")]),
        evidence([tried("d3.1", took=5.6, delay=0.2)], [ran("d3.1")]),
        evidence([tried("d3.1", took=6, status=SILENT), tried("d3.2")], [ran("d3.2")]),
        evidence([tried("d3.1", 104, 202, took=2.6, route="/wait-then-accept")], [ran("d3.1")]),
    ],
    "500": [evidence([tried("d3.1", status=500), tried("d3.2")], [ran("d3.2")])],
    "dropped by a gateway that was not killed": [
        evidence([tried("d3.1", at, status=status, gateway=gateway), tried("d3.2")], [ran("d3.2")])
        for at, status, gateway in [
            (103, RESET, "gateway-1"),
            (112, RESET, "gateway-1"),
            (122, REFUSED, "gateway-1"),
            (126, RESET, "gateway-2"),
        ]
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
def test_a_broken_promise_is_told_by_its_rule_and_by_no_other(rule: str, seen: Evidence):
    result = judged(seen)

    assert [problem.partition(":")[0] for problem in result.problems] == [rule]


def test_findings_are_counted():
    result = judged(
        evidence(
            [
                tried("d3.1", status=202),
                tried("d4.1", status=500),
                tried("d4.2", took=6),
                tried("d4.3", body="d4 other"),
            ],
            [ran("d4.2"), ran("d4.3", task="second", nonce="other"), ran("d1.1", 104)],
        )
    )

    figures = (result.lost, result.late, result.errors_500, result.second_ids)
    assert figures == (1, 1, 1, 1)
    assert (result.different_answers, result.duplicated) == (1, 1)


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
        [
            tried(
                "d3.1",
                status=503,
                type="broker-unavailable",
                detail="The connection to the broker was lost.",
            ),
            tried("d3.2"),
        ],
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
def test_what_faults_excuse_is_no_problem(seen: Evidence):
    assert judged(seen).problems == []


@pytest.mark.parametrize(("seconds", "holds"), [(14.9, True), (15.1, False)])
def test_everything_serves_15_s_after_the_last_fault(seconds: float, holds: bool):
    again = tried("d3.2", AFTER + seconds + 1)
    failed = tried("d3.1", AFTER + seconds, status=503, type="not-confirmed")
    result = judged(evidence([failed, again], [ran("d3.2")]))

    assert result.recovery == seconds
    assert result.problems == ([] if holds else [f"recovered only after {seconds} s"])


def test_what_is_shown_says_when_it_was():
    result = judged(evidence([tried("d3.1", 122.5, status=202)]))

    assert result.problems == ["lost: 1 (d3.1 at 22.5 s /wait gateway-1 202 after 0.20 s)"]
    assert result.injected[2] == "  10.0 to   18.0 s  gateway-1 frozen for 8.0 s"
