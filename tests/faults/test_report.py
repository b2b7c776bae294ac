"""What a run of the matrix keeps, and what becomes of a row that cannot be run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from amqp.exceptions import AMQPError
from redis.exceptions import RedisError

from gateway.errors import GatewayError
from tests.faults.__main__ import attempt
from tests.faults.oracle import RowResult
from tests.faults.report import Report
from tests.faults.servers import Servers
from tests.faults.trial import TWO, Row, Trial
from tests.support.stack import Stack

VERSIONS = {"rabbitmq": "3.10.8", "redis": "7.0.15"}


def result(row: int, *problems: str) -> RowResult:
    return RowResult(row=row, title="a fault", strategy="pika", problems=list(problems))


@pytest.mark.parametrize(("keep", "kept"), [(True, [(1, True), (2, False)]), (False, [(2, False)])])
def test_rows_of_earlier_runs_are_kept_where_they_are_asked_for(tmp_path: Path, keep, kept):
    path = tmp_path / "faults.json"
    Report(path, keep=False).add([result(1), result(2)], VERSIONS)

    report = Report(path, keep=keep)
    report.add([result(2, "lost")], VERSIONS)

    document = json.loads(path.read_text())
    assert document["versions"].items() >= VERSIONS.items()
    written = [RowResult(**row) for row in document["rows"]]
    assert written == report.results
    assert [(one.row, one.holds) for one in written] == kept


@pytest.mark.parametrize(
    "error", [AssertionError, GatewayError, RedisError, AMQPError, TimeoutError]
)
def test_a_row_that_cannot_be_run_stops_what_it_has_started_and_fails_alone(
    stack: Stack, tmp_path: Path, error: type[Exception]
):
    stopped = []

    def broken() -> None:
        raise error("broken")

    def fail(trial: Trial) -> None:
        trial.at_exit(lambda: stopped.append("first"))
        trial.at_exit(broken)
        broken()

    row = Row(1, "a fault", fail)
    results = attempt(row, Servers(stack), TWO, tmp_path / "logs", always=False)

    assert [one.strategy for one in results] == list(TWO)
    assert not any(one.holds for one in results)
    assert stopped == ["first"]
