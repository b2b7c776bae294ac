"""Commands of many on one connection: in order, together, each with its own end."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from threading import Thread

import pytest
import redis

from appserver.result_script import ResultScript
from gateway.clock import monotonic
from gateway.errors import StoreError, Unanswered
from gateway.stores import pipeline
from gateway.stores.pipeline import Pipeline
from tests.support.parts import pipeline_to, started
from tests.support.stack import Server

pytestmark = pytest.mark.usefixtures("patient")

MANY = 2_000
#: Two scripts that return their argument as a number.
ONE, OTHER = "return tonumber(ARGV[1])", "return ARGV[1] + 0"


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[Pipeline]:
    async with started(pipeline_to(url)) as some, asyncio.timeout(60):
        yield some


@pytest.fixture
def piped(
    each_loop: object, redis_server: Server
) -> Callable[[], AbstractAsyncContextManager[Pipeline]]:
    return partial(opened, redis_server.url)


def connections(client: redis.Redis) -> int:
    return len(client.client_list())


async def test_commands_are_sent_in_order_and_together(piped, client):
    def reads() -> int:
        return client.info("stats")["total_reads_processed"]

    async with piped() as some:
        assert await some.run("PING") == b"PONG"
        before = reads()
        replies = [some.run("RPUSH", "list", number) for number in range(MANY)]
        assert await asyncio.gather(*replies) == list(range(1, MANY + 1))
        assert reads() - before < MANY / 10
        assert await some.run("LRANGE", "list", 0, -1) == [b"%d" % n for n in range(MANY)]
    assert connections(client) == 1


async def test_each_command_has_its_own_error(piped):
    async with piped() as some:
        bad, good = some.run("NO-SUCH-COMMAND"), some.run("SET", "a", "1")
        with pytest.raises(StoreError, match="unknown command"):
            await bad
        assert await good == b"OK"


async def test_what_was_sent_on_a_lost_connection_fails_and_the_next_does_not(piped, client):
    async with piped() as some:
        me = await some.run("CLIENT", "ID")
        sent = [some.run("BLPOP", "nothing", 30), some.run("GET", "a")]
        await asyncio.sleep(0)
        await asyncio.to_thread(client.client_kill_filter, me)
        for reply in await asyncio.gather(*sent, return_exceptions=True):
            assert isinstance(reply, Unanswered)
        assert await some.run("GET", "a") is None


async def test_a_connection_that_is_lost_while_nothing_is_sent_fails_nothing(piped, client):
    async with piped() as some:
        before = 0
        for _ in range(3):
            while (me := await some.run("CLIENT", "ID")) == before:
                await asyncio.sleep(0.01)
            before = me
            await asyncio.to_thread(client.client_kill_filter, me)
            while me in [int(each["id"]) for each in client.client_list()]:
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.01)


async def test_what_nobody_waits_for_any_more_is_not_sent(piped, client):
    async with piped() as some:
        some.run("INCR", "sent")
        some.run("INCR", "left").cancel()
        await some.run("INCR", "sent")
    assert (client.get("sent"), client.get("left")) == (b"2", None)


async def test_a_redis_that_hangs_is_given_up_and_asked_again(piped, redis_server, monkeypatch):
    async with piped() as some:
        await some.run("PING")
        monkeypatch.setattr(some, "_patience", 0.3)
        monkeypatch.setattr(pipeline, "PATIENCE", 0.3)
        with redis_server.frozen():
            sent = [some.run("GET", "a"), some.run("GET", "b")]
            for reply in await asyncio.gather(*sent, return_exceptions=True):
                assert isinstance(reply, Unanswered)
            # The next one would need a new connection.
            with pytest.raises(Unanswered):
                await some.run("GET", "c")
        monkeypatch.setattr(some, "_patience", 60)
        monkeypatch.setattr(pipeline, "PATIENCE", 60)
        assert await some.run("PING") == b"PONG"


async def test_what_was_given_is_written_before_the_end(piped, client):
    async with piped() as some:
        for _ in range(MANY):
            some.run("INCR", "given")
    assert client.get("given") == b"%d" % MANY


def calls(client: redis.Redis) -> tuple[int, int]:
    """Return how often scripts were sent whole, and by their digest."""
    stats = client.info("commandstats")
    return tuple(
        stats.get(f"cmdstat_{name}", {"calls": 0})["calls"] for name in ("eval", "evalsha")
    )


async def test_a_script_is_sent_once(piped, client):
    client.config_resetstat()
    async with piped() as some:
        replies = [some.run("EVAL", script, 0, n) for n in range(10) for script in (ONE, OTHER)]
        assert await asyncio.gather(*replies) == [n for n in range(10) for _ in range(2)]
    assert calls(client) == (2, 18)


async def test_a_script_that_redis_has_forgotten_is_sent_again(piped, client):
    async with piped() as some:
        assert await some.run("EVAL", ONE, 0, 1) == 1
        await asyncio.to_thread(client.script_flush)
        replies = [some.run("EVAL", ONE, 0, n) for n in range(3)]
        assert await asyncio.gather(*replies) == [0, 1, 2]
        # And a new connection sends it anew, as it may lead to another server.
        me = await some.run("CLIENT", "ID")
        await asyncio.to_thread(client.client_kill_filter, me)
        client.config_resetstat()
        assert await some.run("EVAL", ONE, 0, 7) == 7
        assert calls(client) == (1, 0)


async def test_a_script_s_own_errors_are_the_caller_s(piped):
    async with piped() as some:
        for _ in range(2):
            with pytest.raises(StoreError, match="of its own"):
                await some.run("EVAL", "return redis.error_reply('ERR of its own')", 0)


async def test_an_error_names_the_key_of_another_type(piped):
    async with piped() as some:
        await some.run("SET", "a", "1")
        script = "return redis.call('HGET', KEYS[2], 'field')"
        for command in (("HGET", "a", "field"), ("EVAL", script, 2, "b", "a")):
            with pytest.raises(StoreError, match=r"the TYPE of (b, )?a, and remove .* \(DEL\)"):
                await some.run(*command)


async def test_what_utf_8_has_not_is_a_question_mark(piped, client):
    async with piped() as some:
        replies = [some.run("SET", "half\ud800", "a\ud800b"), some.run("SET", "whole", "é")]
        assert await asyncio.gather(*replies) == [b"OK", b"OK"]
    assert (client.get("half?"), client.get("whole")) == (b"a?b", "é".encode())


async def test_an_answer_of_something_else_fails_what_was_sent():
    """A server that speaks no Redis after it was greeted."""

    def serve(listening: socket.socket) -> None:
        accepted, _ = listening.accept()
        with accepted:
            while (data := accepted.recv(4096)) and b"WRONG" not in data:
                accepted.sendall(b"+OK\r\n" * data.count(b"*"))
            accepted.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            accepted.recv(4096)

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = Thread(target=serve, args=[listening])
        thread.start()
        async with opened(f"redis://127.0.0.1:{listening.getsockname()[1]}/0") as some:
            sent = some.run("WRONG"), some.run("NEXT")
            found = await asyncio.gather(*sent, return_exceptions=True)
        thread.join(60)
    assert [type(one) for one in found] == [Unanswered, Unanswered]
    assert "an invalid reply of Redis" in str(found[0])


ELSEWHERE = [
    "READONLY You can't write against a read only replica.",
    "READONLY You can't write against a read only replica. script: 1, on @user_script:1.",
    "ERR Error running script (call to f_1): @user_script:1: -READONLY You can't write",
    "NOREPLICAS Not enough good replicas to write.",
    "MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.",
    "LOADING Redis is loading the dataset in memory",
    "UNBLOCKED force unblock from blocking operation, instance state changed",
    "CLUSTERDOWN Hash slot not served",
    "CROSSSLOT Keys in request don't hash to the same slot",
    "MOVED 3999 127.0.0.1:6381",
    "ASK 3999 127.0.0.1:6381",
    "TRYAGAIN Multiple keys request during rehashing of slot",
]


@pytest.mark.parametrize("error", ELSEWHERE)
async def test_a_server_that_is_not_the_one_to_ask_is_left(piped, client, error):
    """As it answers a script, the error is one of this server."""

    async with piped() as some:
        left = asyncio.Event()
        some.on_left.append(lambda _: left.set())
        me = await some.run("CLIENT", "ID")
        sent = [
            some.run("EVAL", "return redis.error_reply(ARGV[1])", 0, error),
            some.run("BLPOP", "nothing", 30),
        ]
        for reply in await asyncio.gather(*sent, return_exceptions=True):
            assert isinstance(reply, Unanswered)
            assert error.partition(" script:")[0] in str(reply)
        assert left.is_set()
        assert await some.run("CLIENT", "ID") != me


async def test_older_connections_are_left_after_a_reconnection(piped):
    """The server may be another one, which an older connection to the earlier one is not told."""

    async with piped() as some:
        left: asyncio.Queue[float] = asyncio.Queue()
        some.on_left.append(left.put_nowait)
        await some.run("PING")
        before = monotonic()
        assert await left.get() < before  # of the first connection
        await some.run("CLIENT", "KILL", "ID", await some.run("CLIENT", "ID"), "SKIPME", "no")
        assert await left.get() > before


@pytest.mark.parametrize("error", ["OOM command not allowed", "ERR no READONLY in it", "WRONGTYPE"])
async def test_an_error_of_one_command_is_its_own(piped, error):
    async with piped() as some:
        me = await some.run("CLIENT", "ID")
        with pytest.raises(StoreError, match=error):
            await some.run("EVAL", "return redis.error_reply(ARGV[1])", 0, error)
        assert await some.run("CLIENT", "ID") == me


async def test_a_server_that_cannot_be_greeted_is_used(stack):
    """Neither an older Redis nor some proxies know HELLO, so it is not known what they are."""
    some = pipeline_to(stack.redis("--rename-command", "HELLO", "").url)
    known = asyncio.Event()
    some.on_connected.append(known.set)
    async with started(some):
        assert await some.run("PING") == b"PONG"
        await known.wait()
        assert some.error == ""


# redis-py cannot read a redirection that a script has made, and a worker writes one key.
@pytest.mark.parametrize(
    "error", [e for e in ELSEWHERE if not e.startswith(("ASK", "MOVED", "CROSSSLOT", "TRYAGAIN"))]
)
def test_a_worker_writes_once_more_on_a_new_connection(redis_server, error):
    met: list[int] = []

    class Backend(ResultScript):
        """What such a server refuses, and a new connection does not."""

        expires = 60
        client = redis.Redis.from_url(redis_server.url)

        def _store_all(self, results):
            met.append(self.client.client_id())
            try:
                self.client.eval("return redis.error_reply(ARGV[1])", 0, results[0].value)
            except redis.RedisError as exc:
                return [exc]

        def _script(self, **_options: object) -> None:
            met.append(self.client.client_id())

    with Backend.client:
        Backend()._set(b"key", error)
        assert len(set(met)) == 2
        met.clear()
        with pytest.raises(redis.ResponseError, match="of its own"):
            Backend()._set(b"key", "ERR of its own")
        assert len(met) == 1
