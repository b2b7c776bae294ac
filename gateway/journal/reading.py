"""Read the journal: one delivery by its id, those that a filter finds, and what changes."""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace

from gateway.clock import monotonic
from gateway.config.settings import Config
from gateway.errors import GatewayError
from gateway.journal.entry import Entry
from gateway.journal.filter import Filter
from gateway.journal.store import JournalStore


class Reader:
    """Reads the journal; raises `gateway.errors.GatewayError` where its store does not answer."""

    def __init__(self, store: JournalStore):
        self._store = store
        #: Why not all is read that there may be.
        self.problems: list[str] = []
        #: Where `find` has ended in the time that it had, as a position; "": at the end.
        self.reached = ""

    async def get(self, delivery_id: str) -> Entry | None:
        """Return the delivery with this id; None: there is none."""
        return await self._store.get(delivery_id)

    async def get_all(self, ids: Sequence[str]) -> list[Entry]:
        """Return the deliveries with these `ids`, in their order; it is an error if one is gone."""
        found = {each: await self.get(each) for each in ids}
        if missing := [each for each, entry in found.items() if entry is None]:
            where = "" if self.problems else " in the journal"
            why = "".join(f"; {problem}" for problem in self.problems)
            search = "`gateway deliveries list --text TEXT` finds a number or a name in a delivery"
            raise GatewayError(f"no such delivery{where}: {', '.join(missing)}{why}; {search}")
        return [entry for entry in found.values() if entry is not None]

    async def find(
        self, wanted: Filter, before: str = "", patience: float = math.inf
    ) -> AsyncGenerator[Entry, None]:
        """Yield the deliveries that `wanted` takes, the newest first, without their calls.

        `before`: only those that are older than the one with this ``position``. After `patience`
        seconds it ends, and `reached` is where.
        """
        end, self.reached = monotonic() + patience, ""
        entries = self._store.entries(bool(wanted.text), wanted, before)
        async with aclosing(entries):
            async for entry in entries:
                if wanted.takes(entry):
                    yield replace(entry, call=b"")
                if monotonic() > end:
                    self.reached = entry.position
                    return

    def changes(self) -> AsyncGenerator[str, None]:
        """Yield the id of each delivery that is written or changed from now on, until closed.

        The first one is empty: from then on nothing is missed.
        """
        return self._store.changes()


@asynccontextmanager
async def reading(config: Config) -> AsyncIterator[Reader]:
    """Connect to the journal's store, and yield what reads it."""
    async with JournalStore.opened(config) as store:
        yield Reader(store)
