"""HTTP clients beside wrk, which know when each answer came, and what it has to be."""

from __future__ import annotations

import asyncio
import re
import secrets
import socket
from collections import Counter
from collections.abc import Iterable, Iterator
from time import monotonic
from typing import Any, cast
from urllib.parse import urlsplit

from loadtest.envelope import PLAIN, Envelope
from loadtest.summary import latency

#: What wrk counts, and what no answer came to.
KINDS = ("connect", "read", "write", "timeout", "status", "missing")

_RECEIVE = 65_536  # bytes
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
        self._answered: asyncio.Future[tuple[int, bytes]] | None = None
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

    async def ask(self, body: bytes, head: bytes = b"") -> tuple[int, bytes]:
        """Send `body` with the header lines `head`, when there is an answer to the one before.

        Returns the status and the body of the answer; status 0: the connection ended first.
        """
        if self._transport is None or self._transport.is_closing():
            return 0, b""
        self._answered = asyncio.get_running_loop().create_future()
        message = b"%b%bContent-Length: %d\r\n\r\n%b" % (self._head, head, len(body), body)
        self._transport.write(message)
        return await self._answered

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
        if self._answered is not None and not self._answered.done():
            self._answered.set_result((status, answer))


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


def check(
    url: str, requests: int, at_once: int, timeout: float, envelope: Envelope = PLAIN
) -> dict[str, int]:
    """Send `requests` POSTs over `at_once` connections and compare each answer with its request.

    The task has to answer with the body it was given. Returns the number of `requests`,
    `wrong_answers`, those `not_2xx`, and those `missing`: not answered when their connection
    ended, or after `timeout` seconds for all.
    """
    tally = asyncio.run(_check(url, requests, at_once, timeout, envelope))
    return {
        "requests": requests,
        "wrong_answers": tally.wrong,
        "not_2xx": tally.errors["status"],
        "missing": requests - tally.answered,
    }


async def _check(
    url: str, requests: int, at_once: int, timeout: float, envelope: Envelope
) -> Tally:
    # Characters of every width in UTF-8, so that a change of encoding would show.
    texts = (f'{{"n": {n}, "ä€😀": "{secrets.token_hex(100)}"}}' for n in range(requests))
    bodies = map(str.encode, texts)
    tally = Tally(envelope)
    try:
        async with asyncio.timeout(timeout), asyncio.TaskGroup() as connections:
            for _ in range(at_once):
                connections.create_task(_converse(url, bodies, tally, envelope))
    except TimeoutError:
        pass  # what was not found is missing
    return tally


async def _converse(url: str, bodies: Iterator[bytes], tally: Tally, envelope: Envelope) -> None:
    """Send one body after the other; open another connection where one ends."""
    connection: Connection | None = None
    try:
        for body in bodies:
            if connection is None or connection.closed:
                try:
                    connection = await Connection.open(url)
                except OSError:
                    continue
            since = monotonic()
            answer = await connection.ask(envelope.wrap(body), envelope.head(body))
            tally.count(since, body, *answer)
    finally:
        if connection is not None:
            connection.close()


def one_by_one(url: str, requests: int, timeout: float) -> dict[str, Any]:
    """Send `requests` POSTs over one connection, each after the other's answer.

    Returns what `wrk.run` does. There is no loop in between: what it costs to send and to
    receive is what `amqp.Requester` pays for its round trips, too. An answer that does not come
    within `timeout` seconds ends the run.
    """
    target = urlsplit(url)
    tally, begin = Tally(), monotonic()
    padding = "x" * 200
    with socket.create_connection((target.hostname, target.port), timeout) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        head = f"POST {target.path or '/'} HTTP/1.1\r\nHost: {target.netloc}\r\n"
        for n in range(requests):
            body = f'{{"padding":"{padding}","n":{n:010}}}'.encode()
            message = f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body
            tally.sent += 1
            since = monotonic()
            try:
                connection.sendall(message)
                status, answer = _read_answer(connection)
            except TimeoutError:
                break
            tally.count(since, body, status, answer)
            if not status:
                break
    return tally.figures(monotonic() - begin)


def _read_answer(connection: socket.socket) -> tuple[int, bytes]:
    received = b""
    while True:
        some = connection.recv(_RECEIVE)
        if not some:
            return 0, b""
        received += some
        head, found, answer = received.partition(b"\r\n\r\n")
        if found:
            length = int(head.lower().partition(b"\r\ncontent-length:")[2].split(b"\r\n")[0] or 0)
            if len(answer) >= length:
                return int(head[9:12]), answer[:length]
