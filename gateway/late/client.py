"""Send late answers: only to hosts that are allowed, and to none of our own network."""

from __future__ import annotations

import re
from urllib.parse import urlsplit

from gateway.http_client import HttpClient, NotAllowed, Response

_MAX_BODY = 1024 * 1024  # bytes of a sender's answer
_MAX_URL = 4_096  # characters
_printable = re.compile(r"[!-~]+").fullmatch


class Client:
    """Sends requests to `hosts`; those of them in `own` may be private, and without TLS.

    A host has its port after a colon, where that is not the scheme's own.
    """

    def __init__(self, hosts: set[str], own: set[str]):
        self._hosts, self._own = hosts, own
        self._public = HttpClient(_MAX_BODY)
        self._private = HttpClient(_MAX_BODY, public=False)

    def close(self) -> None:
        self._public.close()
        self._private.close()

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
        """Send a request and return the answer, as `HttpClient.fetch` does. Raises `NotAllowed`."""
        client = self._private if self.check(url) in self._own else self._public
        return await client.fetch(method, url, headers, body)
