"""What waits for the journal's store is bounded, and is sent until the store answers."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from gateway.celery_message import Message
from gateway.config.settings import Config
from gateway.errors import StoreError, Unanswered
from gateway.journal import writing
from gateway.journal.entry import ACCEPTED, RECEIVED
from gateway.journal.store import Refusal
from gateway.journal.writing import Journal
from gateway.metrics import Metrics

LOST = "gateway_journal_lost_total"
ANSWERED = ("202", "0.1", "", "", "")
CONFIG = Config(journal=100, max_body=1_000, max_header=1_000, max_in_flight_bytes=9_000)
#: Four may wait, with what else an entry has.
SIZE = 1_000


class Store:
    """Ends its writes when a test says so, or at once without an answer while it is ``away``."""

    def __init__(self) -> None:
        self.writing: list[asyncio.Future[Any]] = []
        #: What was to be written.
        self.asked: list[Any] = []
        self.away = False

    def write(self, asked: object) -> asyncio.Future[Any]:
        reply = asyncio.get_running_loop().create_future()
        self.asked.append(asked)
        if self.away:
            reply.set_exception(Unanswered("ConnectionError: it is away"))
        else:
            self.writing.append(reply)
        return reply

    refuse = write

    async def stop(self) -> None:
        """Nothing was started."""


@pytest.fixture
def journal(metrics: Metrics) -> Journal:
    journal = Journal(CONFIG, metrics)
    journal.store = Store()
    return journal


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
    written.set_exception(StoreError("refused"))


@pytest.mark.parametrize(
    "end", [succeed, fail, asyncio.Future.cancel], ids=lambda end: end.__name__
)
@pytest.mark.parametrize("add", [begin, write, refuse], ids=lambda add: add.__name__)
async def test_bytes_come_back_when_a_write_has_ended(metrics, journal, add, end):
    store = journal.store
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
    assert (full, lost(metrics) - before) == (1, 0)


async def turns() -> None:
    """Let everything happen that waits for nothing."""
    for _ in range(20):
        await asyncio.sleep(0)


async def test_what_the_store_does_not_answer_is_sent_until_it_does(metrics, journal, monkeypatch):
    monkeypatch.setattr(writing, "_AGAIN", 0)
    store = journal.store
    store.away = True
    begun = journal.begin(message(), "task", "")
    await turns()
    # Whoever waits goes on,
    assert begun.result() is False
    refuse(journal)
    write(journal)
    await turns()
    first, refused, answered = store.asked[-3:]
    # everything is sent again and again, in its order,
    assert store.asked[-6:] == [first, refused, answered] * 2
    assert (first[0][1], answered[0][1]) == (RECEIVED, ACCEPTED)
    store.away = False
    store.asked.clear()
    await turns()
    # and once where it is answered.
    for reply in store.writing:
        succeed(reply)
    await turns()
    assert store.asked == [first, refused, answered]
    assert (journal.bytes, lost(metrics)) == (0, 0)
    # What comes next is sent at once.
    write(journal)
    succeed(store.writing[-1])
    await turns()
    assert (journal.bytes, lost(metrics), len(store.asked)) == (0, 0, 4)
    await journal.stop()


@pytest.mark.parametrize("end", ["refused", "too long", "stopped"])
async def test_what_waits_for_the_store_is_lost_where(metrics, journal, monkeypatch, end):
    monkeypatch.setattr(writing, "_AGAIN", 0)
    monkeypatch.setattr(writing, "_LAST", 0)
    monkeypatch.setattr(writing, "KEPT", 0.0 if end == "too long" else 60.0)
    store = journal.store
    store.away = True
    begin(journal)  # which is written again at its answer
    await turns()
    write(journal)
    await turns()
    if end == "refused":
        store.away = False
        await turns()
        for reply in store.writing:
            fail(reply)
        await turns()
    await journal.stop()
    assert lost(metrics) == 1
