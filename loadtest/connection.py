"""An HTTP connection for clients that have to know when each answer came, and what it was."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Callable, Iterable
from time import monotonic
from typing import Any, cast
from urllib.parse import urlsplit

from loadtest.envelope import PLAIN, Envelope
from loadtest.summary import latency

#: What wrk counts, and what no answer came to.
KINDS = ("connect", "read", "write", "timeout", "status", "missing")

#: Called with the status and the body of an answer; status 0: the connection ended first.
Answered = Callable[[int, bytes], None]

_length = re.compile(rb"\r\ncontent-length: *(\d+)\r\n", re.IGNORECASE).search


class Connection(asyncio.Protocol):
    """A keep-alive connection that POSTs one body at a time; an answer has to have a length."""

    def __init__(self, url: str):
        target = urlsplit(url)
        path = (target.path or "/") + (f"?{target.query}" if target.query else "")
        self._head = (
            f"POST {path} HTTP/1.1\r\nHost: {target.netloc}\r\nContent-Type: application/json\r\n"
        ).encode()
        self._buffer = bytearray()
        self._begin = self._end = 0  # of the answer's body, once its head is here
        self._answered: Answered | None = None
        self._transport: asyncio.Transport | None = None

    @classmethod
    async def open(cls, url: str) -> Connection:
        """Connect; `url` has a host and a port. Raises OSError."""
        target = urlsplit(url)
        loop = asyncio.get_running_loop()
        address = cast(tuple[str, int], (target.hostname, target.port))
        _, connection = await loop.create_connection(lambda: cls(url), *address)
        return connection

    @property
    def closed(self) -> bool:
        return self._transport is None or self._transport.is_closing()

    def post(self, body: bytes, answered: Answered, head: bytes = b"") -> None:
        """Send `body` with the header lines `head`; `answered` is called once, before another may
        be sent."""
        transport = self._transport
        if transport is None or transport.is_closing():
            answered(0, b"")
            return
        self._answered = answered
        transport.write(b"%b%bContent-Length: %d\r\n\r\n%b" % (self._head, head, len(body), body))

    async def ask(self, body: bytes, head: bytes = b"") -> tuple[int, bytes]:
        """Send as `post` does, and wait for the status and the body of the answer."""
        answered = asyncio.get_running_loop().create_future()

        def resolve(status: int, answer: bytes) -> None:
            if not answered.done():  # nobody may be waiting any more
                answered.set_result((status, answer))

        self.post(body, resolve, head)
        found: tuple[int, bytes] = await answered
        return found

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        buffer = self._buffer
        buffer += data
        if not self._begin:
            end = buffer.find(b"\r\n\r\n")
            if end < 0:
                return
            found = _length(buffer, 0, end + 2)
            self._begin = end + 4
            self._end = self._begin + (int(found[1]) if found else 0)
        if len(buffer) < self._end:
            return
        answer = bytes(buffer[self._begin : self._end])
        status = bytes(buffer[9:12])
        del buffer[: self._end]
        self._begin = self._end = 0
        if status.isdigit():
            self._tell(int(status), answer)
        elif self._transport is not None:
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._tell(0, b"")

    def _tell(self, status: int, answer: bytes) -> None:
        answered, self._answered = self._answered, None
        if answered is not None:
            answered(status, answer)


def result(
    requests: int, seconds: float, took: Iterable[float] = (), wrong: int = 0, **errors: int
) -> dict[str, Any]:
    """Return what `wrk.run` does; `took` are the latencies in seconds."""
    return {
        "requests": requests,
        "seconds": seconds,
        "wrong_answers": wrong,
        "errors": dict.fromkeys(KINDS, 0) | errors,
        "latency_ms": latency(took),
    }


class Tally:
    """Counts what came of `sent` requests, and how long each took."""

    def __init__(self, envelope: Envelope = PLAIN):
        self._envelope = envelope
        self.sent = self.answered = self.wrong = 0
        self.errors: Counter[str] = Counter()
        self.seconds: list[float] = []

    def count(self, since: float, body: bytes, status: int, answer: bytes) -> None:
        """Judge the answer to `body`, which has been waited for since monotonic `since`."""
        self.seconds.append(monotonic() - since)
        if not status:
            self.errors["read"] += 1
            return
        self.answered += 1
        if not 200 <= status <= 299:
            self.errors["status"] += 1
            return
        try:
            right = self._envelope.unwrap(answer) == body
        except (ValueError, KeyError, TypeError):
            right = False
        self.wrong += not right

    def figures(self, seconds: float) -> dict[str, Any]:
        """Return what `wrk.run` does, for a run of so many `seconds`."""
        missing = self.sent - self.answered - self.errors["read"]
        errors = {**self.errors, "missing": missing}
        return result(self.answered, seconds, self.seconds, self.wrong, **errors)
