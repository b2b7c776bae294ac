"""The bytes that wait for the journal's store are bounded, and come back however a write ends."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from gateway.celery_message import Message
from gateway.config.settings import Config
from gateway.journal.base import Refusal
from gateway.journal.entry import ACCEPTED
from gateway.journal.writing import Journal
from gateway.metrics import Metrics

LOST = "gateway_journal_lost_total"
ANSWERED = ("202", "0.1", "", "", "")
CONFIG = Config(journal=100, max_body=1_000, max_header=1_000, max_in_flight_bytes=4_000)
#: A quarter of what may wait.
SIZE = 1_000


class Store:
    """Ends its writes when a test says so."""

    def __init__(self) -> None:
        self.writing: list[asyncio.Future[Any]] = []

    def write(self, _: object) -> asyncio.Future[Any]:
        self.writing.append(asyncio.get_running_loop().create_future())
        return self.writing[-1]

    refuse = write


@pytest.fixture
def metrics() -> Iterator[Metrics]:
    metrics = Metrics(routes=["/"])
    yield metrics
    metrics.close()


def lost(metrics: Metrics) -> float:
    return metrics.get(LOST)


def begin(journal: Journal) -> None:
    journal.begin(message(), "task", "")


def write(journal: Journal) -> None:
    journal.write(message(), "task", "", ACCEPTED, ANSWERED)
    journal._flush()


def refuse(journal: Journal) -> None:
    journal._keep(Refusal("id", "", b"x" * SIZE, 400, 0.1, ""))


def message() -> Message:
    delivery = {"id": "id", "store": False}
    options = SimpleNamespace(ignore_result=False)
    return Message("task", "name", "queue", b"x" * SIZE, delivery, options)


def succeed(written: asyncio.Future[Any]) -> None:
    written.set_result(None)


def fail(written: asyncio.Future[Any]) -> None:
    written.set_exception(OSError("no answer in time"))


@pytest.mark.parametrize(
    "end", [succeed, fail, asyncio.Future.cancel], ids=lambda end: end.__name__
)
@pytest.mark.parametrize("add", [begin, write, refuse], ids=lambda add: add.__name__)
def test_bytes_come_back_when_a_write_has_ended(metrics, add, end):
    async def work() -> tuple[float, float]:
        journal = Journal(CONFIG, metrics)
        journal.store = store = Store()
        for _ in range(4):
            add(journal)
            await asyncio.sleep(0)
        waiting = lost(metrics)
        add(journal)  # there is no room for it
        await asyncio.sleep(0)
        full = lost(metrics) - waiting + (add is begin)  # which is written again at its answer
        for written in store.writing:
            end(written)
        await asyncio.sleep(0.01)
        store.writing.clear()
        before = lost(metrics)
        for _ in range(4):
            add(journal)
            await asyncio.sleep(0)
        assert len(store.writing) == 4
        return full, lost(metrics) - before

    assert asyncio.run(work()) == (1, 0)
