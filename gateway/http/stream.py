"""A client's connection, from which Tornado's HTTP/1 connection reads and to which it writes.

It has those methods of `tornado.iostream.IOStream` that `HTTP1Connection` uses, on a transport of
the asyncio loop. So a request costs one read and one write, and no change of what the loop's
selector watches. docs/decisions/0020-a-stream-on-the-loops-transport.md has the figures.
"""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Awaitable, Callable
from typing import Protocol

from tornado.httputil import HTTPInputError
from tornado.iostream import StreamClosedError

from gateway.clock import monotonic
from gateway.errors import BadRequest, HeaderTooLarge, RequestError, URITooLong, cut_off
from gateway.relay.limits import Limits

END_OF_HEADER = b"\r\n\r\n"
#: Finds a CR or LF without the other. RFC 9112, 2.2
bare_line_end = re.compile(rb"\r(?=[^\n])|(?<!\r)\n").search
_empty_lines = re.compile(rb"(?:\r\n)++").match
#: Bytes that a client may send before it has got its earlier answers.
AHEAD = 64 * 1024
#: After a refusal, so many bytes are read and discarded for so many seconds: otherwise the client
#: would get a reset instead of the answer.
LINGER, LINGER_SECONDS = 4 * 1024 * 1024, 2.0
#: The beginning of every answer, which is sent byte by byte to a client that sends no more, and the
#: first pause between two of its bytes in seconds. Each further pause is twice as long.
BEGINNING, PROBE = b"HTTP/1.1 ", 0.1


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
        # Some clients send empty lines after a body. RFC 9112, 2.2
        if self._until is END_OF_HEADER and (empty := _empty_lines(self._buffer, self._at)):
            self._consume(empty.end())
        buffer, at, until = self._buffer, self._at, self._until
        if not until:
            if len(buffer) - at < self._least:
                return
            end = min(at + self._most, len(buffer))
        else:
            found = buffer.find(until, max(at, self._seen))
            end = len(buffer) if found < 0 else found + len(until)
            if end - at > self._most:
                self.fail(RequestRefused(self._too_long()))
                return
            if found < 0:
                if until is END_OF_HEADER and at < len(buffer):
                    self._check_beginning()
                self._seen = max(at, end - len(until) + 1)
                return
        future, self._reading = self._reading, None
        if future is not None and not future.done():  # done: it was cancelled
            future.set_result(self._consume(end))

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

    def _consume(self, end: int) -> bytes:
        data = self._buffer[self._at : end]
        self.size -= end - self._at
        if self.size:
            self._at = end
        else:
            self._buffer, self._at = b"", 0
        return data


class Receiver(Protocol):
    """The request that is being read or answered."""

    answered: bool

    def refuse(self, error: RequestError) -> None:
        """Answer with `error`; the rest of the request is not read."""

    def timed_out(self) -> None:
        """Answer that the request has not arrived in time."""

    def overloaded(self) -> None:
        """End the connection, because there is no room for what it has sent."""

    def on_half_close(self) -> None:
        """Note that the client sends no more, and may have left."""

    def on_connection_close(self) -> None:
        """Stop waiting for the answer, if it is waited for: the connection has ended."""


class Stream(ReadBuffer, asyncio.Protocol):
    """A client's connection; `lost` is called once, when it has ended.

    Received bytes are counted in `limits` until they are handed on or discarded.

    ``deadline`` (monotonic seconds) ends an idle connection, a request that arrives too slowly, and
    an answer that the client does not read. Timeouts are in seconds. ``half_closed``: the client
    sends no more, and may have left.
    """

    __slots__ = (
        "_ahead", "_close_callback", "_closed", "_flushed", "_header_timeout", "_held",
        "_left", "_limits", "_lost", "_probed", "_refused", "_transport", "_unwritten", "deadline",
        "connected", "check_tick", "half_closed", "receiver", "receiving",
    )  # fmt: skip

    def __init__(
        self,
        idle_timeout: float,
        header_timeout: float,
        limits: Limits,
        lost: Callable[[Stream], None],
    ):
        super().__init__()
        self._header_timeout = header_timeout
        self._limits = limits
        #: Bytes that are counted: received and not handed on; written and not sent yet.
        self._held = self._unwritten = 0
        self._lost = lost
        self._transport: asyncio.Transport  # from `connection_made` on
        self.connected = False
        self._left = LINGER
        self._ahead = self._closed = self._refused = self.half_closed = False
        self._probed = 0  # bytes of the answer that `_probe` has written already
        self._flushed: asyncio.Future[None] | None = None
        self._close_callback: Callable[[], None] | None = None
        self.deadline = monotonic() + idle_timeout
        #: The tick in which the server checks the deadline next.
        self.check_tick = 0
        self.receiver: Receiver | None = None
        #: Has a request begun that is not answered yet?
        self.receiving = False

    # What HTTP1Connection calls ---------------------------------------------------------------

    def read_until_regex(self, regex: bytes, max_bytes: int) -> Awaitable[bytes]:
        """Read a header; Tornado uses a regular expression for nothing else."""
        self.receiving = False
        future = self._read(END_OF_HEADER, 0, max_bytes)
        if self.size:
            self._begin()
        return future

    def read_until(self, delimiter: bytes, max_bytes: int) -> Awaitable[bytes]:
        return self._read(delimiter, 0, max_bytes)

    def read_bytes(self, num_bytes: int, partial: bool = False) -> Awaitable[bytes]:
        return self._read(b"", 1 if partial else num_bytes, num_bytes)

    def write(self, data: bytes) -> Awaitable[None]:
        """Write a status line of Tornado's own: a 100 as it is, a 400 with our reason instead."""
        if data.startswith(b"HTTP/1.1 100"):
            self.send(data)
        else:
            reason = sys.exception()
            assert reason is not None  # Tornado writes it while it handles one
            self.refuse(reason)
            cut_off(reason)  # as in `Server._serve`
        written = asyncio.get_running_loop().create_future()
        written.set_result(None)
        return written

    def set_close_callback(self, callback: Callable[[], None] | None) -> None:
        self._close_callback = callback

    def set_nodelay(self, value: bool) -> None:
        """Do nothing: the option is set once, as each call would cost a system call."""

    def closed(self) -> bool:
        return self._closed

    def close(self) -> None:
        """Close when everything is written; after a refusal, when the client has seen it."""
        if self._closed:
            return
        self._discard()
        if not self.connected or self._transport.is_closing():
            return
        if self._refused:
            asyncio.get_running_loop().call_later(LINGER_SECONDS, self._transport.abort)
            self._transport.resume_reading()
            try:
                self._transport.write_eof()
            except OSError:  # the client has reset the connection
                self._transport.abort()
        else:
            self._transport.close()

    # What requests and the server call --------------------------------------------------------

    @property
    def busy(self) -> bool:
        """Is there a request to answer, or an answer that is not sent yet?"""
        if not self.connected:
            return True
        unwritten = self._transport.get_write_buffer_size() > 0
        return unwritten or (self.receiving and not self._closed)

    def hold(self, size: int) -> None:
        """Count `size` more bytes in the limits."""
        self._held += size
        self._limits.bytes += size

    def hand_on(self) -> int:
        """Stop counting the bytes that have been read; return their number."""
        size = self._held - self.size
        self._held -= size
        self._limits.bytes -= size
        self._resume()  # else it is not seen that the client leaves
        return size

    def send(self, data: bytes) -> None:
        if not self._closed:
            if self._probed:
                data, self._probed = data[self._probed :], 0
            self._transport.write(data)

    def refuse(self, reason: BaseException) -> None:
        """Answer that the request cannot be read."""
        error = (
            reason.error if isinstance(reason, RequestRefused) else BadRequest(f"{reason}."[:200])
        )
        self._refused = True
        if self.receiver is not None:
            self.receiver.refuse(error)

    async def flushed(self) -> None:
        """Wait until the client reads its answers.

        Where its next request has arrived already, let the loop run other connections first.
        """
        if self._flushed is not None:
            await self._flushed
        elif self.size:
            await asyncio.sleep(0)

    def expire(self) -> None:
        """End the request or the connection; called after the deadline."""
        if self._closed:
            self.abort()
        elif self.receiving and self.receiver is not None:
            self.receiver.timed_out()
        else:
            self.close()

    def abort(self) -> None:
        """Close immediately; unread and unwritten bytes are lost."""
        if not self.connected:
            self._closed = True
        else:
            self._transport.abort()

    # What the transport calls -----------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._transport = transport
        self.connected = True
        if self._closed:  # meanwhile
            transport.abort()

    def data_received(self, data: bytes) -> None:
        if self._closed:
            self._left -= len(data)
            if self._left < 0:
                self._transport.abort()
            return
        self.hold(len(data))
        # What comes before the first request is read is little, and is refused with that request.
        if self.receiver is None or self._limits.bytes <= self._limits.most_bytes:
            self.feed(data)
        else:
            self.receiver.overloaded()
        if self._reading is not None:
            self._begin()
        elif self.size > AHEAD and not self._ahead:
            self._ahead = True
            self._transport.pause_reading()

    def eof_received(self) -> bool:
        """Stay open for a complete request; called by the transport when the client sends no more.

        Only a write shows whether the client still reads, or has closed its connection.
        docs/decisions/0028-who-sends-no-more.md
        """
        if not self.half_closed:
            self.half_closed = True
            if self.receiver is not None:
                self.receiver.on_half_close()
            self._probe()
        return self._reading is None and not self._closed

    def _probe(self) -> None:
        """Write the next byte of the answer's beginning: a client that has left then resets it."""
        if self._closed:
            return
        answered = self.receiver is None or self.receiver.answered
        waits = self.receiving and self._reading is None and not answered
        if waits and self._probed < len(BEGINNING):
            self._transport.write(BEGINNING[self._probed : self._probed + 1])
            self._probed += 1
        pause = PROBE * 2 ** max(self._probed - 1, 0)
        asyncio.get_running_loop().call_later(pause, self._probe)

    def pause_writing(self) -> None:
        self._flushed = asyncio.get_running_loop().create_future()
        self._unwritten = self._transport.get_write_buffer_size()
        self._limits.bytes += self._unwritten

    def resume_writing(self) -> None:
        self._limits.bytes -= self._unwritten
        self._unwritten = 0
        flushed, self._flushed = self._flushed, None
        if flushed is not None and not flushed.done():
            flushed.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        self._discard()
        self.resume_writing()
        if self.receiver is not None:
            self.receiver.on_connection_close()
        callback, self._close_callback = self._close_callback, None
        if callback is not None:
            callback()
        self._lost(self)

    def _discard(self) -> None:
        self._closed = True
        self.fail(StreamClosedError())
        self.clear()
        self.hand_on()

    def _read(self, until: bytes, least: int, most: int) -> Awaitable[bytes]:
        future = self.read(until, least, most)
        if self._closed:
            self.fail(StreamClosedError())
        elif self.half_closed and self._reading is not None:
            self.close()  # the client sends no more
        else:
            self._resume()
        return future

    def _resume(self) -> None:
        """Read again from the client, if most of what it had sent ahead is read."""
        if self._ahead and self.size <= AHEAD and not self._closed:
            self._ahead = False
            self._transport.resume_reading()

    def _begin(self) -> None:
        """Set the deadline of a header that has begun to arrive."""
        if self._reading is None or self._until is not END_OF_HEADER:
            return
        self.hand_on()  # of the empty lines before a request nothing is kept
        if self.size and not self.receiving:
            self.receiving = True
            self.deadline = monotonic() + self._header_timeout
