"""What the journal gets of deliveries that lack a value."""

from __future__ import annotations

from collections.abc import Iterator
from time import monotonic
from typing import Any

import pytest

from gateway.answer import Answer
from gateway.celery_message import Message, TaskIds
from gateway.config.settings import Config
from gateway.delivery import Request
from gateway.journal.entry import Entry
from gateway.journal.writing import Journal
from gateway.metrics import Metrics
from gateway.relay.relay import Relay
from tests.support.in_memory import InMemory, echo

MISSING = "json:/id"
#: Settings for which the route's own task has no message without the value.
OWN: list[dict[str, Any]] = [
    {"args": [MISSING]},
    {"kwargs": {"id": MISSING}},
    {"message_headers": {"id-of": MISSING}},
    {"priority": MISSING},
    {"queue": "q-{json:/id}", "queue_pattern": "q-.+"},
]
#: Settings for which it has one.
OTHERS: list[dict[str, Any]] = [
    {"also": [{"task": "other", "args": [MISSING]}]},
    {"idempotency": MISSING},
]


class Harness:
    """A relay whose journal keeps its entries in memory."""

    def __init__(self, metrics: Metrics, route: dict[str, Any], journal: int):
        config = Config(routes=[{"path": "/{shop}", **route}], journal=journal)
        self.relay = Relay(config, InMemory(echo), metrics, TaskIds())
        self.answers: list[Answer] = []

    def send(self, headers: dict[str, str]) -> None:
        request = Request("POST", "/a", "b=1", headers, b"{}", "127.0.0.1", monotonic(), 0.0)
        self.relay.relay(request, self.answers.append)


@pytest.fixture
def metrics() -> Iterator[Metrics]:
    metrics = Metrics(routes=["/{shop}"])
    yield metrics
    metrics.close()


@pytest.fixture
def entries(monkeypatch: pytest.MonkeyPatch) -> list[Entry]:
    found: list[Entry] = []

    def write(_: Journal, message: Message, task_id: str, _id: str, state: str, *rest: Any) -> None:
        (status, seconds, _, error, _), _ = rest
        answer = int(status), float(seconds)
        about = (message.delivery, message.task, task_id, message.queue, *answer)
        found.append(Entry(*about, message.body, error, state=state))

    monkeypatch.setattr(Journal, "write", write)
    return found


@pytest.mark.parametrize("route", OWN + OTHERS, ids=lambda route: min(route))
def test_each_delivery_that_lacks_a_value_is_kept(metrics, entries, route, monkeypatch):
    monkeypatch.setattr("gateway.relay.relay._dynamic_queues", lambda *_: None)
    harness = Harness(metrics, route, journal=10)

    harness.send({"x": "y"})

    (entry,) = entries
    assert [answer.status for answer in harness.answers] == [entry.status] == [400]
    assert entry.error.startswith(f"bad-request: {MISSING} ")
    assert entry.arguments() == ([{"b": "1"}, {"x": "y"}, "{}"], {})
    assert entry.delivery["params"] == {"shop": "a"} and entry.task_id
    assert entry.sendable is (route in OTHERS)


def test_a_delivery_that_can_be_no_argument_is_not_kept(metrics, entries):
    harness = Harness(metrics, {"args": [MISSING]}, journal=10)
    harness.send({"__type__": "a", "__value__": "b"})
    assert [answer.status for answer in harness.answers] == [400]
    assert "json:/id is missing" in harness.answers[0].body.decode()
    assert entries == []


def test_without_a_journal_nothing_is_kept(metrics, entries):
    harness = Harness(metrics, {"args": [MISSING]}, journal=0)
    harness.send({})
    assert [answer.status for answer in harness.answers] == [400]
    assert entries == []
