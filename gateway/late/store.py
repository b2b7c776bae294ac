"""Late answers in the Redis of the claims: what is to be sent is written before it is sent.

A hash *{late}:task:ID* has a record and its version; the sorted set *{late}:due* has the ids of
those whose end is not told, by the time (seconds) of the next look. All of them are on one node of
a cluster, by the tag in braces, and only its own clock is used.
"""

from __future__ import annotations

import logging
from typing import Any, NamedTuple

from gateway.clock import monotonic
from gateway.config.settings import Config
from gateway.errors import StateUnavailable, StoreError
from gateway.late.record import DROPPED, ENDED, FAILED, LOOK, Record
from gateway.stores.pipeline import Arg
from gateway.stores.state_store import StateStore

log = logging.getLogger(__name__)

#: Seconds for which a record is kept after the sender takes no answer any more.
_AFTER = 3_600.0
_MOST = 100  # records of one look

# Writes a record if its version is still the one that is known. KEYS: the hash, due. Arguments:
# known version (0: there is none), id, record, next look (seconds; "": none), life (ms)
_SWAP = """
if (redis.call('HGET', KEYS[1], 'version') or '0') ~= ARGV[1] then
    return 0
end
redis.call('HSET', KEYS[1], 'version', ARGV[1] + 1, 'record', ARGV[3])
redis.call('PEXPIRE', KEYS[1], ARGV[5])
if ARGV[4] == '' then
    redis.call('ZREM', KEYS[2], ARGV[2])
else
    redis.call('ZADD', KEYS[2], ARGV[4], ARGV[2])
end
return 1
"""

# Returns the time (seconds, as text), then id, version and record of those whose time for a look
# has come, and postpones the next one; in place of a record of another type it is Redis' error.
# KEYS: due, absent (see `gateway.journal.store.Keys`). Arguments: number, pause (seconds), what the
# keys of records begin with
_DUE = """
local time = redis.call('TIME')
local now = time[1] + time[2] / 1e6
local found = {string.format('%.6f', now)}
for _, id in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', now, 'LIMIT', 0, ARGV[1])) do
    local hash = redis.pcall('HMGET', ARGV[3] .. id, 'version', 'record')
    if hash[1] or hash.err then
        redis.call('ZADD', KEYS[1], now + ARGV[2], id)
        found[#found + 1] = {id, hash[1] or 0, hash.err or hash[2]}
    else
        redis.call('ZREM', KEYS[1], id)
    end
end
return found
"""

# The time (as above), then version and record of one of them. KEYS: the hash
_GET = """
local time = redis.call('TIME')
local hash = redis.call('HMGET', KEYS[1], 'version', 'record')
return {string.format('%.6f', time[1] + time[2] / 1e6), hash[1], hash[2]}
"""


#: What follows the prefix of every key.
_TAG = "{late}:"


def record_key(prefix: str, task_id: str) -> str:
    """Return the key of a task's record; `prefix` is `Config.prefix`."""
    return f"{prefix}{_TAG}task:{task_id}"


def due_key(prefix: str) -> str:
    """Return the key of the set of those that are to be looked at."""
    return f"{prefix}{_TAG}due"


class Found(NamedTuple):
    """A record, its version, and by how many seconds the store's clock is ahead of ours.

    Where there is none, it is one that was dropped, with the version 0.
    """

    record: Record
    version: int
    ahead: float

    @property
    def now(self) -> float:
        """The store's time, in seconds since the epoch."""
        return monotonic() + self.ahead

    def replaced(self, record: Record) -> Found:
        """Return what is found after `record` is written in its place."""
        return Found(record, self.version + 1, self.ahead)


class Records:
    """Reads and writes records; all methods raise `StateUnavailable`."""

    def __init__(self, config: Config):
        self.redis = StateStore(config, "late answers")
        self._prefix, self._due = config.prefix, due_key(config.prefix)
        self._kept = config.idempotency_window
        #: The keys that cannot be read: each is told once, as another version may read it.
        self._unreadable: set[str] = set()

    async def swap(self, record: Record, found: Found) -> bool:
        """Write `record` if what is stored has the version that was found; tell whether it had."""
        ended = record.state == ENDED
        # Later tries of the delivery may ask whether it was answered.
        life = self._kept if ended else record.expires - found.now + _AFTER
        due = "" if record.told else f"{record.due or found.now + LOOK:.6f}"
        arguments = found.version, record.task_id, record.dump(), due, int(life * 1000)
        keys = record_key(self._prefix, record.task_id), self._due
        return bool(await self._run("EVAL", _SWAP, 2, *keys, *arguments))

    async def get(self, task_id: str) -> Found:
        key = record_key(self._prefix, task_id)
        now, version, record = await self._run("EVAL", _GET, 1, key)
        if version is None:
            none = Record(task_id, "", "", "", {}, "", 0.0, 0.0).ended(DROPPED)
            return Found(none, 0, float(now) - monotonic())
        return self._found(key, now, version, record)

    async def due(self) -> list[Found]:
        """Return the records whose time for a look has come, and postpone their next one."""
        begin = record_key(self._prefix, "")
        keys = self._due, f"{self._prefix}{_TAG}absent"
        now, *found = await self._run("EVAL", _DUE, 2, *keys, _MOST, f"{LOOK:g}", begin)
        named = ((begin + task_id.decode(errors="replace"), pair) for task_id, *pair in found)
        return [self._found(key, now, *pair) for key, pair in named]

    def _found(self, key: str, now: bytes, version: bytes, record: bytes) -> Found:
        ahead = float(now) - monotonic()
        try:
            return Found(Record.load(record), int(version), ahead)
        except (ValueError, TypeError, AttributeError, RecursionError) as exc:
            if key not in self._unreadable:
                self._unreadable.add(key)
                text = "%s, the record of a late answer, cannot be read; remove it: %s: %.200r"
                log.error(text, key, exc, record)
            return Found(_DAMAGED, 0, ahead)

    async def _run(self, *command: Arg) -> list[Any]:
        try:
            found: list[Any] = await self.redis.run(*command)
        except StoreError as exc:
            raise StateUnavailable from exc
        return found


#: Stands for a record that cannot be read: nothing is sent for it, and the others are.
_DAMAGED = Record("", "", "", "", {}, "", 0.0, 0.0, state=ENDED, end=FAILED, told=True)
