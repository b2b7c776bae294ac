"""Bytes to and from a server, be it a real one or a model, for the contract suites.

A scenario is a plain function. With a real server, its bytes go through a socket. With a model they
are handed over, and the time that it waits is virtual.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from random import Random
from typing import Any, Protocol
from urllib.parse import urlsplit

from tests.simulation.loop import Loop, Party
from tests.simulation.wire import Server

PATIENCE = 20.0  # seconds until an answer has to be there


class Link(Protocol):
    """A client's connection."""

    def send(self, data: bytes) -> None: ...

    def receive(self, seconds: float = PATIENCE) -> bytes:
        """Return what has come, empty at the end; raises TimeoutError."""

    def close(self) -> None:
        """End it without a word."""


class Carrier(Protocol):
    """Connects to one server, and waits as it is done with it."""

    def connect(self) -> Link: ...

    def pause(self, seconds: float) -> None: ...

    def now(self) -> float:
        """Return monotonic seconds."""


def until(carrier: Carrier, true: Callable[[], bool], every: float = 0.02) -> None:
    """Wait until something is so that no message tells of; it is looked `every` so many seconds."""
    end = carrier.now() + PATIENCE
    while not true():
        assert carrier.now() < end, "it does not come true"
        carrier.pause(every)


class _Socket:
    def __init__(self, url: str):
        parts = urlsplit(url)
        assert parts.hostname and parts.port
        self._sock = socket.create_connection((parts.hostname, parts.port), PATIENCE)

    def send(self, data: bytes) -> None:
        self._sock.sendall(data)

    def receive(self, seconds: float = PATIENCE) -> bytes:
        self._sock.settimeout(seconds)
        try:
            return self._sock.recv(1 << 20)
        except ConnectionResetError:
            return b""

    def close(self) -> None:
        self._sock.close()


class Sockets:
    """The connections to a real server."""

    def __init__(self, url: str):
        self._url = url
        self._links: list[_Socket] = []

    def connect(self) -> Link:
        self._links.append(_Socket(self._url))
        return self._links[-1]

    def pause(self, seconds: float) -> None:
        time.sleep(seconds)

    def now(self) -> float:
        return time.monotonic()

    def close(self) -> None:
        for link in self._links:
            link.close()


class _Handed:
    """A client's connection to a model."""

    def __init__(self, loop: Loop, server: Server):
        self.loop = loop
        self.received, self.ended = b"", False
        self._peer = server.accept(_Wire(self))

    def send(self, data: bytes) -> None:
        if not self.ended:
            self._peer.received(data)

    def receive(self, seconds: float = PATIENCE) -> bytes:
        if not (self.received or self.ended):
            timer = self.loop.call_later(seconds, self.loop.halt)
            self.loop.run()
            timer.cancel()
            if not (self.received or self.ended):
                raise TimeoutError
        data, self.received = self.received, b""
        return data

    def close(self) -> None:
        if not self.ended:
            self.ended = True
            self._peer.lost()


class _Wire:
    """The model's end of it."""

    def __init__(self, link: _Handed):
        self._link = link

    def write(self, data: bytes) -> None:
        if not self._link.ended:
            self._link.received += data
            self._link.loop.halt()

    def close(self) -> None:
        self._link.ended = True
        self._link.loop.halt()

    abort = close


class Handed:
    """The connections to a model, which lives in a loop of its own."""

    def __init__(self) -> None:
        self.loop = Loop(Random("contract"), self._failed)
        self.server: Any = None

    def _failed(self, _: Party, context: dict[str, Any]) -> None:
        raise AssertionError(context["message"]) from context.get("exception")

    def connect(self) -> Link:
        return _Handed(self.loop, self.server)

    def pause(self, seconds: float) -> None:
        self.loop.call_later(seconds, self.loop.halt)
        self.loop.run()

    def now(self) -> float:
        return self.loop.time()


@contextmanager
def handed(make: Callable[[Loop, Random], Server]) -> Iterator[Handed]:
    """Give a model that is made by `make` of a clock and a random source."""
    carrier = Handed()
    carrier.server = make(carrier.loop, Random("contract"))
    try:
        yield carrier
    finally:
        carrier.loop.close()


@contextmanager
def sockets(url: str) -> Iterator[Sockets]:
    """Give the connections to the real server at `url`."""
    carrier = Sockets(url)
    try:
        yield carrier
    finally:
        carrier.close()
