"""A connection to one Redis: what commands and subscriptions have in common.

redis-py opens it. The transport is then taken from it, because redis-py's client needs several
coroutines for each reply or message, which take as much CPU time as all the rest.
"""

from __future__ import annotations

import asyncio
import logging
from abc import abstractmethod
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from math import inf
from typing import TYPE_CHECKING, Any, cast

import hiredis

from gateway import background
from gateway.clock import monotonic
from gateway.errors import Unanswered

if TYPE_CHECKING:
    from gateway.stores.redis_client import Client

log = logging.getLogger(__name__)


class InvalidReply(Unanswered):
    """What the server has sent is no reply, or one to no command."""


class Connection(asyncio.Protocol):
    """Stays connected until `stop`; `connect` makes the client that opens a connection."""

    def __init__(self, connect: Callable[[], Client], name: str):
        self._connect = connect
        self._name = name
        #: What is wrong with the server, in words; empty while it can be used, or soon again.
        self.error = "not connected yet"
        #: Is the server a node of a cluster? None: that is not known yet.
        self.clustered: bool | None = None
        self.host = ""
        self._since = inf  # when the connection was opened (monotonic); inf: it is not open yet
        self._transport: asyncio.Transport | None = None
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        self.open()

    def open(self) -> None:
        """Begin to connect."""
        self._loop = asyncio.get_running_loop()
        self._task = background.start(self._keep_connected(), self._name)

    async def stop(self) -> None:
        await background.stop(self._task)

    @abstractmethod
    async def _keep_connected(self) -> None:
        """Use one connection after the other."""

    @abstractmethod
    def _receive(self, reply: Any) -> None:
        """Take a reply or a message; raises `InvalidReply` for one that nothing asked for."""

    @asynccontextmanager
    async def _connected(self, patience: float) -> AsyncIterator[Client]:
        """Open a connection within `patience` seconds, and close it at the end.

        Raises one of `gateway.stores.server.LOST`.
        """
        client = self._connect()
        self._since, self._lost = inf, self._loop.create_future()
        try:
            async with asyncio.timeout(patience):
                writer, self.clustered, self.host = await client.opened()
            self._reader = hiredis.Reader(protocolError=InvalidReply)
            transport = cast(asyncio.Transport, writer.transport)
            transport.set_protocol(self)
            if transport.is_closing():
                raise ConnectionError("the connection is lost already")
            self._transport, self._since = transport, monotonic()
            yield client
        finally:
            if self._transport is not None:
                self._transport.abort()  # `close` would wait for a frozen server
            self._transport = None
            await client.aclose()

    async def _lost_within(self, seconds: float) -> None:
        """Wait for `seconds`; raises the error with which the connection is lost meanwhile."""
        await asyncio.wait((self._lost,), timeout=seconds)
        if self._lost.done():
            raise self._lost.result()

    def _lose(self, exc: Exception) -> None:
        """Give the connection up because of `exc`."""
        if not self._lost.done():
            self._lost.set_result(exc)
        if self._transport is not None:
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        self._reader.feed(data)
        try:
            while (reply := self._reader.gets()) is not False:
                self._receive(reply)
        except InvalidReply as exc:
            self._lose(InvalidReply(f"an invalid reply of Redis: {exc}"))
        except Exception as exc:
            # Otherwise it would end `_keep_connected`, as the error of the connection.
            log.exception("%s: what Redis has sent could not be taken", self._name)
            self._lose(InvalidReply(f"an invalid reply of Redis: {exc!r}"))

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._lose(exc or ConnectionError("the server closed the connection"))
