"""A Redis by bytes: what the gateway, its scripts and its workers use; RESP2, Lua by lupa."""

from __future__ import annotations

import copy
import re
from bisect import bisect_left
from collections import deque
from collections.abc import Callable
from hashlib import sha1
from random import Random
from struct import error as StructError
from typing import Any

import hiredis
from lupa.lua51 import LuaRuntime

from tests.simulation.wire import Clock, Wire

EPOCH = 1_800_000_000.0
#: Seconds of writes that `appendfsync everysec` may lose.
UNSYNCED = 1.0


class Refused(Exception):
    """An error reply."""


class Status(bytes):
    """A reply that is no bulk string."""


OK = Status(b"OK")
_READ_ONLY = b"READONLY You can't write against a read only replica."
_OOM = b"OOM command not allowed when used memory > 'maxmemory'."
_WRITES = frozenset(
    [
        "SET",
        "SETEX",
        "DEL",
        "UNLINK",
        "INCRBY",
        "DECRBY",
        "PEXPIRE",
        "EXPIRE",
        "HSET",
        "HDEL",
        "HINCRBY",
        "SADD",
        "SREM",
        "ZADD",
        "ZREM",
        "XADD",
        "XDEL",
    ]
)
_GROWING = frozenset(["SET", "SETEX", "INCRBY", "HSET", "HINCRBY", "SADD", "ZADD", "XADD"])


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
        self.read_only = self.full = False

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
        other.skew, other.remember = self.skew, self.remember
        other.db, other.expiry = copy.deepcopy(self.db), dict(self.expiry)
        self.become_replica()
        return other

    def promote(self, lost_seconds: float = 0.0) -> None:
        self.read_only = False
        self._lose(lost_seconds)

    def out_of_memory(self, on: bool) -> None:
        self.full = on

    def kill_clients(self, kind: str) -> None:
        for peer in list(self.peers):
            if bool(peer.channels or peer.patterns) == (kind == "pubsub"):
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

    def get(self, key: bytes, kind: Callable[[], Any] | None = None) -> Any:
        """Return a value that has not expired; with `kind`, make it if it is missing."""
        end = self.expiry.get(key)
        if end is not None and end <= self.now():
            del self.expiry[key]
            self.db.pop(key, None)
        value = self.db.get(key)
        if value is None and kind is not None:
            value = self.db[key] = kind()
        return value

    def run(self, words: list[bytes]) -> Any:
        """Execute a command; raises `Refused`."""
        name = words[0].decode().upper()
        method = getattr(self, f"do_{name.lower()}", None)
        if method is None:
            raise Refused(f"ERR unknown command '{name}'")
        if name in _WRITES:
            if self.read_only:
                raise Refused(_READ_ONLY.decode())
            if self.full and name in _GROWING:
                raise Refused(_OOM.decode())
            if self.remember:
                self._note(words[1:] if name in ("DEL", "UNLINK") else words[1:2])
        return method(*words[1:])

    def _note(self, keys: list[bytes]) -> None:
        now = self.clock.time()
        while self._undo and self._undo[0][0] < now - UNSYNCED:
            self._undo.popleft()
        for key in keys:
            value = self.get(key)
            self._undo.append((now, key, copy.copy(value), self.expiry.get(key)))

    def do_ping(self, *text: bytes) -> Any:
        return text[0] if text else Status(b"PONG")

    def do_hello(self) -> Any:
        role = b"replica" if self.read_only else b"master"
        return [b"server", b"redis", b"mode", b"standalone", b"role", role, b"modules", []]

    def do_client(self, *_: bytes) -> Any:
        return OK

    do_select = do_script = do_client

    def do_time(self) -> list[bytes]:
        now = self.now()
        return [b"%d" % int(now), b"%d" % int(now % 1 * 1e6)]

    def do_info(self, *_: bytes) -> bytes:
        return b"used_memory:1000000\r\nmaxmemory:0\r\ntotal_system_memory:1000000000\r\n"

    def do_dbsize(self) -> int:
        return len(self.db)

    def do_get(self, key: bytes) -> Any:
        return self.get(key)

    def do_mget(self, *keys: bytes) -> Any:
        return [self.get(key) for key in keys]

    def do_getrange(self, key: bytes, start: bytes, end: bytes) -> bytes:
        return (self.get(key) or b"")[int(start) : int(end) + 1]

    def do_exists(self, *keys: bytes) -> int:
        return sum(self.get(key) is not None for key in keys)

    def do_set(self, key: bytes, value: bytes, *options: bytes) -> Any:
        kept = self.expiry.get(key)
        rest = [word.upper() for word in options]
        if b"NX" in rest and self.get(key) is not None:
            return None
        self.get(key)
        self.db[key] = value
        self.expiry.pop(key, None)
        if b"KEEPTTL" in rest and kept is not None:
            self.expiry[key] = kept
        for word, unit in ((b"PX", 1000), (b"EX", 1)):
            if word in rest:
                self.expiry[key] = self.now() + float(rest[rest.index(word) + 1]) / unit
        return OK

    def do_setex(self, key: bytes, seconds: bytes, value: bytes) -> Any:
        return self.do_set(key, value, b"EX", seconds)

    def do_del(self, *keys: bytes) -> int:
        found = sum(self.get(key) is not None for key in keys)
        for key in keys:
            self.db.pop(key, None)
            self.expiry.pop(key, None)
        return found

    do_unlink = do_del

    def do_incrby(self, key: bytes, amount: bytes) -> int:
        value = int(self.get(key) or 0) + int(amount)
        self.db[key] = b"%d" % value
        return value

    def do_decrby(self, key: bytes, amount: bytes) -> int:
        return self.do_incrby(key, b"%d" % -int(amount))

    def do_pexpire(self, key: bytes, ms: bytes) -> int:
        if self.get(key) is None:
            return 0
        self.expiry[key] = self.now() + float(ms) / 1000
        return 1

    def do_expire(self, key: bytes, seconds: bytes) -> int:
        return self.do_pexpire(key, b"%d" % (int(seconds) * 1000))

    def do_hset(self, key: bytes, *pairs: bytes) -> int:
        table = self.get(key, dict)
        table.update(zip(pairs[::2], pairs[1::2], strict=True))
        return len(pairs) // 2

    def do_hget(self, key: bytes, field: bytes) -> Any:
        return (self.get(key) or {}).get(field)

    def do_hmget(self, key: bytes, *fields: bytes) -> Any:
        table = self.get(key) or {}
        return [table.get(field) for field in fields]

    def do_hgetall(self, key: bytes) -> Any:
        return [word for pair in (self.get(key) or {}).items() for word in pair]

    def do_hdel(self, key: bytes, *fields: bytes) -> int:
        table = self.get(key) or {}
        return sum(table.pop(field, None) is not None for field in fields)

    def do_hincrby(self, key: bytes, field: bytes, amount: bytes) -> int:
        table = self.get(key, dict)
        value = int(table.get(field, 0)) + int(amount)
        table[field] = b"%d" % value
        return value

    def do_sadd(self, key: bytes, *members: bytes) -> int:
        self.get(key, dict).update(dict.fromkeys(members))
        return len(members)

    def do_smembers(self, key: bytes) -> Any:
        return list(self.get(key) or ())

    def do_zadd(self, key: bytes, score: bytes, member: bytes) -> int:
        self.get(key, dict)[member] = float(score)
        return 1

    def do_zrem(self, key: bytes, *members: bytes) -> int:
        table = self.get(key) or {}
        return sum(table.pop(member, None) is not None for member in members)

    def do_zcard(self, key: bytes) -> int:
        return len(self.get(key) or ())

    def do_zrangebyscore(self, key: bytes, low: bytes, high: bytes, *limit: bytes) -> Any:
        table = self.get(key) or {}
        found = sorted((s, m) for m, s in table.items() if float(low) <= s <= float(high))
        at, count = (int(limit[1]), int(limit[2])) if limit else (0, len(found))
        return [member for _, member in found[at : at + count]]

    def do_xadd(self, key: bytes, place: bytes, *fields: bytes) -> bytes:
        stream = self.get(key, dict)
        last = next(reversed(stream), (0, 0)) if stream else (0, 0)
        if place == b"*":
            ms = int(self.now() * 1000)
            where = (ms, 0) if ms > last[0] else (last[0], last[1] + 1)
        else:
            ms_, _, seq = place.partition(b"-")
            where = int(ms_), int(seq)
            if where <= last:
                raise Refused("ERR The ID specified in XADD is equal or smaller")
        stream[where] = list(fields)
        return b"%d-%d" % where

    def do_xlen(self, key: bytes) -> int:
        return len(self.get(key) or ())

    def do_xdel(self, key: bytes, *places: bytes) -> int:
        stream = self.get(key) or {}
        return sum(stream.pop(_place(place, 0), None) is not None for place in places)

    def do_xrange(self, key: bytes, low: bytes, high: bytes, *count: bytes) -> Any:
        stream = self.get(key) or {}
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
        found = found[: int(float(count[1]))] if count else found
        return [[b"%d-%d" % place, stream[place]] for place in found]

    def do_xrevrange(self, key: bytes, high: bytes, low: bytes, *count: bytes) -> Any:
        found = self.do_xrange(key, low, high)[::-1]
        return found[: int(float(count[1]))] if count else found

    def do_publish(self, channel: bytes, message: bytes) -> int:
        told = 0
        for peer in self.peers:
            if channel in peer.channels:
                peer.reply([b"message", channel, message])
                told += 1
            for pattern, matches in peer.patterns.items():
                if matches(channel):
                    peer.reply([b"pmessage", pattern, channel, message])
                    told += 1
        return told

    def do_eval(self, script: bytes, number: bytes, *rest: bytes) -> Any:
        self.scripts[sha1(script).hexdigest().encode()] = script
        return self._script(script, int(number), rest)

    def do_evalsha(self, digest: bytes, number: bytes, *rest: bytes) -> Any:
        script = self.scripts.get(digest)
        if script is None:
            raise Refused("NOSCRIPT No matching script. Please use EVAL.")
        return self._script(script, int(number), rest)

    def _script(self, script: bytes, number: int, rest: tuple[bytes, ...]) -> Any:
        if self.full and b"'PUBLISH'" in script:  # scripts that write are refused as a whole
            raise Refused(_OOM.decode())
        return _lua.run(self, script, rest[:number], rest[number:])


class Peer:
    """A client's connection."""

    def __init__(self, redis: Redis, wire: Wire):
        self.redis, self.wire = redis, wire
        self.channels: dict[bytes, None] = {}
        self.patterns: dict[bytes, Callable[[bytes], Any]] = {}
        self._reader = hiredis.Reader()
        self._queued: list[list[bytes]] | None = None

    def lost(self) -> None:
        self.redis.peers.pop(self, None)

    def reply(self, value: Any) -> None:
        self.wire.write(encode(value))

    def received(self, data: bytes) -> None:
        self._reader.feed(data)
        answers = []
        while (words := self._reader.gets()) is not False:
            answers.append(self._command(words))
        if answers:
            self.wire.write(b"".join(answers))

    def _command(self, words: list[bytes]) -> bytes:
        name = words[0].upper()
        if name in (b"SUBSCRIBE", b"PSUBSCRIBE", b"UNSUBSCRIBE", b"PUNSUBSCRIBE"):
            return b"".join(self._subscribe(name, word) for word in words[1:])
        if self.channels or self.patterns:
            if name == b"PING":
                return encode([b"pong", words[1] if len(words) > 1 else b""])
            return encode(Refused("ERR only (P|S)SUBSCRIBE / PING / QUIT allowed in this context"))
        if name == b"MULTI":
            self._queued = []
            return encode(OK)
        if name == b"EXEC":
            queued, self._queued = self._queued or [], None
            return encode([self._run(each) for each in queued])
        if self._queued is not None:
            self._queued.append(words)
            return encode(Status(b"QUEUED"))
        return encode(self._run(words))

    def _run(self, words: list[bytes]) -> Any:
        try:
            return self.redis.run(words)
        except Refused as exc:
            return exc

    def _subscribe(self, name: bytes, word: bytes) -> bytes:
        if name == b"SUBSCRIBE":
            self.channels[word] = None
        elif name == b"PSUBSCRIBE":
            self.patterns[word] = _pattern(word)
        elif name == b"UNSUBSCRIBE":
            self.channels.pop(word, None)
        else:
            self.patterns.pop(word, None)
        return encode([name.lower(), word, len(self.channels) + len(self.patterns)])


def encode(value: Any) -> bytes:
    if value is None:
        return b"$-1\r\n"
    if isinstance(value, Status):
        return b"+%b\r\n" % value
    if isinstance(value, bytes):
        return b"$%d\r\n%b\r\n" % (len(value), value)
    if isinstance(value, int):
        return b":%d\r\n" % value
    if isinstance(value, Exception):
        return b"-%b\r\n" % str(value).encode()
    return b"*%d\r\n" % len(value) + b"".join(map(encode, value))


def _place(text: bytes, missing: int) -> tuple[int, int]:
    ms, _, seq = text.partition(b"-")
    return int(float(ms)), int(seq) if seq else missing


def _pattern(word: bytes) -> Callable[[bytes], Any]:
    text = re.sub(
        rb"\\\\(.)|(\\\*)|(\\\?)",
        lambda m: b"\\" + m[1] if m[1] else b".*" if m[2] else b".",
        re.escape(word),
    )
    return re.compile(text + rb"\Z", re.DOTALL).match


class _Lua:
    """Runs scripts; each is compiled once in a process."""

    def __init__(self) -> None:
        self._lua = LuaRuntime(encoding=None, unpack_returned_tuples=True)
        self._compiled: dict[bytes, Any] = {}
        self._redis: Redis | None = None
        self._formats: dict[bytes, list[tuple[str, int]]] = {}
        values = self._lua.globals()
        values[b"redis"] = self._lua.table_from({b"call": self._call, b"pcall": self._pcall})
        values[b"struct"] = self._lua.table_from({b"pack": self._pack, b"unpack": self._unpack})

    def run(self, redis: Redis, script: bytes, keys: Any, arguments: Any) -> Any:
        function = self._compiled.get(script)
        if function is None:
            function = self._lua.execute(b"return function(KEYS, ARGV) " + script + b"\nend")
            self._compiled[script] = function
        self._redis = redis
        table = self._lua.table_from
        return self._result(function(table(keys), table(arguments)))

    def _call(self, *words: Any) -> Any:
        assert self._redis is not None
        return self._lua_value(self._redis.run([_word(word) for word in words]))

    def _pcall(self, *words: Any) -> Any:
        try:
            return self._call(*words)
        except Refused as exc:
            return self._lua.table_from({b"err": str(exc).encode()})

    def _lua_value(self, value: Any) -> Any:
        if value is None:
            return False
        if isinstance(value, Status):
            return self._lua.table_from({b"ok": bytes(value)})
        if isinstance(value, list):
            return self._lua.table_from([self._lua_value(each) for each in value])
        return value

    def _result(self, value: Any) -> Any:
        if value is None or isinstance(value, bytes):
            return value
        if isinstance(value, tuple):
            return self._result(value[0])
        if isinstance(value, bool):
            return 1 if value else None
        if isinstance(value, (int, float)):
            return int(value)
        if (err := value[b"err"]) is not None:
            return Refused(err.decode())
        found = []
        for i in range(1, len(value) + 1):
            found.append(self._result(value[i]))
        return found

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
