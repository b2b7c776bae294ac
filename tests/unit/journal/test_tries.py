"""Which of several tries of one delivery a replay should run."""

from __future__ import annotations

from collections.abc import AsyncGenerator

import pytest

from gateway.journal.entry import Entry
from gateway.journal.tries import superseded


class Journal:
    """A journal with these tries, the newest first."""

    def __init__(self, *tries: Entry):
        self.tries = tries
        self.reads = 0

    async def find(self, _wanted: object) -> AsyncGenerator[Entry, None]:
        self.reads += 1
        for entry in self.tries:
            yield entry


def entry(delivery_id: str, state: str, identity: str = "one") -> Entry:
    return Entry(
        {"id": delivery_id}, "task", "", "queue", None, 0, b"", state=state, identity=identity
    )


@pytest.mark.parametrize(
    ("tries", "chosen", "replayed"),
    [
        (["failed", "failed"], [0, 1], [0]),  # the newest
        (["failed", "failed"], [1], [1]),  # a filter did not take the newest
        (["succeeded", "failed"], [1], []),
        (["failed", "succeeded"], [0], []),
        (["refused", "failed"], [1], [1]),
        (["accepted", "failed"], [1], []),
        (["running", "failed"], [1], []),
        (["replayed", "failed"], [1], []),
        (["received", "failed"], [1], []),
        (["accepted", "accepted"], [0, 1], [0]),
        (["succeeded", "accepted"], [1], []),
        (["accepted", "succeeded"], [1], [1]),  # somebody wants it although it has succeeded
        (["dead-lettered", "expired"], [0, 1], [0]),
    ],
)
async def test_one_of_the_chosen_tries_is_left(
    tries: list[str], chosen: list[int], replayed: list[int]
):
    entries = [entry(str(number), state) for number, state in enumerate(tries)]
    wanted = [entries[number] for number in chosen]
    found = await superseded(Journal(*entries), wanted)
    assert [number for number in chosen if str(number) not in found] == replayed
    assert {other.id for other in found.values()} <= {each.id for each in entries}


async def test_without_an_identity_each_is_by_itself():
    journal = Journal(entry("a", "failed", ""), entry("b", "succeeded", ""))
    assert await superseded(journal, journal.tries) == {}
    assert journal.reads == 0


async def test_one_that_is_gone_meanwhile_is_not_replaced():
    assert await superseded(Journal(), [entry("a", "failed")]) == {}
