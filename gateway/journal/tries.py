"""Which deliveries a replay runs: of several tries of one delivery at most one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import replace
from datetime import UTC, datetime

from gateway.journal.entry import DONE, OPEN, Entry, order
from gateway.journal.filter import Filter
from gateway.journal.reading import Reader


async def choose(
    reader: Reader, wanted: Sequence[str] | Filter, again: bool, after: str = "", to: str = ""
) -> tuple[list[Entry], list[tuple[Entry, Entry]]]:
    """Return what to replay of the deliveries with the ids `wanted`, or of those that it takes.

    With each that is left out comes the try because of which it is; `again` leaves out none. All
    are without their calls, in the order of their arrival or in that of the ids. A filter takes no
    requests that were refused before they had a message, and with the positions `after` and `to`
    only deliveries after the one, and not after the other. Raises
    `gateway.errors.GatewayError` where one of the ids is not in the journal.
    """
    if isinstance(wanted, Filter):
        least, most = order(after), order(to) or (math.inf,)
        if after:
            since = _time(least[0])
            wanted = replace(wanted, since=max(since, wanted.since or since))
        if to:
            until = _time(most[0] + 1)
            wanted = replace(wanted, until=min(until, wanted.until or until))
        async with aclosing(reader.find(wanted)) as found:
            chosen = [
                each
                async for each in found
                if not each.request and least < order(each.position) <= most
            ][::-1]
    else:
        chosen = await reader.get_all(wanted)
    others = {} if again else await superseded(reader, chosen)
    left = [entry for entry in chosen if entry.id not in others]
    return left, [(entry, others[entry.id]) for entry in chosen if entry.id in others]


async def superseded(reader: Reader, chosen: Sequence[Entry]) -> dict[str, Entry]:
    """Return by id those of the `chosen` deliveries that should not be replayed, and why.

    That is another try of the same delivery: one that has succeeded, else one whose task may still
    run, else the newest of those that were chosen.
    """
    ids = {entry.id for entry in chosen}
    identities = frozenset(entry.identity for entry in chosen if entry.identity)
    best: dict[str, Entry] = {}
    if identities:
        async with aclosing(reader.find(Filter(identities=identities))) as newest_first:
            async for entry in newest_first:
                best.setdefault(entry.identity, entry)
                if _weight(entry, ids) > _weight(best[entry.identity], ids):
                    best[entry.identity] = entry
    others = {entry.id: best.get(entry.identity, entry) for entry in chosen}
    return {key: other for key, other in others.items() if other.id != key}


def _time(ms: float) -> datetime:
    return datetime.fromtimestamp(min(ms / 1000, 2.5e11), UTC)  # a later one is no time any more


def _weight(entry: Entry, chosen: set[str]) -> tuple[bool, bool, bool]:
    return entry.state in DONE, entry.state in OPEN, entry.id in chosen
