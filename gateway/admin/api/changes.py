"""The stream of changes: server-sent events."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from datetime import UTC, datetime
from typing import cast

from tornado.http1connection import HTTP1Connection
from tornado.iostream import StreamClosedError

from gateway.admin.api.guarded import Guarded
from gateway.admin.api.operations import APIError
from gateway.admin.api.schema import Delivery, Selected
from gateway.background import happens
from gateway.journal.filter import Filter
from gateway.journal.store import JournalStore
from gateway.process.supervisor import Supervisor

log = logging.getLogger(__name__)

STREAMS = 16  # that may be open at once
EVERY = 0.5  # seconds in which changes are collected
MOST = 50  # deliveries that are told of these; of further ones the number of changes is
_PATIENCE = 30.0  # seconds for which a client may not read
_QUIET = 15.0  # seconds after which a stream without events sends a comment


class Changes(Guarded):
    """Server-sent events: each delivery when it is received or changes."""

    def initialize(self, supervisor: Supervisor, streams: set[Changes]) -> None:  # type: ignore[override] # Tornado's way
        super().initialize(supervisor)
        self._open = streams

    def prepare(self) -> None:
        self._gone = asyncio.Event()
        super().prepare()

    async def get(self) -> None:
        self.needs_journal()
        wanted = self.parameters(Selected, {}).filter()
        if len(self._open) >= STREAMS:
            raise APIError(503, "unavailable", f"{STREAMS} streams are open already")
        self._open.add(self)
        try:
            await self.served(self._stream(wanted))
        except StreamClosedError:
            log.debug("a stream's client has left")
        except asyncio.CancelledError:  # the gateway ends, and this stream with it
            log.debug("a stream has ended with the gateway")
        except TimeoutError:
            log.warning("a stream's client does not read, and is disconnected")
            cast(HTTP1Connection, self.request.connection).close()
        except APIError as exc:
            if not self._headers_written:
                raise
            # The client notices that the stream has ended, and comes again.
            log.warning("a stream of changes has ended: %s", exc)
        finally:
            self._open.discard(self)

    def on_connection_close(self) -> None:
        self._gone.set()

    async def _stream(self, wanted: Filter) -> None:
        config = self.config
        async with JournalStore.opened(config) as store, _collecting(store) as changed:
            self.set_header("Content-Type", "text/event-stream")
            now = datetime.now(UTC).isoformat()
            await self._send(f"event: ready\ndata: {now}\n\n")
            quiet = 0.0
            # A reload may have changed the token, or the journal.
            while not self._gone.is_set() and self.config is config:
                await happens(self._gone, EVERY)
                text = await self._events(store, wanted, *changed.take())
                quiet = 0.0 if text else quiet + EVERY
                if text or quiet >= _QUIET:
                    quiet = 0.0
                    await self._send(text or ": \n\n")

    async def _send(self, text: str) -> None:
        self.write(text)
        await asyncio.wait_for(self.flush(), _PATIENCE)

    async def _events(self, store: JournalStore, wanted: Filter, ids: list[str], more: int) -> str:
        texts = []
        for delivery_id in ids:
            entry = await store.get(delivery_id)
            if entry is not None and wanted.takes(entry):
                data = Delivery.of(entry).model_dump_json()
                texts.append(f"event: delivery\nid: {delivery_id}\ndata: {data}\n\n")
        if more:
            texts.append(f"event: missed\ndata: {more}\n\n")
        return "".join(texts)


class _Changed:
    """The ids of deliveries that have changed since they were last taken."""

    def __init__(self, ids: AsyncGenerator[str, None]):
        self._ids: dict[str, None] = {}
        self._more = 0
        self.task = asyncio.create_task(self._collect(ids))

    def take(self) -> tuple[list[str], int]:
        """Return the ids, at most `MOST`, and how many changes of others there were.

        Raises the error with which listening has ended.
        """
        if self.task.done():
            self.task.result()
        found = list(self._ids), self._more
        self._ids, self._more = {}, 0
        return found

    async def _collect(self, ids: AsyncGenerator[str, None]) -> None:
        async for delivery_id in ids:
            if not delivery_id:  # it is subscribed once more
                continue
            if delivery_id in self._ids or len(self._ids) < MOST:
                self._ids[delivery_id] = None
            else:
                self._more += 1


@asynccontextmanager
async def _collecting(store: JournalStore) -> AsyncIterator[_Changed]:
    async with aclosing(store.changes()) as ids:
        await anext(ids)  # from then on nothing is missed
        changed = _Changed(ids)
        try:
            yield changed
        finally:
            changed.task.cancel()
            await asyncio.wait({changed.task})
