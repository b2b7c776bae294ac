"""Send requests to senders: only to hosts that are allowed, and to none of our own network.

The address that was checked is the one that is connected to, so a name cannot lead elsewhere in
between. Redirects are not followed.
"""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import Callable
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from tornado.httpclient import HTTPRequest
from tornado.netutil import Resolver
from tornado.simple_httpclient import SimpleAsyncHTTPClient

from gateway.errors import GatewayError

CONNECT, REQUEST = 4.0, 6.0  # seconds for the connection, and for all of a request
_MAX_BODY = 1024 * 1024  # bytes of a sender's answer
_MAX_URL = 4_096  # characters
_printable = re.compile(r"[!-~]+").fullmatch
#: Addresses that stand for an IPv4 one in their last 32 bits: RFC 6052
_TRANSLATED = ip_network("64:ff9b::/96")
#: For protocols, RFC 6890, and of translators within a network, RFC 8215; not every version of
#: Python knows them.
_LOCAL = ip_network("192.0.0.0/24"), ip_network("64:ff9b:1::/48")


class NotSent(GatewayError):
    """The sender has got nothing of the request; ``after`` as in a `Verdict`."""

    after = 0.0


class NotAllowed(NotSent):
    """The URL leads to where nothing may be sent."""


class NotKnown(GatewayError):
    """There is no answer, so it is not known whether the sender has got the request."""


class Response(NamedTuple):
    """A sender's answer; names of headers are in lower case."""

    status: int
    headers: dict[str, str]
    body: bytes


class Client:
    """Sends requests to `hosts`; those of them in `own` may be private, and without TLS.

    A host has its port after a colon, where that is not the scheme's own.
    """

    def __init__(self, hosts: set[str], own: set[str]):
        self._hosts, self._own = hosts, own
        self._resolvers = _Checked(private=False), _Checked(private=True)
        self._clients = [
            SimpleAsyncHTTPClient(
                force_instance=True, max_clients=1_000, resolver=each, max_body_size=_MAX_BODY
            )
            for each in self._resolvers
        ]

    def close(self) -> None:
        for client in self._clients:
            client.close()

    def check(self, url: str) -> str:
        """Return the host in `url`; raises `NotAllowed`, which does not repeat the URL."""
        try:
            parts = urlsplit(url)
            host, port = parts.hostname or "", parts.port
        except ValueError as exc:
            raise NotAllowed("it is no URL") from exc
        if not _printable(url) or len(url) > _MAX_URL or "@" in parts.netloc or "\\" in url:
            raise NotAllowed("the URL is malformed")
        ports = {"https": 443, "http": 80}
        name = host if port in (None, ports.get(parts.scheme)) else f"{host}:{port}"
        if name not in self._hosts:
            raise NotAllowed(f"the host {name!r:.99} is none that late answers are sent to")
        if parts.scheme != "https" and not (parts.scheme == "http" and name in self._own):
            raise NotAllowed(f"the URL of {name} is not https")
        return name

    async def fetch(self, method: str, url: str, headers: dict[str, str], body: bytes) -> Response:
        """Send a request and return the answer; a GET has no body.

        Raises `NotSent` and `NotKnown`; their texts have no URL, which may have a secret.
        """
        private, sent = self.check(url) in self._own, []

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
            found = await self._clients[private].fetch(request, raise_error=False)
        except NotAllowed:
            raise
        # A library for HTTP, TLS and names can raise much.
        except Exception as exc:
            reason = f"{type(exc).__name__}: {str(exc) or 'no answer'}"
            raise (NotKnown if sent else NotSent)(reason) from exc
        names = {name.lower(): value for name, value in found.headers.get_all()}
        return Response(found.code, names, found.body)


class _Checked(Resolver):
    """Resolves names to public addresses, or with `private` to any."""

    def initialize(self, private: bool) -> None:
        self._private = private

    async def resolve(
        self, host: str, port: int, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[tuple[int, Any]]:
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(host, port, family=family, type=socket.SOCK_STREAM)
        for _, _, _, _, address in found:
            if not self._private and not is_public(str(address[0])):
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
