"""Replays: where they go after a change of routes, what they come to, which tries they run."""

from __future__ import annotations

import gc
from collections.abc import AsyncGenerator
from dataclasses import replace
from typing import Any

import pytest

from gateway.celery_message import Message
from gateway.config.settings import Config
from gateway.errors import (
    BrokerUnavailable,
    NotConfirmed,
    NotFound,
    Rejected,
    RequestError,
    Unroutable,
)
from gateway.journal import replay
from gateway.journal.entry import Entry
from gateway.journal.replay import Replay, Replayer, aimed, refusals, superseded
from gateway.pending_task import PendingTask

PATH = {"path": "/orders"}
CHANGED = "no route leads to its task shop.take in the queue orders any more, and "


def entry(event: str = "", **fields) -> Entry:
    about = {"delivery": {"id": "d", "route": "/orders", "event": event}, "task_id": "t"}
    own = {"task": "shop.take", "queue": "orders", "status": 200, "seconds": 0.1, "call": b"[]"}
    return Entry(**{**about, **own, **fields})


def aim(one: Entry, *routes: dict) -> tuple[str, str, str]:
    found = aimed(Config(broker_url="amqp://h//", routes=[PATH | route for route in routes]), one)
    return found.task, found.queue, found.options.get("exchange", "")


EXCHANGED = {"queue": "o.paid", "options": {"exchange": "events"}}
DYNAMIC = {
    "task": "shop.take", "queue": "s-{header:x}", "queue_pattern": "s-[0-9]+",
    "static_queue": "sessions",
}  # fmt: skip


@pytest.mark.parametrize(
    ("fields", "routes", "found"),
    [
        ({}, [{"task": "shop.take", "queue": "orders"}], ("shop.take", "orders", "")),
        ({}, [{"task": "shop.take", "queue": "new"}], ("shop.take", "new", "")),
        ({}, [{"task": "shop.new", "queue": "orders"}], ("shop.new", "orders", "")),
        ({}, [{"task": "shop.new", "queue": "new"}], ("shop.new", "new", "")),
        # Of several routes the one with the same task is meant.
        ({}, [{"task": "shop.a", "queue": "orders", "when": {"json:/a": "1"}},
              {"task": "shop.take", "queue": "new"}], ("shop.take", "new", "")),
        # A dynamic queue may be gone.
        ({"queue": "s-7"}, [DYNAMIC], ("shop.take", "sessions", "")),
        ({}, [DYNAMIC], ("shop.take", "sessions", "")),
        (EXCHANGED, [{"task": "shop.take", "exchange": "events", "routing_key": "o.{header:x}"}],
         ("shop.take", "o.paid", "events")),
        (EXCHANGED, [{"task": "shop.take", "queue": "orders"}], ("shop.take", "orders", "")),
        ({}, [{"task": "shop.take", "exchange": "events", "routing_key": "o"}],
         ("shop.take", "o", "events")),
    ],
)  # fmt: skip
def test_a_replay_goes_where_its_route_leads_today(fields, routes, found):
    assert aim(entry(**fields), *routes) == found


@pytest.mark.parametrize(
    ("routes", "why"),
    [
        ([{"path": "/other"}], CHANGED + "no route has the path /orders"),
        ([{"task": f"shop.{n}", "when": {"json:/a": n}} for n in "12"],
         CHANGED + "2 routes have the path /orders"),
        ([{"task": "shop.a", "exchange": "events", "routing_key": "o.{header:x}"}],
         "/orders has a new exchange, and a routing key that only a request has"),
    ],
)  # fmt: skip
def test_a_replay_whose_route_is_not_known_any_more_is_refused(routes, why):
    with pytest.raises(NotFound, match=why.replace(".", r"\.")):
        aim(entry(), *routes)


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
        (Rejected, NotConfirmed),
        (Unroutable, Unroutable),
        (BrokerUnavailable, NotConfirmed),
    ],
)
async def test_what_a_replay_comes_to(monkeypatch, uncollected, error, raised):
    monkeypatch.setattr(replay, "publisher_for", lambda *_: Publisher(error))
    found = None
    async with replay.publishing(Config()) as publish:
        try:
            await publish(ENTRY, "task-id")
        except RequestError as failure:
            found = type(failure)
    assert found is raised
    assert messages() == 0


class Journal:
    """A journal with these tries, the newest first."""

    def __init__(self, *tries: Entry):
        self.tries = tries
        self.reads = 0

    async def find(self, _wanted: object) -> AsyncGenerator[Entry, None]:
        self.reads += 1
        for entry in self.tries:
            yield entry


def try_of(delivery_id: str, state: str, identity: str = "one") -> Entry:
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
    entries = [try_of(str(number), state) for number, state in enumerate(tries)]
    wanted = [entries[number] for number in chosen]
    found = await superseded(Journal(*entries), wanted)
    assert [number for number in chosen if str(number) not in found] == replayed
    assert {other.id for other in found.values()} <= {each.id for each in entries}


async def test_a_try_whose_replay_was_interrupted_may_run():
    failed, interrupted = try_of("a", "failed"), replace(try_of("b", "failed"), replaying="task")
    assert await superseded(Journal(failed, interrupted), [failed]) == {"a": interrupted}


@pytest.mark.parametrize(("again", "ran"), [(False, ["a"]), (True, ["a", "b"])])
async def test_a_try_that_succeeds_during_a_replay_is_seen(
    monkeypatch, again: bool, ran: list[str]
):
    monkeypatch.setattr(replay, "monotonic", lambda: 0.0)
    chosen = try_of("a", "failed", "one"), try_of("b", "failed", "two")
    journal: Any = Journal(*chosen)

    class Succeeding(Replayer):
        """Each replay takes so long that meanwhile a sender tries again, and well."""

        async def run(self, chosen: Entry, again: bool = False) -> Replay:
            journal.tries = (try_of("c", "succeeded", "two"), *journal.tries)
            return Replay(chosen.id, "task")

    replayer = Succeeding(journal, None)  # type: ignore[arg-type]
    told = [each async for each in replayer.run_all(chosen, again)]
    assert [each.delivery_id for each in told if each.task_id] == ran
    if not again:
        why = "c is another try of the same delivery, succeeded; see `again`"
        assert told[1] == Replay("b", problem=why, may_have_run=True)


async def test_without_an_identity_each_is_by_itself():
    journal = Journal(try_of("a", "failed", ""), try_of("b", "succeeded", ""))
    assert await superseded(journal, journal.tries) == {}
    assert journal.reads == 0


async def test_one_that_is_gone_meanwhile_is_not_replaced():
    assert await superseded(Journal(), [try_of("a", "failed")]) == {}


async def test_those_that_cannot_be_published_again_are_told_with_the_reason():
    call, away = b"[[], {}, {}]", {"id": "d", "route": "/gone", "event": ""}
    known = {
        "well": entry(call=call), "elsewhere": entry(call=call, delivery=away),
        "dropped": entry(call=b""), "gone": None,
    }  # fmt: skip
    config = Config(
        broker_url="amqp://h//", routes=[PATH | {"task": "shop.take", "queue": "orders"}]
    )

    class Known:
        async def get(self, delivery_id: str) -> Entry | None:
            return known[delivery_id]

    chosen = [entry(delivery={"id": each}) for each in known]
    found = await refusals(config, Known(), chosen)
    assert {name: text.split(":")[0] for name, text in found.items()} == {
        "dropped": "cannot be replayed as it was", "elsewhere": "not taken"
    }  # fmt: skip
