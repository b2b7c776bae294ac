"""Reading does not depend on how the bytes arrive."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import BadRequest, HeaderTooLarge, URITooLong
from gateway.http.stream import END_OF_HEADER, ReadBuffer, RequestRefused

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
