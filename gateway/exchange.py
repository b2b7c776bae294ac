"""HTTP messages below RequestHandler: one request and its answer, and what they may be.

Tornado parses and frames HTTP/1; what a request may be, and what happens when it is not,
is decided here. https://www.rfc-editor.org/rfc/rfc9112
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from http.client import responses
from ipaddress import ip_address, ip_network
from time import monotonic

from tornado.http1connection import HTTP1Connection
from tornado.httputil import (
    HTTPHeaders,
    HTTPMessageDelegate,
    RequestStartLine,
    ResponseStartLine,
)

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
#: Seconds between looks at bodies that do not arrive.
SWEEP = 0.5
#: Header lines a request may have.
MAX_HEADERS = 256

# RFC 9110, 7.2; user information and paths have no place in it.
_host = re.compile(
    r"[A-Za-z0-9._~%!$&'()*+,;=\-]*(:[0-9]*)?|\[[0-9A-Fa-f:.]+\](:[0-9]*)?"
).fullmatch


class Exchanges:
    """What all exchanges of a process share; once `closing`, each answer ends its connection."""

    def __init__(self, config: Config, relay: Relay, metrics: Metrics):
        self.config = config
        self.relay = relay
        self.metrics = metrics
        self.closing = False
        self.receiving: set[Exchange] = set()
        self._networks = [ip_network(text) for text in config.trusted_proxies]
        self._trusts: dict[str, bool] = {}
        self._sweeper: asyncio.TimerHandle | None = None
        self._date = (0, "")

    @property
    def under_way(self) -> bool:
        return bool(self.relay.in_flight or self.receiving)

    def receive(self, exchange: Exchange) -> None:
        """Watch that the body of `exchange` arrives in time."""
        self.receiving.add(exchange)
        if self._sweeper is None:
            self._sweeper = asyncio.get_running_loop().call_later(SWEEP, self._sweep)

    def _sweep(self) -> None:
        overdue = monotonic() - self.config.body_timeout
        self._sweeper = None
        for exchange in [e for e in self.receiving if e.arrived < overdue]:
            exchange.late()
        if self.receiving:
            self._sweeper = asyncio.get_running_loop().call_later(SWEEP, self._sweep)

    def remote(self, peer: str, headers: HTTPHeaders) -> str:
        """Return the sender's address: a trusted proxy's word for it, else the peer's own."""
        if self._trusted(peer):
            for address in reversed(headers.get("X-Forwarded-For", "").split(",")):
                if (address := address.strip()) and not self._trusted(address):
                    return address
        return peer

    def _trusted(self, address: str) -> bool:
        known = self._trusts.get(address)
        if known is None:
            if len(self._trusts) > 1_000:  # addresses may be made up
                self._trusts.clear()
            known = self._trusts[address] = self._in_a_network(address)
        return known

    def _in_a_network(self, text: str) -> bool:
        try:
            address = ip_address(text)
        except ValueError:
            return False
        # A dual-stack socket's IPv4 peers.
        address = getattr(address, "ipv4_mapped", None) or address
        return any(address in network for network in self._networks)

    def date(self) -> str:
        """Return the Date header's value; RFC 9110, 6.6.1."""
        now = int(time.time())
        if self._date[0] != now:
            self._date = now, time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime(now))
        return self._date[1]


class Exchange(HTTPMessageDelegate):
    """One request and its answer on a connection."""

    __slots__ = (
        "_body", "_connection", "_headers", "_shared", "_size", "_start", "_waiter", "answered",
        "arrived",
    )  # fmt: skip

    def __init__(self, shared: Exchanges, connection: HTTP1Connection):
        self._shared = shared
        self._connection = connection
        self._waiter: Waiter | None = None
        self._body: list[bytes] = []
        self._size = 0
        self.answered = False
        self.arrived = monotonic()

    def headers_received(self, start_line: RequestStartLine, headers: HTTPHeaders) -> None:
        self.arrived = monotonic()
        self._start, self._headers = start_line, headers
        self._shared.receive(self)
        try:
            self._check(start_line, headers)
        except RequestError as error:
            self.refuse(error)
            if "Expect" in headers:  # the body has not been sent: there is nothing to read
                self._close()

    def _check(self, start_line: RequestStartLine, headers: HTTPHeaders) -> None:
        """Refuse what need not be read any further."""
        config = self._shared.config
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
        elif self._size > self._shared.config.max_body:
            self._body.clear()
            self._size = 0
            self.refuse(BodyTooLarge(f"The body is over {self._shared.config.max_body} bytes."))
        else:
            self._body.append(chunk)

    def finish(self) -> None:
        self._shared.receiving.discard(self)
        if self.answered:
            self._finish(close=True)
            return
        try:
            self._waiter = self._shared.relay.relay(self._request(), self.respond)
        except Exception:
            log.exception("a request could not be relayed")
            self.refuse(RequestError())
            self._finish(close=True)
            return
        if self._waiter is not None and not self.answered:
            self._connection.set_close_callback(self.on_connection_close)

    def _request(self) -> Request:
        target = self._start.path
        if target.startswith(("http://", "https://")):  # RFC 9112, 3.2.2: the absolute form
            target = "/" + target.split("/", 3)[3] if target.count("/") > 2 else "/"
        path, _, query = target.partition("?")
        # RFC 9110, 5.3; Tornado joins with a bare comma.
        headers = {name.lower(): ", ".join(self._headers.get_list(name)) for name in self._headers}
        body = self._body[0] if len(self._body) == 1 else b"".join(self._body)
        self._body.clear()
        return Request(
            method=self._start.method,
            path=path,
            query_string=query,
            headers=headers,
            body=body,
            remote=self._shared.remote(self._connection.context, self._headers),
            arrived=self.arrived,
            received_at=time.time(),
        )

    def on_connection_close(self) -> None:
        self._shared.receiving.discard(self)
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
        self._shared.metrics.answered("", error.status, monotonic() - self.arrived)
        self._write(answer.of_error(error, self._shared.relay.delivery_id()), close=True)

    def respond(self, given: Answer) -> None:
        """Answer a complete request."""
        close = self._shared.closing
        self._write(given, close)
        self._finish(close)

    def _write(self, given: Answer, close: bool) -> None:
        self.answered = True
        self._waiter = None
        headers = HTTPHeaders(given.headers)
        headers["Date"] = self._shared.date()
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
        self._shared.receiving.discard(self)
        self._connection.finish()
