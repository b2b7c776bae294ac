"""What Redis leaves out when it looks for deliveries, no filter takes: as if all were read."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from datetime import UTC, datetime
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.config.settings import Config
from gateway.errors import GatewayError
from gateway.journal import store as journal_store
from gateway.journal.entry import IGNORED, REFUSED, STATES, SUCCEEDED, Entry
from gateway.journal.filter import ALL, Filter
from gateway.journal.groups import group_of
from gateway.journal.replay import choose
from gateway.journal.store import JournalStore, Refusal, Row
from tests.simulation.test_contract_redis import simulated

CONFIG = Config(journal=100, journal_refused=True, strategy="pika", state_url="redis://simulated")
IDENTITIES = [digit * 31 + last for digit in "07f" for last in "ab"]
#: Some of these look like what is searched for in the JSON of a delivery.
TEXTS = ["", "/a", "/a/b", "ä,\ud83d", 'x"', "\\u00e4", f'"identity": "{IDENTITIES[0]}', "a,/a/b"]
GLOBS = [*TEXTS, "*", "/a*", "*b", "*ä*", '*"*', "*,*"]
ERRORS = ["", "KeyError: 'id'", "TaskFailed: OSError: 5"]


class Written(NamedTuple):
    """A delivery that is written, and whether its hash is gone: Redis has removed it."""

    state: str
    status: str
    identity: str
    route: str
    source: str
    event: str
    error: str
    gone: bool

    def row(self, delivery_id: str) -> Row:
        names = ("route", "source", "event")
        begun = {"id": delivery_id, "received_at": "2026-01-31T12:00:00+00:00"}
        delivery = {**begun, **{name: getattr(self, name) for name in names}}
        params = {"identity": self.source[:20]}
        about = {"delivery": {**delivery, "params": params}, "task": "t", "queue": "q"}
        known = {"identity": self.identity} if self.identity else {}
        numbers = ("0.1", "", self.error, "1")
        own = (delivery_id, SUCCEEDED, 0, "task", self.status, *numbers)
        return (*own, json.dumps(about | known), "", json.dumps([[self.event], {}, {}]).encode())


ANY = st.sampled_from
WRITTEN = st.builds(
    Written,
    ANY(STATES),
    ANY(["200", "202", "502", "0"]),
    ANY(["", *IDENTITIES]),
    *([ANY(TEXTS)] * 3),
    ANY(ERRORS),
    ANY([False] * 6 + [True]),
)
FILTERS = st.builds(
    Filter,
    state=st.frozensets(ANY(STATES), max_size=3),
    status=ANY(["", "", "5xx", "2?2", "gone"]),
    **{name: st.just("") | ANY(GLOBS) for name in ("route", "source", "event")},
    text=ANY(["", "", "", "keyerror", "a"]),
    identities=st.frozensets(ANY(IDENTITIES), max_size=2),
)


class Whole(JournalStore):
    """Reads all, whatever is looked for."""

    def entries(
        self, calls: bool, wanted: Filter = ALL, before: str = ""
    ) -> AsyncGenerator[Entry, None]:
        return super().entries(calls, Filter(since=wanted.since, until=wanted.until), before)


@pytest.fixture(scope="module", autouse=True)
def small_pages() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(journal_store, "_LOOKED", 3)
        patch.setattr(journal_store, "_PAGE", 2)
        patch.setattr(journal_store, "_CALLS", 250)
        yield


def same(written: list[Written], seen: Any) -> None:
    """Write to a journal; what `seen` sees of it is the same as if all were read."""
    with simulated() as server:
        client = server.connect()

        async def run(*words: Any) -> Any:
            reply = client(*words)
            if isinstance(reply, Exception):
                raise reply
            return reply

        async def both() -> tuple[Any, Any]:
            store = JournalStore(CONFIG, run)
            for number, each in enumerate(written):
                row = each.row(f"d{number}")
                server.carrier.pause(0.004 * (number % 3))
                key = store._keys.of(row[0])
                if each.state in (REFUSED, IGNORED):
                    about, call = row[9], row[11]
                    refusal = Refusal(row[0], about, call, 401, 0.1, each.error, each.state)
                    await store.refuse(refusal)
                else:
                    await store.write([row])
                    await run("HSET", key, "state", each.state)
                if each.gone:
                    await run("DEL", key)
            return await seen(store), await seen(Whole(CONFIG, run))

        found, expected = asyncio.run(both())
        assert found == expected


@given(st.lists(WRITTEN, max_size=12), FILTERS, st.integers(0, 12), st.integers(0, 12))
def test_a_search_finds_what_a_reading_of_all_finds(
    written: list[Written], wanted: Filter, first: int, last: int
):
    async def seen(store: JournalStore) -> list[Entry]:
        async with aclosing(store.entries(False)) as entries:
            times = [int(each.position.split("-")[0]) / 1e3 async for each in entries]
        since, until = (
            datetime.fromtimestamp(times[n], UTC) if n < len(times) else None for n in (first, last)
        )
        filters = [Filter(**{**vars(wanted), "since": since, "until": until})]
        # Each group that there is, alone and with the rest of the filter.
        for each in {entry.id for entry in await found(Whole(CONFIG, store._run), Filter())}:
            entry = await store.get(each)
            about = entry and group_of(entry)
            if about:
                filters += [Filter(group=about.id), Filter(**{**vars(wanted), "group": about.id})]
        return [await found(store, each) for each in filters]

    same(written, seen)


async def found(store: JournalStore, wanted: Filter) -> list[Entry]:
    async with aclosing(store.find(wanted)) as entries:
        return [each async for each in entries]


@given(st.lists(WRITTEN, max_size=12), FILTERS, st.sets(st.integers(0, 11), min_size=1))
def test_the_same_is_chosen_for_a_replay(written: list[Written], wanted: Filter, some: set[int]):
    async def seen(store: JournalStore) -> Any:
        by_filter = await choose(store, wanted, again=False)
        try:
            by_id = await choose(store, [f"d{each}" for each in some], again=False)
        except GatewayError as exc:
            return by_filter, str(exc)
        return by_filter, by_id

    same(written, seen)


@given(st.lists(WRITTEN, max_size=12), FILTERS)
def test_a_search_without_patience_goes_on_from_where_it_has_ended(
    written: list[Written], wanted: Filter
):
    async def seen(store: JournalStore) -> list[str]:
        before, ids = "", list[str]()
        while before or not ids:
            async with aclosing(store.find(wanted, before, patience=0)) as entries:
                ids += [each.id async for each in entries] or [""]
            before = store.reached
        return [each for each in ids if each]

    same(written, seen)
