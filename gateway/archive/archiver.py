"""Follow the journal, and copy each delivery that has changed into the archive.

The journal remembers what is not archived. Whoever writes begins a transaction first, as the only
one, then asks the journal, writes, commits, and tells the journal. Killed in between, it leaves
what was not committed to the next one, which finds it again; what was committed and not told is
written again, in the place of itself. So nothing is lost, and nothing is there twice.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing

from gateway.archive.database import Database
from gateway.archive.tables import row
from gateway.backoff import Backoff
from gateway.clock import monotonic, time
from gateway.config.settings import Config
from gateway.errors import GatewayError
from gateway.journal.store import JournalStore

log = logging.getLogger(__name__)

#: Deliveries of one transaction, and about how many bytes.
MOST, MOST_BYTES = 500, 4 << 20
#: Seconds for which a delivery has not changed: most are written once, with their end.
QUIET = 1.0
_PAUSE = 0.5  # seconds between two looks, where there was little
_PRUNE = 60.0  # seconds between two looks for what is too old, or too much


class Archiver:
    """Copies the journal; `run` until it is cancelled, or `run_once` what is there now."""

    def __init__(self, config: Config):
        self._config = config
        self._database = Database(config)
        self._pruned = -_PRUNE
        self._told = ""

    async def run(self) -> None:
        """Copy what changes, also after a server was away."""
        backoff = Backoff()
        while True:
            try:
                await asyncio.to_thread(self._database.migrate)
                async with (
                    JournalStore.opened(self._config) as store,
                    aclosing(self._mark(store)) as marking,
                ):
                    while True:
                        # In turn, as one that is killed again and again has to copy as well.
                        marked = await anext(marking, False)
                        copied = await self._copy(store, QUIET)
                        if self._told:
                            log.info("deliveries are archived again")
                        self._told = ""
                        backoff.reset()
                        if copied < MOST // 2 and not marked:
                            await asyncio.sleep(_PAUSE)
            except GatewayError as exc:
                if str(exc) != self._told:
                    log.warning("deliveries are not archived, and wait in the journal: %s", exc)
                    self._told = str(exc)
                await asyncio.sleep(backoff.next())

    async def run_once(self) -> int:
        """Copy what is not archived now; return how many changes these were."""
        await asyncio.to_thread(self._database.migrate)
        number = 0
        async with JournalStore.opened(self._config) as store:
            async with aclosing(self._mark(store)) as marking:
                async for _ in marking:
                    pass
            # What changes meanwhile is for the next run, or this one might never end.
            begun = monotonic()
            while copied := await self._copy(store, monotonic() - begun):
                number += copied
        return number

    async def _mark(self, store: JournalStore) -> AsyncGenerator[bool, None]:
        """Mark what the journal has and the archive has not; yield after each part.

        It was there before `archive_url` was set, or the database is another one, or has lost it,
        or has an earlier state of it.
        """
        async with aclosing(store.unmarked(MOST)) as unmarked:
            async for found in unmarked:
                ids = [each[0] for each in found]
                known = await asyncio.to_thread(self._database.versions, ids) if ids else ()
                if new := {each[0] for each in set(found).difference(known)}:
                    await store.mark(sorted(new))
                yield True

    async def _copy(self, store: JournalStore, age: float) -> int:
        """Copy a batch of those that have not changed for `age` seconds; return how many.

        First what is too old is removed, as there may be no room otherwise.
        """
        await self._prune()
        writing = self._database.writing()
        connection = await asyncio.to_thread(writing.__enter__)
        try:
            changes = await store.changed(MOST, MOST_BYTES, age)
            rows = [row(each.entry) for each in changes if each.entry is not None]
            await asyncio.to_thread(self._database.write, connection, rows)
        except BaseException as exc:
            await asyncio.to_thread(writing.__exit__, type(exc), exc, exc.__traceback__)
            raise
        await asyncio.to_thread(writing.__exit__, None, None, None)
        if changes:
            await store.archived(changes)
        return len(changes)

    async def _prune(self) -> None:
        if monotonic() - self._pruned < _PRUNE:
            return
        self._pruned = monotonic()
        try:
            await asyncio.to_thread(self._database.prune, time())
        except GatewayError as exc:  # as where a backup has locked it
            log.warning("what is too old, or too much, stays in the archive: %s", exc)
