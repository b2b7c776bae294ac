"""Several tries of one delivery: which of them a replay should run."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import aclosing

from gateway.journal.entry import OPEN, SUCCEEDED, Entry
from gateway.journal.reading import Filter, Reader


async def superseded(reader: Reader, chosen: Sequence[Entry]) -> dict[str, Entry]:
    """Return by id those of the `chosen` deliveries that should not be replayed, and why.

    That is another try of the same delivery: one that has succeeded, else one whose task may still
    run, else the newest of those that were chosen. The whole journal is read for it, where one of
    them has an identity.
    """
    ids = {entry.id for entry in chosen}
    identities = {entry.identity for entry in chosen if entry.identity}
    best: dict[str, Entry] = {}
    if identities:
        async with aclosing(reader.find(Filter())) as newest_first:
            async for entry in newest_first:
                if entry.identity in identities:
                    best.setdefault(entry.identity, entry)
                    if _weight(entry, ids) > _weight(best[entry.identity], ids):
                        best[entry.identity] = entry
    others = {entry.id: best.get(entry.identity, entry) for entry in chosen}
    return {key: other for key, other in others.items() if other.id != key}


def _weight(entry: Entry, chosen: set[str]) -> tuple[bool, bool, bool]:
    return entry.state == SUCCEEDED, entry.state in OPEN, entry.id in chosen
