"""Remove what is older than the journal's age, and count what it has, again and again."""

from __future__ import annotations

import asyncio
import logging

from gateway import background
from gateway.errors import GatewayError
from gateway.journal.base import JournalStore
from gateway.metrics import Metrics

log = logging.getLogger(__name__)

PAUSE = 10.0  # seconds between two queries
_MOST = 200  # deliveries that are removed at once


class SizeWatch:
    """Trims the journal's `store`, and sets its gauges."""

    def __init__(self, store: JournalStore, metrics: Metrics):
        self._store = store
        self._metrics = metrics
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        self._task = background.start(self._watch(), "journal size")

    async def stop(self) -> None:
        await background.stop(self._task)

    async def _watch(self) -> None:
        while True:
            removed = 0
            try:
                size = await self._store.trim(_MOST)
                removed = size.removed
                self._metrics.set("gateway_journal_deliveries", size.deliveries)
                self._metrics.set("gateway_journal_open", size.open)
                self._metrics.set("gateway_journal_bytes", size.bytes)
            except GatewayError as exc:
                # Only a debug line: whoever writes to the journal logs its errors.
                log.debug("the size of the journal cannot be queried: %s", exc)
            if removed < _MOST:
                await asyncio.sleep(PAUSE)
