"""The costs for `gateway capacity`, as they follow from a load test's rows."""

from __future__ import annotations

import json

import pytest

from loadtest.costs import costs
from loadtest.experiments.cost import judge_at_rates
from loadtest.figures import REPORTS
from loadtest.report import Report
from loadtest.summary import Row
from tests.support.rows import row


@pytest.mark.parametrize("name", ["strategies", "openloop", "peers", "cost", "slow", "growth"])
def test_reports_of_each_experiment_are_read(name):
    document = json.loads((REPORTS / f"{name}.json").read_text("utf-8"))
    found = costs(name, document["options"], document["rows"])
    assert found["gateway pika"].points
    # A stand-in for workers is none.
    assert any(key.startswith("worker") for key in found) == (name != "growth")


def test_costs_of_other_numbers_of_processes_are_those_of_one():
    row = {
        "strategy": "pika", "case": "x", "requests": 9, "errors": 0, "wrong_answers": 0,
        "rps": 99.0, "schedule": {"rate": 100.0}, "processes": 2, "worker_pool": "4 x threads:8",
        "cpu_us_per_request": {"gateway": 100, "worker": 200, "broker": 300, "redis": 0},
        "rss_mb": {"gateway": 150, "worker": 80, "broker": 100, "redis": 1},
    }  # fmt: skip
    signed = {**row, "case": "y", "identified": True}
    signed["cpu_us_per_request"] = {"gateway": 400, "worker": 200, "broker": 300, "redis": 50}
    found = costs("capacity", {}, [signed, row])
    assert found["gateway pika"].points == [(50.0, 0.005)]
    assert found["worker pika threads"].points == [(25.0, 0.005)]
    assert found["broker pika"].points == [(100.0, 0.03)]
    assert found["memory gateway pika"].amount == 50 * 2**20  # with the parent
    assert found["memory worker threads"].amount == 20 * 2**20
    assert found["gateway claims"].cores(100) == pytest.approx(0.03, abs=0.016)
    assert found["redis claims"].cores(100) == pytest.approx(0.005)
    # Nothing follows from wrong or missing answers, nor from what measures something else.
    assert costs("capacity", {}, [row, {**signed, "wrong_answers": 1}]) == {}
    assert costs("alone", {}, [row]) == {}
    assert costs("capacity", {}, [{**row, "strategy": "tornado"}]) == {}


def rows(strategy: str, answered: float) -> list[Row]:
    return [row(strategy, rps, case=f"{rate:,}/s") for rate, rps in ((50, 50), (1_600, answered))]


@pytest.mark.parametrize(
    ("answered", "name", "verdict"),
    [
        (1_590, "gateway CPU, pika / Tornado, 1,600/s", "reached"),
        (900, "gateway CPU, pika / Tornado, 1,600/s sent and 900/s answered", "-"),
    ],
)
def test_a_rate_that_was_not_answered_is_not_judged(answered: float, name: str, verdict: str):
    report = Report("cost", rows=[*rows("pika", answered), *rows("tornado", 1_600)])
    judge_at_rates(report, "pika")
    judged = {target.name: target.verdict for target in report.targets}
    assert judged == {"gateway CPU, pika / Tornado, 50/s": "reached", name: verdict}
