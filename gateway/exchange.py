"""HTTP messages below RequestHandler: one request and its answer, and what they may be.

Tornado parses and frames HTTP/1; what a request may be, and what happens when it is not,
is decided here. https://www.rfc-editor.org/rfc/rfc9112
"""

from __future__ import annotations

import logging
import math
import re
import time
from http.client import responses
from time import monotonic

from tornado.httputil import HTTPMessageDelegate, RequestStartLine

from gateway import answer
from gateway.answer import Answer
from gateway.config import Config
from gateway.decompression import gunzip
from gateway.delivery import Request
from gateway.errors import (
    BadRequest,
    BodyTooLarge,
    BodyTooSlow,
    EncodingNotAccepted,
    RequestError,
)
from gateway.http1 import Connection, Headers
from gateway.metrics import Metrics
from gateway.proxies import Proxies
from gateway.read_buffer import Refused
from gateway.relay import Relay, Waiter
from gateway.stream import Stream

log = logging.getLogger(__name__)

_VERSIONS = ("HTTP/1.1", "HTTP/1.0")
# RFC 9110, 7.2; user information and paths have no place in it.
_host = re.compile(
    r"[A-Za-z0-9._~%!$&'()*+,;=\-]*(:[0-9]*)?|\[[0-9A-Fa-f:.]+\](:[0-9]*)?"
).fullmatch
# What a number of bytes may be: no more digits than any memory has.
_length = re.compile(r"[0-9]{1,18}").fullmatch


class Exchanges:
    """What all exchanges of a process share; once `closing`, each answer ends its connection."""

    def __init__(self, config: Config, relay: Relay, metrics: Metrics):
        self.config = config
        self.relay = relay
        self.metrics = metrics
        self.proxies = Proxies(config.trusted_proxies)
        self.closing = False
        self._second = 0
        self._starts: dict[int, str] = {}

    def start_of(self, status: int) -> str:
        """Return an answer's first lines, with the Date; RFC 9110, 6.6.1."""
        now = int(time.time())
        if self._second != now:
            self._second = now
            self._starts.clear()
        start = self._starts.get(status)
        if start is None:
            date = time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime(now))
            start = f"HTTP/1.1 {status} {responses.get(status, 'Unknown')}\r\nDate: {date}\r\n"
            self._starts[status] = start
        return start


class Exchange(HTTPMessageDelegate):
    """One request and its answer on a connection."""

    __slots__ = (
        "_body", "_connection", "_headers", "_shared", "_start", "_stream", "_waiter", "answered",
        "arrived",
    )  # fmt: skip

    def __init__(self, shared: Exchanges, stream: Stream, connection: Connection):
        self._shared = shared
        self._stream = stream
        self._connection = connection
        self._start: RequestStartLine | None = None
        self._waiter: Waiter | None = None
        self._body: bytes | bytearray = b""
        self.answered = False
        self.arrived = 0.0

    def headers_received(self, start_line: RequestStartLine, headers: Headers) -> None:
        self.arrived = now = monotonic()
        self._start, self._headers = start_line, headers
        stream, config = self._stream, self._shared.config
        stream.receiving = True
        stream.deadline = now + config.body_timeout
        try:
            _check(start_line, headers, config)
        except RequestError as error:
            raise Refused(error) from error

    def data_received(self, chunk: bytes) -> None:
        if not self._body:  # nearly all bodies come whole
            self._body = chunk
        else:
            if isinstance(self._body, bytes):
                self._body = bytearray(self._body)
            self._body += chunk
        limit = self._shared.config.max_body
        if len(self._body) > limit:
            raise Refused(BodyTooLarge(f"The body is over {limit} bytes."))

    def finish(self) -> None:
        if self.answered:  # it was late, by a turn of the loop
            return
        self._stream.deadline = math.inf  # the relay has its own
        try:
            request = self._request()
        except RequestError as error:
            self._shared.metrics.answered("", error.status, monotonic() - self.arrived)
            self.respond(answer.of_error(error, self._shared.relay.delivery_id()))
            return
        try:
            waiter = self._shared.relay.relay(request, self.respond)
        except Exception:
            log.exception("a request could not be relayed")
            self.refuse(RequestError())
            self._connection.end(True)
            return
        if waiter is not None and not self.answered:
            self._waiter = waiter
            self._connection.set_close_callback(self.on_connection_close)

    def _request(self) -> Request:
        shared, headers = self._shared, self._headers
        target = self._start.path
        if target.startswith(("http://", "https://")):  # RFC 9112, 3.2.2: the absolute form
            target = "/" + target.split("/", 3)[3] if target.count("/") > 2 else "/"
        path, _, query = target.partition("?")
        body, self._body = bytes(self._body), b""
        if dict.get(headers, "content-encoding", "identity").lower() != "identity":
            body = gunzip(body, shared.config.max_body)
            for name in ("content-encoding", "content-length"):  # the task gets neither
                headers.pop(name, None)
        return Request(
            method=self._start.method,
            path=path,
            query_string=query,
            headers=headers,
            body=body,
            remote=shared.proxies.sender(
                self._connection.context, dict.get(headers, "x-forwarded-for", "")
            ),
            arrived=self.arrived,
            received_at=time.time(),
        )

    def on_connection_close(self) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None:
            waiter.cancel()

    def late(self) -> None:
        """End a request that does not arrive in time."""
        if not self.answered:
            part = "header" if self._start is None else "body"
            self._stream.refuse(Refused(BodyTooSlow(f"The {part} did not arrive in time.")))
        self._stream.close()

    def refuse(self, error: RequestError) -> None:
        """Answer before the request is read to its end; the connection ends with it."""
        if self.answered:
            return
        seconds = monotonic() - self.arrived if self.arrived else 0.0
        self._shared.metrics.answered("", error.status, seconds)
        self._write(answer.of_error(error, self._shared.relay.delivery_id()), "close")

    def respond(self, given: Answer) -> None:
        """Answer a complete request."""
        connection = self._connection
        last = connection.last or self._shared.closing
        kept = "keep-alive" if self._start.version == "HTTP/1.0" else ""
        self._write(given, "close" if last else kept)
        connection.end(last)

    def _write(self, given: Answer, connection: str) -> None:
        head = self._shared.start_of(given.status)
        for name, value in given.headers.items():
            head += f"{name}: {value}\r\n"
        if given.status not in (204, 304):
            head += f"Content-Length: {len(given.body)}\r\n"
        if given.content_type:
            head += f"Content-Type: {given.content_type}\r\n"
        if connection:
            head += f"Connection: {connection}\r\n"
        data = f"{head}\r\n".encode("latin1")
        if self._start is None or self._start.method != "HEAD":
            data += given.body
        self.answered = True
        self._waiter = None
        self._stream.send(data)
        # For the client to take it, and to send its next request.
        self._stream.deadline = monotonic() + self._shared.config.idle_timeout


def _check(start_line: RequestStartLine, headers: Headers, config: Config) -> None:
    """Refuse what need not be read any further."""
    version = start_line.version
    if version not in _VERSIONS:
        raise BadRequest(f"{version} is not spoken here.")
    if not start_line.path.isascii():  # RFC 3986, 2
        raise BadRequest("The target has bytes that no URI has.")
    host = dict.get(headers, "host")
    if host is None:
        if version == "HTTP/1.1":
            raise BadRequest("A Host header is needed.")
    elif not _host(host):
        raise BadRequest("The Host header is malformed, or not the only one.")
    length = dict.get(headers, "content-length")
    if length is not None:
        if not _length(length):
            raise BadRequest("The Content-Length is no number of bytes.")
        if int(length) > config.max_body:
            raise BodyTooLarge(f"The body is over {config.max_body} bytes.")
    if "transfer-encoding" in headers and version == "HTTP/1.0":
        raise BadRequest("HTTP/1.0 has no Transfer-Encoding.")
    encoding = dict.get(headers, "content-encoding")
    if encoding is not None and encoding.lower() not in ("identity", "gzip", "x-gzip"):
        raise EncodingNotAccepted
