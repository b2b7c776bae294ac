"""Read journal and archive as one: the same deliveries, filters and positions.

What is in the journal is told by the journal, as the archive is behind. Both are read from the
newest to the oldest, and merged by their positions.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any

from gateway.config.settings import Config
from gateway.errors import GatewayError
from gateway.journal.base import JournalStore
from gateway.journal.entry import GONE, Entry
from gateway.journal.filter import Filter
from gateway.journal.groups import FAILURES
from gateway.journal.reading import Reader
from gateway.journal.stores import store_for

if TYPE_CHECKING:
    from gateway.archive.database import Database

_PAGE, _CALLS = 200, 20  # deliveries a query; where their calls are read as well
#: What a filter is compared with in `about`; a request that no route took has only its path.
_KEYS = {"source": ("source",), "event": ("event",), "route": ("route", "path")}
_GLOBS = {"*": "%", "%": r"\%", "_": r"\_", "\\": r"\\"}


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

    async def pages(self, wanted: Filter, before: str) -> AsyncIterator[list[Entry]]:
        """Yield those that `wanted` takes, the newest first, with their calls if it has a text."""
        while True:
            page, before = await asyncio.to_thread(self._page, wanted, before)
            yield page
            if not before:
                return

    def _page(self, wanted: Filter, before: str) -> tuple[list[Entry], str]:
        """Return some of them, and the position after which the next ones are; "": none are."""
        import sqlalchemy as sa

        from gateway.archive import tables

        columns, number = tables.DELIVERIES.c, _CALLS if wanted.text else _PAGE
        some = [each for each in columns if wanted.text or each.name != "call"]
        place = sa.tuple_(columns.ms, columns.seq)
        query = sa.select(*some).order_by(columns.ms.desc(), columns.seq.desc()).limit(number)
        if before:
            query = query.where(place < sa.tuple_(*map(sa.literal, tables.position(before))))
        elif wanted.until is not None:
            query = query.where(columns.ms <= _ms(wanted.until))
        if wanted.since is not None:
            query = query.where(columns.ms >= _ms(wanted.since))
        if wanted.state:
            query = query.where(columns.state.in_(sorted(wanted.state)))
        if wanted.group:
            query = query.where(columns.state.in_(sorted(FAILURES)))
        if wanted.status == "gone":
            query = query.where(columns.status == GONE)
        elif wanted.status:
            least, most = (int(re.sub("[x?]", digit, wanted.status)) for digit in "09")
            query = query.where(columns.status.between(least, most))
        for name, keys in _KEYS.items():
            if pattern := getattr(wanted, name):
                like = "".join(_GLOBS.get(each, each) for each in json.dumps(pattern)[1:-1])
                texts = (f'%"{key}": "%{like}%"%' for key in keys)
                query = query.where(
                    sa.or_(*(columns.about.like(text, escape="\\") for text in texts))
                )
        if wanted.text:
            ids = columns.id == wanted.text, columns.task_id == wanted.text
            likes = {
                tables.like(wanted.text),
                tables.like(json.dumps(wanted.text, ensure_ascii=False)[1:-1]),
            }
            query = query.where(sa.or_(*ids, *map(self._database.has_text, sorted(likes))))
        with self._database.reading() as connection:
            rows = connection.execute(query).all()
        entries = [tables.entry(each, call=bool(wanted.text)) for each in rows]
        last = entries[-1].position if len(rows) == number else ""
        return [each for each in entries if wanted.takes(each)], last


class Both(Reader):
    """Reads the journal, if there is one, and the archive.

    Where one of them does not answer, the other one is read, and `problems` has why.
    """

    def __init__(self, store: JournalStore | None, archive: Archive):
        self._journal = None if store is None else Reader(store)
        if store is None:
            self.problems = []
        else:
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

    async def find(self, wanted: Filter, before: str = "") -> AsyncGenerator[Entry, None]:
        parts = [self._archived(wanted, before)]
        if self._journal is not None:
            parts.append(self._journal.find(wanted, before))
        async with AsyncExitStack() as stack:
            for part in parts:
                await stack.enter_async_context(aclosing(part))
            next_ones = [(part, await self._next(part)) for part in parts]
            while heads := [(part, entry) for part, entry in next_ones if entry is not None]:
                newest, entry = max(heads, key=lambda head: _order(head[1].position))
                yield entry
                next_ones = [
                    (part, await self._next(part) if part is newest else head)
                    for part, head in heads
                ]

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

    async def _archived(self, wanted: Filter, before: str) -> AsyncGenerator[Entry, None]:
        """Yield those of the archive that the journal does not have."""
        async for page in self._archive.pages(wanted, before):
            known = await self._known([entry.id for entry in page])
            for entry in page:
                if entry.id not in known:
                    yield entry

    async def _known(self, ids: Sequence[str]) -> set[str]:
        if self._journal is None or not ids:
            return set()
        try:
            return await self._store.there(ids)
        except GatewayError as exc:
            self._note(exc)
            return set()


@asynccontextmanager
async def reading(config: Config) -> AsyncIterator[Reader]:
    """Connect to the journal's store and to the archive, and yield what reads both."""
    async with AsyncExitStack() as stack:
        store: Any = None
        if config.state:
            store = await stack.enter_async_context(store_for(config).opened(config))
        if not config.archive:
            yield Reader(store)
            return
        from gateway.archive.database import Database

        yield Both(store, Archive(Database(config)))


def _order(position: str) -> tuple[int, ...]:
    return tuple(map(int, position.split("-")))


def _ms(when: datetime) -> int:
    return max(int(when.timestamp() * 1000), 0)
