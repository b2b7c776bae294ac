"""What nobody should send: bytes, and what they have to be answered with."""

from __future__ import annotations

import gzip
import json
from dataclasses import dataclass, field

from tests.support.http_client import request

HEAD = b"POST / HTTP/1.1\r\nHost: gateway\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
HELLO = b"5\r\nhello\r\n0\r\n\r\n"
LIMIT = 1024 * 1024
#: What nginx may say of malformed HTTP by itself.
NGINX = frozenset({400, 405, 413, 414, 431, 501, 505})


@dataclass(frozen=True)
class Case:
    """Bytes on a connection, and the statuses that answer them.

    ``bodies`` are those of the tasks that were asked for. nginx is more lenient than the gateway
    here and there, and hands on what it has put right: its ``put_right`` are those bodies.
    """

    name: str
    data: bytes
    statuses: tuple[int, ...]
    bodies: tuple[bytes, ...] = ()
    put_right: tuple[bytes, ...] = field(default=())

    def __str__(self) -> str:
        return self.name


def encoded(body: bytes, coding: str = "gzip") -> bytes:
    return request(body, "/", f"Content-Encoding: {coding}")


def refused(status: int, **cases: bytes) -> list[Case]:
    return [Case(name, data, (status,)) for name, data in cases.items()]


def _taken(**bodies: bytes) -> list[Case]:
    return [Case(name, request(body), (200,), (body,)) for name, body in bodies.items()]


_LENGTHS = (
    *(": 7, 7", ": 7, 8", ": +7", ": -1", ": 0x7", ": 0_7", ":", " : 7", f": {'9' * 5_000}"),
    *(": 7\r\nContent-Length: 7", ": 7\r\nContent-Length: 8"),
)
_CODINGS = (b"xchunked", b"\xa0chunked", b"gzip, chunked", b"chunked, chunked")
#: What is no HTTP: its connection is closed.
MALFORMED = [
    *(
        Case(f"length{value[:30]}", HEAD + f"Content-Length{value}\r\n\r\n1234567".encode(), (400,))
        for value in _LENGTHS
    ),
    *(
        Case(str(value), HEAD + b"Transfer-Encoding: " + value + b"\r\n\r\n" + HELLO, (400,))
        for value in _CODINGS
    ),
    *refused(
        400,
        length_and_chunked=HEAD
        + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n"
        + HELLO,
        chunked_twice=HEAD + b"Transfer-Encoding: chunked\r\n" * 2 + b"\r\n" + HELLO,
        chunked_in_1_0=CHUNKED.replace(b"HTTP/1.1", b"HTTP/1.0") + HELLO,
        chunk_0x7=CHUNKED + b"0x7\r\n1234567\r\n0\r\n\r\n",
        chunk_minus=CHUNKED + b"-1\r\n1\r\n0\r\n\r\n",
        chunk_2_64=CHUNKED + b"ffffffffffffffff\r\n1234567\r\n0\r\n\r\n",
        chunk_endless_size=CHUNKED + b"7" * 300,
        chunk_without_end=CHUNKED + b"7\r\n12345670\r\n\r\n",
        chunk_too_long=CHUNKED + b"7\r\n12345678\r\n0\r\n\r\n",
        last_chunk_without_end=CHUNKED + b"0\r\nx\r\n",
        bare_cr=HEAD + b"X: a\rb\r\n\r\n",
        nul=HEAD + b"X: a\0b\r\n\r\n",
        folded=HEAD + b"X: a\r\n b\r\n\r\n",
        space_in_name=HEAD + b"X Y: 1\r\n\r\n",
        space_before_name=HEAD.replace(b"\r\nH", b"\r\n H") + b"\r\n",
        no_name=HEAD + b": 1\r\n\r\n",
        h2_preface=b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        tls=bytes.fromhex("1603010200010001fc0303") + bytes(range(64)),
        http_2_0=HEAD.replace(b"1.1", b"2.0") + b"\r\n",
        http_3=HEAD.replace(b"1.1", b"3") + b"\r\n",
        not_http=b"NONSENSE\r\n\r\n",
    ),
    # nginx takes each of these for what it was meant to be.
    Case("chunk_line_feed", CHUNKED + b"7\n1234567\r\n0\r\n\r\n", (400,), put_right=(b"1234567",)),
    Case("no_colon", HEAD + b"abc\r\n\r\n", (400,), put_right=(b"",)),
    Case("line_feeds", request(b"1").replace(b"\r\n", b"\n"), (400,), put_right=(b"1",)),
    Case("http_1_9", request(b"1").replace(b"1.1", b"1.9"), (400,), put_right=(b"1",)),
]
#: What is HTTP, but not to be taken.
REFUSED = [
    *refused(
        400,
        no_host=b"POST / HTTP/1.1\r\nContent-Length: 0\r\n\r\n",
        two_hosts=HEAD + b"Host: other\r\nContent-Length: 0\r\n\r\n",
        bad_host=request(host="a/b@c"),
        percent_00=request(target="/%00"),
        percent_ff=request(target="/%ff"),
        gzip_cut_off=encoded(gzip.compress(b"hello")[:-1]),
        gzip_empty=encoded(b""),
        gzip_garbage=encoded(b"hello"),
        gzip_checksum=encoded(gzip.compress(b"hello")[:-8] + bytes(8)),
        gzip_trailing=encoded(gzip.compress(b"hello") + b"garbage"),
        gzip_thousands_of_members=encoded(gzip.compress(b"") * 5_000),
    ),
    *refused(404, dots=request(target="/a/../../etc"), connect_path=request(target="/g:443")),
    *refused(
        405,
        trace=request(method="TRACE"),
        unknown_method=request(method="BREW"),
        method_in_lower_case=request(method="post"),
    ),
    *refused(
        413,
        length_over_the_limit=HEAD + b"Content-Length: %d\r\n\r\n" % (LIMIT + 1),
        length_over_the_limit_expecting=HEAD
        + b"Expect: 100-continue\r\nContent-Length: %d\r\n\r\n" % (LIMIT + 1),
        chunks_over_the_limit=CHUNKED + b"80000\r\n%b\r\n" % (b"x" * 0x80000) * 3 + b"0\r\n\r\n",
        gzip_bomb=encoded(gzip.compress(bytes(64 * LIMIT), 1)),
        gzip_bomb_of_members=encoded(gzip.compress(bytes(LIMIT // 2)) * 3),
    ),
    *refused(414, uri_of_20_kb=request(target="/" + "x" * 20_000)),
    *refused(
        415,
        deflate=encoded(b"x", "deflate"),
        br=encoded(b"x", "br"),
        gzip_twice=encoded(b"x", "gzip, gzip"),
        gzip_in_two_lines=request(b"x", "/", "Content-Encoding: gzip", "Content-Encoding: gzip"),
    ),
    *refused(
        431,
        header_of_20_kb=request(b"", "/", "X: " + "x" * 20_000),
        header_of_200_kb=request(b"", "/", "X: " + "x" * 200_000),
        headers_600=request(b"", "/", *(f"X-{n}: 1" for n in range(600))),
        headers_600_of_one_name=request(b"", "/", *("X: 1" for n in range(600))),
    ),
]

_PARTS = b"--x\r\nContent-Disposition: form-data; na\0me\r\n" * 1_000
_NAMES = {"task": "os.system", "queue": "other", "link": ["x"], "eta": "now", "task_id": "1"}
TAKEN = [
    Case("bytes_after_the_body", request(b"1") + b"2 more bytes\r\n\r\n", (200,), (b"1",)),
    Case("pipelined", request(b"1") + request(b"2"), (200,), (b"1", b"2")),
    Case("gzip", encoded(gzip.compress(b"hello")), (200,), (b"hello",)),
    Case(
        "gzip_members",
        encoded(gzip.compress(b"hello ") + gzip.compress(b"world"), "X-GZip"),
        (200,),
        (b"hello world",),
    ),
    # To a route without a source a body is bytes, whatever they look like.
    Case(
        "multipart_with_bad_parts",
        request(_PARTS, "/", "Content-Type: multipart/form-data; boundary=x"),
        (200,),
        (_PARTS,),
    ),
    *_taken(
        json_5000_deep=b"[" * 5_000,
        integer_of_5000_digits=b"9" * 5_000,
        nan=b"[NaN, Infinity, -Infinity]",
        lone_surrogate=b'"\\ud800"',
        utf_16='"x"'.encode("utf-16"),
        bad_utf_8=b'"\xff\xfe\xc0\x80"',
        xml_entities=b'<!DOCTYPE a [<!ENTITY b "&#38;b;&#38;b;">]><a>&b;</a>',
        names=json.dumps(_NAMES).encode(),
        celery_message=json.dumps([[1], {}, {"callbacks": [_NAMES], "chain": [_NAMES]}]).encode(),
        typed=b'{"__type__": "bytes", "__value__": "x"}',
    ),
    Case(
        "names_in_the_query",
        request(b"1", "/?task=os.system&queue=other&eta=0&id=1", "task: os.system", "id: 1"),
        (200,),
        (b"1",),
    ),
]

CONNECT = Case("connect", request(method="CONNECT", target="gateway:443"), (400, 404, 405))
CASES = [*MALFORMED, *REFUSED, CONNECT, *TAKEN]
