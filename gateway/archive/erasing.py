"""Remove a person from what the gateway keeps: journal, groups, archive, kept and late answers.

The journal comes first: what the archiver has read before that is committed before the archive is
looked through, and what it reads later has the person no more.
"""

from __future__ import annotations

import asyncio
import json
import re
from base64 import b64decode
from collections.abc import Collection, Iterator
from contextlib import aclosing, suppress
from dataclasses import replace
from typing import NamedTuple
from urllib.parse import unquote, unquote_plus

from gateway.claims.claim import CLAIM_KEY, DONE, FAILURE_KEY, TAGGED_KEY, read
from gateway.config.settings import Config
from gateway.errors import StoreError
from gateway.journal.entry import DAMAGED, Entry
from gateway.journal.filter import folded
from gateway.journal.groups import About, general
from gateway.journal.store import JournalStore
from gateway.late.store import due_key, record_key
from gateway.nesting import unescaped
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
    "requests that wait for their task: their deliveries are written with the answer",
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
    """A text that is looked for in all that is known of a delivery, in any case.

    It is found as it is, and as JSON, a URL or a form has it.
    """

    def __init__(self, text: str):
        self._text = folded(text)
        self._words = folded(_words(text))

    def is_in(self, data: bytes | str) -> bool:
        text = data if isinstance(data, str) else data.decode(errors="replace")
        return any(self._text in folded(each) for each in _readings(text))

    def is_of(self, group: About) -> bool:
        text = " ".join(group)
        return self.is_in(text) or bool(self._words and self._words in folded(text))

    def is_about(self, entry: Entry) -> bool:
        # All that is known of it, without the names of that.
        parts = (entry.delivery, entry.request, entry.options, *entry.runs)
        known = [each for part in parts for each in part.values()]
        known += [entry.task, entry.task_id, entry.queue, entry.identity, entry.error]
        return self.is_in(json.dumps([*known, *entry.arguments()], ensure_ascii=False))


#: How often a text may be encoded again: as a form in JSON that is a text in a task's call.
_ENCODED = 3
_of_bytes = re.compile(r'"__value__": ?"([A-Za-z0-9+/=]+)"').findall


def _readings(text: str) -> Iterator[str]:
    """Yield what a text says: as it is, and where JSON, a URL, a form or base64 has it encoded.

    It need not be valid, as senders' bodies are not.
    """
    yield text
    for value in _of_bytes(text):  # a body that is not UTF-8
        with suppress(ValueError):
            yield from _readings(b64decode(value).decode(errors="replace"))
    for _ in range(_ENCODED):
        before = text
        text = unescaped(text)
        yield text
        if "+" in text:
            yield unquote_plus(text)
        if "%" in text:
            text = unquote(text)
            yield text
        if text == before:
            return


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
