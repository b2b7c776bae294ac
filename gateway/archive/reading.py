"""Read journal and archive as one: the same deliveries, filters and positions.

What is in the journal is told by the journal, as the archive is behind. Both are read from the
newest to the oldest, and merged by their positions.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import replace
from operator import itemgetter
from threading import Lock
from typing import TYPE_CHECKING, Any

from gateway.config.settings import Config
from gateway.errors import GatewayError
from gateway.journal.entry import Entry, ms_of, order
from gateway.journal.filter import Filter
from gateway.journal.reading import Reader
from gateway.journal.store import JournalStore

if TYPE_CHECKING:
    from gateway.archive.database import Database

#: How many deliveries may wait for the archive, where they alone are read from the journal.
_WAITING = 2_000
_AT_ONCE = 10  # of them that are held with their calls


class Both(Reader):
    """Reads the journal, if there is one, and the archive.

    Where one of them does not answer, the other one is read, and `problems` has why.
    """

    def __init__(self, store: JournalStore | None, database: Database):
        self.problems: list[str] = []
        self._journal = store
        self._database = database

    async def get(self, delivery_id: str) -> Entry | None:
        found = None
        if self._journal is not None:
            try:
                found = await self._journal.get(delivery_id)
            except GatewayError as exc:
                self._note(exc)
        try:
            return found or await asyncio.to_thread(self._database.get, delivery_id)
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
                waiting = await _waiting(self._journal, wanted)
                parts.append(self._journal.find(wanted, before, patience))
        except GatewayError as exc:
            self._note(exc)
        archived = self._archived(wanted, before, waiting)
        first = None
        try:
            first = await anext(archived, None)
            if waiting is not None:  # the archive has all others
                parts = [_chosen(waiting, wanted, before)]
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
        async with aclosing(_threaded(self._database.pages(wanted, before))) as pages:
            async for page in pages:
                ids = [entry.id for entry in page]
                known = await self._known(ids) if waiting is None else waiting.keys()
                for entry in page:
                    if entry.id not in known:
                        yield entry

    async def _known(self, ids: Sequence[str]) -> set[str]:
        try:
            return await self._journal.there(ids) if self._journal is not None and ids else set()
        except GatewayError as exc:
            self._note(exc)
            return set()


async def _waiting(store: JournalStore, wanted: Filter) -> dict[str, Entry | None] | None:
    """Return what the archive does not have yet, by id; None: there is too much of it.

    It is without its calls, and None in the place of what `wanted` does not take.
    """
    ids = await store.unarchived(_WAITING + 1)
    if len(ids) > _WAITING:
        return None
    found: dict[str, Entry | None] = {}
    for i in range(0, len(ids), _AT_ONCE):
        for each in await asyncio.gather(*map(store.get, ids[i : i + _AT_ONCE])):
            if each is not None:
                found[each.id] = replace(each, call=b"") if wanted.takes(each) else None
    return found


@asynccontextmanager
async def reading(config: Config) -> AsyncIterator[Reader]:
    """Connect to the journal's store and to the archive, and yield what reads both."""
    async with AsyncExitStack() as stack:
        store: Any = None
        if config.state:
            store = await stack.enter_async_context(JournalStore.opened(config))
        if not config.archive:
            yield store
            return
        from gateway.archive.database import Database

        yield Both(store, Database(config))


async def _threaded(pages: Generator[list[Entry], None, None]) -> AsyncGenerator[list[Entry], None]:
    """Yield pages that are read in threads."""
    one_at_a_time = Lock()

    def run(step: Callable[..., Any], *arguments: Any) -> Any:
        with one_at_a_time:  # a thread goes on where its caller does not
            return step(*arguments)

    try:
        while (page := await asyncio.to_thread(run, next, pages, None)) is not None:
            yield page
    finally:
        await asyncio.to_thread(run, pages.close)


async def _chosen(
    entries: Mapping[str, Entry | None], wanted: Filter, before: str
) -> AsyncGenerator[Entry, None]:
    """Yield those that are within the times of `wanted` and older than `before`, newest first."""
    since, until = (each and ms_of(each) for each in (wanted.since, wanted.until))
    last = (math.inf,) if until is None else (until, math.inf)
    found = [(order(each.position), each) for each in entries.values() if each is not None]
    for place, each in sorted(found, key=itemgetter(0), reverse=True):
        older = place < order(before) if before else place <= last
        if older and place[0] >= (since or 0):
            yield each
