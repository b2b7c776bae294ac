"""Connections through time: kept, waiting, too slow, draining."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time

import pytest
from kombu.utils.json import loads
from tornado.http1connection import _YIELD_THRESHOLD

from gateway.celery_message import Message
from gateway.config.settings import Config
from gateway.errors import BrokerBlocked, Rejected
from gateway.http import server, stream
from gateway.outcome import SUCCESS, Outcome
from gateway.relay.limits import Limits
from tests.support.http_client import Connection, request
from tests.support.in_memory import MARKS, echo
from tests.support.waiting import eventually

pytestmark = MARKS


def small_window(port: int) -> socket.socket:
    """Connect with a receive buffer that a large answer does not fit into."""
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.connect(("127.0.0.1", port))
    return connection


# Connections ------------------------------------------------------------------------------


async def test_pipelined_requests_are_answered_in_order(serve):
    gateway = serve(None)
    async with await gateway.open() as connection:
        connection.send(request(b"1") + request(b"2") + request(b"3", "/no"))
        for number in (b"1", b"2"):
            pending = await gateway.strategy.sent.get()
            assert gateway.strategy.sent.empty()  # one at a time
            assert loads(pending.message.body)[0][2] == number.decode()
            pending.settle(echo(pending.message))
            assert (await connection.answer()).body == number
        assert (await connection.answer()).status == 404


async def test_who_sends_many_requests_at_once_leaves_others_their_turn(serve):
    gateway = serve()
    async with await gateway.open() as eager, await gateway.open() as other:
        await other.ask(request(b"before"))
        eager.send(request(target="/no") * 900)
        assert (await other.ask(request(b"meanwhile"))).body == b"meanwhile"
        assert gateway.counted(404) < 900
        for _ in range(900):
            assert (await eager.answer()).status == 404


async def test_connection_is_kept_or_closed_as_asked(serve):
    gateway = serve()
    for last in ("close", "keep-alive, Close"):
        async with await gateway.open() as connection:
            for lines in ((), (), ["Connection: keep-alive, upgrade"]):
                answer = await connection.ask(request(b"kept", "/", *lines))
                assert answer.body == b"kept" and "connection" not in answer.headers
            answer = await connection.ask(request(b"last", "/", f"Connection: {last}"))
            assert answer.headers["connection"] == "close"
            assert await connection.at_end()
    async with await gateway.open() as connection:
        answer = await connection.ask(b"POST / HTTP/1.0\r\nContent-Length: 1\r\n\r\nx")
        assert answer.body == b"x"
        assert await connection.at_end()


async def test_http_1_0_is_told_that_its_connection_is_kept(serve):
    async with await serve().open() as connection:
        data = b"POST / HTTP/1.0\r\nConnection: Keep-Alive\r\nContent-Length: 1\r\n\r\n"
        for body in (b"1", b"2"):
            answer = await connection.ask(data + body)
            assert (answer.body, answer.headers["connection"]) == (body, "keep-alive")


# Waiting ----------------------------------------------------------------------------------


async def test_answer_without_a_result_is_504_at_the_deadline(serve):
    gateway = serve(None, timeout=0.2)
    async with await gateway.open() as connection:
        pending = await gateway.begin(connection)
        delivery_id, late = pending.message.delivery["id"], echo(pending.message)
        pending.confirm()  # from now on the message is not kept
        answer = await connection.answer()
        assert time.monotonic() < pending.deadline + 0.5

        assert (answer.status, answer.type) == (504, "deadline-passed")
        assert answer.problem["task_id"] == pending.message.task_id
        assert answer.problem["delivery_id"] == delivery_id
        assert "retry-after" not in answer.headers

        # What comes later is for nobody, and the connection lives on.
        pending.settle(late)
        assert (await connection.ask(request(target="/no"))).status == 404
    assert await gateway.strategy.freed.get() is pending
    assert gateway.relay.limits.in_flight == 0


async def test_without_a_confirm_it_is_503(serve):
    answer = await serve(None, timeout=0.2).ask(request(b"x"))
    assert (answer.status, answer.type) == (503, "not-confirmed")
    assert answer.headers["retry-after"] == "1"
    assert answer.problem["delivery_id"] and answer.problem["task_id"]


async def test_result_before_its_confirm_is_the_answer(serve):
    gateway = serve(None)
    async with await gateway.open() as connection:
        pending = await gateway.begin(connection)
        pending.settle(None)  # STARTED, say
        pending.settle(Outcome(SUCCESS, "first"))
        pending.confirm()
        pending.fail(Rejected())
        assert (await connection.answer()).body == b"first"
    assert gateway.relay.limits.in_flight == 0


async def test_refused_message_is_503_with_its_own_type(serve):
    gateway = serve(None)
    async with await gateway.open() as connection:
        (await gateway.begin(connection)).fail(Rejected())
        answer = await connection.answer()
    assert (answer.status, answer.type) == (503, "rejected")
    assert answer.headers["retry-after"] == "1"


async def test_strategy_that_cannot_take_it_is_503_at_once(serve):
    def blocked(message: Message) -> Outcome:
        raise BrokerBlocked

    gateway = serve(blocked)
    answer = await gateway.ask(request(b"x"))
    assert (answer.status, answer.type) == (503, "broker-blocked")
    assert answer.problem["delivery_id"] and "task_id" not in answer.problem
    assert gateway.relay.limits.in_flight == 0


async def test_request_beyond_the_limit_is_503_and_room_is_used_again(serve):
    gateway = serve(None, max_in_flight=1)
    async with await gateway.open() as first, await gateway.open() as second:
        pending = await gateway.begin(first, b"1")

        answer = await second.ask(request(b"2"))
        assert (answer.status, answer.type) == (503, "full")
        assert answer.headers["retry-after"] == "1"
        assert gateway.metrics.get("gateway_in_flight") == 1

        pending.settle(echo(pending.message))
        assert (await first.answer()).body == b"1"
        (await gateway.begin(second, b"3")).settle(Outcome(SUCCESS, "3"))
        assert (await second.answer()).body == b"3"


@pytest.mark.parametrize("end", ["close", "abort"])
async def test_client_that_leaves_frees_its_waiter(serve, end):
    gateway = serve(None)
    connection = await gateway.open()
    pending = await gateway.begin(connection)
    assert gateway.relay.limits.in_flight == 1

    getattr(connection.writer.transport, end)()

    assert await gateway.strategy.freed.get() is pending
    pending.settle(Outcome(SUCCESS, "late"))  # told to nobody
    await gateway.until_closed()
    assert gateway.relay.limits.in_flight == gateway.metrics.get("gateway_in_flight") == 0
    assert gateway.metrics.get("gateway_clients_gone_total") == 1


@pytest.mark.parametrize("chunked", [False, True])
async def test_client_that_leaves_is_noticed_though_it_has_sent_much_at_once(serve, chunked):
    gateway = serve(None)
    connection = await gateway.open()
    while not (streams := list(gateway.server._streams)) or streams[0].receiver is None:
        await asyncio.sleep(0)
    # Given more than is read ahead of a request, and none of it after that request,
    data = request(b"x" * 2 * stream.AHEAD)
    if chunked:
        chunks = b"1\r\nx\r\n" * stream.AHEAD + b"0\r\n\r\n"
        data = request().replace(b"Content-Length: 0", b"Transfer-Encoding: chunked") + chunks
    streams[0].data_received(data)
    pending = await gateway.strategy.sent.get()
    # when the client leaves, then nothing waits for the result any more.
    connection.writer.transport.abort()
    assert await gateway.strategy.freed.get() is pending
    assert gateway.relay.limits.in_flight == 0


async def test_request_whose_client_has_left_is_not_relayed(serve):
    gateway = serve(None)
    async with await gateway.open() as connection:
        # Given a body that is read in turns of the loop,
        data = request(b"x" * _YIELD_THRESHOLD)
        connection.send(data[:1_000])
        while not (streams := [s for s in gateway.server._streams if s.receiving]):
            await asyncio.sleep(0)
        # when the client leaves before the last of these,
        streams[0].data_received(data[1_000:])
        streams[0].abort()
        assert await connection.reader.read() == b""
    # then nothing is published for which nobody waits.
    assert gateway.server.connections == gateway.relay.limits.in_flight == 0
    assert gateway.strategy.sent.empty()


@pytest.mark.parametrize("version", ["1.0", "1.1"])
@pytest.mark.parametrize("probes", [0, 1, 9])
async def test_client_who_has_sent_all_and_listens_is_answered(serve, monkeypatch, version, probes):
    monkeypatch.setattr(stream, "PROBE", 0.001)
    gateway = serve(None)
    async with await gateway.open() as connection:
        # Given a client that closes its side after its request, and is asked whether it is there,
        connection.send(request(b"x").replace(b"HTTP/1.1", b"HTTP/" + version.encode()))
        pending = await gateway.strategy.sent.get()
        connection.writer.write_eof()
        (served,) = gateway.server._streams
        await eventually(lambda: served._probed >= probes, pause=0.001)
        # when the task ends, then it gets the answer, and nothing else.
        pending.settle(Outcome(SUCCESS, "late"))
        answer = await connection.answer()
        assert (answer.status, answer.body) == (200, b"late")
        assert await connection.at_end()
    assert gateway.metrics.get("gateway_clients_gone_total") == 0


async def test_pipelined_requests_are_answered_to_who_has_sent_all(serve):
    gateway = serve(None)
    async with await gateway.open() as connection:
        connection.send(request(b"1") + request(b"2") + request(b"never").removesuffix(b"r"))
        connection.writer.write_eof()
        for number in (b"1", b"2"):
            pending = await gateway.strategy.sent.get()
            await asyncio.sleep(0)
            pending.settle(echo(pending.message))
            assert (await connection.answer()).body == number
        assert await connection.at_end()
    assert gateway.strategy.sent.empty()


@pytest.mark.parametrize("unix", [False, True])
async def test_client_that_leaves_after_it_has_sent_all_frees_its_waiter(serve, unix, tmp_path):
    gateway = serve(None, **({"uds": tmp_path / "socket"} if unix else {}))
    connection = await gateway.open()
    pending = await gateway.begin(connection)
    connection.writer.write_eof()
    (served,) = gateway.server._streams
    await eventually(lambda: served._probed, pause=0.001)

    connection.writer.close()  # without another word, as its end has been told

    assert await gateway.strategy.freed.get() is pending
    await gateway.until_closed()
    assert gateway.metrics.get("gateway_clients_gone_total") == 1


async def test_who_has_sent_all_while_nothing_is_under_way_is_closed(serve):
    async with await serve().open() as connection:
        assert (await connection.ask(request(b"x"))).status == 200
        connection.writer.write_eof()
        assert await connection.at_end()
    async with await serve().open() as connection:
        connection.writer.write_eof()
        assert await connection.at_end()


# Draining ---------------------------------------------------------------------------------


async def test_draining_answers_what_is_in_flight_and_lets_idle_connections_end(serve):
    gateway = serve(None)
    async with await gateway.open() as busy, await gateway.open() as idle:
        # Given a connection with a request under way, and one without,
        (await gateway.begin(idle, b"before")).settle(Outcome(SUCCESS, "before"))
        assert "connection" not in (await idle.answer()).headers
        pending = await gateway.begin(busy, b"busy")

        # when the gateway drains,
        drained = asyncio.ensure_future(gateway.server.drain(30))
        await asyncio.sleep(0)

        # then the idle one's next request is answered, and that is its last one,
        (await gateway.begin(idle, b"next")).settle(Outcome(SUCCESS, "next"))
        answer = await idle.answer()
        assert (answer.body, answer.headers["connection"]) == (b"next", "close")
        assert await idle.at_end()

        # and so is what was under way.
        assert not drained.done()
        pending.settle(echo(pending.message))
        answer = await busy.answer()
        assert (answer.body, answer.headers["connection"]) == (b"busy", "close")
        assert await busy.at_end()
    await drained


async def test_draining_waits_for_what_takes_longer_than_idle_connections_may(serve, monkeypatch):
    monkeypatch.setattr(server, "IDLE_DRAIN", 0.1)
    gateway = serve(None)
    async with await gateway.open() as busy, await gateway.open() as idle:
        (await gateway.begin(idle, b"before")).settle(Outcome(SUCCESS, "before"))
        await idle.answer()
        pending = await gateway.begin(busy, b"busy")

        drained = asyncio.ensure_future(gateway.server.drain(30))
        assert await idle.at_end()
        assert not drained.done()

        pending.settle(echo(pending.message))
        assert (await busy.answer()).body == b"busy"
    await drained


async def test_draining_refuses_new_connections(serve):
    gateway = serve()
    async with await gateway.open() as connection:
        await connection.ask(request())
        drained = asyncio.ensure_future(gateway.server.drain(30))
        await asyncio.sleep(0)
        with pytest.raises(ConnectionRefusedError):
            await gateway.open()
    await drained


async def test_connection_that_the_kernel_has_accepted_is_served_before_the_end(serve):
    # Given connections that the loop has had no turn to accept,
    gateway = serve()
    waiting = [socket.create_connection(("127.0.0.1", gateway.address)) for _ in range(5)]
    # when the gateway drains,
    drained = asyncio.ensure_future(gateway.server.drain(30))
    # then their requests are answered.
    for number, one in enumerate(waiting):
        async with Connection(*await asyncio.open_connection(sock=one)) as connection:
            assert (await connection.ask(request(b"%d" % number))).body == b"%d" % number
    await drained


async def test_connection_that_is_given_up_before_it_has_begun_is_closed(io_loop):
    lost = asyncio.Event()
    ours, theirs = socket.socketpair()
    given_up = stream.Stream(9, 9, Limits(Config()), lambda _: lost.set())
    given_up.abort()
    await asyncio.get_running_loop().connect_accepted_socket(lambda: given_up, ours)
    await lost.wait()
    with theirs:
        assert theirs.recv(1) == b""


async def test_what_outlives_the_grace_period_is_cut_off(serve):
    gateway = serve(None)
    async with await gateway.open() as connection:
        await gateway.begin(connection)
        await gateway.server.drain(0.1)
        assert await connection.at_end()
    assert gateway.relay.limits.in_flight == 0


# Too slow -----------------------------------------------------------------------------------


@pytest.fixture
def looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have deadlines noticed soon after they have passed."""
    monkeypatch.setattr(server, "SWEEP", 0.05)


@pytest.mark.parametrize("start", [b"P", b"POST / HTTP/1.1\r\nHost: h\r\nX: ", b"\r"])
async def test_header_that_does_not_end_is_408(serve, looks_often, start):
    gateway = serve(body_timeout=0.2, idle_timeout=9)
    async with await gateway.open() as connection:
        # The first request's time is not the second one's.
        assert (await connection.ask(request(b"x"))).status == 200
        connection.send(start)
        answer = await connection.answer()
        assert (answer.status, answer.type) == (408, "body-too-slow")
        assert await connection.at_end()
    assert gateway.strategy.sent.qsize() == gateway.counted(408) == 1


async def test_header_that_was_sent_ahead_has_its_time_from_the_answer_on(serve, looks_often):
    gateway = serve(None, body_timeout=0.2, idle_timeout=9)
    async with await gateway.open() as connection:
        connection.send(request(b"1") + request(b"2")[:10])
        pending = await gateway.strategy.sent.get()
        await asyncio.sleep(0.5)  # longer than a header may take
        pending.settle(echo(pending.message))
        assert (await connection.answer()).body == b"1"
        assert (await connection.answer()).status == 408


LATE = {
    "body": request(b"123"), "header": request(), "bad header": request(host="a b"),
    "header expecting": request(b"", "/", "Expect: 100-continue"),
}  # fmt: skip


@pytest.mark.parametrize("late", LATE)
async def test_request_that_is_late_by_a_turn_of_the_loop_is_not_relayed(serve, late):
    gateway, data = serve(), LATE[late]
    async with await gateway.open() as connection:
        connection.send(data[:-1])
        while not (streams := [s for s in gateway.server._streams if s.receiving]):
            await asyncio.sleep(0)
        streams[0].data_received(data[-1:])
        streams[0].expire()
        answer = await connection.answer()
        assert answer.status == 408
        assert await connection.at_end()
    assert gateway.strategy.sent.empty()
    assert (gateway.counted(408), gateway.counted(400)) == (1, 0)


async def test_what_was_sent_ahead_of_a_refusal_is_read_and_thrown_away(serve, monkeypatch):
    monkeypatch.setattr(stream, "LINGER_SECONDS", 60)
    gateway = serve(None)
    async with await gateway.open() as connection:
        connection.send(request(b"1") + b"NONSENSE\r\n\r\n" + bytes(3_000_000))
        pending = await gateway.strategy.sent.get()
        pending.settle(echo(pending.message))
        assert (await connection.answer()).status == 200
        assert (await connection.answer()).status == 400
        await connection.writer.drain()
        assert await connection.at_end()
    await gateway.until_closed()


async def test_answer_that_is_not_taken_is_given_up(serve, looks_often):
    def large(message: Message) -> Outcome:
        return Outcome(SUCCESS, "x" * 16_000_000)  # far more than the kernel takes

    gateway = serve(large, idle_timeout=0.2)
    with small_window(gateway.address) as reluctant:
        reluctant.sendall(request())
        await gateway.strategy.freed.get()
        await gateway.until_closed()
        # Long after its time it finds the answer cut off.
        reluctant.setblocking(False)
        received = 0
        with contextlib.suppress(ConnectionError):
            while some := await asyncio.get_running_loop().sock_recv(reluctant, 1_000_000):
                received += len(some)
    assert received < 16_000_000


@pytest.mark.parametrize(
    ("task", "most"), [(None, 1), (echo, 5_000)], ids=["no answer yet", "answers are not taken"]
)
async def test_requests_are_not_read_faster_than_they_are_answered(serve, task, most):
    gateway = serve(task)
    data = memoryview(request(b"x" * 10_000) * 6_000)  # far more than the kernel takes
    with small_window(gateway.address) as eager:
        eager.setblocking(False)
        sent, before = 0, -1
        while sent != before:
            before = sent
            with contextlib.suppress(BlockingIOError):
                while sent < len(data):
                    sent += eager.send(data[sent:])
            await asyncio.sleep(0.1)
    assert sent < len(data)
    assert 1 <= gateway.strategy.sent.qsize() <= most


async def test_dripping_body_is_408(serve, looks_often):
    gateway = serve(body_timeout=0.2)
    async with await gateway.open() as connection:
        connection.send(request(b"").replace(b": 0", b": 1000"))
        answer = asyncio.ensure_future(connection.answer())
        while not answer.done():
            connection.send(b"x")
            await asyncio.wait([answer], timeout=0.05)
        assert (answer.result().status, answer.result().type) == (408, "body-too-slow")
        with contextlib.suppress(ConnectionResetError):  # of the drops that crossed the answer
            assert await connection.at_end()
    assert gateway.strategy.sent.empty()


async def test_idle_connection_is_closed(serve, looks_often):
    async with await serve(idle_timeout=0.2).open() as connection:
        assert (await connection.ask(request(b"x"))).status == 200
        assert await connection.at_end()
