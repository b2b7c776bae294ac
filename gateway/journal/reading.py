"""Read the journal: one delivery by its id, those that a filter finds, and what changes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Any

from gateway.config.settings import Config
from gateway.errors import GatewayError
from gateway.journal import scripts
from gateway.journal.entry import Entry, read
from gateway.journal.filter import Filter
from gateway.journal.keys import Keys
from gateway.stores import result_store
from gateway.stores.result_store import Ask

#: What a delivery's place in the journal matches; it may be empty.
POSITION = r"^(\d{1,15}-\d{1,15})?$"

_SILENCE = 15.0  # seconds without a change after which Redis is asked whether it is there
_PAGE = 20  # deliveries a query: with large bodies more would delay the other clients of Redis


class Reader:
    """Reads the journal; `ask` sends a command to its Redis.

    Raises `gateway.errors.GatewayError` where Redis does not answer, or is older than 6.2.
    """

    def __init__(self, config: Config, ask: Ask):
        self._keys = Keys(config)
        self._ask = ask

    async def get(self, delivery_id: str) -> Entry | None:
        """Return the delivery with this id; None: there is none."""
        flat = await self._ask("HGETALL", self._keys.of(delivery_id))
        fields = _fields(flat)
        return read(fields) if b"about" in fields else None

    async def get_all(self, ids: Sequence[str]) -> list[Entry]:
        """Return the deliveries with these `ids`, in their order; it is an error if one is gone."""
        found = {each: await self.get(each) for each in ids}
        if missing := [each for each, entry in found.items() if entry is None]:
            raise GatewayError(f"no such delivery in the journal: {', '.join(missing)}")
        return [entry for entry in found.values() if entry is not None]

    async def find(
        self, wanted: Filter, calls: bool = False, before: str = ""
    ) -> AsyncGenerator[Entry, None]:
        """Yield the deliveries that `wanted` takes, the newest first; `calls`: with their calls.

        `before`: only those that are older than the one with this ``position``.
        """
        calls = calls or bool(wanted.text)
        newest = f"({before}" if before else str(_ms(wanted.until)) if wanted.until else "+"
        oldest = str(_ms(wanted.since)) if wanted.since else "-"
        keys = self._keys
        while page := await self._ask(
            "EVAL", scripts.PAGE, 2, keys.deliveries, keys.refused,
            newest, oldest, _PAGE, keys.prefix, int(calls),
        ):  # fmt: skip
            for position, flat in page:
                fields = _fields(flat)
                if b"about" in fields and wanted.takes(entry := read(fields, position.decode())):
                    yield entry
            newest = f"({page[-1][0].decode()}"


def _fields(flat: Any) -> dict[bytes, bytes]:
    """Return a hash's fields, of which a script's reply is a list, and a command's a dict."""
    if isinstance(flat, dict):
        return flat
    return dict(zip(flat[::2], flat[1::2], strict=True))


def _ms(when: datetime) -> int:
    return max(int(when.timestamp() * 1000), 0)


@asynccontextmanager
async def reading(config: Config) -> AsyncIterator[Reader]:
    """Connect to the journal's Redis, and yield what reads it."""
    async with result_store.asking(config, config.state) as ask:
        yield Reader(config, ask)


async def changes(config: Config) -> AsyncGenerator[str, None]:
    """Yield the id of each delivery that is written or changed from now on, until cancelled.

    The first one is empty: from then on nothing is missed. Raises `GatewayError` where the
    connection to Redis cannot be made, or is lost.
    """
    client = result_store.connect(config, config.state)
    try:
        async with client.pubsub() as listening:
            async with asyncio.timeout(result_store.PATIENCE):
                await listening.subscribe(Keys(config).changes)
            asked = False
            while True:
                message = await listening.get_message(timeout=_SILENCE)
                if message is not None:
                    asked = False
                    if message["type"] != "pong":
                        told = message["type"] == "message"
                        yield message["data"].decode().partition(" ")[0] if told else ""
                elif asked:
                    raise TimeoutError("no answer in time")
                else:
                    await listening.ping()
                    asked = True
    except result_store.LOST as exc:
        url = result_store.without_password(config.state)
        raise GatewayError(f"{url}: {exc or 'no answer in time'}") from exc
    finally:
        await client.aclose()
