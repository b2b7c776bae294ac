"""Remove a person from what the gateway keeps: journal, groups, archive, kept and late answers.

The journal comes first: what the archiver has read before that is committed before the archive is
looked through, and what it reads later has the person no more.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Collection
from contextlib import aclosing
from dataclasses import replace
from typing import NamedTuple

from gateway.claims.claim import CLAIM_KEY, DONE, FAILURE_KEY, TAGGED_KEY, read
from gateway.config.settings import Config
from gateway.errors import StoreError
from gateway.journal.entry import DAMAGED, Entry
from gateway.journal.filter import Filter, folded
from gateway.journal.groups import About, general
from gateway.journal.store import JournalStore
from gateway.late.store import due_key, record_key
from gateway.stores import result_store
from gateway.stores.state_store import StateStore

# Replaces the value of a key, unless it has changed; "": removes it. Arguments: old value, new one
_REPLACE = """
if redis.call('GET', KEYS[1]) ~= ARGV[1] then
    return 0
elseif ARGV[2] == '' then
    return redis.call('DEL', KEYS[1])
end
redis.call('SET', KEYS[1], ARGV[2], 'KEEPTTL')
return 1
"""
#: What may have the person still; `docs/archive.md` says more.
LEFT = (
    "results of tasks in the result store: for {expires:g} s after their end",
    "answers of tasks that have not ended yet: those that are kept for later tries",
    "messages that no worker has run yet, or that lie in gateway.dead: in RabbitMQ",
    "log lines and traces that were written before, and the log of nginx",
    "backups, replicas and write-ahead logs of Redis and of the archive's database, and rows that "
    "PostgreSQL has not vacuumed yet",
)


class Erased(NamedTuple):
    """How many of each were removed, or would be."""

    journal: int
    archive: int
    answers: int
    late: int
    groups: int


class SoughtText:
    """A text that is looked for in all that is known of a delivery, in any case."""

    def __init__(self, text: str):
        #: As it is, and as a body in JSON may have it.
        escaped = (json.dumps(text, ensure_ascii=each)[1:-1] for each in (True, False))
        self.forms = sorted({text, *escaped})
        self._folded = {folded(form) for form in self.forms}
        self._words = folded(_words(text))
        self._filters = [Filter(text=form) for form in self.forms]

    def is_in(self, data: bytes | str) -> bool:
        text = data if isinstance(data, str) else data.decode(errors="replace")
        whole = folded(text)
        return any(form in whole for form in self._folded)

    def is_of(self, group: About) -> bool:
        text = " ".join(group)
        return self.is_in(text) or bool(self._words and self._words in folded(text))

    def is_about(self, entry: Entry) -> bool:
        if any(each.takes(entry) for each in self._filters):
            return True
        # What is known of it beside the call and the error, without the names of that.
        parts = (entry.delivery, entry.request, entry.options, *entry.runs)
        known = [each for part in parts for each in part.values()]
        known += [entry.task, entry.queue, entry.identity]
        return self.is_in(json.dumps(known, ensure_ascii=False))


def _words(text: str) -> str:
    """Return a text with placeholders, as groups have it; empty where it has nothing else."""
    shown = general(text)
    return shown if re.sub(r"\{\w+\}|\W", "", shown) else ""


async def erase(config: Config, text: str, dry_run: bool = False) -> Erased:
    """Remove all deliveries that have `text`, and the answers and late answers that do."""
    wanted = SoughtText(text)
    journal = answers = late = archive = groups = 0
    found: list[Entry] = []
    if config.state:
        async with JournalStore.opened(config) as store:
            async with aclosing(store.entries(True)) as entries:
                found = [replace(each, call=b"") async for each in entries if wanted.is_about(each)]
            journal = len(found)
            if not dry_run:
                journal = sum([await store.erase(entry) for entry in found])
            about = [each.id for each in await store.groups() if wanted.is_of(each.about)]
            groups = len(about)
            if not dry_run:
                groups = sum([await store.forget_group(each) for each in about])
        try:
            async with StateStore.opened(config) as keys:
                answers = await _erase_answers(keys, config.prefix, wanted, dry_run)
                named = {each.id for each in found}
                late = await _erase_late(keys, config.prefix, wanted, named, dry_run)
        except StoreError as exc:
            raise result_store.no_answer(config, config.state, exc) from exc
    if config.archive:
        from gateway.archive.database import Database

        database, ids = Database(config), [entry.id for entry in found]
        archive = await asyncio.to_thread(database.erase, text, wanted.is_about, ids, dry_run)
    return Erased(journal, archive, answers, late, groups)


async def _erase_answers(store: StateStore, prefix: str, wanted: SoughtText, dry_run: bool) -> int:
    """Forget the kept answers with the text: later tries get the stored result, or a 202."""
    number = 0
    for kind in (CLAIM_KEY, FAILURE_KEY, TAGGED_KEY):
        async for key in store.keys(prefix + kind):
            value = await store.run("GET", key)
            if value is None:
                continue
            left = b""
            if kind == CLAIM_KEY or (kind == TAGGED_KEY and key.endswith(b"}")):
                record = read(value)
                if record.state != DONE or not wanted.is_in(record.rest):
                    continue
                left = value[: len(value) - len(record.rest)]
            elif not wanted.is_in(value):
                continue
            number += 1 if dry_run else await store.run("EVAL", _REPLACE, 1, key, value, left)
    return number


async def _erase_late(
    store: StateStore, prefix: str, wanted: SoughtText, ids: Collection[str], dry_run: bool
) -> int:
    """Remove late answers with the text, or of deliveries with these `ids`: none is sent."""
    number = 0
    begin = record_key(prefix, "")
    async for key in store.keys(begin):
        record = await store.run("HGET", key, "record")
        if record is not None and (wanted.is_in(record) or _delivery_of(record) in ids):
            number += 1
            if not dry_run:
                await store.run("DEL", key)
                await store.run("ZREM", due_key(prefix), key[len(begin.encode()) :])
    return number


def _delivery_of(record: bytes) -> str:
    """Return the id of the delivery of a late answer's record; empty: it cannot be read."""
    try:
        return str(json.loads(record)["delivery_id"])
    except DAMAGED:
        return ""
