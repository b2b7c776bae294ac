"""A buffer for the bytes of a client, with at most one pending read."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable

from tornado.httputil import HTTPInputError

from gateway.errors import BadRequest, HeaderTooLarge, RequestError, URITooLong

END_OF_HEADER = b"\r\n\r\n"
#: Finds a CR or LF without the other. RFC 9112, 2.2
bare_line_end = re.compile(rb"\r(?=[^\n])|(?<!\r)\n").search


class RequestRefused(HTTPInputError):
    """Ends a request while it is being read; ``error`` is its answer."""

    def __init__(self, error: RequestError):
        super().__init__(error.detail)
        self.error = error


class ReadBuffer:
    """Buffers received bytes until they are read.

    The unread bytes begin at ``_at`` of ``_buffer``. They are copied as little as possible, as most
    requests arrive in one piece.
    """

    __slots__ = ("_at", "_buffer", "_least", "_most", "_reading", "_seen", "_until", "size")

    def __init__(self) -> None:
        self._buffer = b""
        self._at = 0
        #: The number of unread bytes.
        self.size = 0
        self._reading: asyncio.Future[bytes] | None = None
        # The pending read is for the bytes up to the delimiter `_until`, at most `_most` of them;
        # the delimiter does not begin before `_seen`. Without a delimiter it is for `_least` to
        # `_most` bytes.
        self._until = b""
        self._least = self._most = self._seen = 0

    @property
    def header_awaited(self) -> bool:
        """Does a read wait for the end of a header?"""
        return self._reading is not None and self._until is END_OF_HEADER

    def feed(self, data: bytes) -> None:
        """Add received bytes, and complete the pending read if that is possible now."""
        if self.size:
            self._buffer = self._buffer[self._at :] + data
            self._seen -= self._at
        else:
            self._buffer = data
            self._seen = 0
        self._at = 0
        self.size += len(data)
        if self._reading is not None:
            self._try_complete()

    def read(self, until: bytes, least: int, most: int) -> Awaitable[bytes]:
        """Read up to the delimiter `until` within `most` bytes; without one, `least` to `most`.

        The read fails with `RequestRefused` where the bytes can never fulfil it.
        """
        future = self._reading = asyncio.get_running_loop().create_future()
        self._until, self._least, self._most = until, least, most
        self._seen = self._at
        if self.size:
            self._try_complete()
        return future

    def take(self, size: int) -> bytes | None:
        """Read `size` bytes without waiting; None where not all of them have arrived."""
        end = self._at + size
        return self._consume(end) if end <= len(self._buffer) else None

    def fail(self, error: Exception) -> None:
        """Fail the pending read, if there is one, with `error`."""
        future, self._reading = self._reading, None
        if future is not None and not future.done():
            future.set_exception(error)
            future.exception()  # else asyncio logs it if it is not awaited any more

    def clear(self) -> None:
        self._buffer = b""
        self._at = self.size = 0

    def _try_complete(self) -> None:
        """Complete the pending read if its bytes are here; fail it if they can never come."""
        if self._until is END_OF_HEADER:
            # Some clients send one after a body. RFC 9112, 2.2
            while self._buffer.startswith(b"\r\n", self._at):
                self._at += 2
                self.size -= 2
        buffer, at, until = self._buffer, self._at, self._until
        if not until:
            if len(buffer) - at >= self._least:
                self._end(min(at + self._most, len(buffer)))
            return
        found = buffer.find(until, max(at, self._seen))
        end = len(buffer) if found < 0 else found + len(until)
        if end - at > self._most:
            self.fail(RequestRefused(self._too_long()))
        elif found >= 0:
            self._end(end)
        else:
            if until is END_OF_HEADER and at < len(buffer):
                self._check_beginning()
            self._seen = max(at, end - len(until) + 1)

    def _check_beginning(self) -> None:
        """Fail the read early where the bytes cannot be an HTTP header."""
        first = self._buffer[self._at]
        if not 32 < first < 127 and first != 13:  # for example TLS
            self.fail(RequestRefused(BadRequest("This is not HTTP.")))
        elif bare_line_end(self._buffer, self._seen):
            self.fail(RequestRefused(BadRequest("A header line does not end in CR LF.")))

    def _too_long(self) -> RequestError:
        if self._until is not END_OF_HEADER:
            return BadRequest("A chunk's size is malformed.")
        first_line = self._buffer.find(b"\n", self._at, self._at + self._most)
        return URITooLong() if first_line < 0 else HeaderTooLarge()

    def _end(self, end: int) -> None:
        future, self._reading = self._reading, None
        if future is not None and not future.done():  # done: it was cancelled
            future.set_result(self._consume(end))

    def _consume(self, end: int) -> bytes:
        data = self._buffer[self._at : end]
        if end < len(self._buffer):
            self.size -= end - self._at
            self._at = end
        else:
            self.clear()
        return data
