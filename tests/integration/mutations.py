"""Valid requests, what a lenient reader makes of them, and mutations at random."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable, Iterator
from random import Random

import h11

MARKER = "x-marker"
Call = tuple[str, bytes]

_NASTY_BYTES = b"\r\n\0\t :;,=+-%/\x0b\x7f\x80\xff09afxX"
_NASTY_LINES = (
    b"Transfer-Encoding: chunked", b"Transfer-Encoding: identity", b"Transfer-Encoding : chunked",
    b"Content-Length: 0", b"Content-Length: 5", b"Content-Length: +5", b"Content-Length: 5, 5",
    b"Content-Length: 99999999999999999999", b"Content-Encoding: gzip", b"Content-Encoding: br",
    b"Expect: 100-continue", b"Connection: close", b"Connection: keep-alive", b"Host: other",
    b" folded", b"no colon", b": no name", b"", b"Trailer: X", b"Upgrade: h2c",
    b"\xe9: \xe9", b"X: " + b"x" * 5_000,
)  # fmt: skip


def message(random: Random, marker: str) -> bytes:
    """Write a request that is as it should be and carries `marker`."""
    bait = b"POST /?bait HTTP/1.1\r\nHost: gateway\r\nContent-Length: 4\r\n\r\nbait"
    body = random.choice((b"", b"x", b"x" * random.randrange(3_000), bait, random.randbytes(40)))
    lines = [b"Host: gateway", f"X-Marker: {marker}".encode(), b"Accept: */*"]
    if random.random() < 0.2:
        body = gzip.compress(body, mtime=0)
        lines.append(b"Content-Encoding: gzip")
    if random.random() < 0.1:
        lines.append(b"Expect: 100-continue")
    version = b"HTTP/1.1"
    if random.random() < 0.35:
        lines.append(b"Transfer-Encoding: chunked")
        body = _chunks(random, body)
    else:
        lines.append(b"Content-Length: %d" % len(body))
        if random.random() < 0.1:
            version = b"HTTP/1.0"
            lines.append(b"Connection: keep-alive")
    random.shuffle(lines)
    target = random.choice((b"/", b"/?q=1&q=%C3%BC", b"http://gateway/", b"/?" + b"q" * 200))
    return b"\r\n".join([b"POST " + target + b" " + version, *lines, b"", body])


def _chunks(random: Random, body: bytes) -> bytes:
    chunks = []
    while body:
        size = random.randint(1, len(body))
        chunks.append(b"%x\r\n%b\r\n" % (size, body[:size]))
        body = body[size:]
    return b"".join([*chunks, b"0\r\n\r\n"])


def mutate(random: Random, data: bytes) -> bytes:
    """Change `data` once."""
    return random.choice(_MUTATIONS)(random, data)


def _replace(random: Random, data: bytes) -> bytes:
    at = random.randrange(len(data) or 1)
    return data[:at] + bytes([random.choice(_NASTY_BYTES)]) + data[at + 1 :]


def _flip(random: Random, data: bytes) -> bytes:
    at = random.randrange(len(data) or 1)
    changed = bytes([byte ^ 1 << random.randrange(8) for byte in data[at : at + 1]])
    return data[:at] + changed + data[at + 1 :]


def _insert(random: Random, data: bytes) -> bytes:
    at = random.randint(0, len(data))
    return data[:at] + bytes(random.choices(_NASTY_BYTES, k=random.randint(1, 3))) + data[at:]


def _part(random: Random, data: bytes) -> tuple[int, int]:
    at = random.randint(0, len(data))
    return at, min(len(data), at + random.choice((1, 2, 8, 40, 400)))


def _delete(random: Random, data: bytes) -> bytes:
    at, end = _part(random, data)
    return data[:at] + data[end:]


def _duplicate(random: Random, data: bytes) -> bytes:
    at, end = _part(random, data)
    return data[:end] + data[at:end] * random.randint(1, 3) + data[end:]


def _truncate(random: Random, data: bytes) -> bytes:
    return data[: random.randint(0, len(data))]


def _on_lines(change: Callable[[Random, list[bytes]], None]) -> Callable[[Random, bytes], bytes]:
    def mutation(random: Random, data: bytes) -> bytes:
        head, end, rest = data.partition(b"\r\n\r\n")
        lines = head.split(b"\r\n")
        change(random, lines)
        return b"\r\n".join(lines) + end + rest

    return mutation


def _shuffle(random: Random, lines: list[bytes]) -> None:
    random.shuffle(lines)


def _repeat_line(random: Random, lines: list[bytes]) -> None:
    lines.insert(random.randint(0, len(lines)), random.choice(lines))


def _nasty_line(random: Random, lines: list[bytes]) -> None:
    lines.insert(random.randint(0, len(lines)), random.choice(_NASTY_LINES))


def _drop_line(random: Random, lines: list[bytes]) -> None:
    lines.pop(random.randrange(len(lines)))


def _swap_case(random: Random, lines: list[bytes]) -> None:
    at = random.randrange(len(lines))
    lines[at] = lines[at].swapcase()


def _line_feeds(random: Random, data: bytes) -> bytes:
    return data.replace(b"\r\n", b"\n", random.choice((1, 2, -1)))


_MUTATIONS: tuple[Callable[[Random, bytes], bytes], ...] = (
    _replace, _flip, _insert, _delete, _duplicate, _truncate, _line_feeds,
    *map(_on_lines, (_shuffle, _repeat_line, _nasty_line, _drop_line, _swap_case)),
)  # fmt: skip


def calls(data: bytes) -> Iterator[Call]:
    """Read the requests on a connection as another implementation does, until it cannot.

    Gives each one's marker and body, decompressed.
    """
    while data := data.lstrip(b"\r\n"):  # RFC 9112, 2.2: not h11's view, but everybody else's
        connection = h11.Connection(h11.SERVER, max_incomplete_event_size=2**20)
        connection.receive_data(data)
        try:
            head, body = _read(connection)
        except (h11.RemoteProtocolError, EOFError):
            return
        headers: dict[bytes, list[bytes]] = {}
        for name, value in head.headers:
            headers.setdefault(name, []).append(value)
        if b", ".join(headers.get(b"content-encoding", [])).lower() in (b"gzip", b"x-gzip"):
            try:
                body = gzip.decompress(body)
            except (OSError, EOFError, zlib.error):
                body = b"not executed"
        yield b", ".join(headers.get(MARKER.encode(), [])).decode("latin1"), body
        data = connection.trailing_data[0]


def _read(connection: h11.Connection) -> tuple[h11.Request, bytes]:
    """Read one request; raises EOFError where it is not whole."""
    head, body = None, b""
    while not isinstance(event := connection.next_event(), h11.EndOfMessage):
        if event is h11.NEED_DATA:
            raise EOFError
        if isinstance(event, h11.Request):
            head = event
        else:
            body += event.data
    return head, body
