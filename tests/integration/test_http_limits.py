"""What a process holds of its clients is bounded: bytes, connections; bodies that nobody wants."""

from __future__ import annotations

import asyncio
import gc
import gzip

import pytest

from gateway.celery_message import Message
from gateway.delivery import Request
from gateway.http import server
from gateway.http.received_request import ReceivedRequest
from gateway.http.stream import AHEAD, Stream
from gateway.outcome import SUCCESS, Outcome
from tests.support.http_client import Answer, Connection, connections, request
from tests.support.in_memory import MARKS, Gateway, InMemory, echo

pytestmark = MARKS

LENGTH = b"Content-Length: 0"
CHUNKED = ("Transfer-Encoding: chunked",)
EXPECT = ("Expect: 100-continue",)


def head(target: str = "/", *lines: str, length: int | None = 1_000, method: str = "POST") -> bytes:
    """Write a request's header, and nothing of the body that it announces."""
    announced = b"Content-Length: %d" % length if length is not None else b"X-Chunked: yes"
    return request(b"", target, *lines, method=method).replace(LENGTH, announced)


def held(gateway: Gateway) -> int:
    return gateway.relay.limits.bytes


async def until_it_holds(gateway: Gateway, least: int, most: int) -> None:
    while not least <= held(gateway) <= most:
        await asyncio.sleep(0.01)


# Bodies that nobody wants -----------------------------------------------------------------


@pytest.mark.parametrize("lines", [(), EXPECT, CHUNKED, (*EXPECT, *CHUNKED)], ids=" ".join)
@pytest.mark.parametrize(
    ("method", "target", "status", "kind"),
    [
        ("POST", "/no", 404, "not-found"),
        ("POST", "http://h/no?q=1", 404, "not-found"),
        ("PUT", "/", 405, "method-not-allowed"),
        ("POST", "/results/x", 405, "method-not-allowed"),
        ("POST", "/%ff", 400, "bad-request"),
    ],
)
async def test_what_no_route_takes_is_refused_at_once(serve, lines, method, target, status, kind):
    gateway = serve()
    length = None if "chunked" in " ".join(lines) else 1_000
    async with await gateway.open() as connection:
        # Had it been told to continue, this would be the first answer.
        answer = await connection.ask(head(target, *lines, length=length, method=method))
        assert (answer.status, answer.type) == (status, kind)
        assert answer.headers["connection"] == "close"
        assert gateway.counted(status) == 1
        # What the sender still has on the way does not turn the answer into a reset.
        connection.send(b"x" * 500)
        connection.writer.write_eof()
        assert await connection.at_end()
    assert held(gateway) == 0


async def test_wrong_path_does_not_end_a_connection_whose_body_is_here(serve):
    async with await serve().open() as connection:
        answer = await connection.ask(request(b"hello", "/no"))
        assert (answer.status, "connection" in answer.headers) == (404, False)
        assert (await connection.ask(request(b"next"))).body == b"next"


# Bytes ------------------------------------------------------------------------------------


async def test_bodies_that_are_being_received_count(serve):
    gateway = serve(None, max_in_flight_bytes=100_000)
    async with await gateway.open() as slow, await gateway.open() as other:
        slow.send(head(length=90_000) + b"x" * 80_000)
        await until_it_holds(gateway, 80_000, 81_000)
        # One that does not fit is refused at its header,
        answer = await other.ask(head("/", *EXPECT, length=30_000))
        assert (answer.status, answer.type) == (503, "full")
        assert (answer.headers["retry-after"], answer.headers["connection"]) == ("1", "close")
        assert gateway.counted(503, http_route="/") == 1
        # and one that does is taken.
        async with await gateway.open() as small:
            (await gateway.begin(small, b"small")).settle(Outcome(SUCCESS, "taken"))
            assert (await small.answer()).body == b"taken"
    await until_it_holds(gateway, 0, 0)


@pytest.mark.parametrize("lines", [(), CHUNKED], ids=["length", "chunked"])
async def test_many_bodies_at_once_stay_within_the_bound(serve, lines):
    most = 200_000
    gateway = serve(None, max_in_flight_bytes=most)
    length = None if lines else 90_000
    start = b"15F90\r\n" if lines else b""  # 90,000 bytes
    async with connections(gateway.address, 10) as some:
        # Given bodies that all begin when there is room for any one of them,
        for connection in some:
            connection.send(head("/", *lines, length=length))
        while sum(stream.receiving for stream in gateway.server._streams) < len(some):
            await asyncio.sleep(0.01)
        # when all come at once,
        answers = [asyncio.ensure_future(connection.answer()) for connection in some]
        for connection in some:
            connection.send(start + b"x" * 80_000)
        while (refused := sum(answer.done() for answer in answers)) < 8:
            assert held(gateway) <= most
            await asyncio.sleep(0)
        # then those that do not fit are told so, and the others go on.
        assert refused == 8
        told = [answer.result() for answer in answers if answer.done()]
        assert {(a.status, a.type, a.headers["retry-after"]) for a in told} == {(503, "full", "1")}
        assert 160_000 <= held(gateway) <= most
        for answer in answers:
            answer.cancel()
    await until_it_holds(gateway, 0, 0)
    assert gateway.strategy.sent.empty()


@pytest.mark.parametrize(
    ("body", "lines", "least"),
    [
        (b"\x01" * 10_000, (), 70_000),  # \u0001 in the message
        (b"\xff" * 9_000, (), 21_000),  # Base64
        (gzip.compress(b"x" * 10_000), ("Content-Encoding: gzip",), 20_000),
        (b"", (f"X: {'x' * 10_000}",), 20_000),
    ],
    ids=["escaped", "binary", "compressed", "header"],
)
async def test_request_and_its_message_count_until_the_answer(serve, body, lines, least):
    gateway = serve(None)
    async with await gateway.open() as connection:
        connection.send(request(body, "/", *lines))
        pending = await gateway.strategy.sent.get()
        assert least < held(gateway) < least * 1.1
        pending.settle(Outcome(SUCCESS, "done"))
        del pending
        assert (await connection.answer()).status == 200
        assert held(gateway) == 0


async def test_empty_lines_before_a_request_do_not_count(serve):
    gateway = serve()
    async with await gateway.open() as connection:
        connection.send(b"\r\n" * 100_000 + b"P")
        while not any(stream.receiving for stream in gateway.server._streams):
            assert held(gateway) == 0
            await asyncio.sleep(0)
        assert held(gateway) == 1
        assert (await connection.ask(request(b"hello")[1:])).body == b"hello"


async def test_what_is_beside_the_data_of_chunks_does_not_count(serve):
    gateway = serve(None)
    async with await gateway.open() as connection:
        chunks = (b"0" * 200 + b"1\r\nx\r\n") * 1_000 + b"0\r\n\r\n"
        connection.send(head("/", *CHUNKED, length=None) + chunks)
        await gateway.strategy.sent.get()
        assert 2_000 < held(gateway) < 5_000
    await until_it_holds(gateway, 0, 0)


async def test_message_that_does_not_fit_is_not_sent(serve):
    gateway = serve(max_in_flight_bytes=50_000)
    async with await gateway.open() as connection:
        answer = await connection.ask(request(b"\x01" * 10_000))
        assert (answer.status, answer.type) == (503, "full")
        assert gateway.strategy.sent.empty()
        assert (await connection.ask(request(b"x" * 10_000))).status == 200
    assert held(gateway) == 0


async def test_who_sends_ahead_beyond_the_bound_is_cut_off(serve):
    gateway = serve(None, max_in_flight_bytes=50_000)
    async with await gateway.open() as eager:
        pending = await gateway.begin(eager, b"first")
        while gateway.strategy.freed.empty():
            if not eager.writer.is_closing():
                eager.send(b"x" * 10_000)
            await asyncio.sleep(0)
            assert held(gateway) < 50_000 + 256 * 1024  # one read, thrown away at once
        assert gateway.strategy.freed.get_nowait() is pending
    await until_it_holds(gateway, 0, 0)
    assert gateway.metrics.get("gateway_clients_gone_total") == 1


async def test_answers_that_are_not_taken_count(serve):
    gateway = serve(lambda _: Outcome(SUCCESS, "x" * 16_000_000))
    async with await gateway.open() as connection:
        connection.send(request())
        while held(gateway) < 1_000_000:
            await asyncio.sleep(0.01)
        assert len((await connection.answer()).body) == 16_000_000
        await until_it_holds(gateway, 0, 0)


# Connections ------------------------------------------------------------------------------


async def hello(connection: Connection) -> Answer:
    answer = await connection.ask(request(b"hello"))
    assert answer.body == b"hello"
    return answer


def kept(answer: Answer) -> bool:
    return "connection" not in answer.headers


async def test_beyond_the_limit_a_connection_waits_until_another_has_gone(serve):
    gateway = serve(None, max_connections=2)
    async with connections(gateway.address, 3) as (first, second, third):
        for connection in (first, second, third):
            connection.send(request(b"hello"))
        one, two = [await gateway.strategy.sent.get() for _ in range(2)]
        await asyncio.sleep(0.05)
        assert gateway.strategy.sent.empty()
        assert gateway.metrics.get("gateway_connections_open") == 2

        # Who has its answer gives way, and is told so.
        one.settle(echo(one.message))
        answer = await first.answer()
        assert (answer.body, answer.headers["connection"]) == (b"hello", "close")
        assert await first.at_end()
        three = await gateway.strategy.sent.get()
        for pending, connection in [(two, second), (three, third)]:
            pending.settle(echo(pending.message))
            assert (await connection.answer()).body == b"hello"


async def test_connections_are_kept_again_once_there_is_room(serve):
    gateway = serve(max_connections=2)
    async with connections(gateway.address, 2) as (first, second):
        assert kept(await hello(first)) and kept(await hello(second))
        async with connections(gateway.address, 1) as (third,):
            third.send(request(b"hello"))
            while kept(await hello(first)):
                await asyncio.sleep(0)
            assert await first.at_end()
            assert (await third.answer()).body == b"hello"
        while gateway.metrics.get("gateway_connections_open") > 1:
            await asyncio.sleep(0)
        assert kept(await hello(second))


async def test_idle_connections_give_way_but_not_those_that_nginx_may_use(serve, monkeypatch):
    monkeypatch.setattr(server, "SWEEP", 0.05)
    monkeypatch.setattr(server, "CLOSE_IDLE_AFTER", 1.5)
    gateway = serve(max_connections=3)
    async with connections(gateway.address, 3) as (used, unused, silent):
        # Given two that have been idle for so long, and one that has not,
        assert kept(await hello(unused))
        await asyncio.sleep(1.5)
        assert kept(await hello(used))
        # when others come, then they get the places of the two.
        async with connections(gateway.address, 2) as others:
            for connection in others:
                connection.send(request(b"hello"))
            for connection in others:
                assert (await connection.answer()).body == b"hello"
            assert await unused.at_end() and await silent.at_end()
            assert (await hello(used)).status == 200


async def test_connections_that_wait_are_served_by_a_sibling(serve):
    first = serve(max_connections=1)
    async with connections(first.address, 1) as (one,), connections(first.address, 5) as others:
        while not first.server._shared.full:
            await asyncio.sleep(0)
        # Given another process on the same socket, then it serves what the full one does not.
        second = Gateway(lambda *_: InMemory(echo), {})
        listener = first._listener.dup()
        second.server.listen([listener])
        for connection in others:
            await hello(connection)
        assert first.metrics.get("gateway_connections_open") == 1
    await second.close()
    listener.close()


async def test_draining_a_full_process_answers_those_that_wait(serve):
    gateway = serve(None, max_connections=1)
    async with connections(gateway.address, 2) as (first, waiting):
        first.send(request(b"hello"))
        waiting.send(request(b"hello"))
        one = await gateway.strategy.sent.get()
        drained = asyncio.ensure_future(gateway.server.drain(30))
        two = await gateway.strategy.sent.get()
        for pending, connection in [(one, first), (two, waiting)]:
            pending.settle(echo(pending.message))
            assert (await connection.answer()).body == b"hello"
        await drained


async def test_what_comes_with_a_connection_waits_to_be_refused_where_there_is_no_room(serve):
    limits = serve(max_in_flight_bytes=10).relay.limits
    lost, paused = [], []

    class Transport:
        def pause_reading(self) -> None:
            paused.append(limits.bytes)

    stream = Stream(9, 9, limits, lost.append)
    stream.connection_made(Transport())
    stream.data_received(b"x" * 11)
    assert (lost, paused, limits.bytes) == ([], [], 11)
    stream.data_received(b"x" * AHEAD)
    assert (lost, paused) == ([], [AHEAD + 11])
    stream.connection_lost(None)
    assert (lost, limits.bytes) == ([stream], 0)


async def test_who_connects_and_sends_at_once_is_told_that_there_is_no_room(serve):
    gateway = serve(max_in_flight_bytes=50_000)
    gateway.relay.limits.bytes += 50_001
    answers = []
    for _ in range(20):
        async with await gateway.open() as connection:
            answers.append((await connection.ask(request(b"hello"))).type)
    assert answers == ["full"] * 20
    gateway.relay.limits.bytes -= 50_001
    assert held(gateway) == 0


# Connections that end ------------------------------------------------------------------------


async def in_its_header(gateway: Gateway, connection: Connection) -> None:
    connection.send(head(length=10_000)[:-2])
    await until_it_holds(gateway, 1, 1_000)
    connection.writer.transport.abort()


async def in_its_body(gateway: Gateway, connection: Connection) -> None:
    connection.send(head(length=90_000) + b"x" * 50_000)
    await until_it_holds(gateway, 50_000, 51_000)
    connection.writer.transport.abort()


async def in_a_chunk(gateway: Gateway, connection: Connection) -> None:
    connection.send(head("/", *CHUNKED, length=None) + b"15F90\r\n" + b"x" * 50_000)
    await until_it_holds(gateway, 50_000, 60_000)
    connection.writer.transport.abort()


async def in_its_wait(gateway: Gateway, connection: Connection) -> None:
    pending = await gateway.begin(connection, b"x" * 50_000)
    connection.writer.transport.abort()
    await until_it_holds(gateway, 0, 0)
    pending.settle(Outcome(SUCCESS, "late"))


async def answered_and_kept(gateway: Gateway, connection: Connection) -> None:
    (await gateway.begin(connection, b"x" * 50_000)).settle(Outcome(SUCCESS, "done"))
    assert (await connection.answer()).status == 200


async def answered_and_closed(gateway: Gateway, connection: Connection) -> None:
    await answered_and_kept(gateway, connection)
    connection.writer.close()


async def malformed(gateway: Gateway, connection: Connection) -> None:
    assert (await connection.ask(b"no HTTP\r\n\r\n")).status == 400
    connection.writer.close()


async def malformed_chunk(
    gateway: Gateway, connection: Connection, size: bytes = b"odd\r\n"
) -> None:
    connection.send(head("/", *CHUNKED, length=None) + b"4E20\r\n" + b"x" * 20_000 + b"\r\n")
    await until_it_holds(gateway, 20_000, 30_000)
    assert (await connection.ask(size)).status == 400
    connection.writer.close()


async def endless_chunk_size(gateway: Gateway, connection: Connection) -> None:
    await malformed_chunk(gateway, connection, b"1" * 300)


async def refused_body(gateway: Gateway, connection: Connection) -> None:
    odd = request(b"x" * 50_000, "/", "Content-Encoding: gzip")
    assert (await connection.ask(odd)).status == 400
    assert (await connection.ask(request(b"x" * 50_000, "/none"))).status == 404
    connection.writer.close()


CUT = (
    in_its_header, in_its_body, in_a_chunk, in_its_wait, answered_and_closed, answered_and_kept,
    malformed, malformed_chunk, endless_chunk_size, refused_body,
)  # fmt: skip


def bodies() -> int:
    """Return how many bytes of bodies are in memory: those received, of requests, messages."""
    kinds = (ReceivedRequest, Request, Message)
    found = [each for each in gc.get_objects() if isinstance(each, kinds)]
    received = [each for each in found if isinstance(each, ReceivedRequest)]
    pieces = sum(len(piece) for each in received for piece in each._pieces)
    return pieces + sum(len(each.body) for each in found if not isinstance(each, ReceivedRequest))


@pytest.mark.parametrize("cut", CUT, ids=lambda cut: cut.__name__)
async def test_no_cycle_keeps_a_body_whose_connection_or_request_has_ended(serve, uncollected, cut):
    gateway = serve(None)
    async with await gateway.open() as connection:
        await cut(gateway, connection)
        await until_it_holds(gateway, 0, 0)
    for queue in (gateway.strategy.sent, gateway.strategy.freed):
        while not queue.empty():
            queue.get_nowait()
    while bodies():
        await asyncio.sleep(0.01)
