"""One client's bytes: what Tornado's HTTP/1 connection reads from and writes to.

Stands in for `tornado.iostream.IOStream`, as far as `HTTP1Connection` uses it, on a transport of
the asyncio loop: a request costs one read and one write, and nothing to change what is waited
for. docs/decisions/0020-a-stream-on-the-loops-transport.md has the figures.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from time import monotonic
from typing import Protocol

from tornado.iostream import StreamClosedError

from gateway.errors import BadRequest, RequestError
from gateway.http.read_buffer import END_OF_HEADER, ReadBuffer, Refused
from gateway.relay.limits import Limits

#: Bytes that a client may send ahead of its answers.
AHEAD = 64 * 1024
#: Bytes, and seconds, of a refused request that are read and thrown away, so that the client
#: sees the answer and not a reset.
LINGER, LINGER_SECONDS = 4 * 1024 * 1024, 2.0
#: What all answers begin with, and seconds from its first byte to its second; then twice as many.
BEGINNING, PROBE = b"HTTP/1.1 ", 0.1


class Receiver(Protocol):
    """The request that is being read, or answered."""

    answered: bool

    def refuse(self, error: RequestError) -> None:
        """Answer with `error`: the rest of the request is not read."""

    def late(self) -> None:
        """Answer that the request did not come in time."""

    def full(self) -> None:
        """End the connection, as there is no room for what it has sent."""


class Stream(ReadBuffer, asyncio.Protocol):
    """A client's connection; `lost` is called once, when it is gone.

    What it has received counts in `limits` until it is handed on or thrown away.

    Nothing on it lasts beyond ``deadline`` (monotonic seconds): not an idle connection, nor a
    request that arrives slowly, nor an answer that is not taken. Timeouts are in seconds.
    """

    __slots__ = (
        "_ahead", "_close_callback", "_closed", "_ended", "_flushed", "_header_timeout", "_held",
        "_left", "_limits", "_lost", "_probed", "_refused", "_transport", "_unwritten", "deadline",
        "connected", "look", "receiver", "receiving",
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
        #: Bytes that count: received and not handed on; given to the transport and not taken.
        self._held = self._unwritten = 0
        self._lost = lost
        self._transport: asyncio.Transport  # from `connection_made` on
        self.connected = False
        self._left = LINGER
        self._ahead = self._closed = self._ended = self._refused = False
        self._probed = 0  # bytes of an answer that were written before it
        self._flushed: asyncio.Future[None] | None = None
        self._close_callback: Callable[[], None] | None = None
        self.deadline = monotonic() + idle_timeout
        #: The tick in which the server looks at the deadline next.
        self.look = 0
        self.receiver: Receiver | None = None
        #: Has a request begun that is not answered?
        self.receiving = False

    # What HTTP1Connection calls ---------------------------------------------------------------

    def read_until_regex(self, regex: bytes, max_bytes: int) -> Awaitable[bytes]:
        """Read a header: Tornado has no regular expression for anything else."""
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
        """Write what Tornado says by itself: a 100, or a 400 in whose place we give the reason."""
        if data.startswith(b"HTTP/1.1 100"):
            self.send(data)
        else:
            self.refuse(sys.exception())
        written = asyncio.get_running_loop().create_future()
        written.set_result(None)
        return written

    def set_close_callback(self, callback: Callable[[], None] | None) -> None:
        self._close_callback = callback

    def set_nodelay(self, value: bool) -> None:
        """Do nothing: it is set once, for each of these would be a system call."""

    def closed(self) -> bool:
        return self._closed

    def close(self) -> None:
        """Close when everything is written; after a refusal, when the client has seen it."""
        if self._closed:
            return
        self._closed = True
        self.fail(StreamClosedError())
        self.clear()
        self.hand_on()
        if not self.connected or self._transport.is_closing():
            return
        if self._refused:
            asyncio.get_running_loop().call_later(LINGER_SECONDS, self._transport.abort)
            self._transport.resume_reading()
            try:
                self._transport.write_eof()
            except OSError:  # the client has reset it, which the loop is about to hear
                self._transport.abort()
        else:
            self._transport.close()

    # What exchanges and the server call -------------------------------------------------------

    @property
    def busy(self) -> bool:
        """Is there a request to answer, or an answer to be taken?"""
        if not self.connected:
            return True
        unwritten = self._transport.get_write_buffer_size() > 0
        return unwritten or (self.receiving and not self._closed)

    def hold(self, size: int) -> None:
        """Count so many bytes more."""
        self._held += size
        self._limits.bytes += size

    def hand_on(self) -> int:
        """Count what has been read no longer; return the number of its bytes."""
        size = self._held - self.size
        self._held -= size
        self._limits.bytes -= size
        return size

    def send(self, data: bytes) -> None:
        if not self._closed:
            if self._probed:
                data, self._probed = data[self._probed :], 0
            self._transport.write(data)

    def refuse(self, reason: BaseException | None) -> None:
        """Answer that the request cannot be read."""
        error = reason.error if isinstance(reason, Refused) else BadRequest(f"{reason}."[:200])
        self._refused = True
        if self.receiver is not None:
            self.receiver.refuse(error)

    async def flushed(self) -> None:
        """Wait until the client takes its answers; others get a turn before a next request."""
        if self._flushed is not None:
            await self._flushed
        elif self.size:
            await asyncio.sleep(0)

    def expire(self) -> None:
        """End what has lasted beyond the deadline."""
        if self._closed:
            self.abort()
        elif self.receiving and self.receiver is not None:
            self.receiver.late()
        else:
            self.close()

    def abort(self) -> None:
        """Close at once, whatever is unread or unwritten."""
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
        if not self._limits.exceeded:
            self.feed(data)
        elif self.receiver is not None:
            self.receiver.full()
        else:
            self.abort()
        if self.size:
            if self.header_awaited:
                self._begin()
            elif self.size > AHEAD and not self._ahead:
                self._ahead = True
                self._transport.pause_reading()

    def eof_received(self) -> bool:
        """Stay open for what has come whole; called by the transport: the client sends no more.

        Whether it listens yet, or has closed its connection, shows only when it is written to.
        docs/decisions/0028-who-sends-no-more.md
        """
        if not self._ended:
            self._ended = True
            self._probe()
        return self._reading is None and not self._closed

    def _probe(self) -> None:
        """Write an answer's next byte: a client that is gone resets the connection for it."""
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
        self._closed = True
        self.fail(StreamClosedError())
        self.clear()
        self.hand_on()
        self.resume_writing()
        callback, self._close_callback = self._close_callback, None
        if callback is not None:
            callback()
        self._lost(self)

    def _read(self, until: bytes, least: int, most: int) -> Awaitable[bytes]:
        future = self.read(until, least, most)
        if self._closed:
            self.fail(StreamClosedError())
        elif self._ended and self._reading is not None:
            self.close()  # what it waits for does not come any more
        elif self._ahead and self._reading is not None:
            self._ahead = False
            self._transport.resume_reading()
        return future

    def _begin(self) -> None:
        """See that a header that has begun comes to its end in time."""
        if self.header_awaited and not self.receiving:
            self.receiving = True
            self.deadline = monotonic() + self._header_timeout
