"""What the journal's store does, with one Redis and with a cluster."""

from __future__ import annotations

import asyncio
import json
import re
import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from gateway.config.settings import Config
from gateway.errors import GatewayError, Unanswered
from gateway.journal.entry import (
    ACCEPTED,
    ANSWERED_LATE,
    DEAD_LETTERED,
    EXPIRED,
    FAILED,
    IGNORED,
    LATE_FAILED,
    RECEIVED,
    REFUSED,
    REPLAYED,
    RUNNING,
    SUCCEEDED,
    End,
    Entry,
    divided,
)
from gateway.journal.filter import Filter
from gateway.journal.groups import AGAIN, MOST, MUTED, NEW, RESOLVED, Group
from gateway.journal.store import (
    BEGUN,
    FIRST_LOOK,
    INTERRUPTED,
    NOT_ANSWERED,
    RUN,
    UNDER_WAY,
    JournalStore,
    Refusal,
    Row,
)
from gateway.stores.state_store import StateStore
from tests.support.parts import ProcessStore, started
from tests.support.redis_kinds import Nodes
from tests.support.stack import Server, Stack, free_port

pytestmark = pytest.mark.usefixtures("patient")

SERVERS: dict[str, Callable[[Stack], Callable[[], Server]]] = {
    "redis": lambda stack: stack.redis,
    "redis cluster": lambda stack: lambda: Nodes(stack, 1).masters[0],
}
PAUSES = (100, 400)  # ms between two looks: the first, the longest

Use = Callable[..., AbstractAsyncContextManager[JournalStore]]


@pytest.fixture(scope="module", params=list(SERVERS))
def server(request: pytest.FixtureRequest, stack: Stack, start) -> Server:
    return start(SERVERS[request.param](stack))


@pytest.fixture(params=["started", "opened"])
def use(request: pytest.FixtureRequest, server: Server) -> Use:
    """Return a function that makes a store, as a gateway or a command does, on an empty journal."""
    prefix = secrets.token_hex(8)

    @asynccontextmanager
    async def use(url: str = server.url, **settings: Any) -> AsyncIterator[JournalStore]:
        own = {"journal": 1_000, "strategy": "pika", "state_prefix": prefix, "state_url": url}
        config = Config(**{**own, **settings})
        if request.param == "opened":
            async with JournalStore.opened(config) as store:
                yield store
            return
        async with started(ProcessStore(config)) as store:
            yield store

    return use


def about(delivery_id: str) -> str:
    own = {"id": delivery_id, "received_at": "2026-01-31T12:00:00+00:00", "store": False}
    delivery = {**own, "route": "/", "source": "", "event": ""}
    return json.dumps({"delivery": delivery, "task": "tasks.run", "queue": "celery"})


def call(size: int = 100) -> bytes:
    return b'[[{}, {}, "%s"], {}, {}]' % (b"x" * size)


def begun(delivery_id: str, followed: bool = True) -> Row:
    """Return the row of a delivery that is not answered yet."""
    known = (delivery_id, RECEIVED, int(followed), "first")
    return (*known, *NOT_ANSWERED, about(delivery_id), "", call())


def later(delivery_id: str, state: str, status: int = 202, error: str = "") -> Row:
    """Return the row of the answer to a delivery that is there already."""
    answer = (str(status), "0.250000", "0.010000", error, "2")
    return (delivery_id, state, 1, "first", *answer, "", "", b"")


def answered(delivery_id: str, state: str = ACCEPTED, status: int = 202, size: int = 100) -> Row:
    """Return the row of a delivery that is written with its answer."""
    row = later(delivery_id, state, status)
    return (*row[:9], about(delivery_id), "", call(size))


def refusal(delivery_id: str) -> Refusal:
    return Refusal(delivery_id, about(delivery_id), call(), 401, 0.25, "unverified: no signature")


async def got(store: JournalStore, delivery_id: str) -> Entry:
    entry = await store.get(delivery_id)
    assert entry is not None
    return entry


async def listed(
    store: JournalStore, calls: bool = False, before: str = "", **wanted: Any
) -> list[Entry]:
    async with aclosing(store.entries(calls, Filter(**wanted), before)) as entries:
        return [entry async for entry in entries]


async def ids(store: JournalStore, **wanted: Any) -> list[str]:
    return [entry.id for entry in await listed(store, **wanted)]


async def unmarked(store: JournalStore) -> list[str]:
    async with aclosing(store.unmarked(2)) as parts:
        return [which async for part in parts for which, *_ in part]


async def replay(store: JournalStore, delivery_id: str, task_id: str, before: str = "first"):
    assert await store.begin_replay(delivery_id, task_id, before) == (BEGUN, task_id)
    await store.end_replay(delivery_id, task_id, taken=True)


async def until_due(
    store: JournalStore, number: int = 100, pauses: tuple[int, int] = PAUSES
) -> list[tuple[str, str]]:
    async with asyncio.timeout(30):
        while not (found := await store.due(number, *pauses)):
            await asyncio.sleep(0.02)
    return found


async def test_an_entry_has_what_was_written(use: Use):
    async with use() as store:
        assert await store.get("one") is None

        assert await store.write([begun("one"), answered("two", FAILED, 502)]) is None

        one, two = await got(store, "one"), await got(store, "two")
        assert (one.state, one.task_id, one.status, one.call) == (RECEIVED, "first", None, call())
        assert one.delivery == json.loads(about("one"))["delivery"]
        assert (one.task, one.queue, one.replays, one.replaying) == ("tasks.run", "celery", 0, "")
        assert (two.state, two.status, two.seconds, two.error) == (FAILED, 502, 0.25, "")
        assert (one.published, one.attempts) == (None, 0)
        assert (two.published, two.attempts) == (0.01, 2)

        await store.write([later("one", REFUSED, 503, "unroutable"), answered("three")])

        one = await got(store, "one")
        assert (one.state, one.status, one.seconds) == (REFUSED, 503, 0.25)
        assert (one.error, one.call) == ("unroutable", call())


async def test_a_refused_request_is_an_entry(use: Use):
    async with use(journal_refused=True) as store:
        assert await store.refuse(refusal("one")) is None

        one = await got(store, "one")
        assert (one.state, one.task_id, one.status, one.seconds) == (REFUSED, "", 401, 0.25)
        assert (one.error, one.call) == ("unverified: no signature", call())


async def test_an_ignored_delivery_is_kept_as_such_also_without_refused_ones(use: Use):
    async with use(journal=10) as store, aclosing(store.changes()) as changes:
        await anext(changes)
        await store.refuse(refusal("one")._replace(state=IGNORED, status=204))
        await store.refuse(refusal("two")._replace(state=IGNORED, status=204))

        assert [await anext(changes) for _ in range(2)] == ["one", "two"]
        assert await ids(store) == ["two"]
        two = await got(store, "two")
        assert (two.state, two.status) == (IGNORED, 204)
        # It has no task whose end is looked for.
        assert (await store.trim(1)).open == 0
        await store.settle("two", "", End(SUCCEEDED))
        assert (await got(store, "two")).state == IGNORED


async def test_what_is_dropped_with_a_call_is_gone_as_well(use: Use):
    async with use(keep_bodies="failed") as store:
        extra = {"tenant": "erika"}
        whole = {**json.loads(about("one")), "options": {"extra": extra}}
        whole["delivery"]["query_string"] = "name=erika"
        left, asked = divided(whole, store.keep_bodies)
        assert "erika" not in left
        for name in ("one", "two"):
            own = left.replace('"one"', f'"{name}"')
            await store.write([(*begun(name)[:9], own, asked, call())])
        await store.settle("two", "first", End(FAILED, "E"))
        await store.settle("one", "first", End(SUCCEEDED))
        for calls in (True, False):
            two, one = await listed(store, calls=calls)
            for entry, query, options in ((one, "", {}), (two, "name=erika", {"extra": extra})):
                assert (entry.delivery["query_string"], entry.options) == (query, options)
        assert one.call == b"" and divided(whole, "none") == (left, "")
        assert divided(whole, "all") == (json.dumps(whole), "")
        # An older gateway drops only the call.
        key = store._keys.of("two")
        await store._run("HDEL", key, "call")
        await store._run("HSET", key, "state", SUCCEEDED)
        assert (await got(store, "two")).delivery["query_string"] == ""
        # As what is not known to be written is written again.
        await store.write([(*begun("one")[:9], left, asked, call())])
        assert (await got(store, "one")).delivery["query_string"] == ""


async def test_what_is_written_again_is_as_it_was(use: Use):
    """As is done where it is not known whether it was written."""
    async with use(journal_refused=True, keep_bodies="failed") as store:
        for _ in range(2):
            await store.write([begun("one"), answered("two")])
            await store.refuse(refusal("three"))
        assert await ids(store) == ["three", "two", "one"]
        before = await store.trim(1)
        await store.settle("one", "first", End(SUCCEEDED))
        await store.write([begun("one")])
        assert ((await got(store, "one")).state, (await got(store, "one")).call) == (SUCCEEDED, b"")
        assert await store.trim(1) == before._replace(open=before.open - 1)


async def test_only_so_many_are_kept(use: Use):
    async with use(journal=10) as store:
        await store.write([answered(f"d{n}") for n in range(8)])
        assert len(await ids(store)) == 8
        await store.write([answered(f"d{n}") for n in range(8, 30)])

        assert await ids(store) == [f"d{n}" for n in reversed(range(20, 30))]
        assert await store.get("d19") is None
        # An answer does not bring back what is removed.
        await store.write([later("d19", ACCEPTED)])
        assert await store.get("d19") is None


async def test_only_so_many_bytes_are_kept_but_one_delivery_at_least(use: Use):
    async with use(journal_bytes=20_000) as store:
        await store.write([answered(f"d{n}", size=4_000) for n in range(10)])

        assert await ids(store) == [f"d{n}" for n in reversed(range(6, 10))]
        assert 16_000 < (await store.trim(100)).bytes <= 20_000

        await store.write([answered("large", size=30_000)])

        assert await ids(store) == ["large"]
        assert 30_000 < (await store.trim(100)).bytes < 31_000


async def test_what_is_too_old_is_removed_a_few_at_once(use: Use):
    async with use(journal_age=1, journal_refused=True) as store, use() as patient:
        await store.write([answered(f"d{n}") for n in range(5)])
        for n in range(5):
            await store.refuse(refusal(f"r{n}"))
        removed, deliveries, unfinished, size, *_ = await patient.trim(3)
        assert (removed, deliveries, unfinished) == (0, 5, 5) and size > 500
        await asyncio.sleep(1.1)

        assert (await store.trim(3))[:3] == (6, 2, 2)
        assert (await store.trim(3))[:4] == (4, 0, 0, 0)

        assert (await store.trim(3))[:4] == (0, 0, 0, 0)
        assert await ids(store) == []
        assert [await store.get(each) for each in ("d0", "r0")] == [None, None]


async def test_a_refused_request_has_a_place_after_what_was_erased(use: Use):
    """Though the clock was set back meanwhile."""
    async with use(journal_refused=True) as store:
        erased = f"{int(datetime.now(UTC).timestamp() * 1000) + 3_600_000}-1000000000"
        await store._run("XADD", store._keys.refused, erased, "id", "erased")
        await store._run("XDEL", store._keys.refused, erased)
        await store.refuse(refusal("one"))
        assert (await got(store, "one")).position == f"{erased[:-1]}1"


@pytest.mark.parametrize("bounds", [{"journal": 2}, {"journal_bytes": 1_024}])
async def test_where_bounds_are_lowered_redis_is_not_held_up(use: Use, bounds: dict[str, int]):
    async with use(journal=5_000) as before, use(**bounds) as store:
        for _ in range(12):
            await before.write([answered(f"{secrets.token_hex(8)}") for _ in range(100)])
        await store.write([answered("one")])
        assert (await store.trim(1)).deliveries == 201
        await store.write([answered("two")])
        left = await ids(store)
        assert left[:2] == ["two", "one"] and len(left) < 5


async def test_refused_requests_have_a_bound_of_their_own(use: Use):
    async with use(journal=100, journal_refused=True) as store:
        await store.write([answered(f"d{n}") for n in range(100)])
        size = await store.trim(1)

        for n in range(30):
            await store.refuse(refusal(f"r{n}"))

        assert await ids(store) == [
            *(f"r{n}" for n in reversed(range(20, 30))),
            *(f"d{n}" for n in reversed(range(100))),
        ]
        assert await store.get("r19") is None
        assert await store.trim(1) == size  # they are not counted
        # Nor do deliveries displace them.
        await store.write([answered(f"e{n}") for n in range(100)])
        assert (await ids(store))[100:] == [f"r{n}" for n in reversed(range(20, 30))]


async def test_what_became_of_a_late_answer_is_the_state(use: Use):
    async with use() as store:
        for n, before in enumerate((RECEIVED, ACCEPTED, RUNNING, SUCCEEDED)):
            await store.write([answered(str(n), before)])
            await store.settle(str(n), "first", End(LATE_FAILED, "refused"), counts=False)
            # Neither the task's success nor the answer replaces it.
            await store.settle(str(n), "first", End(SUCCEEDED))
            await store.write([later(str(n), ACCEPTED, 202)])
            one = await got(store, str(n))
            assert (one.state, one.error, one.ended_at) == (LATE_FAILED, "refused", "")
            assert one.late_at and not one.begun_at
            # But a task may end badly after the sender's time, or be sent after all.
            for state in (FAILED, ANSWERED_LATE) if n else (ANSWERED_LATE, FAILED):
                await store.settle(str(n), "first", End(state, "late"))
            assert (await got(store, str(n))).state == (FAILED if n else ANSWERED_LATE)
        for n, before in enumerate((FAILED, EXPIRED, DEAD_LETTERED, REFUSED)):
            await store.write([answered(f"not {n}", before)])
            await store.settle(f"not {n}", "first", End(ANSWERED_LATE), counts=False)
            assert (await got(store, f"not {n}")).state == before
        assert (await store.trim(1)).open == 0


@pytest.mark.parametrize(
    ("before", "after", "left"),
    [
        (RECEIVED, REFUSED, REFUSED),
        (RECEIVED, ACCEPTED, ACCEPTED),
        (ACCEPTED, REFUSED, ACCEPTED),
        (ACCEPTED, FAILED, FAILED),
        (RUNNING, ACCEPTED, RUNNING),
        (RUNNING, SUCCEEDED, SUCCEEDED),
        (SUCCEEDED, ACCEPTED, SUCCEEDED),
        (FAILED, SUCCEEDED, FAILED),
        (DEAD_LETTERED, RUNNING, DEAD_LETTERED),
        (EXPIRED, FAILED, EXPIRED),
    ],
)
async def test_a_state_only_goes_forward(use: Use, before: str, after: str, left: str):
    async with use() as store:
        await store.write([begun("one")])
        await store.write([later("one", before, 202, "first")])
        await store.write([later("one", after, 504, "late")])

        one = await got(store, "one")
        failed = before in (FAILED, DEAD_LETTERED, EXPIRED)
        assert (one.state, one.status, one.error) == (left, 504, "first" if failed else "late")

        if after not in (ACCEPTED, REFUSED):  # a task may be so as well
            await store.write([answered("two", before)])
            await store.settle("two", "first", End(after, "late"))
            assert (await got(store, "two")).state == left


async def test_the_end_of_a_task_is_written(use: Use):
    async with use() as store:
        await store.write([answered("one")])
        assert await store.settle("one", "first", End(RUNNING)) is None
        one = await got(store, "one")
        assert (one.state, one.ended_at) == (RUNNING, "") and one.begun_at

        # Neither the end of another task nor of another delivery.
        assert await store.settle("one", "other", End(FAILED, "ValueError")) is None
        assert await store.settle("two", "first", End(FAILED, "ValueError")) is None
        assert (await got(store, "one")).state == RUNNING and await store.get("two") is None

        assert await store.settle("one", "first", End(FAILED, "ValueError")) == b"accepted"
        one = await got(store, "one")
        assert (one.state, one.error) == (FAILED, "ValueError")
        assert abs(datetime.now(UTC) - datetime.fromisoformat(one.ended_at)) < timedelta(minutes=1)


@pytest.mark.parametrize(
    ("status", "told"), [(202, b"accepted"), (504, b"error"), (0, b"error"), (None, b"unknown")]
)
async def test_an_end_tells_once_how_the_delivery_was_answered(use: Use, status, told):
    async with use() as store:
        await store.write([begun("one"), begun("unfollowed", followed=False)])
        if status is not None:
            await store.write([later("one", ACCEPTED, status)])

        # Who does not count does not take it from who does.
        assert await store.settle("one", "first", End(FAILED, "ValueError"), counts=False) is None
        assert (await got(store, "one")).state == FAILED
        assert await store.settle("one", "first", End(FAILED, "ValueError")) == told
        assert await store.settle("one", "first", End(FAILED, "ValueError")) is None
        assert await store.settle("unfollowed", "first", End(FAILED)) is None


async def test_each_look_is_taken_once_and_postponed(use: Use):
    async with use() as store, use() as other:
        began = asyncio.get_running_loop().time()
        await store.write(
            [begun("a"), answered("b"), answered("ended", SUCCEEDED), begun("unfollowed", False)]
        )
        pauses = 60_000, 60_000  # none comes again meanwhile

        found = await until_due(store, number=1, pauses=pauses)
        assert asyncio.get_running_loop().time() - began > FIRST_LOOK / 1000 - 0.1
        assert len(found) == 1
        found += await until_due(other, pauses=pauses)
        assert sorted(found) == [("a", "first"), ("b", "first")]
        assert await store.due(100, *pauses) == []


async def test_the_next_look_comes_after_the_double_of_the_first_pause(use: Use):
    clock = asyncio.get_running_loop().time
    async with use() as store:
        looked = clock()
        await store.write([begun("one")])
        for seconds in (FIRST_LOOK / 1000, 0.2, 0.4):  # and then the longest one
            async with asyncio.timeout(30):
                asked = clock()
                while await store.due(100, *PAUSES) != [("one", "first")]:
                    await asyncio.sleep(0.02)
                    asked = clock()
            assert clock() - looked > seconds - 0.01
            looked = asked


async def test_what_has_ended_or_is_removed_is_not_looked_for(use: Use):
    async with use(journal=3) as store:
        await store.write([begun(each) for each in ("removed", "answered", "settled", "left")])
        assert (await store.trim(100)).open == 3
        await store.write([later("answered", SUCCEEDED, 200)])
        await store.settle("settled", "first", End(FAILED))

        assert (await store.trim(100)).open == 1
        assert await until_due(store) == [("left", "first")]


async def test_a_replay_is_exclusive(use: Use):
    async with use(confirm_timeout=60) as store, use() as other:
        await store.write([answered("one", FAILED)])
        assert await store.begin_replay("gone", "second", "first") == (RUN, "")

        assert await store.begin_replay("one", "second", "first") == (BEGUN, "second")

        assert (await got(store, "one")).replaying == "second"
        for again in (False, True):
            assert await other.begin_replay("one", "third", "first", again) == (UNDER_WAY, "second")
        await store.end_replay("one", "second", taken=True)
        # Who has chosen it before the replay is told of it, too.
        assert await other.begin_replay("one", "third", "first") == (RUN, "second")
        assert await other.begin_replay("one", "third", "second") == (BEGUN, "third")


async def test_of_many_who_publish_an_interrupted_replay_again_one_does(use: Use):
    async with use(confirm_timeout=60) as store, use(confirm_timeout=60) as other:
        await store.write([answered("one", FAILED)])
        assert await store.begin_replay("one", "second", "first") == (BEGUN, "second")
        await store.end_replay("one", "second", taken=None)
        assert await other.begin_replay("one", "third", "first") == (INTERRUPTED, "second")
        found = [
            await some.begin_replay("one", f"t{n}", "first", again=True)
            for n, some in enumerate((store, other, store))
        ]
        assert sorted(found) == [(BEGUN, "second"), *[(UNDER_WAY, "second")] * 2]
        await store.end_replay("one", "second", taken=True)
        assert ((await got(store, "one")).replays, (await got(store, "one")).replaying) == (1, "")


async def test_a_replay_is_interrupted_when_it_has_not_ended_in_its_time(use: Use):
    async with use(confirm_timeout=0.001) as store:
        await store.write([answered("one", FAILED)])
        await store.begin_replay("one", "second", "first")
        async with asyncio.timeout(60):
            while (await store.begin_replay("one", "third", "first")).how != INTERRUPTED:
                await asyncio.sleep(0.1)


async def test_a_replay_that_was_taken_opens_the_delivery_again(use: Use):
    async with use() as store:
        await store.write([answered("one")])
        assert await store.settle("one", "first", End(FAILED, "ValueError")) == b"accepted"

        await replay(store, "one", "second")

        one = await got(store, "one")
        assert (one.state, one.task_id, one.error, one.ended_at) == (REPLAYED, "second", "", "")
        assert (one.replays, one.replaying, one.status) == (1, "", 202)
        assert await until_due(store) == [("one", "second")]
        # It is said once.
        await store.end_replay("one", "second", taken=True)
        assert (await got(store, "one")).replays == 1
        await store.settle("one", "second", End(RUNNING))
        assert await store.begin_replay("one", "third", "second") == (BEGUN, "third")
        runs = [{"state": FAILED, "resent_at": "2026-01-31T12:00:00.000+00:00"}]
        await store.end_replay("one", "third", taken=True, runs=runs)
        one = await got(store, "one")
        assert (one.runs, one.begun_at) == (runs, "")


async def test_a_replay_that_was_not_taken_changes_nothing(use: Use):
    async with use() as store:
        await store.write([answered("one", FAILED, 502)])
        before = await got(store, "one")
        await store.begin_replay("one", "second", "first")

        await store.end_replay("one", "other", taken=True)  # which has not begun
        assert (await got(store, "one")).replaying == "second"
        await store.end_replay("one", "second", taken=False)

        assert await got(store, "one") == before
        assert await store.begin_replay("one", "third", "first") == (BEGUN, "third")


async def test_what_was_replayed_keeps_the_replays_task(use: Use):
    async with use() as store:
        await store.write([begun("one")])
        await replay(store, "one", "second")

        await store.write([later("one", SUCCEEDED, 502, "ValueError")])
        await store.settle("one", "first", End(FAILED, "late"))

        one = await got(store, "one")
        assert (one.state, one.task_id, one.status, one.error) == (REPLAYED, "second", 502, "")
        # A replay counts as accepted, however its delivery was answered.
        assert await store.settle("one", "second", End(SUCCEEDED)) == b"accepted"
        assert (await got(store, "one")).state == SUCCEEDED
        await replay(store, "one", "third", before="second")
        assert (await got(store, "one")).replays == 2


async def test_entries_are_in_order_and_divided_by_position(use: Use):
    async with use(journal_refused=True) as store:
        expected = []
        for n in range(30):
            await store.write([answered(f"a{n}"), answered(f"b{n}")])
            await store.refuse(refusal(f"r{n}"))
            expected += [{f"r{n}", f"b{n}", f"a{n}"}]

        entries = await listed(store)

        found = [entry.id for entry in entries]
        assert sorted(found) == sorted(set().union(*expected))
        positions = [tuple(map(int, entry.position.split("-"))) for entry in entries]
        assert positions == sorted(set(positions), reverse=True)
        deliveries = [each for each in found if each[0] != "r"]
        assert deliveries == [f"{x}{n}" for n in reversed(range(30)) for x in "ba"]
        assert [each for each in found if each[0] == "r"] == [f"r{n}" for n in reversed(range(30))]
        for place in (0, 7, 45, 88, 89):
            assert await ids(store, before=entries[place].position) == found[place + 1 :]


async def test_a_search_ends_with_its_time_and_goes_on_from_there(use: Use):
    async with use() as store:
        await store.write([answered(f"d{n}") for n in range(3)])
        parts, before = [], ""
        while before or not parts:
            async with aclosing(store.find(Filter(), before, patience=0)) as found:
                parts.append([each.id async for each in found])
            before = store.reached
        assert parts == [["d2"], ["d1"], ["d0"], []]


async def test_entries_have_calls_only_if_asked(use: Use):
    async with use() as store:
        await store.write([answered("one", FAILED, 502)])
        (without,), (whole,) = await listed(store), await listed(store, calls=True)
        assert (without.call, whole.call) == (b"", call())
        one = await got(store, "one")
        for entry in (without, whole):
            assert (entry.state, entry.status, entry.delivery) == (FAILED, 502, one.delivery)


async def test_entries_of_a_time(use: Use):
    async with use() as store:
        await store.write([answered("old")])
        await asyncio.sleep(0.05)
        between = await _received(store, "old") + timedelta(milliseconds=20)
        await store.write([answered("new")])

        assert await ids(store, since=between) == ["new"]
        assert await ids(store, until=between) == ["old"]
        assert await ids(store, since=between, until=between) == []
        assert await ids(store, since=datetime(1960, 1, 1, tzinfo=UTC)) == ["new", "old"]


async def _received(store: JournalStore, delivery_id: str) -> datetime:
    """Return by the store's clock when a delivery was written."""
    (position,) = [e.position for e in await listed(store) if e.id == delivery_id]
    return datetime.fromtimestamp(int(position.partition("-")[0]) / 1000, UTC)


async def test_each_change_is_announced(use: Use):
    async with use(journal_refused=True) as store, aclosing(store.changes()) as changes:
        assert await anext(changes) == ""

        await store.write([begun("a"), begun("b")])
        await store.refuse(refusal("r"))
        await store.write([later("b", ACCEPTED)])
        await store.settle("a", "first", End(RUNNING))
        await store.settle("a", "first", End(RUNNING))  # which changes nothing
        await store.settle("a", "first", End(FAILED))
        await replay(store, "a", "second")
        await store.write([begun("last")])

        expected = ["a", "b", "r", "b", "a", "a", "a", "last"]
        async with asyncio.timeout(30):
            assert [await anext(changes) for _ in expected] == expected


async def test_deployments_do_not_see_each_other(use: Use):
    async with (
        use(journal_refused=True) as store,
        use(state_prefix=secrets.token_hex(8)) as other,
        aclosing(other.changes()) as changes,
    ):
        assert await anext(changes) == ""
        await store.write([answered("one")])
        await store.refuse(refusal("r"))

        assert await other.get("one") is None and await ids(other) == []
        assert (await other.trim(100))[:4] == (0, 0, 0, 0)
        assert await other.begin_replay("one", "second", "first") == (RUN, "")
        assert await other.settle("one", "first", End(FAILED)) is None
        assert await until_due(store) == [("one", "first")]
        assert await other.due(100, *PAUSES) == []
        await other.write([answered("own", SUCCEEDED)])
        assert await anext(changes) == "own"
        assert (await got(store, "one")).state == ACCEPTED


async def test_a_check_leaves_nothing(use: Use):
    async with use(journal=5, **ARCHIVE) as store:
        await store.write([answered(f"d{n}") for n in range(5)])
        before, size = await listed(store), await store.trim(100)
        await store.check()
        after = await store.trim(100)
        assert await listed(store) == before and after[:5] == size[:5]
        async with StateStore.opened(store._config) as keys:
            assert [key async for key in keys.keys("") if b"check-" in key] == []


async def test_a_store_that_is_away_is_an_error_of_the_gateway(use: Use, server: Server):
    away = re.sub(r":\d+", f":{free_port()}", server.url)
    async with use(url=away) as store:
        for attempt in (
            lambda: store.write([begun("one")]),
            lambda: store.refuse(refusal("one")),
            lambda: store.settle("one", "first", End(FAILED)),
            lambda: store.due(1, *PAUSES),
            lambda: store.get("one"),
            lambda: store.trim(1),
            lambda: anext(store.changes()),
        ):
            with pytest.raises(GatewayError):
                await attempt()


async def test_a_started_store_says_that_it_has_no_answer():
    url = f"redis://127.0.0.1:{free_port()}/0"
    async with started(ProcessStore(Config(journal=10, strategy="pika", state_url=url))) as store:
        for written in (store.write([begun("one")]), store.refuse(refusal("one"))):
            with pytest.raises(Unanswered):
                await written


async def test_entries_with_long_calls_come_in_small_pages(server: Server):
    """The other clients of the server wait while it reads a page."""
    config = Config(journal=100, strategy="pika", state_url=server.url)
    sizes = []

    async with StateStore.opened(config) as keys:

        async def run(*command: Any) -> Any:
            reply = await keys.run(*command)
            sizes.append(len(repr(reply)))
            return reply

        store = JournalStore(config, run, "long:")
        for n in range(12):
            await store.write([answered(f"d{n}", size=100_000 if n % 4 else 1_000_000)])
        del sizes[:]
        found = await listed(store, calls=True)

    assert [entry.id for entry in found] == [f"d{n}" for n in reversed(range(12))]
    assert all(len(entry.call) > 100_000 for entry in found)
    assert max(sizes) < 1_010_000
    assert len(sizes) == 10  # three long ones alone, the others in twos and ones, and the end


ARCHIVE = {"archive_url": "sqlite:///none"}


async def changed(store: JournalStore) -> list[str]:
    return [change.id for change in await store.changed(100, 1 << 20, 0.0)]


async def test_what_has_changed_is_told_until_it_is_archived(use: Use):
    async with use(journal=10, **ARCHIVE) as store:
        await store.write([begun("one"), begun("two")])
        first = await store.changed(100, 1 << 20, 0.0)
        assert sorted(each.id for each in first) == ["one", "two"]
        assert all(each.entry is not None and each.entry.call == call() for each in first)
        assert [each.entry.position for each in first if each.entry] == sorted(
            [entry.position for entry in await listed(store)]
        )
        assert await store.changed(100, 1 << 20, 60.0) == []
        assert len(await store.changed(1, 1 << 20, 0.0)) == len(await store.changed(9, 1, 0.0)) == 1

        # What has changed after it was read is told again.
        await store.settle("one", "first", End(RUNNING))
        await store.archived(first)
        assert await changed(store) == ["one"]

        await store.archived(await store.changed(100, 1 << 20, 0.0))
        assert await changed(store) == []
        await store.write([later("two", ACCEPTED)])
        assert await store.begin_replay("one", "second", "first") == (BEGUN, "second")
        assert sorted(await changed(store)) == ["one", "two"]
        await store.archived(await store.changed(100, 1 << 20, 0.0))
        await store.end_replay("one", "second", taken=True)
        await store.refuse(refusal("three"))
        assert await changed(store) == await store.unarchived(9) == ["one", "three"]
        assert await store.unarchived(1) == ["one"]
        assert await unmarked(store) == ["two"]
        await store.mark(["one", "two"])
        assert await store.unarchived(9) == ["one", "three", "two"]
        assert await unmarked(store) == []
        await store.archived(await store.changed(100, 1 << 20, 0.0))
        assert sorted(await unmarked(store)) == ["one", "three", "two"]


async def test_what_was_removed_before_it_was_archived_is_counted(use: Use):
    async with use(journal=10, journal_age=1, **ARCHIVE) as store, use(journal=10) as other:
        await store.write([answered(f"d{n}") for n in range(10)])
        size = await store.trim(1)
        assert (size.waiting, size.missed) == (10, 0) and 0 <= size.lag < 60
        await store.archived(await store.changed(4, 1 << 20, 0.0))
        await store.write([answered(f"d{n}") for n in range(10, 16)])
        size = await store.trim(1)
        assert (size.waiting, size.missed) == (10, 2)
        await asyncio.sleep(1.1)
        assert 1 <= (await store.trim(1)).lag < 60
        assert (await store.trim(100))[4:] == (0, 0.0, 12)
        # Also what has gone by itself, which is noticed by who copies.
        await store.write([answered("gone")])
        while await store.get("gone") is not None:
            await asyncio.sleep(0.05)
        await store.archived(await store.changed(4, 1 << 20, 0.0))
        assert (await store.trim(100))[4:] == (0, 0.0, 13)

        await other.write([answered("unmarked")])
        assert await changed(store) == []


async def test_a_delivery_is_erased(use: Use):
    async with use(journal=10, **ARCHIVE) as store:
        await store.write([begun("one"), answered("two")])
        await store.refuse(refusal("three"))
        assert await store.there(["one", "none", "three"]) == {"one", "three"}
        for delivery_id in ("one", "three"):
            assert await store.erase(await got(store, delivery_id)) is True
        assert await ids(store) == await changed(store) == ["two"]
        assert (await store.trim(1)).open == 1
        await store.write([later("one", ACCEPTED)])
        assert await store.there(["one"]) == set()
        (two,) = await listed(store)
        assert await store.erase(two) is True and await store.erase(two) is False
        assert (await store.trim(1))[:4] == (0, 0, 0, 0)


def failed(delivery_id: str, error: str, state: str = FAILED) -> Row:
    row = answered(delivery_id, state, 502)
    return (*row[:7], error, *row[8:])


async def counted(store: JournalStore, process: str = "one", news: bool = True) -> int:
    failing = await store.failing(process, 60.0, 100)
    assert failing is not None
    return await store.count(failing, news)


async def in_order(store: JournalStore) -> list[Group]:
    return sorted(await store.groups(), key=lambda group: group.about.type)


async def test_each_failure_is_counted_once(use: Use):
    async with use() as store:
        # Given some that fail with their answer, one that fails later, and one that does not,
        await store.write([failed(f"d{n}", f"task-failed: KeyError: no {n}") for n in range(3)])
        await store.write([begun("late"), answered("well", SUCCEEDED, 200)])
        await store.settle("late", "first", End(FAILED, "KeyError: no 77"))
        await store.settle("late", "first", End(FAILED, "KeyError: no 78"))

        # when one process counts, and another one would,
        failing = await store.failing("one", 60.0, 100)
        assert failing is not None and [each.id for each in failing] == ["d0", "d1", "d2", "late"]
        assert await store.failing("other", 60.0, 100) is None

        # then each is counted once, also where it is told twice,
        assert await store.count(failing[:2], news=True) == 2
        assert await store.count(failing, news=True) == 2
        assert await store.failing("one", 60.0, 100) == []
        (group,) = await store.groups()
        about = (group.about.state, group.about.route, group.about.task)
        assert about == (FAILED, "/", "tasks.run")
        assert (group.about.type, group.about.text) == ("KeyError", "no {n}")
        assert (group.count, group.state, group.latest) == (4, NEW, ["late", "d2", "d1", "d0"])
        assert group.first <= group.last <= group.now
        assert (sum(group.hours), len(group.hours)) == (4, 24)

        # and a filter finds the deliveries of the group.
        async with aclosing(store.find(Filter(group=group.id))) as found:
            assert {entry.id async for entry in found} == {"d0", "d1", "d2", "late"}


async def test_what_is_gone_or_runs_again_is_in_no_group(use: Use):
    async with use() as store:
        await store.write([failed(each, "E") for each in ("erased", "replayed", "again")])
        failing = await store.failing("one", 60.0, 100)
        assert failing is not None and len(failing) == 3
        assert await store.erase((await listed(store))[-1])
        await replay(store, "replayed", "second")
        await replay(store, "again", "second")
        await store.settle("again", "second", End(FAILED, "F"))

        assert await counted(store) == 1

        assert [each.about.type for each in await store.groups()] == ["F"]


async def test_a_group_is_muted_resolved_and_comes_back(use: Use):
    async with use() as store:
        await store.write([failed("a", "E", EXPIRED), failed("b", "F", DEAD_LETTERED)])
        await counted(store)
        e, f = await in_order(store)
        assert (e.about.type, f.about.type, e.state) == ("E", "F", NEW)

        until = datetime.now(UTC) + timedelta(hours=1)
        assert await store.change_group(e.id, until)
        assert await store.change_group(f.id, None)
        assert not await store.change_group("0123456789abcdef", None)
        e, f = await in_order(store)
        assert (e.state, e.muted) == (MUTED, int(until.timestamp() * 1000))
        assert (f.state, f.again) == (RESOLVED, 0) and f.resolved >= f.last

        # When the two fail again,
        await store.write([failed("c", "F", DEAD_LETTERED), failed("d", "E", EXPIRED)])
        await counted(store)

        # then the one that was resolved is back, and the other one is still muted.
        e, f = await in_order(store)
        assert (f.state, f.resolved, f.count) == (AGAIN, 0, 2) and f.again == f.last
        assert (e.state, e.count) == (MUTED, 2)
        assert await store.forget_group(e.id)
        assert [each.id for each in await store.groups()] == [f.id]


async def test_news_are_what_is_new_grows_and_comes_back(use: Use):
    async with use() as store:

        async def news_after(number: int, error: str = "E") -> list[str]:
            await store.write([failed(secrets.token_hex(4), error) for _ in range(number)])
            await counted(store)
            news = await store.news(100, 60.0)
            await store.told(news, 0.0)
            return [each.partition(" ")[0] for each in news]

        assert await news_after(1) == ["new"]
        (group,) = await store.groups()
        assert await news_after(8) == []
        assert await news_after(1) == ["grown"]
        assert await news_after(89) == []
        assert await news_after(1) == ["grown"]
        assert await store.change_group(group.id, None)
        assert await news_after(1) == ["again"]
        assert await news_after(9) == ["grown"]
        assert (await store.groups())[0].count == 110

        # What comes again while a message is sent is told by the next one.
        assert await store.change_group(group.id, None)
        await store.write([failed("y", "E")])
        await counted(store)
        news = await store.news(100, 60.0)
        await store.told(dict.fromkeys(news, "1"), 0.0)
        assert await store.news(100, 60.0) == news and [*news] == [f"again {group.id}"]
        await store.told(news, 0.0)

        # With a pause, what comes meanwhile is told afterwards.
        await store.told({}, 60.0)
        await store.write([failed("x", "F")])
        await counted(store)
        assert await store.news(100, 60.0) == {}
        assert await store.untold() == ""
        await store.told({}, 60.0, "403: ü")
        assert await store.untold() == "403: ü" and await store.news(100, 60.0) == {}
        await store.told({}, 0.0)
        assert len(await store.news(100, 60.0)) == 1 and await store.untold() == ""


async def test_a_damaged_group_is_told_and_stops_nothing(use: Use, caplog):
    numbers = ("count", "base", "said", "first", "last", "muted", "resolved", "again")
    damages = [(name, bad) for name in numbers for bad in ("", "x", "1.5", "-1", "9" * 40)]
    damages += [("about", bad) for bad in ("", "[]", "7", '["failed",1,2,3,4]')]
    async with use() as store:
        for name, bad in [*damages, ("hour", "x"), ("latest", b"\xff"), ("", "")]:
            await store.write([failed(secrets.token_hex(4), error) for error in "EF"])
            await counted(store)
            e, f = await in_order(store)
            key = store._keys.group + e.id
            if not name:
                await store._run("DEL", key)
                await store._run("SET", key, "of another type")
            elif name == "hour":
                await store._run("HSET", key, f"h{e.last // 3_600_000}", bad)
            else:
                await store._run("HSET", key, name, bad)
            told = caplog.text.count("is damaged")
            found = await in_order(store)
            assert f in [replace(each, now=f.now) for each in found]
            assert len(found) == 2 or caplog.text.count("is damaged") > told

            # What fails then is counted, in this group and in others.
            await store.write([failed(secrets.token_hex(4), error) for error in "EFG"])
            assert await counted(store) == 3
            assert {"F", "G"} <= {each.about.type for each in await store.groups()}
            assert await store.forget_group(e.id)
            for each in await store.groups():
                await store.forget_group(each.id)


async def test_groups_are_bounded(use: Use):
    async with use() as store:
        # A type of its own for each.
        rows = [failed(f"d{n}", "".join(chr(97 + int(c)) for c in f"{n:04}")) for n in range(600)]
        await store.write(rows[:1])
        await counted(store)
        (muted,) = await store.groups()
        assert await store.change_group(muted.id, datetime.now(UTC) + timedelta(hours=1))
        for begin in range(1, 600, 100):
            await store.write(rows[begin : begin + 100])
            await counted(store)

        # Then those that have failed last are kept, and the one that is muted.
        groups = await store.groups()
        assert len(groups) == MOST
        assert {each.latest[0] for each in groups} == {"d0", *(f"d{n}" for n in range(101, 600))}
        # What nobody has told is bounded with them.
        assert set(await store.news(1_000, 60.0)) == {f"new {each.id}" for each in groups}


async def test_what_another_version_has_written_is_read(use: Use):
    async with use() as store:
        row = failed("new", "E")
        newer = {**json.loads(row[9]), "more": 1, "options": {"priority": 3, "unknown": 1}}
        await store.write([(*row[:9], json.dumps(newer), "", row[11])])
        entry = await store.get("new")
        assert entry is not None and entry.options["priority"] == 3
        assert entry.unsendable == "it has options of another version: unknown"
        (failing,) = await store.failing("one", 60.0, 100) or []
        assert failing.about is not None and failing.about.type == "E"


async def test_without_news_nothing_is_to_be_told(use: Use):
    async with use() as store:
        await store.write([failed("a", "E")])
        await counted(store, news=False)
        assert await store.news(100, 60.0) == {}


async def test_a_route_s_share_of_failures_is_told_once(use: Use):
    async with use() as store:
        assert await store.rates(0.5, {"/a b": 19}, {"/a b": 19}) == {"/a b": (19, 19)}
        assert await store.news(10, 60.0) == {}
        sums = await store.rates(0.5, {"/a b": 1, "/c": 40}, {"/c": 19})
        assert sums == {"/a b": (20, 19), "/c": (40, 19)}
        assert [*await store.news(10, 60.0)] == ["share /a b"]
        await store.told(await store.news(10, 60.0), 0.0)

        # Nor is it after somebody has read the numbers, as the message with them does.
        await store.rates(None, {}, {})
        await store.rates(0.5, {}, {"/a b": 1})
        assert await store.news(10, 60.0) == {}

        # After it was below, it is told anew.
        await store.rates(0.5, {"/a b": 100}, {})
        assert await store.news(10, 60.0) == {}
        await store.rates(0.5, {}, {"/a b": 80})
        assert [*await store.news(10, 60.0)] == ["share /a b"]
