"""A replay that fails says how, and keeps nothing of its message."""

from __future__ import annotations

import asyncio
import gc

import pytest

from gateway.celery_message import Message
from gateway.config.settings import Config
from gateway.errors import BrokerUnavailable, NotConfirmed, Rejected, RequestError, Unroutable
from gateway.journal import replay
from gateway.journal.entry import Entry
from gateway.pending_task import PendingTask

ENTRY = Entry({"id": "id", "store": False}, "task", "", "queue", 202, 0.1, b"x" * 1_000)


class Publisher:
    """Ends each message with an `error`."""

    error = ""

    def __init__(self, error: type[RequestError] | None):
        self._error = error

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    def publish(self, pending: PendingTask) -> None:
        if self._error is None:
            pending.confirm()
        else:
            pending.fail(self._error())


def messages() -> int:
    """Return how many are in memory."""
    return sum(isinstance(each, Message) for each in gc.get_objects())


@pytest.mark.parametrize(
    ("error", "raised"),
    [
        (None, None),
        (Rejected, Rejected),
        (Unroutable, Unroutable),
        (BrokerUnavailable, NotConfirmed),
    ],
)
def test_what_a_replay_comes_to(monkeypatch, uncollected, error, raised):
    monkeypatch.setattr(replay, "publisher_for", lambda *_: Publisher(error))

    async def run() -> type[Exception] | None:
        async with replay.publishing(Config()) as publish:
            try:
                await publish(ENTRY, "task-id")
            except RequestError as failure:
                return type(failure)
        return None

    assert asyncio.run(run()) is raised
    assert messages() == 0
