"""The failures of the journal in groups, in Redis: a part of its store."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Mapping, Sequence
from datetime import datetime
from itertools import chain
from typing import Any, NamedTuple

from gateway.clock import time
from gateway.journal import entry, group_scripts
from gateway.journal.entry import ms_of
from gateway.journal.groups import MOST, About, Group, group_of, stored
from gateway.journal.scripts import Keys
from gateway.stores.result_store import Ask

#: Minutes for which routes' shares of failures are reckoned, and answers below which they are not.
MINUTES, LEAST = 10, 20
_GROUPS = 100  # groups a query


class Failing(NamedTuple):
    """A delivery that has failed, and is not counted; ``ms`` since the epoch is when it has.

    ``about`` is what its group has in common; None: it has none, as it is gone or runs again.
    """

    id: str
    ms: int
    about: About | None


class GroupStore:
    """Counts deliveries that have failed, and keeps their groups, and what is to be told of them.

    `gateway.journal.store.JournalStore` says the rest.
    """

    _keys: Keys
    _run: Ask

    def _call(self, script: str, keys: Sequence[str], *arguments: Any) -> Awaitable[Any]:
        """Run a script with its keys."""
        return self._run("EVAL", script, len(keys), *keys, *arguments)

    async def failing(self, process: str, seconds: float, number: int) -> list[Failing] | None:
        """Return at most `number` deliveries that are not counted, the first one first.

        None where another process counts. `process` is the one that does from now on, for
        `seconds`.
        """
        keys, about = self._keys, (process, int(seconds * 1000), number)
        used = (keys.failing, keys.counts, keys.absent)
        found = await self._call(group_scripts.FAILING, used, *about, keys.prefix)
        if found is None:
            return None
        return [_failing(delivery_id, ms, *fields) for delivery_id, ms, *fields in found]

    async def count(self, failing: Sequence[Failing], news: bool) -> int:
        """Add deliveries to their groups, each once; return how many were added.

        With `news` it is noted what there is to be told: ``new GROUP``, ``grown GROUP`` (tenfold),
        ``again GROUP`` (it was resolved).
        """
        keys, rows = self._keys, []
        for each in failing:
            about = each.about
            rows += [each.id, each.ms, about.id if about else "", json.dumps(about)]
        used = (keys.failing, keys.groups, keys.news, keys.absent)
        return int(await self._call(group_scripts.COUNT, used, MOST, keys.group, int(news), *rows))

    async def groups(self) -> list[Group]:
        """Return all groups, the one that has failed last first."""
        keys, found = self._keys, []
        for first in range(0, MOST, _GROUPS):
            about = (keys.group, first, _GROUPS)
            used = (keys.groups, keys.absent)
            now, *hashes = await self._call(group_scripts.GROUPS, used, *about)
            found += [group for flat in hashes if flat and (group := stored(flat, now))]
            if len(hashes) < _GROUPS:
                break
        return found

    async def change_group(self, group: str, muted: datetime | None) -> bool:
        """Mute a group until then, or say that it is resolved (None); False: there is none."""
        key, until = self._keys.group + group, "" if muted is None else str(ms_of(muted))
        return bool(await self._call(group_scripts.CHANGE_GROUP, (key,), until))

    async def forget_group(self, group: str) -> bool:
        """Remove a group; tell whether it was there."""
        keys = (self._keys.group + group, self._keys.groups)
        return bool(await self._call(group_scripts.FORGET_GROUP, keys, group))

    async def rates(
        self, share: float | None, answered: Mapping[str, int], failed: Mapping[str, int]
    ) -> dict[str, tuple[int, int]]:
        """Add to the numbers of the last `MINUTES`; return by route how many were answered, failed.

        ``share ROUTE`` is news where the failed ones pass `share`, with `LEAST` answers or more.
        """
        keys, numbers = self._keys, (("a", answered), ("f", failed))
        triples = [(kind, *pair) for kind, by_route in numbers for pair in by_route.items()]
        about = (MINUTES, "" if share is None else share, LEAST, *chain.from_iterable(triples))
        flat = await self._call(group_scripts.RATES, (keys.rates, keys.news), *about)
        rows = zip(flat[::3], flat[1::3], flat[2::3], strict=True)
        return {route.decode(): (answered, failed) for route, answered, failed in rows}

    async def news(self, number: int, seconds: float) -> dict[str, str]:
        """Return at most `number` news of the last `seconds`, unless there is a pause.

        Each has its time, so that `told` removes none that has come meanwhile.
        """
        keys, first = self._keys, int((time() - seconds) * 1000)
        found = await self._call(group_scripts.NEWS, (keys.news, keys.told), first, number)
        texts = [each.decode() for each in found]
        return dict(zip(texts[::2], texts[1::2], strict=True))

    async def told(self, news: Mapping[str, str], pause: float, problem: str = "") -> None:
        """Remove `news`, and return no others for `pause` seconds; `problem`: none were sent."""
        keys, about = self._keys, (int(pause * 1000), problem)
        pairs = (text for pair in news.items() for text in pair)
        await self._call(group_scripts.TOLD, (keys.news, keys.told), *about, *pairs)

    async def untold(self) -> str:
        """Return why the last message could not be sent, during the pause after it; "": it was."""
        problem = await self._run("GET", self._keys.told) or b""
        return str(problem, errors="replace")


def _failing(delivery_id: bytes, ms: int, about: bytes, state: bytes, error: bytes) -> Failing:
    which, found = delivery_id.decode(), None
    if about:
        flat = (b"about", about, b"state", state, b"error", error, b"task_id", b"")
        found = entry.stored(which, flat, "0-0")
    return Failing(which, ms, None if found is None else group_of(found))
