"""Send HTTP requests to senders: no redirect is followed, and what is read is bounded.

A client for the Internet connects to no address of our own network. The address that was checked
is the one that is connected to, so a name cannot lead elsewhere in between.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property, partial
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import Any, NamedTuple

from tornado.httpclient import HTTPRequest
from tornado.netutil import Resolver
from tornado.simple_httpclient import SimpleAsyncHTTPClient

from gateway.errors import GatewayError

CONNECT, REQUEST = 4.0, 6.0  # seconds for the connection, and for all of a request
RESOLVE = 3.0  # seconds of those for the connection in which the name has to be resolved
#: Bytes of an answer's headers.
MAX_HEADERS = 16 * 1024
#: Addresses that stand for an IPv4 one in their last 32 bits: RFC 6052
_TRANSLATED = ip_network("64:ff9b::/96")
#: For protocols, RFC 6890, of translators within a network, RFC 8215, and of sites, RFC 3879; not
#: every version of Python knows them.
_LOCAL = ip_network("192.0.0.0/24"), ip_network("64:ff9b:1::/48"), ip_network("fec0::/10")


class NotSent(GatewayError):
    """The server has got nothing of the request; ``after``: seconds until it may be sent again."""

    after = 0.0


class NotAllowed(NotSent):
    """The URL leads to where nothing may be sent."""


class NotKnown(GatewayError):
    """There is no answer, so it is not known whether the server has got the request."""


class Response(NamedTuple):
    """A server's answer; names of headers are in lower case."""

    status: int
    headers: dict[str, str]
    body: bytes


class HttpClient:
    """Sends requests, and reads answers of at most `max_body` bytes.

    If it is `public`, it connects to addresses of the Internet only.
    """

    def __init__(self, max_body: int, public: bool = True):
        self._max_body, self._public = max_body, public

    @cached_property
    def _resolver(self) -> _Checked:
        made: _Checked = _Checked(public=self._public)  # a Resolver of any class, to mypy
        return made

    @cached_property
    def _client(self) -> SimpleAsyncHTTPClient:
        # Made when it is used, as it belongs to the loop that is running.
        return SimpleAsyncHTTPClient(
            force_instance=True,
            max_clients=1_000,
            resolver=self._resolver,
            max_body_size=self._max_body,
            max_header_size=MAX_HEADERS,
        )

    def close(self) -> None:
        if "_client" in vars(self):
            self._client.close()
            self._resolver.close()

    async def fetch(self, method: str, url: str, headers: dict[str, str], body: bytes) -> Response:
        """Send a request and return the answer, whatever its status; a GET has no body.

        Raises `NotSent` and `NotKnown`; their texts have no URL, which may have a secret.
        """
        sent = []

        def write(write_body: Callable[[bytes], Any]) -> Any:
            sent.append(True)  # connected, TLS included: from here on it may arrive
            return write_body(body)

        request = HTTPRequest(
            url,
            method,
            {**headers, "Content-Length": str(len(body))} if method != "GET" else headers,
            body_producer=write if method != "GET" else None,
            connect_timeout=CONNECT,
            request_timeout=REQUEST,
            follow_redirects=False,
            decompress_response=False,
            user_agent="celery-gateway",
        )
        try:
            found = await self._client.fetch(request, raise_error=False)
        except NotSent:
            raise
        # A library for HTTP, TLS and names can raise much.
        except Exception as exc:
            reason = f"{type(exc).__name__}: {str(exc) or 'no answer'}"
            raise (NotKnown if sent else NotSent)(reason) from exc
        names = {name.lower(): value for name, value in found.headers.get_all()}
        return Response(found.code, names, found.body)


class _Checked(Resolver):
    """Resolves names to public addresses, or unless `public` to any."""

    def initialize(self, public: bool) -> None:
        self._public = public
        # Those of the loop resolve the broker's name: they must not wait for a sender's DNS server.
        self._threads = ThreadPoolExecutor(4, "names")

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def resolve(
        self, host: str, port: int, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[tuple[int, Any]]:
        look = partial(socket.getaddrinfo, host, port, family, socket.SOCK_STREAM)
        try:
            async with asyncio.timeout(RESOLVE):
                found = await asyncio.get_running_loop().run_in_executor(self._threads, look)
        except TimeoutError as exc:
            raise NotSent(f"the name {host} is not resolved within {RESOLVE:g} s") from exc
        for _, _, _, _, address in found:
            if self._public and not is_public(str(address[0])):
                raise NotAllowed(f"{host} has the address {address[0]}, which is not public")
        return [(kind, address) for kind, _, _, _, address in found]


def is_public(text: str) -> bool:
    """Tell whether an IP address is one of the Internet, also where it stands for an IPv4 one."""
    address = ip_address(text.partition("%")[0])
    if isinstance(address, IPv6Address):
        inner = address.ipv4_mapped or address.sixtofour
        if address in _TRANSLATED:
            inner = IPv4Address(int(address) & 0xFFFFFFFF)
        if address.teredo is not None:
            inner = address.teredo[1]
        if inner is not None:
            return is_public(str(inner))
    if any(address in network for network in _LOCAL):
        return False
    return address.is_global and not address.is_multicast and not address.is_reserved
