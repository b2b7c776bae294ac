"""What the gateway and its workers use of Redis, with Redis and with its model.

A difference is a bug of the model. The scripts are those of the product.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from hashlib import sha1
from typing import Any

import hiredis
import pytest

from appserver.result_script import _STORE
from gateway.claims import scripts as claims
from gateway.journal import group_scripts
from gateway.journal import scripts as journal
from gateway.journal.pages import PAGE
from gateway.relay.further_tasks import _ADD
from gateway.stack import loopback
from tests.simulation.drivers import Carrier, Link, handed, sockets, until
from tests.simulation.redis_model import Redis

READ_ONLY = "READONLY You can't write against a read only replica."
FULL = "OOM command not allowed when used memory > 'maxmemory'."
WRONG_TYPE = "WRONGTYPE Operation against a key holding the wrong kind of value"


class Error(str):
    """The beginning of an error reply."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Exception) and str(other).startswith(str(self))

    __hash__ = str.__hash__


class Client:
    """A client that sends commands and reads replies."""

    def __init__(self, link: Link):
        self._link, self._reader = link, hiredis.Reader()

    def send(self, *words: Any) -> None:
        self._link.send(hiredis.pack_command(words))

    def next(self) -> Any:
        while (reply := self._reader.gets()) is False:
            data = self._link.receive()
            if not data:
                raise EOFError
            self._reader.feed(data)
        return reply

    def __call__(self, *words: Any) -> Any:
        self.send(*words)
        return self.next()


@dataclass
class Server:
    """Redis or its model, and what may be done to it."""

    carrier: Carrier
    replica: Callable[[], AbstractContextManager[None]]
    full: Callable[[], AbstractContextManager[None]]
    cut: Callable[[str], object]

    def connect(self) -> Client:
        return Client(self.carrier.connect())


@contextmanager
def simulated() -> Iterator[Server]:
    with handed(Redis) as carrier:
        model: Redis = carrier.server

        @contextmanager
        def replica() -> Iterator[None]:
            model.become_replica()
            yield
            model.promote()

        @contextmanager
        def full() -> Iterator[None]:
            model.out_of_memory(True)
            yield
            model.out_of_memory(False)

        yield Server(carrier, replica, full, model.kill_clients)


@contextmanager
def real(url: str) -> Iterator[Server]:
    with sockets(url) as carrier:
        control = Client(carrier.connect())

        @contextmanager
        def replica() -> Iterator[None]:
            control("REPLICAOF", "127.0.0.1", "1")
            try:
                yield
            finally:
                control("REPLICAOF", "NO", "ONE")

        @contextmanager
        def full() -> Iterator[None]:
            control("CONFIG", "SET", "maxmemory", "1")
            try:
                yield
            finally:
                control("CONFIG", "SET", "maxmemory", "0")

        def cut(kind: str) -> None:
            control("CLIENT", "KILL", "TYPE", kind, "SKIPME", "yes")

        control("SCRIPT", "FLUSH")
        yield Server(carrier, replica, full, cut)


@pytest.fixture(params=["simulated", "real"])
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    with (
        simulated()
        if request.param == "simulated"
        else real(request.getfixturevalue("redis_server").url) as server
    ):
        yield server


@pytest.fixture
def redis(server: Server) -> Client:
    return server.connect()


@pytest.fixture
def key() -> str:
    """A key that nobody has; others begin with it."""
    return f"contract:{secrets.token_hex(6)}:"


# Commands -------------------------------------------------------------------------------------

#: Commands, in which K is a key and L another one, and their replies.
COMMANDS: dict[str, list[tuple[str, Any]]] = {
    "connection": [
        ("PING", b"PONG"),
        ("PING text", b"text"),
        ("SELECT 0", b"OK"),
        ("CLIENT SETNAME name", b"OK"),
    ],
    "strings": [
        ("GET K", None),
        ("SET K one", b"OK"),
        ("set K two NX", None),
        ("GET K", b"two"[:0] + b"one"),
        ("MGET K L K", [b"one", None, b"one"]),
        ("SET L 2 NX", b"OK"),
        ("EXISTS K L", 2),
        ("GETRANGE K 0 1", b"on"),
        ("GETRANGE K 1 -1", b"ne"),
        ("GETRANGE K -2 -1", b"ne"),
        ("GETRANGE K -40 -1", b"one"),
        ("GETRANGE nothing 0 19", b""),
        ("DEL K L", 2),
        ("UNLINK K", 0),
        ("EXISTS K", 0),
    ],
    "numbers": [
        ("INCRBY K 5", 5),
        ("DECRBY K 7", -2),
        ("GET K", b"-2"),
        ("INCRBY K 0", -2),
        ("INCRBY K x", Error("ERR value is not an integer or out of range")),
        ("SET K text", b"OK"),
        ("INCRBY K 1", Error("ERR value is not an integer or out of range")),
    ],
    "expiry": [
        ("EXPIRE K 5", 0),
        ("PTTL K", -2),
        ("SETEX K 100 v", b"OK"),
        ("SET K w KEEPTTL", b"OK"),
        ("EXPIRE K 100", 1),
        ("SET K w", b"OK"),
        ("PTTL K", -1),
        ("PEXPIRE K 0", 1),
        ("GET K", None),
        ("SET K v PX 0", Error("ERR invalid expire time in 'set' command")),
        ("SETEX K x v", Error("ERR value is not an integer or out of range")),
    ],
    "hashes": [
        ("HSET K a 1 b 2", 2),
        ("HSET K a 3 c 4", 1),
        ("HGET K a", b"3"),
        ("HGET K x", None),
        ("HMGET K b x", [b"2", None]),
        ("HMGET L b", [None]),
        ("HGETALL K", [b"a", b"3", b"b", b"2", b"c", b"4"]),
        ("HGETALL L", []),
        ("HINCRBY K n 2", 2),
        ("HINCRBY K n 2", 4),
        ("HDEL K a x b", 2),
        ("HDEL K c n", 2),
        ("EXISTS K", 0),
        ("HSET K a", Error("ERR wrong number of arguments for 'hset' command")),
        ("HSET K a 1 b", Error("ERR wrong number of arguments for 'hset' command")),
    ],
    "sets": [
        ("SADD K a b a", 2),
        ("SADD K b c", 1),
        ("SCARD K", 3),
        ("SREM K a x", 1),
        ("SMEMBERS L", []),
        ("SREM K b", 1),
        ("SRANDMEMBER K 0", []),
        ("SRANDMEMBER K 5", [b"c"]),
        ("SREM K c", 1),
        ("SRANDMEMBER K 5", []),
        ("EXISTS K", 0),
    ],
    "sorted sets": [
        ("ZADD K 3 c", 1),
        ("ZADD K 1 a", 1),
        ("ZADD K 2 c 2 d", 1),
        ("ZADD K 2 c 2", Error("ERR syntax error")),
        ("ZREM K d", 1),
        ("ZCARD K", 2),
        ("ZRANGEBYSCORE K -inf 5", [b"a", b"c"]),
        ("ZRANGEBYSCORE K -inf 5 LIMIT 0 1", [b"a"]),
        ("ZRANGEBYSCORE K 2 +inf LIMIT 0 9", [b"c"]),
        ("ZRANGEBYSCORE K 2 +inf WITHSCORES LIMIT 0 9", [b"c", b"2"]),
        ("ZREVRANGEBYSCORE K +inf -inf LIMIT 0 1", [b"c"]),
        ("ZRANGEBYSCORE L -inf 5 LIMIT 0 9", []),
        ("ZREM K a x", 1),
        ("ZREM K c", 1),
        ("EXISTS K", 0),
    ],
    "streams": [
        ("XADD K 5-1 id a", b"5-1"),
        ("XADD K 5-2 id b bytes 7", b"5-2"),
        ("XADD K 5-2 id c", Error("ERR The ID specified in XADD is equal or smaller than")),
        ("XADD K 7-0 id c", b"7-0"),
        ("XLEN K", 3),
        ("XRANGE K - + COUNT 1", [[b"5-1", [b"id", b"a"]]]),
        ("XRANGE K - 5", [[b"5-1", [b"id", b"a"]], [b"5-2", [b"id", b"b", b"bytes", b"7"]]]),
        ("XRANGE K (5-2 +", [[b"7-0", [b"id", b"c"]]]),
        ("XREVRANGE K + - COUNT 1", [[b"7-0", [b"id", b"c"]]]),
        ("XREVRANGE K (7-0 5-2", [[b"5-2", [b"id", b"b", b"bytes", b"7"]]]),
        ("XREVRANGE K (5-1 -", []),
        ("XDEL K 5-1 5-9 7-0", 2),
        ("XADD K 6-0 id d", Error("ERR The ID specified in XADD is equal or smaller than")),
        ("XDEL K 5-2", 1),
        ("XLEN K", 0),
        ("EXISTS K", 1),
        ("XRANGE L - +", []),
    ],
    "types": [
        ("HSET K a 1", 1),
        ("GET K", Error(WRONG_TYPE)),
        ("MGET K", [None]),
        ("SADD K a", Error(WRONG_TYPE)),
        ("XLEN K", Error(WRONG_TYPE)),
        ("ZADD K 1 a", Error(WRONG_TYPE)),
        ("INCRBY K 1", Error(WRONG_TYPE)),
        ("SET K a", b"OK"),
        ("HSET K a 1", Error(WRONG_TYPE)),
        ("SMEMBERS K", Error(WRONG_TYPE)),
    ],
    "errors": [
        ("NONSENSE K", Error("ERR unknown command 'NONSENSE', with args beginning")),
        ("GET", Error("ERR wrong number of arguments for 'get' command")),
        ("GET K L", Error("ERR wrong number of arguments for 'get' command")),
        ("DEL", Error("ERR wrong number of arguments for 'del' command")),
        ("EVALSHA " + "0" * 40 + " 0", Error("NOSCRIPT No matching script. Please use EVAL.")),
    ],
    "transactions": [
        ("EXEC", Error("ERR EXEC without MULTI")),
        ("MULTI", b"OK"),
        ("SETEX K 100 v", b"QUEUED"),
        ("INCRBY K 1", b"QUEUED"),
        ("PUBLISH K v", b"QUEUED"),
        ("MULTI", Error("ERR MULTI calls can not be nested")),
        ("EXEC", [b"OK", Error("ERR value is not an integer or out of range"), 0]),
        ("GET K", b"v"),
        ("MULTI", b"OK"),
        ("SET K w", b"QUEUED"),
        ("NONSENSE", Error("ERR unknown command 'NONSENSE'")),
        ("EXEC", Error("EXECABORT Transaction discarded because of previous errors.")),
        ("GET K", b"v"),
        ("MULTI", b"OK"),
        ("SET K w", b"QUEUED"),
        ("DISCARD", b"OK"),
        ("GET K", b"v"),
    ],
}  # fmt: skip


@pytest.mark.parametrize("what", COMMANDS)
def test_commands(redis, key, what):
    for command, reply in COMMANDS[what]:
        words = [{"K": key, "L": f"{key}other"}.get(word, word) for word in command.split(" ")]
        assert reply == redis(*words), command


def test_a_value_ends_at_its_time(server, redis, key):
    redis("SET", key, "v", "PX", 50)
    assert 0 < redis("PTTL", key) <= 50
    until(server.carrier, lambda: redis("GET", key) is None)
    assert redis("SET", key, "w", "NX") == b"OK"


def test_the_server_tells_what_it_is(redis):
    about = redis("HELLO")
    about = dict(zip(about[::2], about[1::2], strict=True))
    assert (about[b"server"], about[b"proto"]) == (b"redis", 2)
    assert (about[b"mode"], about[b"role"]) == (b"standalone", b"master")
    seconds, micros = redis("TIME")
    assert int(seconds) > 1_700_000_000 and 0 <= int(micros) < 1_000_000
    lines = dict(line.partition(b":")[::2] for line in redis("INFO", "memory").splitlines())
    for name in (b"used_memory", b"maxmemory", b"total_system_memory"):
        assert int(lines[name]) >= 0
    assert redis("DBSIZE") >= 0


def test_an_id_of_a_stream_is_the_time_and_never_goes_back(redis, key):
    first = redis("XADD", key, "*", "id", "a")
    ms, _, number = first.partition(b"-")
    seconds = int(redis("TIME")[0])
    assert abs(int(ms) // 1000 - seconds) <= 1 and number == b"0"
    ahead = b"%d-5" % (int(ms) + 100_000)
    assert redis("XADD", key, ahead, "id", "b") == ahead
    assert redis("XADD", key, "*", "id", "c") == b"%d-6" % (int(ms) + 100_000)


# Publishing and subscribing -------------------------------------------------------------------


def test_subscribers_get_what_is_published(server, redis, key):
    subscriber, other = server.connect(), server.connect()
    assert subscriber("SUBSCRIBE", key) == [b"subscribe", key.encode(), 1]
    assert subscriber("SUBSCRIBE", key + "2") == [b"subscribe", f"{key}2".encode(), 2]
    assert other("SUBSCRIBE", key) == [b"subscribe", key.encode(), 1]
    assert redis("PUBLISH", key, "one") == 2
    assert subscriber.next() == other.next() == [b"message", key.encode(), b"one"]
    assert subscriber("PING") == [b"pong", b""]
    assert subscriber("PING", "x") == [b"pong", b"x"]
    refused = Error("ERR Can't execute 'get': only (P|S)SUBSCRIBE / (P|S)UNSUBSCRIBE / PING / QUIT")
    assert refused == subscriber("GET", key)
    assert subscriber("UNSUBSCRIBE", key) == [b"unsubscribe", key.encode(), 1]
    assert subscriber("UNSUBSCRIBE", "nothing") == [b"unsubscribe", b"nothing", 1]
    assert redis("PUBLISH", key, "two") == 1
    assert subscriber("UNSUBSCRIBE") == [b"unsubscribe", f"{key}2".encode(), 0]
    assert subscriber("UNSUBSCRIBE") == [b"unsubscribe", None, 0]
    assert subscriber("PING") == b"PONG"


def test_a_pattern_matches_what_it_says(server, redis, key):
    subscriber = server.connect()
    pattern = (key + r"\[a\]\*\?\\*").encode()
    assert subscriber("PSUBSCRIBE", pattern) == [b"psubscribe", pattern, 1]
    for channel, number in (
        (key + "[a]*?\\", 1),
        (key + "[a]*?\\x\ny", 1),
        (key + "a*?\\", 0),
        (key + "[a]b?\\", 0),
    ):
        assert redis("PUBLISH", channel, "m") == number, channel
        if number:
            assert subscriber.next() == [b"pmessage", pattern, channel.encode(), b"m"]
    assert subscriber("SUBSCRIBE", key) == [b"subscribe", key.encode(), 2]
    assert subscriber("PUNSUBSCRIBE", pattern) == [b"punsubscribe", pattern, 1]


# What it refuses ------------------------------------------------------------------------------


def test_a_replica_takes_no_writes(server, redis, key):
    redis("SET", key, "v")
    with server.replica():
        assert Error(READ_ONLY) == redis("SET", key, "w")
        assert Error(READ_ONLY) == redis("DEL", f"{key}nothing")
        assert redis("GET", key) == b"v"
        hello = redis("HELLO")
        assert hello[hello.index(b"role") + 1] in (b"replica", b"slave")
        assert Error(READ_ONLY) == redis("EVAL", _ADD, 1, f"{key}set", 1000, "a")
        assert redis("MULTI") == b"OK"
        assert Error(READ_ONLY) == redis("SET", key, "w")
        assert Error("EXECABORT") == redis("EXEC")
        assert redis("PUBLISH", key, "v") == 0
    assert redis("SET", key, "w") == b"OK"


def test_without_memory_nothing_grows(server, redis, key):
    redis("SET", key, "v")
    late = "redis.call('DEL', KEYS[2]) redis.call('SET', KEYS[1], 'x') return 1"
    with server.full():
        for command in (
            ("SET", key, "w"),
            ("HSET", f"{key}h", "a", 1),
            ("XADD", f"{key}x", "*", "a", 1),
            ("INCRBY", f"{key}n", 1),
            ("EVAL", _ADD, 1, f"{key}set", 1000, "a"),
        ):
            assert Error(FULL) == redis(*command), command
        assert redis("PEXPIRE", key, 100_000) == 1
        assert redis("GET", key) == b"v"
        assert redis("DEL", f"{key}nothing") == 0
        assert redis("PUBLISH", key, "v") == 0
        # A script that has written is not stopped.
        assert redis("EVAL", late, 2, key, f"{key}other") == 1
        assert redis("GET", key) == b"x"
        told = "return redis.pcall('SET', KEYS[1], 'y')['err']"
        assert redis("EVAL", told, 1, key).startswith(FULL.encode())
    assert redis("SET", key, "w") == b"OK"


@pytest.mark.parametrize("of", ["simulated", "real"])
def test_a_node_of_a_cluster_refuses_keys_of_several_slots(of, request, stack, start, key):
    if of == "simulated":
        with handed(Redis) as carrier:
            carrier.server.cluster = True
            across_slots(carrier, key)
    else:
        port = loopback.free_port()
        process = start(
            lambda: stack.redis("--cluster-enabled", "yes", "--cluster-port", str(port))
        )
        with sockets(process.url) as carrier:
            Client(carrier.connect())("CLUSTER", "ADDSLOTSRANGE", 0, 16_383)
            across_slots(carrier, key)
        process.stop()


def across_slots(carrier: Carrier, key: str) -> None:
    client = Client(carrier.connect())
    until(carrier, lambda: client("SET", f"{{{key}}}a", "1") == b"OK")
    hello = client("HELLO")
    assert hello[hello.index(b"mode") + 1] == b"cluster"
    assert client("MGET", f"{{{key}}}a", f"{{{key}}}b") == [b"1", None]
    error = Error("CROSSSLOT Keys in request don't hash to the same slot")
    assert error == client("MGET", "a", "b")
    assert error == client("DEL", "a", "b")
    assert error == client("EVAL", "return 1", 2, "a", "b")
    assert client("EVAL", "return KEYS[2]", 2, f"{{{key}}}a", f"x{{{key}}}y{{z}}") is not None


@pytest.mark.parametrize("kind", ["normal", "pubsub"])
def test_clients_are_cut_off_by_their_kind(server, kind):
    clients = {"normal": server.connect(), "pubsub": server.connect()}
    assert clients["normal"]("PING") == b"PONG"
    clients["pubsub"]("SUBSCRIBE", "a")
    server.cut(kind)
    with pytest.raises(EOFError):
        clients.pop(kind).next()
    ((_, left),) = clients.items()
    assert left("PING") in (b"PONG", [b"pong", b""])


# Scripts --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("script", "reply"),
    [
        ("return 3.99", 3),
        ("return {1, 'two', {3}, false, true}", [1, b"two", [3], None, 1]),
        ("return {1, nil, 3}", [1]),
        ("return", None),
        ("return redis.call('GET', 'contract:nothing')", None),
        ("return redis.call('SET', KEYS[1], 1.5)", b"OK"),
        ("return redis.call('SET', KEYS[1], 2 ^ 40) and redis.call('GET', KEYS[1])",
         b"1099511627776"),
        ("return redis.pcall('INCRBY', KEYS[1], 'x')['err']",
         b"ERR value is not an integer or out of range"),
        ("return redis.call('INCRBY', KEYS[1], 'x')",
         Error("ERR value is not an integer or out of range script: ")),
        ("return struct.pack('>c1BI6', 'P', 7, 258)", b"P\x07\0\0\0\0\x01\x02"),
        ("return {struct.unpack('>c1BI6', 'P' .. string.char(7, 0, 0, 0, 0, 1, 2, 9))}",
         [b"P", 7, 258, 9]),
        ("return {unpack(ARGV, 1)}", [b"a", b"b"]),
        ("return nothing.at", Error("ERR ")),
    ],
)  # fmt: skip
def test_values_of_scripts(redis, key, script, reply):
    assert reply == redis("EVAL", script, 1, key, "a", "b")


def test_a_script_is_known_by_its_digest(server, redis, key):
    digest = sha1(_STORE.encode()).hexdigest()
    args = (1, key, '{"status": "SUCCESS"}', 100)
    assert Error("NOSCRIPT") == redis("EVALSHA", digest, *args)
    assert redis("SCRIPT", "LOAD", _STORE) == digest.encode()
    assert redis("SCRIPT", "EXISTS", digest, "0" * 40) == [1, 0]
    assert redis("EVALSHA", digest, *args) == 0
    assert redis("SCRIPT", "FLUSH") == b"OK"
    assert Error("NOSCRIPT") == redis("EVALSHA", digest, *args)
    redis("EVAL", _STORE, *args)
    assert server.connect()("EVALSHA", digest, *args) == 0


def test_a_stored_success_is_final(server, redis, key):
    failure, success = '{"status": "FAILURE"}', '{"status": "SUCCESS", "result": 1}'
    subscriber = server.connect()
    subscriber("SUBSCRIBE", key)
    assert redis("EVAL", _STORE, 1, key, failure, 100) == 1
    assert redis("EVAL", _STORE, 1, key, success, 0) == 1
    assert redis("PTTL", key) == -1
    assert redis("EVAL", _STORE, 1, key, failure, 100) == 0
    assert redis("GET", key) == success.encode()
    got = [subscriber.next()[2] for _ in range(2)]
    assert got == [failure.encode(), success.encode()]


def test_the_end_of_a_later_try_stays(redis, key):
    failure, retry = '{"status": "FAILURE", "retries": 1}', '{"status": "RETRY"}'
    assert redis("EVAL", _STORE, 1, key, failure, 100) == 0
    assert redis("EVAL", _STORE, 1, key, retry, 100) == 0
    assert redis("GET", key) == failure.encode()


def test_taken_tasks_end(redis, key):
    assert redis("EVAL", _ADD, 1, key, 100_000, "a", "b") is None
    assert sorted(redis("SMEMBERS", key)) == [b"a", b"b"]
    assert 0 < redis("PTTL", key) <= 100_000


TASK, OTHER, DIGEST, NEXT = b"t" * 16, b"o" * 16, b"d" * 8, b"n" * 16


class Claim:
    """One claim, and the scripts that change it."""

    def __init__(self, redis: Client, key: str):
        self._redis, self._keys = redis, (key, f"{key}failed")
        self.channel = f"{key}channel"

    def take(
        self, task: bytes, lease: int = 10_000, strict: int = 0, digest: bytes = DIGEST,
        recovers: int = 0,
    ):  # fmt: skip
        args = (task, task, digest, lease, 60_000, 1, strict, 1, 100_000, 60_000, recovers)
        found, of, known, age, tries, left, rest = self._redis(
            "EVAL", claims.TAKE, 1, self._keys[0], *args
        )
        assert 0 <= age < 60_000
        return found, of, tries, left, rest, known

    def run(self, script: str, *args: Any) -> None:
        assert self._redis("EVAL", script, 2, *self._keys, *args) is None

    def confirm(self, task: bytes = TASK) -> None:
        self.run(claims.CONFIRM, task, DIGEST, 60_000, 30_000, self.channel)

    def finish(self, answer: bytes, task: bytes = TASK) -> None:
        self.run(claims.FINISH, task, DIGEST, 60_000, answer, self.channel)

    def fail(self, task: bytes = TASK) -> None:
        self.run(claims.FAIL, task, b"!why", 20_000, 100_000, self.channel)

    def release(self, owner: bytes, not_taken: int) -> None:
        self.run(claims.RELEASE, owner, not_taken, 100_000, self.channel)


@pytest.fixture
def claim(redis: Client, key: str) -> Claim:
    return Claim(redis, key)


def test_a_claim_s_way(server, redis, key, claim):
    subscriber = server.connect()
    subscriber("SUBSCRIBE", claim.channel)
    found, task, tries, left, rest, _ = claim.take(TASK)
    assert (found, task, tries, rest) == (b"mine", TASK, 1, b"") and 9_000 < left <= 10_000
    found, task, tries, left, *_ = claim.take(OTHER)
    assert (found, task, tries) == (b"P", TASK, 2) and 0 < left <= 10_000
    claim.confirm(OTHER)  # is not its task
    claim.run(claims.RENEW, TASK, 20_000)
    assert 10_000 < claim.take(OTHER)[3] <= 20_000
    claim.confirm()
    claim.run(claims.PROLONG, TASK, 50_000)
    found, task, _, left, *_ = claim.take(OTHER)
    assert (found, task) == (b"C", TASK) and 30_000 < left <= 50_000
    claim.finish(b"answer")
    found, task, tries, _, rest, known = claim.take(OTHER)
    assert (found, task, rest, known) == (b"D", TASK, b"answer", DIGEST)
    claim.confirm()
    claim.fail()
    assert claim.take(OTHER)[0] == b"D"
    assert claim.take(OTHER, strict=1, digest=b"x" * 8)[0] == b"conflict"
    assert [subscriber.next()[2] for _ in range(2)] == [b"confirmed", b"done"]
    assert 0 < redis("PTTL", key) <= 60_000


def test_a_claim_whose_task_fails_is_free(claim):
    claim.take(TASK)
    claim.confirm()
    claim.fail()
    found, task, tries, *_ = claim.take(NEXT)
    assert (found, task, tries) == (b"mine", NEXT, 2)
    claim.release(NEXT, not_taken=1)
    claim.confirm()  # it has failed, so this restores nothing
    assert claim.take(OTHER)[:3] == (b"mine", OTHER, 3)


def test_a_success_after_a_failure_is_final(claim):
    claim.take(TASK)
    claim.fail()
    claim.finish(b"answer")
    assert claim.take(OTHER)[:2] == (b"D", TASK)
    claim.fail()
    assert claim.take(OTHER)[0] == b"D"


def test_a_claim_that_is_lost_is_restored(claim):
    claim.confirm()
    assert claim.take(OTHER)[:2] == (b"C", TASK)


@pytest.mark.parametrize("not_taken", [0, 1])
def test_a_released_claim_keeps_its_task_unless_it_is_certain(claim, not_taken):
    claim.take(TASK)
    claim.release(TASK, not_taken)
    found, task, *_ = claim.take(OTHER, recovers=1)
    assert (found, task) == ((b"mine", OTHER) if not_taken else (b"lapsed", TASK))


def test_a_lease_lapses(server, claim):
    claim.take(TASK, lease=1)
    server.carrier.pause(0.01)
    assert claim.take(OTHER, recovers=1)[:2] == (b"P", TASK)
    assert claim.take(OTHER)[:2] == (b"lapsed", TASK)


class Journal:
    """A journal, and the scripts that change it."""

    def __init__(self, redis: Client, prefix: str, most: int = 100):
        self._redis, self._prefix, self._most = redis, prefix, most
        names = ["deliveries", "refused", "open", "bytes", "failing", "changed", "missed", "absent"]
        self._keys = [prefix + name for name in names]
        self.bytes, self.failing, self.changes = (
            prefix + name for name in ("bytes", "failing", "changes")
        )

    def run(self, script: str, *arguments: Any) -> Any:
        last = self._prefix, self.changes, 0
        return self._redis("EVAL", script, len(self._keys), *self._keys, *arguments, *last)

    def write(self, *rows: tuple[Any, ...]) -> Any:
        flat = [str(field) for row in rows for field in row]
        return self.run(journal.WRITE, self._most, 100_000, 60_000, 0, 0, *flat)

    def begin(self, id: str, task: str = "task") -> Any:
        about = f'{{"id": "{id}"}}'
        return self.write((id, "received", 1, task, "", "", "", "", "", about, "", "[]"))

    def answer(self, id: str, state: str, status: int, task: str = "task") -> Any:
        return self.write((id, state, 1, task, status, "0.5", "0.1", "", "", "", "", ""))

    def refuse(self, id: str) -> None:
        fields = "about", "{}", "call", "[]"
        assert self.run(journal.REFUSE, id, 2, 60_000, "refused", *fields) is None

    def settle(self, id: str, state: str, task: str = "task", counts: int = 1) -> Any:
        return self.run(journal.SETTLE, id, task, state, counts, 0, "ended_at", "now")

    def due(self) -> Any:
        return self.run(journal.DUE, 10, 50, 60_000)

    def page(self, number: int = 10, calls: int = 0, newest: str = "+") -> list[tuple[str, Any]]:
        found = self.run(PAGE, newest, "-", number, number, calls, 100, "", "", "")
        return [(place, dict(zip(flat[::2], flat[1::2], strict=True))) for place, flat in found]

    def trim(self, age: int = 60_000) -> Any:
        return self.run(journal.TRIM, age, 100)

    def fields(self, id: str) -> dict[bytes, bytes]:
        flat = self._redis("HGETALL", self._prefix + id)
        return dict(zip(flat[::2], flat[1::2], strict=True))


@pytest.fixture
def written(redis: Client, key: str) -> Journal:
    return Journal(redis, key)


def test_a_delivery_s_way_through_the_journal(server, written):
    subscriber = server.connect()
    subscriber("SUBSCRIBE", written.changes)
    assert written.begin("a") is None
    assert written.answer("a", "accepted", 202) is None
    assert written.begin("a") is None  # a state never goes back
    fields = written.fields("a")
    assert (fields[b"state"], fields[b"status"]) == (b"accepted", b"202")
    server.carrier.pause(0.005)
    assert written.due() == [[b"a", b"task"]]
    assert written.due() == []
    assert written.settle("a", "running", counts=0) is None
    assert written.settle("a", "succeeded", task="another") is None
    assert written.settle("a", "succeeded") == b"accepted"
    assert written.settle("a", "succeeded") is None
    assert written.settle("a", "failed") is None
    assert written.fields("a")[b"state"] == b"succeeded"
    removed, deliveries, unfinished, size, *_ = written.trim()
    assert (removed, deliveries, unfinished) == (0, 1, 0) and int(size) > 0
    told = [subscriber.next()[2] for _ in range(5)]
    assert told == [b"a received", b"a accepted", b"a accepted", b"a running", b"a succeeded"]


def test_the_journal_has_bounds(redis, key):
    short = Journal(redis, key, most=3)
    for number in range(20):
        assert short.begin(f"d{number}") is None
    page = short.page()
    assert [json.loads(fields[b"about"])["id"] for _, fields in page] == ["d19", "d18", "d17"]
    removed, deliveries, unfinished, size, *_ = short.trim()
    assert (removed, deliveries, unfinished) == (0, 3, 3)
    assert int(redis("GET", short.bytes)) == int(size) > 0
    redis("DEL", short.bytes)
    assert short.begin("e") is None
    assert int(redis("GET", short.bytes)) == int(short.trim()[3]) > int(size) * 0.9
    assert short.answer("d0", "accepted", 202) is None  # is gone, and does not come back
    assert short.fields("d0") == {}
    assert short.trim(age=-10)[:3] == [3, 0, 0]


def test_what_is_refused_is_read_with_the_deliveries(written):
    for number in range(3):
        written.refuse(f"r{number}")
    written.begin("a")
    names = [fields.get(b"state") for _, fields in written.page()]
    assert sorted(names) == [b"received", b"refused", b"refused"]
    places = [place for place, _ in written.page()]
    assert places == sorted(places, key=lambda p: tuple(map(int, p.split(b"-"))), reverse=True)
    assert [place for place, _ in written.page(newest=f"({places[0].decode()}")] == places[1:]
    assert len(written.page(number=2)) == 2
    whole = written.page(calls=1)
    assert len(whole) == 1 and b"call" in whole[0][1]
    assert len(written.page(calls=10_000)) == 3


def test_a_replay_is_one_at_a_time(written):
    def begin(task: str, before: str, again: int = 0) -> list[bytes]:
        found: list[bytes] = written.run(journal.BEGIN_REPLAY, "a", task, before, again, 60_000)
        return found

    def end(task: str, taken: Any) -> Any:
        return written.run(journal.END_REPLAY, "a", task, taken, 0, "[]")

    assert begin("new", "task") == [b"run", b""]  # there is none
    written.begin("a")
    written.answer("a", "accepted", 202)
    assert begin("new", "another") == [b"run", b"task"]
    assert begin("new", "task") == [b"begun", b"new"]
    assert begin("newer", "task") == [b"under way", b"new"]
    assert end("new", "") == 1
    assert begin("newer", "task") == [b"interrupted", b"new"]
    assert begin("newer", "task", again=1) == [b"begun", b"new"]
    assert end("newer", 1) is None
    assert end("new", 1) == 1
    assert end("new", 1) == 1  # it is said once more
    fields = written.fields("a")
    assert (fields[b"state"], fields[b"task_id"], fields[b"replays"]) == (b"replayed", b"new", b"1")
    assert written.settle("a", "succeeded", task="new") == b"accepted"


def test_failures_are_counted_once_in_groups(redis, key, written):
    groups, news, counts, absent = (
        f"{key}{name}" for name in ("groups", "news", "counts", "absent")
    )
    for each in ("a", "b"):
        written.begin(each)
    written.answer("a", "failed", 502)
    written.answer("b", "accepted", 202)
    written.settle("b", "expired")

    def failing(process: str) -> Any:
        keys = written.failing, counts, absent
        return redis("EVAL", group_scripts.FAILING, 3, *keys, process, 60_000, 9, key)

    found = failing("one")
    assert [(id, state) for id, _, _, state, _ in found] == [(b"a", b"failed"), (b"b", b"expired")]
    assert failing("two") is None
    keys = written.failing, groups, news, absent
    count = ("EVAL", group_scripts.COUNT, 4, *keys, 2, f"{key}g:", 1)
    assert redis(*count, "a", found[0][1], "g1", "[]", "b", found[1][1], "g2", "[]") == 2
    assert redis(*count, "a", found[0][1], "g1", "[]") == 0
    assert failing("one") == []
    all_groups = ("EVAL", group_scripts.GROUPS, 2, groups, absent, f"{key}g:", 0, 9)
    assert len(redis(*all_groups)) == 3
    pause = f"{key}told"
    told = redis("EVAL", group_scripts.NEWS, 2, news, pause, 0, 9)
    assert {*told[::2]} == {b"new g1", b"new g2"}
    assert redis("EVAL", group_scripts.TOLD, 2, news, pause, 60_000, "", *told[:2]) is None
    newer = ("EVAL", group_scripts.TOLD, 2, news, f"{key}none", 0, "", told[2], "1")
    assert redis(*newer) is None
    assert redis("EVAL", group_scripts.NEWS, 2, news, f"{key}none", 0, 9) == told[2:]
    assert redis("EVAL", group_scripts.NEWS, 2, news, pause, 0, 9) == []
    assert redis("EVAL", group_scripts.CHANGE_GROUP, 1, f"{key}g:g1", "") == 1
    assert redis("EVAL", group_scripts.CHANGE_GROUP, 1, f"{key}g:g3", "5") == 0
    assert redis("EVAL", group_scripts.FORGET_GROUP, 2, f"{key}g:g1", groups, "g1") == 1
    assert len(redis(*all_groups)) == 2
    rates = ("EVAL", group_scripts.RATES, 2, f"{key}rates", news, 10, "0.5", 2)
    assert redis(*rates, "a", "/", 2, "f", "/", 1) == [b"/", 2, 1]
    assert b"share /" in redis("EVAL", group_scripts.NEWS, 2, news, f"{key}none", 0, 9)


def test_the_journal_says_where_it_could_not_tell(server, redis, written):
    """An account that may not publish: nothing of Redis' own refuses that."""
    with server.full():
        assert Error(FULL) == written.begin("a")
    assert written.fields("a") == {}
