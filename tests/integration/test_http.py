"""What the gateway makes of HTTP: real sockets, the real server and relay, tasks in memory."""

from __future__ import annotations

import asyncio
import email.utils
import gzip
import time
from collections.abc import Iterator

import pytest
from kombu.utils.json import loads
from tornado.httpclient import AsyncHTTPClient
from tornado.ioloop import IOLoop

from gateway.http import stream
from tests.integration import bad_input
from tests.support.http_client import request
from tests.support.in_memory import MARKS, arguments

CHUNKED = b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n"

pytestmark = MARKS

TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
#: The types of errors, by their statuses.
KINDS = {
    400: "bad-request", 404: "not-found", 405: "method-not-allowed", 413: "body-too-large",
    414: "uri-too-long", 415: "encoding-not-accepted", 431: "header-too-large",
}  # fmt: skip
MORE_REFUSED = [
    *bad_input.refused(
        400,
        query_ff=request(target="/?q=%ff"),
        query_of_300=request(target="/?" + "q&" * 300),
        target_ff=request(target="/\xff"),
        query_in_utf_8=request(target="/?q=\xc3\xbc"),
        space_in_host=request(host="a b"),
    ),
    *bad_input.refused(
        415,
        identity_gzip=bad_input.encoded(b"{}", "identity, gzip"),
        no_coding=bad_input.encoded(b"", ""),
    ),
]


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


@pytest.mark.parametrize(
    "data",
    [
        request(b"hello", "/", "X-One: 1"),
        CHUNKED + b"3\r\nhel\r\n2\r\nlo\r\n0\r\n\r\n",
        CHUNKED + b'3;a=b;c\r\nhel\r\n02 ; d="e;f"\r\nlo\r\n000\r\nX: 1\r\nDigest: abc\r\n\r\n',
        b"\r\n" + request(b"hello"),
        b"\r\n\r\n" + request(b"hello"),
    ],
    ids=["length", "chunked", "extensions and trailers", "empty line before", "empty lines before"],
)
async def test_request_may_come_byte_by_byte(serve, data):
    async with await serve().open() as connection:
        for at in range(len(data)):
            connection.send(data[at : at + 1])
            await asyncio.sleep(0)
        assert (await connection.answer()).body == b"hello"


@pytest.mark.parametrize("coding", ["gzip", "GZIP", "x-gzip"])
async def test_compressed_body_is_decompressed(serve, coding):
    data = request(gzip.compress(b"x" * 100_000), "/", f"Content-Encoding: {coding}", "X: 1")
    answer = await serve(arguments).ask(data)
    assert loads(answer.body)["headers"] == {"host": "gateway", "x": "1"}
    assert (await serve().ask(data)).body == b"x" * 100_000


async def test_compressed_body_that_cannot_be_read_leaves_the_connection_open(serve):
    gateway = serve(max_body=1_000)
    async with await gateway.open() as connection:
        for body, status in [(b"hello", 400), (gzip.compress(b"x" * 1_001), 413)]:
            answer = await connection.ask(request(body, "/", "Content-Encoding: gzip"))
            assert answer.status == status and answer.problem
            assert gateway.counted(status) == 1
        assert gateway.strategy.sent.empty()
        assert (
            await connection.ask(request(b"next", "/", "Content-Encoding: identity"))
        ).status == 200


async def test_route_gives_its_content_type_and_date_is_now(serve):
    answer = await serve().ask(request(b"<a/>", "/xml"))
    assert answer.headers["content-type"] == "text/xml"
    date = email.utils.parsedate_to_datetime(answer.headers["date"])
    assert abs(date.timestamp() - time.time()) < 5


async def test_task_gets_query_headers_and_delivery(serve):
    target = "/hooks/a%20b?q=1&q=2&plus=a+b&empty&pct=%C3%BC"
    data = request(b"x", target, "X-One: 1", "x-ONE: 2", f"Traceparent: {TRACE}")
    got = loads((await serve(arguments).ask(data)).body)
    assert got["query"] == {"q": "2", "plus": "a b", "empty": "", "pct": "ü"}
    assert got["headers"] == {
        "host": "gateway", "content-length": "1", "x-one": "1, 2", "traceparent": TRACE,
    }  # fmt: skip
    delivery = got["delivery"]
    assert delivery["route"] == "/hooks/{account}"
    assert delivery["params"] == {"account": "a b"}
    assert delivery["query_string"] == "q=1&q=2&plus=a+b&empty&pct=%C3%BC"
    assert (delivery["remote"], delivery["traceparent"]) == ("127.0.0.1", TRACE)
    assert (delivery["source"], delivery["event"], delivery["store"]) == ("", "", False)


async def test_no_request_names_task_queue_or_id(serve):
    gateway = serve()
    target = "/?task=os.system&queue=other&task_id=1&id=1&eta=0"
    await gateway.ask(request(b'{"task": "os.system"}', target, "task: x", "id: 1"))
    message = gateway.strategy.sent.get_nowait().message
    assert (message.task, message.queue) == ("api.core.main", "celery")
    assert message.task_id != "1" and message.delivery["id"] not in ("1", message.task_id)
    assert message.expires == pytest.approx(time.time() + 11, abs=5)
    assert message.headers()["task"] == "api.core.main"


UNDECODABLE = {
    "query": request(b"x", "/?__type__=x&__value__=y"),
    "headers": b"POST / HTTP/1.0\r\n__type__: x\r\n__value__: y\r\n\r\n",
}


@pytest.mark.parametrize("where", UNDECODABLE)
async def test_what_no_worker_could_decode_is_refused(serve, where):
    gateway = serve()
    answer = await gateway.ask(UNDECODABLE[where])
    assert (answer.status, answer.type) == (400, "bad-request")
    assert gateway.strategy.sent.empty()


async def test_unix_socket_serves_and_its_peer_is_the_local_proxy(serve, tmp_path):
    gateway = serve(arguments, uds=tmp_path / "gateway.sock")
    answer = await gateway.ask(request(b"", "/", "X-Forwarded-For: 192.0.2.7"))
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
        (["127.0.0.1"], [f"X-Forwarded-For: {'6' * 9_000}"], "6" * 100),
        (["127.0.0.0/8", "10.0.0.0/8"], ["X-Forwarded-For: 192.0.2.1, 10.9.8.7"], "192.0.2.1"),
    ],
)
async def test_sender_is_the_rightmost_address_that_is_not_trusted(serve, trusted, lines, remote):
    answer = await serve(arguments, trusted_proxies=trusted).ask(request(b"", "/", *lines))
    assert loads(answer.body)["delivery"]["remote"] == remote


# Refusals ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "target",
    ["http://x/xml?a=1", "https://x:1/xml?a=1", "http://x/?a=1", "http://x?a=1", "HTTP://x/?a=1"],
)
async def test_absolute_form_of_a_target_is_the_same(serve, target):
    assert b'"query":{"a":"1"}' in (await serve(arguments).ask(request(target=target))).body


async def test_a_path_is_not_taken_from_the_query(serve):
    answer = await serve(arguments).ask(request(target="http://x?a=/xml"))
    assert loads(answer.body)["delivery"]["route"] == "/"


@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "PATCH", "DELETE", "OPTIONS", "BREW"])
async def test_other_methods_are_405_and_the_connection_lives_on(serve, method):
    async with await serve().open() as connection:
        connection.send(request(b"", method=method))
        answer = await connection.answer(head=method == "HEAD")
        assert (answer.status, answer.headers["allow"]) == (405, "POST")
        assert int(answer.headers["content-length"]) > 0
        assert (await connection.ask(request(b"next"))).body == b"next"


@pytest.mark.parametrize("case", [*bad_input.REFUSED, *MORE_REFUSED], ids=str)
async def test_request_that_cannot_be_taken_is_told_why_and_never_published(serve, case):
    gateway = serve()
    answer = await gateway.ask(case.data)
    (status,) = case.statuses
    assert (answer.status, answer.type) == (status, KINDS[status])
    assert "task_id" not in answer.problem
    assert gateway.strategy.sent.empty()
    assert gateway.relay.limits.in_flight == 0


@pytest.mark.parametrize(
    "data",
    [
        *(case.data for case in bad_input.MALFORMED),
        b"POST / HTTP/1.1\r\nHost: h\n\r\n",
        *(
            CHUNKED + body
            for body in (
                b"x\r\n",
                b"0\r\nX 1\r\n\r\n",
                b"1;" + b"x" * 9_000 + b"\r\na\r\n0\r\n\r\n",
                b"1;x\r\na\r\n" * 4_500 + b"0\r\n" + b"X: 1\r\n" * 1_000 + b"\r\n",
                b";x\r\n0\r\n\r\n",
                b"1;x\na\r\na\r\n0\r\n\r\n",
                b"1;x\ra\r\na\r\n0\r\n\r\n",
                b"1;x\n\r\na\r\n0\r\n\r\n",
                b"0\r\nX: 1\nY: 2\r\n\r\n",
            )
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
    assert gateway.counted(400) == 1


@pytest.mark.parametrize("expected", ["100-continue", "100-Continue"])
async def test_length_at_the_limit_is_taken_and_expect_is_continued(serve, expected):
    async with await serve(max_body=1000).open() as connection:
        connection.send(request(b"", "/", f"Expect: {expected}").replace(b": 0", b": 1000"))
        assert (await connection.answer()).status == 100
        answer = await connection.ask(b"x" * 1000)
    assert (answer.status, answer.body) == (200, b"x" * 1000)


async def test_an_expectation_of_an_older_client_is_ignored(serve):
    data = request(b"hello", "/", "Expect: 100-continue").replace(b"HTTP/1.1", b"HTTP/1.0")
    assert "expect" not in loads((await serve(arguments).ask(data)).body)["headers"]


async def test_chunks_over_the_limit_are_413(serve):
    gateway = serve(max_body=1000)
    async with await gateway.open() as connection:
        connection.send(CHUNKED)
        connection.send(b"258\r\n" + b"x" * 600 + b"\r\n")
        answer = await connection.ask(b"258\r\n" + b"x" * 600 + b"\r\n")
        assert (answer.status, answer.type) == (413, "body-too-large")
        # What the sender still has on the way does not turn the answer into a reset.
        connection.send(b"0\r\n\r\n")
        assert await connection.at_end()
    assert gateway.strategy.sent.empty()


async def test_endless_body_is_cut_off_after_the_413(serve, monkeypatch):
    monkeypatch.setattr(stream, "LINGER_SECONDS", 60)
    async with await serve(max_body=1000).open() as connection:
        connection.send(request().replace(b": 0", b": 1000000000"))
        assert (await connection.answer()).status == 413
        with pytest.raises(ConnectionError):
            while True:
                connection.send(b"x" * 65_536)
                await connection.writer.drain()


async def test_sender_of_a_body_that_is_too_large_can_send_it_all_and_sees_the_answer(serve):
    async with await serve(max_body=1000).open() as connection:
        connection.send(request(b"x" * 3_000_000))
        await connection.writer.drain()
        assert (await connection.answer()).status == 413
        assert await connection.at_end()


async def test_refused_request_ends_its_connection(serve):
    async with await serve().open() as connection:
        connection.send(request(b"{}", "/", "Content-Encoding: br") + request(b"smuggled"))
        answer = await connection.answer()
        assert (answer.status, answer.headers["connection"]) == (415, "close")
        assert await connection.at_end()
