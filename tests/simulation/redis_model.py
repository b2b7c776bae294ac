"""A Redis by bytes: what the gateway, its scripts and its workers use; RESP2, Lua by lupa.

What it does is what the contract suite has seen Redis do: `test_contract_redis.py`.
"""

from __future__ import annotations

import inspect
import re
from binascii import crc_hqx
from bisect import bisect_left
from collections import deque
from collections.abc import Callable
from hashlib import sha1
from random import Random
from struct import error as StructError
from typing import Any, Self

import hiredis
from lupa.lua51 import LuaError, LuaRuntime

from tests.simulation.wire import Clock, Wire

EPOCH = 1_800_000_000.0
#: Seconds of writes that `appendfsync everysec` may lose.
UNSYNCED = 1.0


class Refused(Exception):
    """An error reply."""


class Status(bytes):
    """A reply that is no bulk string."""


class _Keyed(dict[Any, Any]):
    """A value that has parts."""

    def copy(self) -> Self:
        return type(self)(self)


class Hash(_Keyed): ...


class Members(_Keyed):
    """A set, in the order in which its members came."""


class Scores(_Keyed): ...


class Stream(_Keyed):
    """Entries by their ids; `last` is the id of the last that there has been."""

    last = (0, 0)

    def copy(self) -> Self:
        made = super().copy()
        made.last = self.last
        return made


def _copied(value: Any) -> Any:
    return value.copy() if isinstance(value, _Keyed) else value


OK = Status(b"OK")
_READ_ONLY = "READONLY You can't write against a read only replica."
_OOM = "OOM command not allowed when used memory > 'maxmemory'."
_CROSS = "CROSSSLOT Keys in request don't hash to the same slot"
_WRONG = "WRONGTYPE Operation against a key holding the wrong kind of value"
_NO_INTEGER = "ERR value is not an integer or out of range"
_GROWING = frozenset(
    [b"SET", b"SETEX", b"INCRBY", b"DECRBY", b"HSET", b"HINCRBY", b"SADD", b"ZADD", b"XADD"]
)
_WRITES = _GROWING | frozenset(
    [b"DEL", b"UNLINK", b"PEXPIRE", b"EXPIRE", b"HDEL", b"SREM", b"ZREM", b"XDEL"]
)
_MANY = frozenset([b"DEL", b"UNLINK", b"EXISTS", b"MGET"])  # all their arguments are keys


class Redis:
    """One server; times are the clock's seconds, and `skew` what its wall clock is ahead."""

    def __init__(self, clock: Clock, random: Random):
        self.clock, self.random = clock, random
        self.skew = 0.0
        self.db: dict[bytes, Any] = {}
        self.expiry: dict[bytes, float] = {}  # seconds since the epoch
        self.scripts: dict[bytes, bytes] = {}
        self.peers: dict[Peer, None] = {}
        self.remember = True  # what was written in the last second
        self._undo: deque[tuple[float, bytes, Any, float | None]] = deque()
        self.read_only = self.full = self.cluster = False
        #: The answers to what should not be sent, or what the model does not know.
        self.errors: list[str] = []
        self._half = False  # a script has written already, and cannot be stopped any more

    # Faults -----------------------------------------------------------------------------------

    def accept(self, wire: Wire) -> Peer:
        peer = Peer(self, wire)
        self.peers[peer] = None
        return peer

    def crash(self, lose_last_second: bool = False) -> None:
        if lose_last_second:
            self._lose(UNSYNCED)
        self.scripts.clear()
        self.peers.clear()

    def restart(self) -> None:
        self.read_only = self.full = False

    def become_replica(self) -> None:
        self.read_only = True

    def successor(self) -> Redis:
        """Return a new primary with the same data; this one becomes a replica with its clients."""
        other = Redis(self.clock, self.random)
        other.skew, other.remember, other.errors = self.skew, self.remember, self.errors
        other.db = {key: _copied(value) for key, value in self.db.items()}
        other.expiry = dict(self.expiry)
        self.become_replica()
        return other

    def promote(self, lost_seconds: float = 0.0) -> None:
        self.read_only = False
        self._lose(lost_seconds)

    def out_of_memory(self, on: bool) -> None:
        self.full = on

    def kill_clients(self, kind: str) -> None:
        for peer in list(self.peers):
            if peer.listens == (kind == "pubsub"):
                del self.peers[peer]
                peer.wire.abort()

    def _lose(self, seconds: float) -> None:
        since = self.clock.time() - seconds
        while self._undo and self._undo[-1][0] > since:
            _, key, value, expiry = self._undo.pop()
            if value is None:
                self.db.pop(key, None)
            else:
                self.db[key] = value
            if expiry is None:
                self.expiry.pop(key, None)
            else:
                self.expiry[key] = expiry

    def has(self, key: str) -> bool:
        return self.get(key.encode()) is not None

    # Data -------------------------------------------------------------------------------------

    def now(self) -> float:
        return EPOCH + self.clock.time() + self.skew

    def get(self, key: bytes, kind: type | None = None) -> Any:
        """Return a value that has not expired, or None; raises `Refused` if it is no `kind`."""
        end = self.expiry.get(key)
        if end is not None and end <= self.now():
            del self.expiry[key]
            self.db.pop(key, None)
        value = self.db.get(key)
        if kind is not None and value is not None and type(value) is not kind:
            raise Refused(_WRONG)
        return value

    def made(self, key: bytes, kind: type) -> Any:
        """Return a value, which is made if it is missing."""
        value = self.get(key, kind)
        if value is None:
            value = self.db[key] = kind()
        return value

    def take(self, key: bytes, kind: type, parts: tuple[Any, ...]) -> int:
        """Remove parts of a value; without any part it is gone."""
        value = self.get(key, kind)
        if value is None:
            return 0
        removed = sum(value.pop(part, None) is not None for part in parts)
        if not value and kind is not Stream:
            self.do_del(key)
        return removed

    def run(self, words: list[bytes], script: bool = False) -> Any:
        """Execute a command; raises `Refused`."""
        name = words[0]
        method = _COMMANDS.get(name)
        if method is None or self.read_only or self.full or self.cluster:
            name, method = self.check(words, script)
        if name in _WRITES:
            if self.remember:
                self._note(words[1:] if name in _MANY else words[1:2])
            self._half = script
        try:
            return method(self, *words[1:])
        except TypeError:
            self._check_number(name, method, words)
            raise

    def check(self, words: list[bytes], script: bool = False) -> tuple[bytes, Any]:
        """Return a command's name and method; raises `Refused` where it cannot be executed now."""
        name = words[0]
        method = _COMMANDS.get(name)
        if method is None:
            name = name.upper()
            method = _COMMANDS.get(name)
            if method is None:
                raise Refused(f"ERR unknown command '{words[0].decode()}', with args beginning")
        if name in _WRITES:
            if self.read_only:
                raise Refused(_READ_ONLY)
            if self.full and name in _GROWING and not (script and self._half):
                raise Refused(_OOM)
        if self.cluster:
            number = int(words[2]) if name in (b"EVAL", b"EVALSHA") else 0
            keys = words[3 : 3 + number] if number else words[1:] if name in _MANY else words[1:2]
            if len({_slot(key) for key in keys}) > 1:
                raise Refused(_CROSS)
        return name, method

    def _check_number(self, name: bytes, method: Any, words: list[bytes]) -> None:
        try:
            inspect.signature(method).bind(self, *words[1:])
        except TypeError:
            what = name.decode().lower()
            raise Refused(f"ERR wrong number of arguments for '{what}' command") from None

    def _note(self, keys: list[bytes]) -> None:
        now = self.clock.time()
        while self._undo and self._undo[0][0] < now - UNSYNCED:
            self._undo.popleft()
        for key in keys:
            self._undo.append((now, key, _copied(self.get(key)), self.expiry.get(key)))

    def do_ping(self, text: bytes = Status(b"PONG")) -> Any:
        return text

    def do_hello(self, _version: bytes = b"2") -> Any:
        mode = b"cluster" if self.cluster else b"standalone"
        role = b"replica" if self.read_only else b"master"
        return [
            b"server", b"redis", b"version", b"7.0.15", b"proto", 2, b"id", 1,
            b"mode", mode, b"role", role, b"modules", [],
        ]  # fmt: skip

    def do_client(self, *_: bytes) -> Any:
        return OK

    def do_select(self, _number: bytes) -> Any:
        return OK

    def do_script(self, what: bytes, *rest: bytes) -> Any:
        what = what.upper()
        if what == b"LOAD":
            digest = sha1(rest[0]).hexdigest().encode()
            self.scripts[digest] = rest[0]
            return digest
        if what == b"EXISTS":
            return [int(digest in self.scripts) for digest in rest]
        if what == b"FLUSH":
            self.scripts.clear()
            return OK
        raise Refused(f"ERR unknown subcommand '{what.decode()}'. Try SCRIPT HELP.")

    def do_time(self) -> list[bytes]:
        now = self.now()
        return [b"%d" % int(now), b"%d" % int(now % 1 * 1e6)]

    def do_info(self, *_: bytes) -> bytes:
        return b"used_memory:1000000\r\nmaxmemory:0\r\ntotal_system_memory:1000000000\r\n"

    def do_dbsize(self) -> int:
        return len(self.db)

    def do_get(self, key: bytes) -> Any:
        return self.get(key, bytes)

    def do_strlen(self, key: bytes) -> int:
        return len(self.get(key, bytes) or b"")

    def do_mget(self, first: bytes, *others: bytes) -> Any:
        values = [self.get(key) for key in (first, *others)]
        return [value if type(value) is bytes else None for value in values]

    def do_getrange(self, key: bytes, start: bytes, end: bytes) -> bytes:
        value: bytes = self.get(key, bytes) or b""
        at, to = (int(each) + (len(value) if int(each) < 0 else 0) for each in (start, end))
        return value[max(at, 0) : to + 1]

    def do_exists(self, first: bytes, *others: bytes) -> int:
        return sum(self.get(key) is not None for key in (first, *others))

    def do_set(self, key: bytes, value: bytes, *options: bytes) -> Any:
        rest = [word.upper() for word in options]
        if b"NX" in rest and self.get(key) is not None:
            return None
        self.get(key)
        self.db[key] = bytes(value)
        if b"KEEPTTL" not in rest:
            self.expiry.pop(key, None)
        for word, unit in ((b"PX", 1000), (b"EX", 1)):
            if word in rest:
                length = _integer(rest[rest.index(word) + 1])
                if length <= 0:
                    raise Refused("ERR invalid expire time in 'set' command")
                self.expiry[key] = self.now() + length / unit
        return OK

    def do_setex(self, key: bytes, seconds: bytes, value: bytes) -> Any:
        return self.do_set(key, value, b"EX", seconds)

    def do_del(self, first: bytes, *others: bytes) -> int:
        keys = (first, *others)
        found = sum(self.get(key) is not None for key in keys)
        for key in keys:
            self.db.pop(key, None)
            self.expiry.pop(key, None)
        return found

    do_unlink = do_del

    def do_incrby(self, key: bytes, amount: bytes) -> int:
        value = _integer(self.get(key, bytes) or b"0") + _integer(amount)
        self.db[key] = b"%d" % value
        return value

    def do_decrby(self, key: bytes, amount: bytes) -> int:
        return self.do_incrby(key, b"%d" % -_integer(amount))

    def do_pexpire(self, key: bytes, ms: bytes) -> int:
        if self.get(key) is None:
            return 0
        self.expiry[key] = self.now() + _integer(ms) / 1000
        return 1

    def do_expire(self, key: bytes, seconds: bytes) -> int:
        return self.do_pexpire(key, b"%d" % (_integer(seconds) * 1000))

    def do_pttl(self, key: bytes) -> int:
        if self.get(key) is None:
            return -2
        end = self.expiry.get(key)
        return -1 if end is None else round((end - self.now()) * 1000)

    def do_hset(self, key: bytes, field: bytes, value: bytes, *pairs: bytes) -> int:
        if len(pairs) % 2:
            raise Refused("ERR wrong number of arguments for 'hset' command")
        table = self.made(key, Hash)
        before = len(table)
        table[field] = value
        table.update(zip(pairs[::2], pairs[1::2], strict=True))
        return len(table) - before

    def do_hget(self, key: bytes, field: bytes) -> Any:
        return (self.get(key, Hash) or {}).get(field)

    def do_hmget(self, key: bytes, *fields: bytes) -> Any:
        table = self.get(key, Hash) or {}
        return [table.get(field) for field in fields]

    def do_hgetall(self, key: bytes) -> Any:
        return [word for pair in (self.get(key, Hash) or {}).items() for word in pair]

    def do_hdel(self, key: bytes, *fields: bytes) -> int:
        return self.take(key, Hash, fields)

    def do_hincrby(self, key: bytes, field: bytes, amount: bytes) -> int:
        table = self.made(key, Hash)
        value = int(table.get(field, 0)) + _integer(amount)
        table[field] = b"%d" % value
        return value

    def do_sadd(self, key: bytes, member: bytes, *others: bytes) -> int:
        members = self.made(key, Members)
        before = len(members)
        members.update(dict.fromkeys((member, *others), True))
        return len(members) - before

    def do_srem(self, key: bytes, *members: bytes) -> int:
        return self.take(key, Members, members)

    def do_srandmember(self, key: bytes, count: bytes) -> Any:
        return list(self.get(key, Members) or ())[: _integer(count)]

    def do_scard(self, key: bytes) -> int:
        return len(self.get(key, Members) or ())

    def do_smembers(self, key: bytes) -> Any:
        return list(self.get(key, Members) or ())

    def do_zadd(self, key: bytes, score: bytes, member: bytes, *others: bytes) -> int:
        pairs = (score, member, *others)
        if len(pairs) % 2:
            raise Refused("ERR syntax error")
        table = self.made(key, Scores)
        before = len(table)
        for each, one in zip(pairs[::2], pairs[1::2], strict=True):
            table[one] = float(each)
        return len(table) - before

    def do_zrem(self, key: bytes, *members: bytes) -> int:
        return self.take(key, Scores, members)

    def do_zcard(self, key: bytes) -> int:
        return len(self.get(key, Scores) or ())

    def do_zrangebyscore(self, key: bytes, low: bytes, high: bytes, *options: bytes) -> Any:
        return self._by_score(key, low, high, options)

    def do_zrevrangebyscore(self, key: bytes, high: bytes, low: bytes, *options: bytes) -> Any:
        return self._by_score(key, low, high, options, reverse=True)

    def _by_score(
        self, key: bytes, low: bytes, high: bytes, options: tuple[bytes, ...], reverse: bool = False
    ) -> Any:
        table = self.get(key, Scores) or {}
        found = sorted((s, m) for m, s in table.items() if float(low) <= s <= float(high))
        found.sort(reverse=reverse)
        if b"LIMIT" in options:
            at, count = map(int, options[-2:])
            found = found[at : at + count]
        scored = b"WITHSCORES" in options
        return [each for s, m in found for each in ((m, b"%.17g" % s) if scored else (m,))]

    def do_zscore(self, key: bytes, member: bytes) -> bytes | None:
        score = (self.get(key, Scores) or {}).get(member)
        return None if score is None else b"%.17g" % score

    def do_xadd(self, key: bytes, place: bytes, *fields: bytes) -> bytes:
        stream = self.made(key, Stream)
        last = stream.last
        if place == b"*":
            ms = int(self.now() * 1000)
            where = (ms, 0) if ms > last[0] else (last[0], last[1] + 1)
        else:
            where = _place(place, 0)
            if where <= last:
                raise Refused(
                    "ERR The ID specified in XADD is equal or smaller than the target stream top"
                    " item"
                )
        stream[where], stream.last = list(fields), where
        return b"%d-%d" % where

    def do_xlen(self, key: bytes) -> int:
        return len(self.get(key, Stream) or ())

    def do_xdel(self, key: bytes, *places: bytes) -> int:
        return self.take(key, Stream, tuple(_place(place, 0) for place in places))

    def do_xrange(self, key: bytes, low: bytes, high: bytes, *count: bytes) -> Any:
        stream = self.get(key, Stream) or {}
        places = list(stream)
        if low.startswith(b"("):
            ms, seq = _place(low[1:], 0)
            first = (ms, seq + 1)
        else:
            first = (0, 0) if low == b"-" else _place(low, 0)
        if high.startswith(b"("):
            end = _place(high[1:], 0)
        else:
            end = (2**63, 0) if high == b"+" else _place(high, 2**63)
            end = (end[0], end[1] + 1)
        found = places[bisect_left(places, first) : bisect_left(places, end)]
        found = found[: int(count[1])] if count else found
        return [[b"%d-%d" % place, stream[place]] for place in found]

    def do_xrevrange(self, key: bytes, high: bytes, low: bytes, *count: bytes) -> Any:
        found = self.do_xrange(key, low, high)[::-1]
        return found[: int(count[1])] if count else found

    def do_publish(self, channel: bytes, message: bytes) -> int:
        told = 0
        for peer in [each for each in self.peers if each.patterns or channel in each.channels]:
            if channel in peer.channels:
                peer.reply([b"message", channel, message])
                told += 1
            for pattern, matches in peer.patterns.items():
                if matches(channel):
                    peer.reply([b"pmessage", pattern, channel, message])
                    told += 1
        return told

    def do_eval(self, script: bytes, number: bytes, *rest: bytes) -> Any:
        digest = sha1(script).hexdigest().encode()
        self.scripts[digest] = script
        return self._script(digest, int(number), rest)

    def do_evalsha(self, digest: bytes, number: bytes, *rest: bytes) -> Any:
        if digest not in self.scripts:
            raise Refused("NOSCRIPT No matching script. Please use EVAL.")
        return self._script(digest, int(number), rest)

    def _script(self, digest: bytes, number: int, rest: tuple[bytes, ...]) -> Any:
        self._half = False
        try:
            return _lua.run(self, self.scripts[digest], number, rest)
        except (Refused, LuaError) as exc:
            text = str(exc) if isinstance(exc, Refused) else f"ERR {exc}".splitlines()[0]
            raise Refused(f"{text} script: {digest.decode()}, on @user_script:1.") from None


_COMMANDS: dict[bytes, Any] = {
    name[3:].upper().encode(): method
    for name, method in vars(Redis).items()
    if name.startswith("do_")
}


class Peer:
    """A client's connection."""

    def __init__(self, redis: Redis, wire: Wire):
        self.redis, self.wire = redis, wire
        self.channels: dict[bytes, None] = {}
        self.patterns: dict[bytes, Callable[[bytes], Any]] = {}
        self._reader = hiredis.Reader()
        self._queued: list[list[bytes]] | None = None
        self._spoilt = False  # the transaction

    @property
    def listens(self) -> bool:
        return bool(self.channels or self.patterns)

    def lost(self) -> None:
        self.redis.peers.pop(self, None)

    def reply(self, value: Any) -> None:
        self.wire.write(encode(value))

    def received(self, data: bytes) -> None:
        reader, answers = self._reader, b""
        reader.feed(data)
        while (words := reader.gets()) is not False:
            answers += self._command(words)
        if answers:
            self.wire.write(answers)

    def _command(self, words: list[bytes]) -> bytes:
        name = words[0].upper()
        if name in _SUBSCRIBING:
            return self._subscribe(name, words[1:])
        if self.channels or self.patterns:
            if name == b"PING":
                return encode([b"pong", words[1] if len(words) > 1 else b""])
            what = name.decode().lower()
            return encode(
                Refused(
                    f"ERR Can't execute '{what}': only (P|S)SUBSCRIBE / (P|S)UNSUBSCRIBE / PING /"
                    " QUIT / RESET are allowed in this context"
                )
            )
        try:
            if name == b"MULTI":
                return encode(self._multi())
            if name in (b"EXEC", b"DISCARD"):
                return encode(self._end(name))
            if self._queued is None:
                return encode(self.redis.run(words))
            try:
                self.redis.check(words)
            except Refused:
                self._spoilt = True
                raise
            self._queued.append(words)
            return encode(Status(b"QUEUED"))
        except Refused as exc:
            return encode(self._note(exc))

    def _note(self, exc: Refused) -> Refused:
        if str(exc).startswith("ERR "):
            self.redis.errors.append(str(exc))
        return exc

    def _multi(self) -> Status:
        if self._queued is not None:
            raise Refused("ERR MULTI calls can not be nested")
        self._queued, self._spoilt = [], False
        return OK

    def _end(self, name: bytes) -> Any:
        queued, self._queued = self._queued, None
        if queued is None:
            raise Refused(f"ERR {name.decode()} without MULTI")
        if name == b"DISCARD":
            return OK
        if self._spoilt:
            raise Refused("EXECABORT Transaction discarded because of previous errors.")
        return [self._run(each) for each in queued]

    def _run(self, words: list[bytes]) -> Any:
        try:
            return self.redis.run(words)
        except Refused as exc:
            return self._note(exc)

    def _subscribe(self, name: bytes, words: list[bytes]) -> bytes:
        kind: dict[bytes, Any] = self.patterns if name.startswith(b"P") else self.channels
        ends = b"UN" in name
        answers = []
        for word in words or (list(kind) or [None] if ends else []):
            if ends:
                kind.pop(word, None)  # type: ignore[arg-type]
            elif word is not None:
                kind[word] = _pattern(word) if kind is self.patterns else None
            number = len(self.channels) + len(self.patterns)
            answers.append(encode([name.lower(), word, number]))
        return b"".join(answers)


_SUBSCRIBING = frozenset([b"SUBSCRIBE", b"PSUBSCRIBE", b"UNSUBSCRIBE", b"PUNSUBSCRIBE"])


def encode(value: Any) -> bytes:
    kind = type(value)
    if kind is bytes:
        return b"$%d\r\n%b\r\n" % (len(value), value)
    if kind is int:
        return b":%d\r\n" % value
    if kind is list:
        parts = [
            b"$%d\r\n%b\r\n" % (len(part), part) if type(part) is bytes else encode(part)
            for part in value
        ]
        return b"*%d\r\n%b" % (len(value), b"".join(parts))
    if value is None:
        return b"$-1\r\n"
    if kind is Status:
        return b"+%b\r\n" % value
    return b"-%b\r\n" % str(value).encode()


def _integer(text: bytes) -> int:
    try:
        return int(text)
    except ValueError:
        raise Refused(_NO_INTEGER) from None


def _slot(key: bytes) -> int:
    """Return a key's slot in a cluster; what is in braces decides, if there is something.

    https://redis.io/docs/latest/operate/oss_and_stack/reference/cluster-spec/
    """
    _, _, rest = key.partition(b"{")
    tag, brace, _ = rest.partition(b"}")
    return crc_hqx(tag if tag and brace else key, 0) % 16_384


def _place(text: bytes, missing: int) -> tuple[int, int]:
    ms, _, seq = text.partition(b"-")
    return int(ms), int(seq) if seq else missing


def _pattern(word: bytes) -> Callable[[bytes], Any]:
    """Compile a pattern, in which a backslash takes a character's meaning away."""
    parts = [
        b".*" if many else b"." if one else re.escape(taken or plain)
        for taken, many, one, plain in re.findall(rb"(?s)\\(.)|(\*)|(\?)|(.)", word)
    ]
    return re.compile(b"".join(parts) + rb"\Z", re.DOTALL).match


#: Tables are taken apart in Lua: from Python each of their parts would be a call.
_TABLES = b"""
local function parted(value)
  if type(value) ~= 'table' then return value end
  if value.err then return 'err', value.err end
  if value.ok then return 'ok', value.ok end
  local n = 0
  while value[n + 1] ~= nil do n = n + 1 end  -- it ends with the first nil
  return 'list', n, unpack(value, 1, n)
end
local function called(script)
  return function(number, ...)
    local words = {...}
    return parted((script({unpack(words, 1, number)}, {unpack(words, number + 1)})))
  end
end
return parted, called
"""


class _Lua:
    """Runs scripts; each is compiled once in a process."""

    def __init__(self) -> None:
        self._lua = LuaRuntime(encoding=None, unpack_returned_tuples=True)
        self._compiled: dict[bytes, Any] = {}
        self._redis: Redis
        self._formats: dict[bytes, list[tuple[str, int]]] = {}
        self._parted, self._called = self._lua.execute(_TABLES)
        values = self._lua.globals()
        values[b"redis"] = self._lua.table_from({b"call": self._call, b"pcall": self._pcall})
        values[b"struct"] = self._lua.table_from({b"pack": self._pack, b"unpack": self._unpack})

    def run(self, redis: Redis, script: bytes, number: int, words: tuple[bytes, ...]) -> Any:
        """Run a script; the first `number` of its words are keys."""
        function = self._compiled.get(script)
        if function is None:
            made = self._lua.execute(b"return function(KEYS, ARGV) " + script + b"\nend")
            function = self._compiled[script] = self._called(made)
        self._redis = redis
        return self._result(function(number, *words))

    def _call(self, *words: Any) -> Any:
        given = [word if type(word) is bytes else _word(word) for word in words]
        value = self._redis.run(given, script=True)
        return value if type(value) is bytes or type(value) is int else self._lua_value(value)

    def _pcall(self, *words: Any) -> Any:
        try:
            return self._call(*words)
        except Refused as exc:
            return self._lua.table_from({b"err": str(exc).encode()})

    def _lua_value(self, value: Any) -> Any:
        kind = type(value)
        if value is None:
            return False
        if kind is Status:
            return self._lua.table_from({b"ok": bytes(value)})
        if kind is list:
            return self._lua.table(*[self._lua_value(each) for each in value])
        return value

    def _result(self, value: Any) -> Any:
        kind = type(value)
        if value is None or kind is bytes:
            return value
        if kind is bool:
            return 1 if value else None
        if kind is int or kind is float:
            return int(value)
        what, first, *parts = value if kind is tuple else self._parted(value)
        if what == b"list":
            return [part if type(part) is bytes else self._result(part) for part in parts]
        return Refused(first.decode()) if what == b"err" else Status(first)

    def _parts(self, form: bytes) -> list[tuple[str, int]]:
        parts = self._formats.get(form)
        if parts is None:
            found = re.findall(r"([cBI])(\d*)", form.decode())
            parts = self._formats[form] = [(kind, int(size or 1)) for kind, size in found]
        return parts

    def _pack(self, form: bytes, *values: Any) -> bytes:
        data = []
        for (kind, size), value in zip(self._parts(form), values, strict=True):
            data.append(value if kind == "c" else int(value).to_bytes(size))
        return b"".join(data)

    def _unpack(self, form: bytes, data: bytes, at: Any = 1) -> Any:
        at, found = int(at) - 1, list[Any]()
        for kind, size in self._parts(form):
            if at + size > len(data):
                raise StructError("data string too short")
            part, at = data[at : at + size], at + size
            found.append(part if kind == "c" else int.from_bytes(part))
        return (*found, at + 1)


def _word(value: Any) -> bytes:
    if isinstance(value, bytes):
        return value
    return b"%d" % int(value) if value == int(value) else repr(value).encode()


_lua = _Lua()
