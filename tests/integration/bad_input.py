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


def _length(value: str) -> bytes:
    return HEAD + f"Content-Length{value}\r\n\r\n1234567".encode()


def _encoded(body: bytes, coding: str = "gzip") -> bytes:
    return request(body, "/", f"Content-Encoding: {coding}")


def _refused(status: int, **cases: bytes) -> list[Case]:
    return [Case(name, data, (status,)) for name, data in cases.items()]


def _taken(**bodies: bytes) -> list[Case]:
    return [Case(name, request(body), (200,), (body,)) for name, body in bodies.items()]


FRAMING = [
    *_refused(
        400,
        length_and_chunked=HEAD
        + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n"
        + HELLO,
        chunked_twice=HEAD + b"Transfer-Encoding: chunked\r\n" * 2 + b"\r\n" + HELLO,
        xchunked=HEAD + b"Transfer-Encoding: xchunked\r\n\r\n" + HELLO,
        nbsp_chunked=HEAD + b"Transfer-Encoding: \xa0chunked\r\n\r\n" + HELLO,
        gzip_chunked=HEAD + b"Transfer-Encoding: gzip, chunked\r\n\r\n" + HELLO,
        chunked_in_1_0=CHUNKED.replace(b"HTTP/1.1", b"HTTP/1.0") + HELLO,
        length_list=_length(": 7, 7"),
        length_plus=_length(": +7"),
        length_minus=_length(": -1"),
        length_hex=_length(": 0x7"),
        length_underscore=_length(": 0_7"),
        length_empty=_length(":"),
        length_5000_digits=_length(": " + "9" * 5_000),
        length_twice=_length(": 7\r\nContent-Length: 7"),
        length_different=_length(": 7\r\nContent-Length: 8"),
        length_space=_length(" : 7"),
        chunk_0x7=CHUNKED + b"0x7\r\n1234567\r\n0\r\n\r\n",
        chunk_minus=CHUNKED + b"-1\r\n1\r\n0\r\n\r\n",
        chunk_2_64=CHUNKED + b"ffffffffffffffff\r\n1234567\r\n0\r\n\r\n",
        chunk_endless_size=CHUNKED + b"7" * 200 + b"\r\n",
        chunk_without_end=CHUNKED + b"7\r\n12345670\r\n\r\n",
        chunk_too_long=CHUNKED + b"7\r\n12345678\r\n0\r\n\r\n",
        last_chunk_without_end=CHUNKED + b"0\r\nx\r\n",
    ),
    Case("chunk_line_feed", CHUNKED + b"7\n1234567\r\n0\r\n\r\n", (400,), put_right=(b"1234567",)),
    *_refused(
        413,
        length_over_the_limit=HEAD + b"Content-Length: %d\r\n\r\n" % (LIMIT + 1),
        length_over_the_limit_expecting=HEAD
        + b"Expect: 100-continue\r\nContent-Length: %d\r\n\r\n" % (LIMIT + 1),
        chunks_over_the_limit=CHUNKED + b"80000\r\n%b\r\n" % (b"x" * 0x80000) * 3 + b"0\r\n\r\n",
    ),
]

HEADERS = [
    *_refused(
        400,
        bare_cr=HEAD + b"X: a\rb\r\n\r\n",
        nul=HEAD + b"X: a\0b\r\n\r\n",
        folded=HEAD + b"X: a\r\n b\r\n\r\n",
        space_in_name=HEAD + b"X Y: 1\r\n\r\n",
        space_before_name=HEAD.replace(b"\r\nH", b"\r\n H") + b"\r\n",
        no_name=HEAD + b": 1\r\n\r\n",
        no_host=b"POST / HTTP/1.1\r\nContent-Length: 0\r\n\r\n",
        two_hosts=HEAD + b"Host: other\r\nContent-Length: 0\r\n\r\n",
        bad_host=request(host="a/b@c"),
        h2_preface=b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        tls=bytes.fromhex("1603010200010001fc0303") + bytes(range(64)),
        http_2_0=HEAD.replace(b"1.1", b"2.0") + b"\r\n",
        http_3=HEAD.replace(b"1.1", b"3") + b"\r\n",
        not_http=b"NONSENSE\r\n\r\n",
        percent_00=request(target="/%00"),
        percent_ff=request(target="/%ff"),
    ),
    # nginx takes each of these for what it was meant to be.
    Case("no_colon", HEAD + b"abc\r\n\r\n", (400,), put_right=(b"",)),
    Case("line_feeds", request(b"1").replace(b"\r\n", b"\n"), (400,), put_right=(b"1",)),
    Case("http_1_9", request(b"1").replace(b"1.1", b"1.9"), (400,), put_right=(b"1",)),
    *_refused(414, uri_of_20_kb=request(target="/" + "x" * 20_000)),
    *_refused(
        431,
        header_of_20_kb=request(b"", "/", "X: " + "x" * 20_000),
        header_of_200_kb=request(b"", "/", "X: " + "x" * 200_000),
        headers_600=request(b"", "/", *(f"X-{n}: 1" for n in range(600))),
        headers_600_of_one_name=request(b"", "/", *("X: 1" for n in range(600))),
    ),
    *_refused(404, dots=request(target="/a/../../etc"), connect_path=request(target="/g:443")),
    Case("connect", request(method="CONNECT", target="gateway:443"), (400, 404, 405)),
    *_refused(
        405,
        trace=request(method="TRACE"),
        unknown_method=request(method="BREW"),
        method_in_lower_case=request(method="post"),
    ),
    Case("bytes_after_the_body", request(b"1") + b"2 more bytes\r\n\r\n", (200,), (b"1",)),
    Case("pipelined", request(b"1") + request(b"2"), (200,), (b"1", b"2")),
]

ENCODINGS = [
    *_refused(
        413,
        gzip_bomb=_encoded(gzip.compress(bytes(64 * LIMIT), 1)),
        gzip_bomb_of_members=_encoded(gzip.compress(bytes(LIMIT // 2)) * 3),
    ),
    *_refused(
        400,
        gzip_cut_off=_encoded(gzip.compress(b"hello")[:-1]),
        gzip_empty=_encoded(b""),
        gzip_garbage=_encoded(b"hello"),
        gzip_checksum=_encoded(gzip.compress(b"hello")[:-8] + bytes(8)),
        gzip_trailing=_encoded(gzip.compress(b"hello") + b"garbage"),
        gzip_thousands_of_members=_encoded(gzip.compress(b"") * 5_000),
    ),
    Case("gzip", _encoded(gzip.compress(b"hello")), (200,), (b"hello",)),
    Case(
        "gzip_members",
        _encoded(gzip.compress(b"hello ") + gzip.compress(b"world"), "X-GZip"),
        (200,),
        (b"hello world",),
    ),
    *_refused(
        415,
        deflate=_encoded(b"x", "deflate"),
        br=_encoded(b"x", "br"),
        gzip_twice=_encoded(b"x", "gzip, gzip"),
        gzip_in_two_lines=request(b"x", "/", "Content-Encoding: gzip", "Content-Encoding: gzip"),
    ),
]

_PARTS = b"--x\r\nContent-Disposition: form-data; na\0me\r\n" * 1_000
_NAMES = {"task": "os.system", "queue": "other", "link": ["x"], "eta": "now", "task_id": "1"}
# To a route without a source a body is bytes, whatever they look like.
BODIES = [
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
