"""The short form of the rows that most often go wrong; `make faults` runs all, at length."""

from __future__ import annotations

import pytest

from tests.faults.oracle import Result
from tests.faults.report import line
from tests.faults.rows import ROWS
from tests.faults.servers import Servers
from tests.faults.trial import SHORT, TWO, run
from tests.support.stack import RabbitMQ, Stack

pytestmark = pytest.mark.usefixtures("unmeasured")

ROLLED = 25
SHORT_ROWS = {1, 3, 6, 12, 18, 20, 22, ROLLED}


@pytest.fixture(scope="module")
def servers(stack: Stack, broker: RabbitMQ, start) -> Servers:
    """A Redis of their own, as these tests break it."""
    servers = Servers(stack, broker=broker)
    start(lambda: servers.results)
    yield servers
    servers.close()


@pytest.mark.parametrize("number", sorted(SHORT_ROWS - {ROLLED}))
def test_nothing_that_was_acknowledged_is_lost(servers: Servers, number: int):
    results = _run(servers, number, TWO)

    assert [result.strategy for result in results] == list(TWO)
    assert all(result.holds for result in results), "\n".join(map(line, results))


def test_a_rolling_restart_behind_nginx_costs_no_request(servers: Servers):
    results = _run(servers, ROLLED, ("pika",))

    assert [result.label for result in results] == ["SIGHUP", "SIGTERM in turn"]
    assert all(result.holds for result in results), "\n".join(map(line, results))
    assert [set(result.statuses) for result in results] == [{"200"}, {"200"}]


def _run(servers: Servers, number: int, strategies: tuple[str, ...]) -> list[Result]:
    """Run a row's short form; a row that does not hold spoils none of the next."""
    results: list[Result] = []
    try:
        results += run(ROWS[number], servers, strategies, SHORT)
    finally:
        if not (results and all(result.holds for result in results)):
            servers.discard()
    return results
