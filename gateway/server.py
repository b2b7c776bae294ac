"""HTTP below RequestHandler: sockets, connections, messages, limits and draining.

Tornado parses and frames HTTP/1; what a request may be, and what happens when it is not,
is decided here. https://www.rfc-editor.org/rfc/rfc9112
"""

from __future__ import annotations

import asyncio
import logging
import re
import socket
import time
from collections.abc import Sequence
from contextlib import suppress
from http.client import responses
from time import monotonic

from tornado.http1connection import (
    HTTP1Connection,
    HTTP1ConnectionParameters,
    HTTP1ServerConnection,
)
from tornado.httputil import (
    HTTPHeaders,
    HTTPMessageDelegate,
    HTTPServerConnectionDelegate,
    RequestStartLine,
    ResponseStartLine,
)
from tornado.iostream import IOStream

from gateway import answer
from gateway.answer import Answer
from gateway.config import Config
from gateway.delivery import Request
from gateway.errors import (
    BadRequest,
    BodyTooLarge,
    BodyTooSlow,
    EncodingNotAccepted,
    HeaderTooLarge,
    RequestError,
    URITooLong,
)
from gateway.metrics import Metrics
from gateway.relay import Relay, Waiter

log = logging.getLogger(__name__)

#: Bytes of a refused body that are read and thrown away, so that the client sees the answer
#: and not a reset.
LINGER = 256 * 1024
#: Seconds that idle connections stay open while draining: nginx's upstream keepalive_timeout.
IDLE_DRAIN = 5.0
#: Header lines a request may have.
MAX_HEADERS = 256
#: Above our own limits, so that the answers are ours.
_PARSER_HEADER = 128 * 1024
_PARSER_BODY = 2**62

# RFC 9110, 7.2; user information and paths have no place in it.
_host = re.compile(
    r"[A-Za-z0-9._~%!$&'()*+,;=\-]*(:[0-9]*)?|\[[0-9A-Fa-f:.]+\](:[0-9]*)?"
).fullmatch


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
        self.config = config
        self.relay = relay
        self.metrics = metrics
        self.draining = False
        self.receiving: set[Exchange] = set()
        self._trusted = frozenset(config.trusted_proxies)
        self._sockets: list[socket.socket] = []
        self._connections: dict[object, HTTP1ServerConnection] = {}
        self._quiet = asyncio.Event()
        self._sweeper: asyncio.TimerHandle | None = None
        self._date = (0, "")
        self._parameters = HTTP1ConnectionParameters(
            max_header_size=_PARSER_HEADER,
            max_body_size=_PARSER_BODY,
            header_timeout=config.idle_timeout,
        )

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
        stream = Stream(connection, max_buffer_size=_PARSER_HEADER + self.config.max_body + LINGER)
        server_connection = HTTP1ServerConnection(stream, self._parameters, remote)
        self._connections[server_connection] = server_connection
        self.metrics.add("gateway_connections_open")
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
        return Exchange(self, request_conn)

    def on_close(self, server_conn: object) -> None:
        self._connections.pop(server_conn, None)
        self.metrics.add("gateway_connections_open", -1)
        if not self._connections:
            self._quiet.set()

    async def drain(self, grace: float) -> None:
        """Stop accepting, let idle connections finish, then wait `grace` seconds at the most."""
        self.draining = True
        loop = asyncio.get_running_loop()
        while self._sockets:
            listener = self._sockets.pop()
            loop.remove_reader(listener)
            # What the kernel has accepted by now is ours to answer.
            for _ in range(self.config.backlog):
                if not self._accept(listener):
                    break
            listener.close()
        if self._connections:
            self._quiet.clear()
            end = monotonic() + grace
            await self._until_quiet(min(IDLE_DRAIN, grace))
            while (self.relay.in_flight or self.receiving) and monotonic() < end:
                await self._until_quiet(0.05)
        for connection in list(self._connections.values()):
            await connection.close()

    async def _until_quiet(self, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._quiet.wait()

    def receive(self, exchange: Exchange) -> None:
        """Watch that the body of `exchange` arrives in time."""
        self.receiving.add(exchange)
        if self._sweeper is None:
            self._sweeper = asyncio.get_running_loop().call_later(0.5, self._sweep)

    def _sweep(self) -> None:
        overdue = monotonic() - self.config.body_timeout
        for exchange in [e for e in self.receiving if e.arrived < overdue]:
            exchange.late()
        self._sweeper = None
        if self.receiving:
            self._sweeper = asyncio.get_running_loop().call_later(0.5, self._sweep)

    def remote(self, peer: str, headers: HTTPHeaders) -> str:
        """Return the sender's address: a trusted proxy's word for it, else the peer's own."""
        if peer in self._trusted:
            for address in reversed(headers.get("X-Forwarded-For", "").split(",")):
                if (address := address.strip()) and address not in self._trusted:
                    return address
        return peer

    def date(self) -> str:
        """Return the Date header's value; RFC 9110, 6.6.1."""
        now = int(time.time())
        if self._date[0] != now:
            self._date = now, time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime(now))
        return self._date[1]


class Exchange(HTTPMessageDelegate):
    """One request and its answer on a connection."""

    __slots__ = (
        "_body", "_connection", "_headers", "_server", "_size", "_start", "_waiter", "answered",
        "arrived",
    )  # fmt: skip

    def __init__(self, server: Server, connection: HTTP1Connection):
        self._server = server
        self._connection = connection
        self._waiter: Waiter | None = None
        self._body: list[bytes] = []
        self._size = 0
        self.answered = False
        self.arrived = monotonic()

    def headers_received(self, start_line: RequestStartLine, headers: HTTPHeaders) -> None:
        self.arrived = monotonic()
        self._start, self._headers = start_line, headers
        self._server.receive(self)
        try:
            self._check(start_line, headers)
        except RequestError as error:
            self.refuse(error)
            if "Expect" in headers:  # the body has not been sent: there is nothing to read
                self._close()

    def _check(self, start_line: RequestStartLine, headers: HTTPHeaders) -> None:
        """Refuse what need not be read any further."""
        config = self._server.config
        if len(start_line.path) > config.max_header:
            raise URITooLong
        size = count = 0
        for name, value in headers.get_all():
            size += len(name) + len(value) + 4
            count += 1
        if size > config.max_header or count > MAX_HEADERS:
            raise HeaderTooLarge
        hosts = headers.get_list("Host")
        if len(hosts) != 1 and (hosts or start_line.version == "HTTP/1.1"):
            raise BadRequest("One Host header is needed.")
        if hosts and not _host(hosts[0]):
            raise BadRequest("The Host header is malformed.")
        length = headers.get("Content-Length", "")
        # One that is malformed is the parser's to refuse, as is one beyond any number of bytes.
        if re.fullmatch("[0-9]{1,20}", length) and int(length) > config.max_body:
            raise BodyTooLarge(f"The body is over {config.max_body} bytes.")
        if headers.get("Content-Encoding", "identity").lower() != "identity":
            raise EncodingNotAccepted

    def data_received(self, chunk: bytes) -> None:
        self._size += len(chunk)
        if self.answered:
            if self._size > LINGER:
                self._close()
        elif self._size > self._server.config.max_body:
            self._body.clear()
            self._size = 0
            self.refuse(BodyTooLarge(f"The body is over {self._server.config.max_body} bytes."))
        else:
            self._body.append(chunk)

    def finish(self) -> None:
        self._server.receiving.discard(self)
        if self.answered:
            self._finish(close=True)
            return
        path, _, query = self._start.path.partition("?")
        request = Request(
            method=self._start.method,
            path=path,
            query_string=query,
            # RFC 9110, 5.3; Tornado joins with a bare comma.
            headers={
                name.lower(): ", ".join(self._headers.get_list(name)) for name in self._headers
            },
            body=self._body[0] if len(self._body) == 1 else b"".join(self._body),
            remote=self._server.remote(self._connection.context, self._headers),
            arrived=self.arrived,
            received_at=time.time(),
        )
        self._body.clear()
        self._waiter = self._server.relay.relay(request, self.respond)
        if self._waiter is not None and not self.answered:
            self._connection.set_close_callback(self.on_connection_close)

    def on_connection_close(self) -> None:
        self._server.receiving.discard(self)
        waiter, self._waiter = self._waiter, None
        if waiter is not None:
            waiter.cancel()

    def late(self) -> None:
        """End a request whose body does not arrive."""
        if not self.answered:
            self.refuse(BodyTooSlow())
        self._close()

    def refuse(self, error: RequestError) -> None:
        """Answer before the body is read; the connection ends with it."""
        self._server.metrics.answered("", error.status, monotonic() - self.arrived)
        self._write(answer.of_error(error), close=True)

    def respond(self, given: Answer) -> None:
        """Answer a complete request."""
        close = self._server.draining
        self._write(given, close)
        self._finish(close)

    def _write(self, given: Answer, close: bool) -> None:
        self.answered = True
        self._waiter = None
        headers = HTTPHeaders(given.headers)
        headers["Date"] = self._server.date()
        if given.status not in (204, 304):
            headers["Content-Length"] = str(len(given.body))
        if given.content_type:
            headers["Content-Type"] = given.content_type
        if close:
            headers["Connection"] = "close"
        start = ResponseStartLine("", given.status, responses.get(given.status, "Unknown"))
        body = b"" if self._start.method == "HEAD" else given.body
        self._connection.write_headers(start, headers, body)

    def _finish(self, close: bool) -> None:
        if close:  # Tornado closes by itself only what it has not read to its end
            self._connection._disconnect_on_finish = True
        self._connection.finish()

    def _close(self) -> None:
        self._server.receiving.discard(self)
        self._connection.finish()
