"""A gateway is judged at a rate only where it has answered that rate."""

from __future__ import annotations

import pytest

from loadtest.experiments.cost import judge_at_rates
from loadtest.report import Report
from loadtest.summary import Row
from tests.support.rows import row


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
