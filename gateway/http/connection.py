"""Tornado's HTTP/1 connection, with faster code for headers and bodies.

It accepts only what Tornado's own code would accept with the same meaning.
https://www.rfc-editor.org/rfc/rfc9112
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable

from tornado.http1connection import HTTP1Connection, HTTP1ConnectionParameters, parse_hex_int
from tornado.httputil import HTTPInputError, HTTPMessageDelegate

from gateway.errors import BadRequest, HeaderTooLarge
from gateway.http.stream import RequestRefused, Stream, bare_line_end

#: The most header lines that a request may have.
MAX_HEADERS = 256
#: Names of fields that are shared at the most, as clients may invent any, and their characters.
_NAMES, _NAME = 1_000, 64
#: Bytes of a chunk's size with its extensions, and of all extensions and trailers.
CHUNK_SIZE, BESIDE = 256, 8 * 1024
#: Chunks that are read in one turn of the loop at the most.
TOGETHER = 1_000

# RFC 9110, 5.1 and 5.5: a token, a colon, and neither control characters nor line ends. The
# possessive quantifiers do not backtrack.
_field_lines = re.compile(
    r"(?<=\n)([!#$%&'*+\-.^_`|~0-9A-Za-z]++):([^\x00-\x08\x0a-\x1f\x7f]*+)\r\n"
).findall


class _Names(dict[str, str]):
    """Names of header fields in lower case, by their spelling.

    Requests share them: each would take as much memory for the names as for the values.
    """

    def __missing__(self, spelled: str) -> str:
        name = spelled.lower()
        if len(self) < _NAMES and len(name) <= _NAME:
            self[spelled] = name
        return name


_names = _Names()


class Headers(dict[str, str]):
    """Header fields by their names in lower case, repeated ones joined by ``", "``.

    A look-up ignores the case, because Tornado spells names with capitals.
    """

    __slots__ = ()

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and dict.__contains__(self, name.lower())

    def __getitem__(self, name: str) -> str:
        return dict.__getitem__(self, name.lower())

    def get(  # type: ignore[override]
        self, name: str, default: str | None = None
    ) -> str | None:
        return dict.get(self, name.lower(), default)

    @classmethod
    def of(cls, lines: list[tuple[str, str]]) -> Headers:
        """Make headers from lines (name, value) whose names are in lower case."""
        headers = cls(lines)
        if len(headers) != len(lines):
            for name in headers:
                headers[name] = ", ".join(value for other, value in lines if other == name)
        return headers


class Connection(HTTP1Connection):
    """One request and its answer on a stream; `remote` is the peer's address."""

    def __init__(self, stream: Stream, params: HTTP1ConnectionParameters, remote: str):
        # The stream has those methods of an IOStream that this class uses.
        super().__init__(stream, False, params)  # type: ignore[arg-type]
        self.remote = remote
        self._bytes = stream

    @property
    def last(self) -> bool:
        """Does the connection end after this request, because the client wants that?"""
        return self._disconnect_on_finish

    def end(self, last: bool) -> None:
        """Finish the request, whose answer was given to the stream; close if it is the `last`."""
        if last:  # Tornado itself closes only after a request that was not read to its end
            self._disconnect_on_finish = True
        self.finish()

    def _parse_headers(  # type: ignore[override] # ours are a dict
        self, data: bytes
    ) -> tuple[str, Headers]:
        text = data.decode("latin1")
        start = text.find("\r\n")
        lines = _field_lines(text, start + 2, len(text) - 2)
        if len(lines) != text.count("\n") - 2:  # all but the first line and the empty one
            raise RequestRefused(BadRequest(_malformed(data)))
        if len(lines) > MAX_HEADERS:
            raise RequestRefused(HeaderTooLarge(f"There are more than {MAX_HEADERS} header lines."))
        fields = [(_names[name], value.strip(" \t")) for name, value in lines]
        return text[:start], Headers.of(fields)

    def _read_body(  # type: ignore[override]
        self, code: int, headers: Headers, delegate: HTTPMessageDelegate
    ) -> Awaitable[None] | None:
        # The delegate has already refused a length that is not a number.
        if "transfer-encoding" not in headers:
            body = self._bytes.take(int(dict.get(headers, "content-length", "0")))
            if body is not None:
                delegate.data_received(body)
                return None
        return super()._read_body(code, headers, delegate)  # type: ignore[arg-type]

    async def _read_chunked_body(self, delegate: HTTPMessageDelegate) -> None:
        """Read chunks; what is said beside them, in extensions and trailers, is discarded.

        Small chunks are handed on together. RFC 9112, 7.1
        """
        read, most = self._bytes, self.params.chunk_size
        pending, beside, total, number = bytearray(), BESIDE, 0, 0
        while True:
            if pending and not read.size:  # what is too long is refused as soon as it has come
                await self._deliver_body(delegate, bytes(pending))
                pending.clear()
            line = await read.read_until(b"\r\n", min(beside, CHUNK_SIZE))
            text, semicolon, extension = line[:-2].partition(b";")
            beside -= len(extension)
            size = _size(text.rstrip(b" \t") if semicolon else text)
            if bare_line_end(line):  # which others may take for the end of the line
                raise HTTPInputError("malformed chunk extension")
            if not size:
                break
            total += size
            if total > self._max_body_size:
                raise HTTPInputError("chunked body too large")
            while size:
                piece = await read.read_bytes(min(size, most), partial=True)
                size -= len(piece)
                pending += piece
                if len(pending) >= most:
                    await self._deliver_body(delegate, bytes(pending))
                    pending.clear()
            if await read.read_bytes(2) != b"\r\n":
                raise HTTPInputError("improperly terminated chunk")
            read.hold(-len(line) - 2)  # what is beside the data is not kept
            number += 1
            if number % TOGETHER == 0:  # they may all have come already
                await asyncio.sleep(0)
        if pending:
            await self._deliver_body(delegate, bytes(pending))
        while (trailer := await read.read_until(b"\r\n", beside)) != b"\r\n":
            beside -= len(trailer)
            if bare_line_end(trailer) or not _field_lines("\n" + trailer.decode("latin1")):
                raise HTTPInputError("malformed trailer")


def _malformed(header: bytes) -> str:
    """Say what is wrong with a header; without its text, which may have a secret."""
    if bare_line_end(header):
        return "A header line does not end in CR LF."
    lines = enumerate(header.decode("latin1").split("\r\n")[1:], 2)
    number = next(number for number, line in lines if not _field_lines(f"\n{line}\r\n"))
    return f"Line {number} of the request has to be NAME: VALUE, without control characters."


def _size(text: bytes) -> int:
    """Return a chunk's size; raises HTTPInputError for anything but hexadecimal digits."""
    try:
        return parse_hex_int(text.decode())
    except ValueError as exc:
        raise HTTPInputError("invalid chunk size") from exc
