"""One HTTP request and its answer: checks, limits and the bytes of the answer.

Tornado parses and frames HTTP/1. This module decides which requests are accepted, and how the
others are answered. https://www.rfc-editor.org/rfc/rfc9112
"""

from __future__ import annotations

import math
import zlib
from functools import partial
from http.client import responses
from time import gmtime, strftime

from tornado.httputil import HTTPMessageDelegate, RequestStartLine

from gateway.answer import Answer
from gateway.clock import monotonic, time
from gateway.config.settings import Config
from gateway.delivery import Request
from gateway.errors import BadRequest, BodyTooLarge, BodyTooSlow, Full, RequestError
from gateway.http import head
from gateway.http.connection import Connection, Headers
from gateway.http.head import Proxies
from gateway.http.stream import RequestRefused, Stream
from gateway.metric_table import ACTIVE
from gateway.metrics import Metrics
from gateway.relay.in_flight import InFlight, Respond
from gateway.relay.relay import Relay

#: Bytes of memory that a header field, and a piece of a body, need beside their own bytes.
FIELD, PIECE = 128, 64
#: The start line and the fields as long as none have arrived.
_NO_START, _NO_HEADERS = RequestStartLine("-", "-", ""), Headers()


class Shared:
    """State that all requests of a process share.

    While it is ``full`` of connections, or ``draining``, each answer ends its connection.
    """

    def __init__(self, config: Config, relay: Relay, metrics: Metrics):
        self.config = config
        self.relay = relay
        self.metrics = metrics
        self.proxies = Proxies(config.trusted_proxies)
        self.full = self.draining = False
        self._second = 0
        self._starts: dict[int, str] = {}

    def start_of(self, status: int) -> str:
        """Return an answer's first lines, with the Date; RFC 9110, 6.6.1."""
        now = int(time())
        if self._second != now:
            self._second = now
            self._starts.clear()
        start = self._starts.get(status)
        if start is None:
            date = strftime("%a, %d %b %Y %H:%M:%S GMT", gmtime(now))
            start = f"HTTP/1.1 {status} {responses.get(status, 'Unknown')}\r\nDate: {date}\r\n"
            self._starts[status] = start
        return start


class ReceivedRequest(HTTPMessageDelegate):
    """One request and its answer on a connection."""

    __slots__ = (
        "_complete", "_connection", "_headers", "_length", "_pieces", "_shared", "_start",
        "_in_flight", "_stream", "answered", "arrived",
    )  # fmt: skip

    def __init__(self, shared: Shared, stream: Stream, connection: Connection):
        self._shared = shared
        self._stream = stream
        self._connection = connection
        self._start = _NO_START
        self._headers = _NO_HEADERS
        self._in_flight: InFlight | None = None
        self._pieces: list[bytes] = []
        self._length = 0
        self._complete = False
        self.answered = False
        self.arrived = 0.0

    def headers_received(  # type: ignore[override] # what our `Connection` gives
        self, start_line: RequestStartLine, headers: Headers
    ) -> None:
        self.arrived = now = monotonic()
        self._shared.metrics.add(ACTIVE)
        self._start, self._headers = start_line, headers
        stream, config = self._stream, self._shared.config
        stream.receiving = True
        stream.deadline = now + config.body_timeout
        try:
            length = head.check(start_line, headers, config)
            # If the body is here already, the request is refused later, and the connection stays
            # open. Otherwise it is refused now, so that the body need not be waited for.
            if length is None or length > stream.size:
                path, _ = head.split_target(start_line.path)
                missing = length - stream.size if length else 0  # the rest is counted already
                self._shared.relay.expect(start_line.method, path, missing)
        except RequestError as error:
            raise RequestRefused(error) from error

    def data_received(self, chunk: bytes) -> None:
        limit = self._shared.config.max_body
        self._length += len(chunk)
        if self._length > limit:
            raise RequestRefused(BodyTooLarge(f"The body is over {limit} bytes."))
        if self._pieces:  # nearly all bodies arrive in one piece
            self._stream.hold(PIECE)
        # A growing buffer would be moved in memory, which fragments it.
        self._pieces.append(chunk)

    def finish(self) -> None:
        # Its deadline has passed, or the client has left, in this turn of the loop.
        if self.answered or self._stream.closed():
            return
        self._complete = True
        self._stream.deadline = math.inf  # the relay has its own deadline
        try:
            request = self._request(self._stream.hand_on())
        except RequestError as error:
            self._refuse(error, self.respond)
            return
        in_flight = self._shared.relay.relay(request, self.respond)
        if in_flight is not None and not self.answered:
            self._in_flight, in_flight.half_closed = in_flight, self._stream.half_closed

    def _request(self, size: int) -> Request:
        """Make a request from the header and body, which were received as `size` bytes."""
        shared, headers = self._shared, self._headers
        path, query = head.split_target(self._start.path)
        body = b"".join(self._pieces)
        self._pieces.clear()
        size += FIELD * len(headers)
        raw_body = b""
        if dict.get(headers, "content-encoding", "identity").lower() != "identity":
            raw_body, body = body, gunzip(body, shared.config.max_body)
            size += len(body)
            for name in ("content-encoding", "content-length"):  # they no longer apply
                headers.pop(name, None)
        return Request(
            method=self._start.method,
            path=path,
            query_string=query,
            headers=headers,
            body=body,
            remote=self._remote(),
            arrived=self.arrived,
            received_at=time(),
            size=size,
            raw_body=raw_body,
        )

    def on_half_close(self) -> None:
        if self._in_flight is not None:
            self._in_flight.half_closed = True

    def on_connection_close(self) -> None:
        in_flight, self._in_flight = self._in_flight, None
        if in_flight is not None:
            in_flight.guarded(in_flight.cancel)

    def timed_out(self) -> None:
        """End a request that has not arrived in time."""
        if not self.answered:
            part = "header" if self._start is _NO_START else "body"
            self._stream.refuse(RequestRefused(BodyTooSlow(f"The {part} did not arrive in time.")))
        self._stream.close()

    def overloaded(self) -> None:
        """End a request for which there is no room, or a client that sends ahead of its answer."""
        if self._complete:
            self._stream.abort()
        else:
            self._stream.refuse(RequestRefused(Full()))
            self._stream.close()

    def refuse(self, error: RequestError) -> None:
        """Answer before the request is read to its end; the connection ends after that."""
        if not self.answered:
            self._pieces.clear()
            self._refuse(error, partial(self._write, connection="close"))

    def _refuse(self, error: RequestError, respond: Respond) -> None:
        path, _ = head.split_target(self._start.path)
        arrived = self.arrived or monotonic()
        about = (self._start.method, path, "", self._headers, b"", self._remote(), arrived, time())
        self._shared.relay.refuse(Request(*about, whole=False), error, respond)

    def _remote(self) -> str:
        """Return the sender's address; that of its proxy, as long as no header has come."""
        forwarded_for = dict.get(self._headers, "x-forwarded-for", "")
        return self._shared.proxies.sender(self._connection.remote, forwarded_for)

    def ended(self) -> None:
        """Stop counting the request, which is answered or has lost its connection."""
        if self.arrived:
            self._shared.metrics.add(ACTIVE, -1)

    def respond(self, answer: Answer) -> None:
        """Answer a complete request, unless an answer has been written."""
        if self.answered:
            return
        connection, shared = self._connection, self._shared
        last = connection.last or shared.full or shared.draining or head.is_last(self._headers)
        kept = "keep-alive" if self._start.version == "HTTP/1.0" else ""
        self._write(answer, "close" if last else kept)
        connection.end(last)

    def _write(self, answer: Answer, connection: str) -> None:
        lines = self._shared.start_of(answer.status)
        for name, value in answer.headers.items():
            lines += f"{name}: {value}\r\n"
        if answer.status not in (204, 304):
            lines += f"Content-Length: {len(answer.body)}\r\n"
        if answer.content_type:
            lines += f"Content-Type: {answer.content_type}\r\n"
        if connection:
            lines += f"Connection: {connection}\r\n"
        data = f"{lines}\r\n".encode("latin1")
        if self._start.method != "HEAD":
            data += answer.body
        self.answered = True
        self._in_flight = None
        self._stream.send(data)
        # Until then the client has to read the answer and to send its next request.
        self._stream.deadline = monotonic() + self._shared.config.idle_timeout


#: The most gzip members that a body may have: many small ones cost much time for few bytes.
MAX_MEMBERS = 100
# With 16 added, zlib expects gzip's header and checksum.
_GZIP = 16 + zlib.MAX_WBITS


def gunzip(body: bytes, limit: int) -> bytes:
    """Return the decompressed content of all members of `body`.

    Raises `BodyTooLarge` beyond `limit` bytes, and `BadRequest` where a member is damaged or cut
    off, or is followed by other data.
    """
    # In pieces, so that at most one piece beyond the limit is decompressed.
    most = max(64 * 1024, limit // 16)
    pieces: list[bytes] = []
    size = 0
    for _ in range(MAX_MEMBERS):
        member = zlib.decompressobj(_GZIP)
        while not member.eof:
            try:
                piece = member.decompress(body, most)
            except zlib.error as exc:
                raise BadRequest("The body is not valid gzip.") from exc
            size += len(piece)
            if size > limit:
                raise BodyTooLarge(f"The body is over {limit} bytes when decompressed.")
            body = member.unconsumed_tail
            if not (piece or body or member.eof):
                raise BadRequest("The gzip body is cut off.")
            pieces.append(piece)
        body = member.unused_data
        if not body:
            return b"".join(pieces)
    raise BadRequest(f"The body has more than {MAX_MEMBERS} gzip members.")
