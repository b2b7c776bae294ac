"""What the gateway makes of HTTP: real sockets, the real server and relay, tasks in memory."""

from __future__ import annotations

import asyncio
import contextlib
import email.utils
import socket
import time
from collections.abc import Callable, Iterator

import pytest
import uvloop
from kombu.utils.json import loads
from tornado.httpclient import AsyncHTTPClient, HTTPClientError
from tornado.ioloop import IOLoop

from gateway.celery_message import Message, TaskIds
from gateway.config import Config
from gateway.errors import BrokerBlocked, Rejected
from gateway.metrics import Metrics
from gateway.outcome import FAILURE, SUCCESS, Outcome
from gateway.pending import Pending
from gateway.relay import Relay
from gateway.server import Server
from gateway.sockets import bind
from gateway.strategies.base import Strategy
from tests.http_client import Connection, request

pytestmark = pytest.mark.gen_test(timeout=10)

ROUTES = [{"path": "/"}, {"path": "/hooks/{account}"}, {"path": "/xml", "content_type": "text/xml"}]


def echo(message: Message) -> Outcome:
    return Outcome(SUCCESS, loads(message.body)[0][2])


def arguments(message: Message) -> Outcome:
    """Answer what the task was called with: the query, the headers and the delivery."""
    query, headers, _ = loads(message.body)[0]
    return Outcome(SUCCESS, {"query": query, "headers": headers, "delivery": message.delivery})


class InMemory(Strategy):
    """Runs `task` on each message at once; without one, whoever takes it from `sent` ends it."""

    name = "in-memory"

    def __init__(self, task: Callable[[Message], Outcome] | None):
        self.task = task
        self.sent: asyncio.Queue[Pending] = asyncio.Queue()
        self.freed: asyncio.Queue[Pending] = asyncio.Queue()

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    def checks(self) -> dict[str, str]:
        return {}

    def send(self, message: Message, deadline: float) -> Pending:
        pending = Pending(message, deadline, self.freed.put_nowait)
        self.sent.put_nowait(pending)
        if self.task is not None:
            pending.settle(self.task(message))
        return pending


class Gateway:
    """A serving process without its process."""

    def __init__(self, strategy: Strategy, settings: dict):
        config = Config(**{"port": 0, "routes": ROUTES, **settings})
        self.strategy = strategy
        self.metrics, self._file = Metrics.create(route.path for route in config.routes)
        self.relay = Relay(config, strategy, self.metrics, TaskIds())
        self.server = Server(config, self.relay, self.metrics)
        (self._listener,) = bind(config)
        self.address = config.uds or self._listener.getsockname()[1]
        self.server.listen([self._listener])

    async def open(self) -> Connection:
        return await Connection.open(self.address)

    async def close(self) -> None:
        await self.server.drain(0)
        self._listener.close()
        self.metrics.close()
        self._file.close()


def counted(gateway: Gateway, status: int) -> float:
    """Return how many requests that no route has taken were answered with `status`."""
    labels = f'route="",status="{status}"'
    return gateway.metrics.totals()["gateway_requests_total", labels]


@pytest.fixture(params=["asyncio", "uvloop"])
def io_loop(request: pytest.FixtureRequest) -> Iterator[IOLoop]:
    """Each of the loops that gateways run on: connections are their transports."""
    loop = uvloop.new_event_loop() if request.param == "uvloop" else asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    io_loop = IOLoop.current()
    yield io_loop
    io_loop.close()
    asyncio.set_event_loop(None)


@pytest.fixture
def serve(io_loop: IOLoop) -> Iterator[Callable[..., Gateway]]:
    """Start a gateway whose tasks are run by `task`."""
    with contextlib.ExitStack() as opened:

        def start(task: Callable[[Message], Outcome] | None = echo, **settings) -> Gateway:
            gateway = Gateway(InMemory(task), settings)
            opened.callback(lambda: io_loop.run_sync(gateway.close))
            return gateway

        yield start


@pytest.fixture
def client(io_loop: IOLoop) -> Iterator[AsyncHTTPClient]:
    client = AsyncHTTPClient(force_instance=True)
    yield client
    client.close()


# Requests and their answers ---------------------------------------------------------------


@pytest.mark.parametrize("body", [b"", b"hello", "grüß".encode(), b"\x00\xff", b"x" * 1_000_000])
async def test_body_comes_back_byte_for_byte(serve, client, body):
    url = f"http://127.0.0.1:{serve().address}/"
    response = await client.fetch(url, method="POST", body=body)
    assert (response.code, response.body) == (200, body)


async def test_chunked_body_is_put_together(serve, client):
    async def produce(write):
        for chunk in (b"a" * 100_000, b"b", b"c" * 100_000):
            await write(chunk)

    url = f"http://127.0.0.1:{serve().address}/"
    response = await client.fetch(url, method="POST", body_producer=produce)
    assert response.body == b"a" * 100_000 + b"b" + b"c" * 100_000


async def test_route_gives_its_content_type_and_date_is_now(serve):
    async with await serve().open() as connection:
        answer = await connection.ask(request(b"<a/>", "/xml"))
    assert answer.headers["content-type"] == "text/xml"
    date = email.utils.parsedate_to_datetime(answer.headers["date"])
    assert abs(date.timestamp() - time.time()) < 5


async def test_task_gets_query_headers_and_delivery(serve):
    async with await serve(arguments).open() as connection:
        answer = await connection.ask(
            request(
                b"x",
                "/hooks/a%20b?q=1&q=2&plus=a+b&empty&pct=%C3%BC",
                "X-One: 1",
                "x-ONE: 2",
                "Traceparent: 00-ab",
            )
        )

    got = loads(answer.body)
    assert got["query"] == {"q": "2", "plus": "a b", "empty": "", "pct": "ü"}
    assert got["headers"] == {
        "host": "gateway", "content-length": "1", "x-one": "1, 2", "traceparent": "00-ab",
    }  # fmt: skip
    delivery = got["delivery"]
    assert delivery["route"] == "/hooks/{account}"
    assert delivery["params"] == {"account": "a b"}
    assert delivery["query_string"] == "q=1&q=2&plus=a+b&empty&pct=%C3%BC"
    assert (delivery["remote"], delivery["traceparent"]) == ("127.0.0.1", "00-ab")
    assert (delivery["source"], delivery["event"], delivery["store"]) == ("", "", False)


async def test_no_request_names_task_queue_or_id(serve):
    gateway = serve()
    target = "/?task=os.system&queue=other&task_id=1&id=1&eta=0"
    async with await gateway.open() as connection:
        await connection.ask(request(b'{"task": "os.system"}', target, "task: x", "id: 1"))
    message = gateway.strategy.sent.get_nowait().message
    assert (message.task, message.queue) == ("api.core.main", "celery")
    assert message.task_id != "1" and message.delivery["id"] not in ("1", message.task_id)
    assert message.expires == pytest.approx(time.time() + 11, abs=5)
    assert message.headers()["task"] == "api.core.main"


@pytest.mark.parametrize(
    "data",
    [
        request(b"x", "/?__type__=x&__value__=y"),
        b"POST / HTTP/1.0\r\n__type__: x\r\n__value__: y\r\n\r\n",
    ],
    ids=["query", "headers"],
)
async def test_what_no_worker_could_decode_is_refused(serve, data):
    gateway = serve()
    async with await gateway.open() as connection:
        answer = await connection.ask(data)
    assert (answer.status, answer.type) == (400, "bad-request")
    assert gateway.strategy.sent.empty()


async def test_unix_socket_serves_and_its_peer_is_the_local_proxy(serve, tmp_path):
    gateway = serve(arguments, uds=tmp_path / "gateway.sock")
    async with await gateway.open() as connection:
        answer = await connection.ask(request(b"", "/", "X-Forwarded-For: 192.0.2.7"))
    assert loads(answer.body)["delivery"]["remote"] == "192.0.2.7"


@pytest.mark.parametrize(
    ("trusted", "lines", "remote"),
    [
        ([], ["X-Forwarded-For: 192.0.2.1"], "127.0.0.1"),
        ([], ["X-Real-IP: 192.0.2.1"], "127.0.0.1"),
        (["127.0.0.1"], [], "127.0.0.1"),
        (["127.0.0.1"], ["X-Forwarded-For: 192.0.2.1"], "192.0.2.1"),
        (["127.0.0.1"], ["X-Forwarded-For: 6.6.6.6, 192.0.2.1"], "192.0.2.1"),
        (["127.0.0.1"], ["X-Forwarded-For: 6.6.6.6", "X-Forwarded-For: 192.0.2.1"], "192.0.2.1"),
        (["127.0.0.1", "10.0.0.1"], ["X-Forwarded-For: 6.6.6.6,192.0.2.1,10.0.0.1"], "192.0.2.1"),
        (["127.0.0.1", "10.0.0.1"], ["X-Forwarded-For: 10.0.0.1, "], "127.0.0.1"),
        (["127.0.0.0/8", "10.0.0.0/8"], ["X-Forwarded-For: 192.0.2.1, 10.9.8.7"], "192.0.2.1"),
    ],
)
async def test_sender_is_the_rightmost_address_that_is_not_trusted(serve, trusted, lines, remote):
    async with await serve(arguments, trusted_proxies=trusted).open() as connection:
        answer = await connection.ask(request(b"", "/", *lines))
    assert loads(answer.body)["delivery"]["remote"] == remote


# Refusals ---------------------------------------------------------------------------------


@pytest.mark.parametrize("target", ["http://x/xml?a=1", "https://x:1/xml?a=1", "http://x/?a=1"])
async def test_absolute_form_of_a_target_is_the_same(serve, target):
    async with await serve(arguments).open() as connection:
        answer = await connection.ask(request(target=target))
        assert b'"query":{"a":"1"}' in answer.body


async def test_path_that_no_route_has_is_404(serve, client):
    url = f"http://127.0.0.1:{serve().address}"
    for path in ("/no", "/a/../../etc", "/hooks/", "/hooks/a/b"):
        with pytest.raises(HTTPClientError, match="404") as error:
            await client.fetch(url + path, method="POST", body=b"")
        assert error.value.response.headers["Content-Type"] == "application/problem+json"


@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "PATCH", "DELETE", "OPTIONS", "BREW"])
async def test_other_methods_are_405_and_the_connection_lives_on(serve, method):
    async with await serve().open() as connection:
        connection.send(request(b"", method=method))
        answer = await connection.answer(head=method == "HEAD")
        assert (answer.status, answer.headers["allow"]) == (405, "POST")
        assert int(answer.headers["content-length"]) > 0
        assert (await connection.ask(request(b"next"))).body == b"next"


@pytest.mark.parametrize(
    ("data", "status", "kind"),
    [
        (request(target="/%00"), 400, "bad-request"),
        (request(target="/%ff"), 400, "bad-request"),
        (request(target="/?q=%ff"), 400, "bad-request"),
        (request(target="/?" + "q&" * 300), 400, "bad-request"),
        (request(host="a/b@c"), 400, "bad-request"),
        (request(host="a b"), 400, "bad-request"),
        (request(b"", "/", "Host: other"), 400, "bad-request"),
        (b"POST / HTTP/1.1\r\nContent-Length: 0\r\n\r\n", 400, "bad-request"),
        (request(target="/" + "x" * 20_000), 414, "uri-too-long"),
        (request(b"", "/", "X-Large: " + "x" * 20_000), 431, "header-too-large"),
        (request(b"", "/", *(f"X-{n}: 1" for n in range(600))), 431, "header-too-large"),
        *(
            (request(b"{}", "/", f"Content-Encoding: {coding}"), 415, "encoding-not-accepted")
            for coding in ("br", "deflate", "gzip, gzip", "identity, gzip", "")
        ),
    ],
    ids=lambda value: value[:40].decode("latin1") if isinstance(value, bytes) else str(value),
)
async def test_request_that_cannot_be_taken_is_told_why_and_never_published(
    serve, data, status, kind
):
    gateway = serve()
    async with await gateway.open() as connection:
        answer = await connection.ask(data)
    assert (answer.status, answer.type) == (status, kind)
    assert "task_id" not in answer.problem
    assert gateway.strategy.sent.empty()
    assert gateway.relay.in_flight == 0


@pytest.mark.parametrize(
    "data",
    [
        b"NONSENSE\r\n\r\n",
        b"POST / HTTP/2.0\r\nHost: h\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: h\r\nno colon\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: h\r\nX Y: 1\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: h\r\nX: a\r\n folded\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: h\r\nX: a\x00b\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: h\r\nX: a\rb\r\n\r\n",
        request(b"x", "/", "Transfer-Encoding: chunked"),
        request(b"x", "/", "Content-Length: 2"),
        *(
            f"POST / HTTP/1.1\r\nHost: h\r\nContent-Length{value}\r\n\r\n1234567".encode()
            for value in (": +7", ": -1", ": 0x7", ": 0_7", " : 7", f": {'9' * 5_000}", ": 7, 8")
        ),
        *(
            b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: " + value + b"\r\n\r\n0\r\n\r\n"
            for value in (b"xchunked", b"\xa0chunked", b"gzip, chunked", b"chunked, chunked")
        ),
        *(
            b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n" + body
            for body in (b"0x1\r\na\r\n0\r\n\r\n", b"-1\r\n", b"1\r\nab\r\n0\r\n\r\n", b"x\r\n")
        ),
    ],
    ids=lambda data: repr(data[-40:]),
)
async def test_malformed_http_is_400_closed_and_never_published(serve, data):
    gateway = serve()
    async with await gateway.open() as connection:
        answer = await connection.ask(data)
        assert (answer.status, answer.type) == (400, "bad-request")
        assert answer.headers["connection"] == "close" and answer.headers["date"]
        assert await connection.at_end()
    assert gateway.strategy.sent.empty()
    assert counted(gateway, 400) == 1


@pytest.mark.parametrize(
    "lines", [["Content-Length: 1001"], ["Content-Length: 1001", "Expect: 100-continue"]]
)
async def test_length_over_the_limit_is_413_before_the_body_is_sent(serve, lines):
    async with await serve(max_body=1000).open() as connection:
        head = "\r\n".join(["POST / HTTP/1.1", "Host: gateway", *lines, "", ""])
        # Had it been told to continue, this would be the first answer.
        answer = await connection.ask(head.encode())
        assert (answer.status, answer.type) == (413, "body-too-large")
        assert answer.headers["connection"] == "close"
        if len(lines) > 1:
            assert await connection.at_end()


async def test_length_at_the_limit_is_taken_and_expect_is_continued(serve):
    async with await serve(max_body=1000).open() as connection:
        connection.send(request(b"", "/", "Expect: 100-continue").replace(b": 0", b": 1000"))
        assert (await connection.answer()).status == 100
        answer = await connection.ask(b"x" * 1000)
    assert (answer.status, answer.body) == (200, b"x" * 1000)


async def test_chunks_over_the_limit_are_413(serve):
    gateway = serve(max_body=1000)
    async with await gateway.open() as connection:
        connection.send(b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n")
        connection.send(b"258\r\n" + b"x" * 600 + b"\r\n")
        answer = await connection.ask(b"258\r\n" + b"x" * 600 + b"\r\n")
        assert (answer.status, answer.type) == (413, "body-too-large")
        # What the sender still has on the way does not turn the answer into a reset.
        connection.send(b"0\r\n\r\n")
        assert await connection.at_end()
    assert gateway.strategy.sent.empty()


async def test_endless_body_is_cut_off_after_the_413(serve):
    async with await serve(max_body=1000).open() as connection:
        connection.send(request().replace(b": 0", b": 1000000000"))
        assert (await connection.answer()).status == 413
        with contextlib.suppress(ConnectionError):
            while not connection.reader.at_eof():
                connection.send(b"x" * 65_536)
                await connection.writer.drain()
                await asyncio.sleep(0)


async def test_refused_request_ends_its_connection(serve):
    async with await serve().open() as connection:
        connection.send(request(b"{}", "/", "Content-Encoding: br") + request(b"smuggled"))
        answer = await connection.answer()
        assert (answer.status, answer.headers["connection"]) == (415, "close")
        assert await connection.at_end()


async def test_dripping_body_is_408(serve):
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


async def test_idle_connection_is_closed(serve):
    async with await serve(idle_timeout=0.2).open() as connection:
        assert (await connection.ask(request(b"x"))).status == 200
        assert await connection.at_end()


async def test_short_body_then_end_is_never_published(serve):
    gateway = serve()
    async with await gateway.open() as connection:
        connection.send(request(b"abc").replace(b": 3", b": 4"))
        connection.writer.write_eof()
        await connection.reader.read()
    assert gateway.strategy.sent.empty()


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


async def test_connection_is_kept_or_closed_as_asked(serve):
    gateway = serve()
    async with await gateway.open() as connection:
        for number in range(3):
            answer = await connection.ask(request(b"%d" % number))
            assert answer.body == b"%d" % number and "connection" not in answer.headers
        answer = await connection.ask(request(b"last", "/", "Connection: close"))
        assert answer.headers["connection"] == "close"
        assert await connection.at_end()
    async with await gateway.open() as connection:
        answer = await connection.ask(b"POST / HTTP/1.0\r\nContent-Length: 1\r\n\r\nx")
        assert answer.body == b"x"
        assert await connection.at_end()


async def test_open_connections_are_counted(serve):
    gateway = serve()
    async with await gateway.open() as connection:
        await connection.ask(request())
        assert gateway.metrics.get("gateway_connections_open") == 1
        await connection.ask(request(b"", "/", "Connection: close"))
        await connection.at_end()
    assert gateway.metrics.get("gateway_connections_open") == 0


# Waiting ----------------------------------------------------------------------------------


async def test_answer_without_a_result_is_504_at_the_deadline(serve):
    gateway = serve(None, timeout=0.2)
    async with await gateway.open() as connection:
        connection.send(request(b"x"))
        pending = await gateway.strategy.sent.get()
        pending.confirm()
        answer = await connection.answer()
        assert time.monotonic() < pending.deadline + 0.5

        assert (answer.status, answer.type) == (504, "deadline-passed")
        assert answer.problem["task_id"] == pending.message.task_id
        assert answer.problem["delivery_id"] == pending.message.delivery["id"]
        assert "retry-after" not in answer.headers

        # What comes later is for nobody, and the connection lives on.
        pending.settle(echo(pending.message))
        assert (await connection.ask(request(target="/no"))).status == 404
    assert await gateway.strategy.freed.get() is pending
    assert gateway.relay.in_flight == 0


async def test_without_a_confirm_it_is_503(serve):
    async with await serve(None, timeout=0.2).open() as connection:
        answer = await connection.ask(request(b"x"))
    assert (answer.status, answer.type) == (503, "not-confirmed")
    assert answer.headers["retry-after"] == "1"
    assert answer.problem["delivery_id"] and answer.problem["task_id"]


async def test_result_before_its_confirm_is_the_answer(serve):
    gateway = serve(None)
    async with await gateway.open() as connection:
        connection.send(request(b"x"))
        pending = await gateway.strategy.sent.get()
        pending.settle(None)  # STARTED, say
        pending.settle(Outcome(SUCCESS, "first"))
        pending.confirm()
        pending.fail(Rejected())
        assert (await connection.answer()).body == b"first"
    assert gateway.relay.in_flight == 0


async def test_refused_message_is_503_with_its_own_type(serve):
    gateway = serve(None)
    async with await gateway.open() as connection:
        connection.send(request(b"x"))
        (await gateway.strategy.sent.get()).fail(Rejected())
        answer = await connection.answer()
    assert (answer.status, answer.type) == (503, "rejected")
    assert answer.headers["retry-after"] == "1"


async def test_strategy_that_cannot_take_it_is_503_at_once(serve):
    def blocked(message: Message) -> Outcome:
        raise BrokerBlocked

    gateway = serve(blocked)
    async with await gateway.open() as connection:
        answer = await connection.ask(request(b"x"))
    assert (answer.status, answer.type) == (503, "broker-blocked")
    assert answer.problem["delivery_id"] and "task_id" not in answer.problem
    assert gateway.relay.in_flight == 0


async def test_failed_task_and_unusable_result_are_502(serve):
    for outcome, kind in [
        (Outcome(FAILURE, error="KeyError"), "task-failed"),
        (Outcome(SUCCESS, {"status": 99}), "result-unusable"),
    ]:
        async with await serve(lambda message, outcome=outcome: outcome).open() as connection:
            answer = await connection.ask(request(b"x"))
            assert (answer.status, answer.type) == (502, kind)
            assert answer.problem["task_id"] and "Traceback" not in answer.problem["detail"]
            assert (await connection.ask(request(target="/no"))).status == 404


async def test_request_beyond_the_limit_is_503_and_room_is_used_again(serve):
    gateway = serve(None, max_in_flight=1)
    async with await gateway.open() as first, await gateway.open() as second:
        first.send(request(b"1"))
        pending = await gateway.strategy.sent.get()

        answer = await second.ask(request(b"2"))
        assert (answer.status, answer.type) == (503, "full")
        assert answer.headers["retry-after"] == "1"
        assert gateway.metrics.get("gateway_in_flight") == 1

        pending.settle(echo(pending.message))
        assert (await first.answer()).body == b"1"
        second.send(request(b"3"))
        (await gateway.strategy.sent.get()).settle(Outcome(SUCCESS, "3"))
        assert (await second.answer()).body == b"3"


@pytest.mark.parametrize("end", ["close", "abort"])
async def test_client_that_leaves_frees_its_waiter(serve, end):
    gateway = serve(None)
    connection = await gateway.open()
    connection.send(request(b"x"))
    pending = await gateway.strategy.sent.get()
    assert gateway.relay.in_flight == 1

    getattr(connection.writer.transport, end)()

    assert await gateway.strategy.freed.get() is pending
    pending.settle(Outcome(SUCCESS, "late"))  # told to nobody
    while gateway.metrics.get("gateway_connections_open"):
        await asyncio.sleep(0)
    assert gateway.relay.in_flight == gateway.metrics.get("gateway_in_flight") == 0
    assert gateway.metrics.get("gateway_clients_gone_total") == 1


# Draining ---------------------------------------------------------------------------------


async def test_draining_answers_what_is_in_flight_and_lets_idle_connections_end(serve):
    gateway = serve(None)
    async with await gateway.open() as busy, await gateway.open() as idle:
        # Given a connection with a request under way, and one without,
        idle.send(request(b"before"))
        (await gateway.strategy.sent.get()).settle(Outcome(SUCCESS, "before"))
        assert "connection" not in (await idle.answer()).headers
        busy.send(request(b"busy"))
        pending = await gateway.strategy.sent.get()

        # when the gateway drains,
        drained = asyncio.ensure_future(gateway.server.drain(30))
        await asyncio.sleep(0)

        # then the idle one's next request is answered, and that is its last one,
        idle.send(request(b"next"))
        (await gateway.strategy.sent.get()).settle(Outcome(SUCCESS, "next"))
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


async def test_what_outlives_the_grace_period_is_cut_off(serve):
    gateway = serve(None)
    async with await gateway.open() as connection:
        connection.send(request(b"x"))
        await gateway.strategy.sent.get()
        await gateway.server.drain(0.1)
        assert await connection.at_end()
    assert gateway.relay.in_flight == 0
