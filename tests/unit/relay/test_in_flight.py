"""How long a request is held, and what it is told where nothing came."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from time import monotonic
from types import SimpleNamespace

import pytest

from gateway.answer import Answer
from gateway.celery_message import TaskIds
from gateway.claims.claim import CONFIRMED, Claim
from gateway.config.settings import Config
from gateway.delivery import Request
from gateway.metrics import Metrics
from gateway.relay.in_flight import Waiter
from gateway.relay.relay import Relay
from tests.integration.in_memory import InMemory, echo

DEADLINE = 5.0


class House:
    """A relay whose tasks end at once, and the answers that it has given."""

    def __init__(self, metrics: Metrics):
        self.strategy = InMemory(echo)
        routes = [{"path": "/", "deadline": DEADLINE}]
        self.relay = Relay(Config(routes=routes), self.strategy, metrics, TaskIds())
        self.given: list[Answer] = []

    def request(self, ago: float = 0.0) -> Request:
        """Return a request whose header came `ago` seconds before its body."""
        return Request("POST", "/", "", {}, b"hello", "127.0.0.1", monotonic() - ago, 0.0)

    def waiter(self) -> Waiter:
        waiter = Waiter(self.relay, self.request(), self.given.append)
        waiter.deadline = waiter.request.arrived + DEADLINE
        return waiter


@pytest.fixture
def house() -> Iterator[House]:
    metrics, file = Metrics.create(["/"])
    with file:
        yield House(metrics)
        metrics.close()


@pytest.mark.parametrize("ago", [0.0, DEADLINE - 1])
def test_a_body_in_time_is_published(house, ago):
    house.relay.relay(house.request(ago), house.given.append)
    assert [(answer.status, answer.body) for answer in house.given] == [(200, b"hello")]


def test_a_body_after_the_deadline_is_not_published(house):
    house.relay.relay(house.request(ago=DEADLINE), house.given.append)
    (answer,) = house.given
    assert answer.status == 408 and b"The body came after the deadline." in answer.body
    assert house.strategy.sent.empty()


@pytest.mark.parametrize(("applied", "held"), [("", True), ("wait=5", False)])
def test_earlier_tries_are_held_unless_the_sender_says_how_long_it_waits(house, applied, held):
    async def join() -> float:
        waiter = house.waiter()
        waiter.target = SimpleNamespace(tries=3, hold=10.0, deadline=DEADLINE)
        waiter.applied = applied
        waiter.wait()
        waiter.join(Claim(b"key", "channel", "owner", 15.0, CONFIRMED, "task", b"", tries=1))
        waiter.give(Answer(200, "", b""))
        return waiter.deadline - waiter.request.arrived

    assert asyncio.run(join()) == pytest.approx(DEADLINE + 10 * held)


@pytest.mark.parametrize(
    ("target", "error"),
    [(None, b"results-unavailable"), (SimpleNamespace(tries=1), b"state-unavailable")],
)
def test_who_waits_for_a_store_in_vain_is_told_which(house, target, error):
    waiter = house.waiter()
    waiter.target = target
    waiter.expire()
    assert error in house.given[0].body
