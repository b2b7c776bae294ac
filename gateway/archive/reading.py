"""Read journal and archive as one: the same deliveries, filters and positions.

What is in the journal is told by the journal, as the archive is behind. Both are read from the
newest to the oldest, and merged by their positions.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Callable,
    Collection,
    Generator,
    Iterable,
    Mapping,
    Sequence,
)
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import replace
from datetime import datetime
from operator import itemgetter
from threading import Lock
from typing import TYPE_CHECKING, Any

from gateway.config.settings import Config
from gateway.errors import GatewayError
from gateway.journal.entry import Entry, order
from gateway.journal.filter import Filter
from gateway.journal.reading import Reader
from gateway.journal.store import JournalStore

if TYPE_CHECKING:
    from gateway.archive.database import Database

_PAGE, _CALLS = 200, 20  # deliveries a query; where their calls are read as well
#: How many deliveries may wait for the archive, where they alone are read from the journal.
_WAITING = 2_000
_AT_ONCE = 10  # of them that are held with their calls


class Archive:
    """Reads the archive; raises `GatewayError` where its database does not answer."""

    def __init__(self, database: Database):
        self._database = database

    async def get(self, delivery_id: str) -> Entry | None:
        """Return the delivery with this id; None: there is none."""
        return await asyncio.to_thread(self._get, delivery_id)

    def _get(self, delivery_id: str) -> Entry | None:
        import sqlalchemy as sa

        from gateway.archive import tables

        with self._database.reading() as connection:
            wanted = sa.select(tables.DELIVERIES).where(tables.DELIVERIES.c.id == delivery_id)
            found = connection.execute(wanted).first()
        return None if found is None else tables.entry(found, call=True)

    async def pages(self, wanted: Filter, before: str) -> AsyncGenerator[list[Entry], None]:
        """Yield those that `wanted` takes, the newest first, with their calls if it has a text."""
        pages, one_at_a_time = self._pages(wanted, before), Lock()

        def run(step: Callable[..., Any], *given: Any) -> Any:
            with one_at_a_time:  # a thread goes on where its caller does not
                return step(*given)

        try:
            while (page := await asyncio.to_thread(run, next, pages, None)) is not None:
                yield page
        finally:
            await asyncio.to_thread(run, pages.close)

    def _pages(self, wanted: Filter, before: str) -> Generator[list[Entry], None, None]:
        import sqlalchemy as sa

        from gateway.archive import tables

        columns, calls = tables.DELIVERIES.c, bool(wanted.text)
        some = [each for each in columns if calls or each.name != "call"]
        number = _CALLS if calls else _PAGE
        with self._database.reading() as connection:
            for places in self._database.places(connection, wanted, before):
                for i in range(0, len(places), number):
                    part = places[i : i + number]
                    near = columns.ms.between(part[-1].ms, part[0].ms)
                    query = sa.select(*some).where(near, columns.id.in_([each.id for each in part]))
                    query = query.order_by(columns.ms.desc(), columns.seq.desc())
                    entries = [tables.entry(each, calls) for each in connection.execute(query)]
                    yield [each for each in entries if wanted.takes(each)]


class Both(Reader):
    """Reads the journal, if there is one, and the archive.

    Where one of them does not answer, the other one is read, and `problems` has why.
    """

    def __init__(self, store: JournalStore | None, archive: Archive):
        self._journal = None if store is None else Reader(store)
        self.problems, self.reached = [], ""
        if store is not None:
            super().__init__(store)
        self._archive = archive

    async def get(self, delivery_id: str) -> Entry | None:
        found = None
        if self._journal is not None:
            try:
                found = await self._journal.get(delivery_id)
            except GatewayError as exc:
                self._note(exc)
        try:
            return found or await self._archive.get(delivery_id)
        except GatewayError as exc:
            self._note(exc)
            return None

    async def find(
        self, wanted: Filter, before: str = "", patience: float = math.inf
    ) -> AsyncGenerator[Entry, None]:
        self.reached = ""
        waiting: Mapping[str, Entry | None] | None = {}
        parts: list[AsyncGenerator[Entry, None]] = []
        try:
            if self._journal is not None:
                waiting = await self._waiting(wanted)
                parts.append(self._journal.find(wanted, before, patience))
        except GatewayError as exc:
            self._note(exc)
        archived = self._archived(wanted, before, waiting)
        first = None
        try:
            first = await anext(archived, None)
            if waiting is not None:  # the archive has all others
                parts = [_chosen(waiting.values(), wanted, before)]
        except GatewayError as exc:
            self._note(exc)
        async with AsyncExitStack() as stack:
            for part in (archived, *parts):
                await stack.enter_async_context(aclosing(part))
            next_ones = [(archived, first), *[(part, await self._next(part)) for part in parts]]
            heads = {part: (order(each.position), each) for part, each in next_ones if each}
            while heads:
                newest = max(heads, key=lambda part: heads[part][0])
                place, entry = heads.pop(newest)
                end = self._journal.reached if self._journal is not None else ""
                if end and place < order(end):
                    break
                yield entry
                if following := await self._next(newest):
                    heads[newest] = order(following.position), following
        if self._journal is not None:
            self.reached = self._journal.reached

    async def _waiting(self, wanted: Filter) -> dict[str, Entry | None] | None:
        """Return what the archive does not have yet, by id; None: there is too much of it.

        It is without its calls, and None in the place of what `wanted` does not take.
        """
        ids = await self._store.unarchived(_WAITING + 1)
        if len(ids) > _WAITING:
            return None
        found: dict[str, Entry | None] = {}
        for i in range(0, len(ids), _AT_ONCE):
            for each in await asyncio.gather(*map(self._store.get, ids[i : i + _AT_ONCE])):
                if each is not None:
                    found[each.id] = replace(each, call=b"") if wanted.takes(each) else None
        return found

    async def _next(self, part: AsyncGenerator[Entry, None]) -> Entry | None:
        try:
            return await anext(part, None)
        except GatewayError as exc:
            self._note(exc)
            return None

    def _note(self, exc: GatewayError) -> None:
        """Remember why one of the two is not read; raises the error where it is the second."""
        if str(exc) not in self.problems:
            self.problems.append(str(exc))
        if len(self.problems) > 1 or self._journal is None:
            raise exc

    async def _archived(
        self, wanted: Filter, before: str, waiting: Mapping[str, Entry | None] | None
    ) -> AsyncGenerator[Entry, None]:
        """Yield those of the archive that the journal does not tell."""
        async with aclosing(self._archive.pages(wanted, before)) as pages:
            async for page in pages:
                ids = [entry.id for entry in page]
                known = await self._known(ids) if waiting is None else waiting
                for entry in page:
                    if entry.id not in known:
                        yield entry

    async def _known(self, ids: Sequence[str]) -> Collection[str]:
        if not ids:
            return ()
        try:
            return await self._store.there(ids)
        except GatewayError as exc:
            self._note(exc)
            return ()


@asynccontextmanager
async def reading(config: Config) -> AsyncIterator[Reader]:
    """Connect to the journal's store and to the archive, and yield what reads both."""
    async with AsyncExitStack() as stack:
        store: Any = None
        if config.state:
            store = await stack.enter_async_context(JournalStore.opened(config))
        if not config.archive:
            yield Reader(store)
            return
        from gateway.archive.database import Database

        yield Both(store, Archive(Database(config)))


async def _chosen(
    entries: Iterable[Entry | None], wanted: Filter, before: str
) -> AsyncGenerator[Entry, None]:
    """Yield those that are within the times of `wanted` and older than `before`, newest first."""
    since = _ms(wanted.since) if wanted.since else 0
    last = (_ms(wanted.until), math.inf) if wanted.until else (math.inf,)
    found = [(order(each.position), each) for each in entries if each is not None]
    for place, each in sorted(found, key=itemgetter(0), reverse=True):
        older = place < order(before) if before else place <= last
        if older and place[0] >= since:
            yield each


def _ms(when: datetime) -> int:
    return max(int(when.timestamp() * 1000), 0)
