"""Bytes that a client has sent, and the one read that waits for more of them."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable

from tornado.httputil import HTTPInputError

from gateway.errors import BadRequest, HeaderTooLarge, RequestError, URITooLong

END_OF_HEADER = b"\r\n\r\n"
#: Finds a CR or LF without the other. RFC 9112, 2.2
bare_line_end = re.compile(rb"\r(?=[^\n])|(?<!\r)\n").search


class Refused(HTTPInputError):
    """Ends a request while it is being read; ``error`` is its answer."""

    def __init__(self, error: RequestError):
        super().__init__(error.detail)
        self.error = error


class ReadBuffer:
    """What has come and was not read begins at ``_at`` of ``_buffer``; it is copied as little as
    may be, for most requests come whole."""

    __slots__ = ("_at", "_buffer", "_least", "_most", "_reading", "_seen", "_until")

    def __init__(self) -> None:
        self._buffer = b""
        self._at = 0
        self._reading: asyncio.Future[bytes] | None = None
        # What is read: bytes up to the delimiter `_until`, which does not begin before `_seen`,
        # and `_most` at the most; or else from `_least` to `_most` bytes.
        self._until = b""
        self._least = self._most = self._seen = 0

    @property
    def size(self) -> int:
        """The number of bytes that wait to be read."""
        return len(self._buffer) - self._at

    @property
    def header_awaited(self) -> bool:
        """Does a read wait for the end of a header?"""
        return self._reading is not None and self._until is END_OF_HEADER

    def feed(self, data: bytes) -> None:
        """Add what has come."""
        if self._at < len(self._buffer):
            self._buffer = self._buffer[self._at :] + data
            self._seen -= self._at
        else:
            self._buffer = data
            self._seen = 0
        self._at = 0
        if self._reading is not None:
            self._look()

    def read(self, until: bytes, least: int, most: int) -> Awaitable[bytes]:
        """Read up to the delimiter `until` within `most` bytes; without one, `least` to `most`.

        What can never be read fails with `Refused`.
        """
        future = self._reading = asyncio.get_running_loop().create_future()
        self._until, self._least, self._most = until, least, most
        self._seen = self._at
        if self._at < len(self._buffer):
            self._look()
        return future

    def take(self, size: int) -> bytes | None:
        """Read `size` bytes without waiting; None where not all of them are here."""
        end = self._at + size
        return self._consume(end) if end <= len(self._buffer) else None

    def fail(self, error: Exception) -> None:
        """End the read, if there is one, with `error`."""
        future, self._reading = self._reading, None
        if future is not None and not future.done():
            future.set_exception(error)
            future.exception()  # who awaited it may have failed meanwhile: that is no news

    def clear(self) -> None:
        self._buffer = b""
        self._at = 0

    def _look(self) -> None:
        """End the read if what it is for is here, or cannot come any more."""
        buffer, at, until = self._buffer, self._at, self._until
        if not until:
            if len(buffer) - at >= self._least:
                self._end(min(at + self._most, len(buffer)))
            return
        found = buffer.find(until, self._seen)
        end = len(buffer) if found < 0 else found + len(until)
        if end - at > self._most:
            self.fail(Refused(self._too_long()))
        elif found >= 0:
            self._end(end)
        else:
            if until is END_OF_HEADER:
                self._check_beginning()
            self._seen = max(at, end - len(until) + 1)

    def _check_beginning(self) -> None:
        """Do not wait for the end of what is no header."""
        first = self._buffer[self._at]
        if not 32 < first < 127 and first != 13:  # TLS, say
            self.fail(Refused(BadRequest("This is not HTTP.")))
        elif bare_line_end(self._buffer, self._seen):
            self.fail(Refused(BadRequest("A header line does not end in CR LF.")))

    def _too_long(self) -> RequestError:
        if self._until is not END_OF_HEADER:
            return BadRequest("A chunk's size is malformed.")
        first_line = self._buffer.find(b"\n", self._at, self._at + self._most)
        return URITooLong() if first_line < 0 else HeaderTooLarge()

    def _end(self, end: int) -> None:
        future, self._reading = self._reading, None
        if future is not None and not future.done():  # nobody has cancelled it
            future.set_result(self._consume(end))

    def _consume(self, end: int) -> bytes:
        data = self._buffer[self._at : end]
        if end < len(self._buffer):
            self._at = end
        else:
            self.clear()
        return data
