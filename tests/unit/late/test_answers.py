"""A gateway that cannot write what it has to send tells what is so, and not what it believes."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from time import monotonic, time
from typing import Any

import pytest

from gateway.config.settings import Config
from gateway.delivery import Delivery
from gateway.errors import StateUnavailable
from gateway.failpoints import Failpoint
from gateway.journal.entry import LATE_FAILED
from gateway.late import answers
from gateway.late.answers import LateAnswers
from gateway.late.record import ANSWERED, DROPPED, FAILED, UNCERTAIN, Record
from gateway.late.store import Found
from gateway.metrics import Metrics
from gateway.stores.results import Results
from tests.support.requests import counted

LATE = {"like": "slack"}
ROUTE = {"path": "/r", "answer": "wait-then-accept", "fallback": "wait", "late": LATE}
URL = "https://hooks.slack.com/actions/1"

#: A record of another try of the same task.
OTHER = Record("task", "another", "/r", "", {}, "", 0.0, 2e9)


class Records:
    """Does not answer at first, and then with the record of a try; None: it never does."""

    def __init__(self, record: Record | None):
        self.redis, self._record, self._asked = self, record, 0

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    async def due(self) -> list[Found]:
        return []

    async def get(self, task_id: str) -> Found:
        self._asked += 1
        if self._asked == 1 or self._record is None:
            raise StateUnavailable
        return Found(self._record, 1, 0.0)


class Journal:
    def __init__(self) -> None:
        self.told: list[tuple[str, str]] = []

    async def settle(self, delivery_id: str, task_id: str, end: Any) -> None:
        self.told.append((delivery_id, end.state))


@pytest.mark.parametrize(
    ("record", "given", "told"),
    [
        (None, True, True),
        (None, False, False),
        (OTHER, True, False),
        (OTHER.begin("m", 1.0), True, False),
        (OTHER.ended(ANSWERED), True, False),
        (OTHER.ended(UNCERTAIN), True, False),
        (OTHER.ended(FAILED), True, False),
        (OTHER.ended(DROPPED), True, True),
        (replace(OTHER.ended(DROPPED), given=True), True, False),
    ],
    ids=[
        "unknown", "not answered", "waiting", "sending", "answered", "uncertain", "failed",
        "dropped", "given",
    ],
)  # fmt: skip
async def test_a_failure_is_not_told_where_another_try_has_a_record(
    monkeypatch, caplog, record, given, told
):
    monkeypatch.setattr(answers, "_KEEP_FOR", 0.0)
    late, metrics, journal = expecting(record, given)
    await late.start()
    while late.held()["late steps"]:
        await asyncio.sleep(0)
    await late.stop()
    assert failed(metrics) == told and journal.told == [("own", LATE_FAILED)] * told
    assert ("a result will not be sent late" in caplog.text) == told
    metrics.close()


@pytest.mark.parametrize("given", [True, False])
async def test_a_process_that_ends_tells_what_it_could_not_write(monkeypatch, caplog, given):
    monkeypatch.setattr(answers, "_DRAIN", 0.0)
    late, metrics, journal = expecting(None, given)
    await late.start()
    await asyncio.sleep(0)  # it has asked once, and waits
    await late.stop()
    assert failed(metrics) == given and not journal.told
    assert ("before the process ended (route /r, delivery own" in caplog.text) == given
    assert not late.held()["late steps"]
    metrics.close()


def expecting(record: Record | None, given: bool) -> tuple[LateAnswers, Metrics, Journal]:
    """Return what has to write a record for an answer that was `given`, or not."""
    config = Config(result_backend="redis://127.0.0.1:1", routes=[ROUTE])
    metrics, journal = Metrics(routes=["/r"]), Journal()
    late = LateAnswers(config, metrics, Results(config), journal, None, Failpoint())
    late._records = Records(record)
    body = b'{"response_url": "%b"}' % URL.encode()
    delivery = Delivery("own", "/r", {}, {}, "", {}, body, "", time())
    late.expect(config.routes[0], delivery, "task", 0.0, monotonic(), lambda: given)
    return late, metrics, journal


def failed(metrics: Metrics) -> float:
    return counted(metrics, "gateway_late_answers_total", http_route="/r", result=FAILED)
