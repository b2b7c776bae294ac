"""Check a request's header before its body is read, and find the sender's address in it.

https://www.rfc-editor.org/rfc/rfc9112
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from ipaddress import ip_address, ip_network

from tornado.httputil import RequestStartLine

from gateway.config.settings import Config
from gateway.errors import BadRequest, BodyTooLarge, EncodingNotAccepted
from gateway.http.connection import Headers
from gateway.request_log import printable

_VERSIONS = ("HTTP/1.1", "HTTP/1.0")
_absolute = re.compile("https?://", re.IGNORECASE).match
# RFC 9110, 7.2; user information and paths are not allowed in it.
_host = re.compile(
    r"[A-Za-z0-9._~%!$&'()*+,;=\-]*(:[0-9]*)?|\[[0-9A-Fa-f:.]+\](:[0-9]*)?"
).fullmatch
# A number of bytes: 18 digits are more than any memory has.
_length = re.compile(r"[0-9]{1,18}").fullmatch


def split_target(target: str) -> tuple[str, str]:
    """Split a request target into its path and query."""
    path, _, query = target.partition("?")
    if not path.startswith("/") and _absolute(path):  # RFC 9112, 3.2.2
        path = "/" + path.partition("://")[2].partition("/")[2]
    return path, query


def check(start_line: RequestStartLine, headers: Headers, config: Config) -> int | None:
    """Check a request's header; return the body's length in bytes, or None where it is unknown.

    Raises a `RequestError` where the body need not be read.
    """
    version = start_line.version
    if version not in _VERSIONS:
        raise BadRequest(f"{version} is not supported; use HTTP/1.1 or HTTP/1.0.")
    expected = headers.pop("expect", "")  # RFC 9110, 10.1.1
    if expected and version == "HTTP/1.1":
        headers["expect"] = expected.lower()
    if not start_line.path.isascii():  # RFC 3986, 2
        raise BadRequest("The request target has bytes that are not allowed in a URI.")
    host = dict.get(headers, "host")
    if host is None:
        if version == "HTTP/1.1":
            raise BadRequest("The Host header is missing.")
    elif not _host(host):
        raise BadRequest("The Host header is malformed, or there is more than one.")
    size = 0
    length = dict.get(headers, "content-length")
    if length is not None:
        if not _length(length):
            raise BadRequest("The Content-Length is not a number of bytes.")
        size = int(length)
        if size > config.max_body:
            raise BodyTooLarge(f"The body is over {config.max_body} bytes.")
    chunked = dict.__contains__(headers, "transfer-encoding")
    if chunked and version == "HTTP/1.0":
        raise BadRequest("Transfer-Encoding is not allowed in HTTP/1.0.")
    encoding = dict.get(headers, "content-encoding")
    if encoding is not None and encoding.lower() not in ("identity", "gzip", "x-gzip"):
        raise EncodingNotAccepted
    return None if chunked else size


def is_last(headers: Headers) -> bool:
    """Tell whether `close` is one of several connection options; RFC 9110, 7.6.1.

    Tornado knows the option that is alone.
    """
    options = dict.get(headers, "connection", "")
    return "," in options and "close" in map(str.strip, options.lower().split(","))


def is_plain(host: str) -> bool:
    """Tell whether a host is an address, or localhost: no name that somebody else may own."""
    try:
        ip_address(host.strip("[]"))
    except ValueError:
        return host == "localhost"
    return True


#: Addresses in the cache. It is bounded because senders can invent addresses.
_REMEMBERED = 1_000
#: The most characters of an address; an IPv6 address with a zone has fewer.
_LONGEST = 100


class Proxies:
    """The networks of the trusted proxies (setting ``trusted_proxies``)."""

    def __init__(self, networks: Iterable[str]):
        self._networks = [ip_network(text) for text in networks]
        self._known: dict[str, bool] = {}

    def sender(self, peer: str, forwarded_for: str) -> str:
        """Return the sender's address: the last address that is not a trusted proxy's.

        `forwarded_for` is the X-Forwarded-For header, which is used only where `peer` is a trusted
        proxy. What is too long for an address is cut off, and what is not printable is escaped.
        """
        if forwarded_for and self.trusted(peer):
            for address in reversed(forwarded_for.split(",")):
                if (address := _without_port(address)) and not self.trusted(address):
                    return printable(address)
        return peer

    def trusted(self, address: str) -> bool:
        """Tell whether the address is a trusted proxy's."""
        known = self._known.get(address)
        if known is None:
            if len(self._known) >= _REMEMBERED:
                self._known.clear()
            known = self._known[address] = self._in_a_network(address)
        return known

    def _in_a_network(self, text: str) -> bool:
        try:
            address = ip_address(text)
        except ValueError:
            return False
        # A dual-stack socket reports IPv4 peers as mapped IPv6 addresses.
        address = getattr(address, "ipv4_mapped", None) or address
        return any(address in network for network in self._networks)


def _without_port(text: str) -> str:
    """Return an address as some proxies write it, ``192.0.2.1:80`` or ``[2001:db8::1]:80``."""
    text = text.strip()[:_LONGEST]
    if text.startswith("["):
        return text[1:].partition("]")[0]
    return text.partition(":")[0] if text.count(":") == 1 else text
