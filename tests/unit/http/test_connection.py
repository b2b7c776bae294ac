"""Reading requests: headers in our short way and in Tornado's own, bytes however they arrive."""

from __future__ import annotations

import asyncio
import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tornado.http1connection import HTTP1Connection
from tornado.httputil import HTTPInputError, RequestStartLine, parse_request_start_line

from gateway.errors import BadRequest, HeaderTooLarge, URITooLong
from gateway.http import connection
from gateway.http.connection import MAX_HEADERS, Connection, Headers
from gateway.http.stream import END_OF_HEADER, ReadBuffer, RequestRefused

FIRST = "POST / HTTP/1.1"
#: The characters that make a difference in a header.
_text = st.text(alphabet='aZ09-_.!:;,/ \t\r\n\0\x0b\x1f\x7f\x80\xe9\xa0\xff"(@', max_size=12)
_names = st.sampled_from(["Host", "hOST", "X-One", "x!#$%&'*+^`|~"])
_spaces = st.sampled_from(["", " ", "\t "])
_values = st.sampled_from(["", "a", "a \tb", "\xe9"])
_good = st.builds("{}:{}{}{}".format, _names, _spaces, _values, _spaces)


def tornados(data: bytes) -> tuple[RequestStartLine, Headers]:
    first, headers = HTTP1Connection.__new__(HTTP1Connection)._parse_headers(data)
    names = {name.lower(): ", ".join(headers.get_list(name)) for name in headers}
    return parse_request_start_line(first), Headers(names)


def ours(data: bytes) -> tuple[RequestStartLine, Headers]:
    first, headers = Connection.__new__(Connection)._parse_headers(data)
    return parse_request_start_line(first), headers


@given(st.lists(st.one_of(_good, _text), max_size=6), st.sampled_from(["\r\n"] * 5 + ["\n", "\r"]))
@example([], "\r\n")
@example(["Host: h", "Host: i", "host:"], "\r\n")
@example(["a b: 1"], "\r\n")
@example([" a: 1"], "\r\n")
@example(["a: 1", " b"], "\r\n")
@example(["", "a: 1"], "\r\n")
@example([""], "\r")
def test_it_takes_nothing_that_tornado_does_not_take_in_the_same_sense(lines, end):
    data = (end.join([FIRST, *lines]) + "\r\n\r\n").encode("latin1")
    try:
        found = ours(data)
    except HTTPInputError:
        # Beyond Tornado we refuse only lines with an end of their own, and empty ones.
        if not re.search(rb"\r(?!\n)|(?<!\r)\n|\r\n\r\n.", data):
            with pytest.raises(HTTPInputError):
                tornados(data)
    else:
        assert found == tornados(data)


@given(st.lists(_good, max_size=6))
def test_it_takes_everything_that_is_as_it_should_be(lines):
    data = "\r\n".join([FIRST, *lines, "", ""]).encode("latin1")
    first, headers = ours(data)
    assert first == ("POST", "/", "HTTP/1.1")
    assert set(headers) == {line.partition(":")[0].lower() for line in lines}


@pytest.mark.parametrize(
    "line", ["X: 4711\x01", "X: 4711\x7f", "X Y: 4711", "4711", " 4711", ": 4711", "4711:\0"]
)
def test_a_malformed_line_is_named_by_its_number_as_it_may_have_a_secret(line):
    with pytest.raises(RequestRefused) as refused:
        ours(f"{FIRST}\r\nHost: h\r\n{line}\r\nX: 1\r\n\r\n".encode("latin1"))
    said = refused.value.error.detail
    assert "Line 3 of the request has to be NAME: VALUE" in said and "4711" not in said


def test_lines_are_limited():
    lines = [FIRST, *["X: 1"] * MAX_HEADERS, "", ""]
    assert ours("\r\n".join(lines).encode())[1] == {"x": ", ".join(["1"] * MAX_HEADERS)}
    with pytest.raises(RequestRefused):
        ours("\r\n".join([FIRST, "X: 1", *lines[1:]]).encode())


def test_headers_answer_to_tornados_spelling():
    headers = Headers.of([("content-length", "1"), ("x", "1"), ("x", "2")])
    assert "Content-Length" in headers and "Host" not in headers
    assert headers["Content-Length"] == headers.get("content-LENGTH") == "1"
    assert headers.get("Host") is None and headers.get("Host", "h") == "h"
    assert dict(headers) == {"content-length": "1", "x": "1, 2"}


# Reading, however the bytes arrive ----------------------------------------------------------------


MESSAGES = b"POST / HTTP/1.1\r\nA: 1\r\n\r\n" + b"hello" + b"5\r\n" + b"world\r\n" + b"GET"
READS = [
    (END_OF_HEADER, 0, 100, b"POST / HTTP/1.1\r\nA: 1\r\n\r\n"),
    (b"", 5, 5, b"hello"),
    (b"\r\n", 0, 8, b"5\r\n"),
    (b"", 5, 5, b"world"),
    (b"", 2, 2, b"\r\n"),
    (b"", 1, 100, b"GET"),
]


@given(st.lists(st.integers(0, len(MESSAGES)), max_size=10))
def test_the_same_bytes_give_the_same_reads(cuts):
    cuts = sorted({0, *cuts, len(MESSAGES)})
    pieces = [MESSAGES[a:b] for a, b in zip(cuts, cuts[1:], strict=False)]

    async def run() -> None:
        buffer = ReadBuffer()
        for until, least, most, expected in READS[:-1]:
            reading = buffer.read(until, least, most)
            while not reading.done():
                buffer.feed(pieces.pop(0))
            assert await reading == expected
        while pieces:
            buffer.feed(pieces.pop(0))
        assert buffer.take(4) is None
        assert await buffer.read(*READS[-1][:3]) == READS[-1][3]
        assert buffer.size == 0

    asyncio.run(run())


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b"POST /" + b"x" * 100, URITooLong),
        (b"POST /" + b"x" * 100 + b"\r\n\r\n", URITooLong),
        (b"POST / HTTP/1.1\r\nA: " + b"x" * 100, HeaderTooLarge),
        (b"POST / HTTP/1.1\r\nA: " + b"x" * 100 + b"\r\n\r\n", HeaderTooLarge),
        (b"\x16\x03\x01", BadRequest),
        (b"\n", BadRequest),
        (b" POST", BadRequest),
        (b"\xe9", BadRequest),
        (b"POST / HTTP/1.1\nA: 1\n\n", BadRequest),
        (b"POST / HTTP/1.1\r\nA: 1\n\r\n", BadRequest),
    ],
)
@pytest.mark.parametrize("at_once", [True, False])
async def test_header_that_cannot_come_is_not_awaited(data, error, at_once):
    buffer = ReadBuffer()
    reading = buffer.read(END_OF_HEADER, 0, 100)
    for piece in [data] if at_once else [data[i : i + 1] for i in range(len(data))]:
        buffer.feed(piece)
        if reading.done():
            break
    with pytest.raises(RequestRefused) as refused:
        reading.result()
    assert type(refused.value.error) is error


def test_requests_share_the_names_of_their_headers_and_a_client_cannot_add_any_number():
    first, second = (ours(f"{FIRST}\r\nX-Some: 1\r\n\r\n".encode())[1] for _ in range(2))
    assert next(iter(first)) is next(iter(second))
    names = connection._Names()
    spelled = [f"X-{number}" for number in range(2_000)] + ["X" * 65]
    assert [names[each] for each in spelled] == [each.lower() for each in spelled]
    assert len(names) == connection._NAMES
