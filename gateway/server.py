"""Sockets and connections: accepting, handing on to exchanges, draining."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Sequence
from contextlib import suppress
from time import monotonic

from tornado.http1connection import (
    HTTP1Connection,
    HTTP1ConnectionParameters,
    HTTP1ServerConnection,
)
from tornado.httputil import HTTPServerConnectionDelegate
from tornado.iostream import IOStream

from gateway.config import Config
from gateway.exchange import LINGER, Exchange, Exchanges
from gateway.metrics import Metrics
from gateway.relay import Relay

log = logging.getLogger(__name__)

#: Seconds that idle connections stay open while draining: nginx's upstream keepalive_timeout.
IDLE_DRAIN = 5.0
#: Above our own limits, so that the answers are ours.
_PARSER_HEADER = 128 * 1024
_PARSER_BODY = 2**62


class Stream(IOStream):
    """Sends at once, always: toggling TCP_NODELAY costs two system calls an answer."""

    def __init__(self, connection: socket.socket, max_buffer_size: int):
        if connection.family != socket.AF_UNIX:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        super().__init__(connection, max_buffer_size=max_buffer_size)

    def set_nodelay(self, value: bool) -> None:
        pass


class Server(HTTPServerConnectionDelegate):
    """Accepts connections on inherited sockets and hands complete requests to the relay."""

    def __init__(self, config: Config, relay: Relay, metrics: Metrics):
        self._config = config
        self._metrics = metrics
        self._exchanges = Exchanges(config, relay, metrics)
        self._sockets: list[socket.socket] = []
        self._connections: dict[object, HTTP1ServerConnection] = {}
        self._quiet = asyncio.Event()
        self._parameters = HTTP1ConnectionParameters(
            max_header_size=_PARSER_HEADER,
            max_body_size=_PARSER_BODY,
            header_timeout=config.idle_timeout,
        )

    @property
    def draining(self) -> bool:
        return self._exchanges.closing

    def listen(self, sockets: Sequence[socket.socket]) -> None:
        """Accept on `sockets`, which are bound, listening and shared with other processes."""
        self._sockets = list(sockets)
        for listener in self._sockets:
            listener.setblocking(False)
            asyncio.get_running_loop().add_reader(listener, self._accept, listener)

    def _accept(self, listener: socket.socket) -> bool:
        """Accept one connection a turn: whoever is busy leaves the others to its siblings."""
        try:
            connection, address = listener.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return False
        except OSError as exc:
            self._pause(listener, exc)
            return False
        # A UNIX socket's peer is the proxy on this machine.
        remote = address[0] if connection.family != socket.AF_UNIX else "127.0.0.1"
        stream = Stream(connection, max_buffer_size=_PARSER_HEADER + self._config.max_body + LINGER)
        server_connection = HTTP1ServerConnection(stream, self._parameters, remote)
        self._connections[server_connection] = server_connection
        self._metrics.add("gateway_connections_open")
        server_connection.start_serving(self)
        return True

    def _pause(self, listener: socket.socket, exc: OSError) -> None:
        """Out of descriptors: stop asking for a moment, or the loop would spin."""
        log.error("cannot accept connections: %s", exc)
        loop = asyncio.get_running_loop()
        loop.remove_reader(listener)
        loop.call_later(0.5, self._resume, listener)

    def _resume(self, listener: socket.socket) -> None:
        if not self.draining:
            asyncio.get_running_loop().add_reader(listener, self._accept, listener)

    def start_request(self, server_conn: object, request_conn: HTTP1Connection) -> Exchange:
        return Exchange(self._exchanges, request_conn)

    def on_close(self, server_conn: object) -> None:
        self._connections.pop(server_conn, None)
        self._metrics.add("gateway_connections_open", -1)
        if not self._connections:
            self._quiet.set()

    async def drain(self, grace: float) -> None:
        """Stop accepting, let idle connections finish, then wait `grace` seconds at the most."""
        self._exchanges.closing = True
        loop = asyncio.get_running_loop()
        while self._sockets:
            listener = self._sockets.pop()
            loop.remove_reader(listener)
            # What the kernel has accepted by now is ours to answer.
            for _ in range(self._config.backlog):
                if not self._accept(listener):
                    break
            listener.close()
        if self._connections:
            self._quiet.clear()
            end = monotonic() + grace
            await self._until_quiet(min(IDLE_DRAIN, grace))
            while (self._exchanges.under_way or self._writing()) and monotonic() < end:
                await self._until_quiet(0.05)
        for connection in list(self._connections.values()):
            await connection.close()

    def _writing(self) -> bool:
        return any(connection.stream.writing() for connection in self._connections.values())

    async def _until_quiet(self, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._quiet.wait()
