"""Tell what answers on a port where another server was expected."""

from __future__ import annotations

import asyncio
from urllib.parse import urlsplit

_PATIENCE = 0.2  # seconds, as the check has hardly any left
#: The protocol of each scheme, its usual port, and whether it has TLS.
_SCHEMES = {
    "amqp": ("amqp", 5672, False),
    "amqps": ("amqp", 5671, True),
    "redis": ("redis", 6379, False),
    "rediss": ("redis", 6379, True),
}
#: A web server answers it, a Redis refuses it, RabbitMQ tells its protocol, TLS sends an alert.
_REQUEST = b"GET / HTTP/1.0\r\n\r\n"
_ANSWERS = {b"HTTP": "http", b"AMQP": "amqp", b"-": "redis", b"\x15\x03": "tls"}
_NAMES = {"http": "a web server", "amqp": "an AMQP broker", "redis": "a Redis"}


async def another(url: str) -> str:
    """Return what answers at `url` in place of such a server, as a clause; empty: not known."""
    parts = urlsplit(url)
    try:
        protocol, usual, tls = _SCHEMES[parts.scheme]
        async with asyncio.timeout(_PATIENCE):
            reader, writer = await asyncio.open_connection(parts.hostname, parts.port or usual)
            writer.write(_REQUEST)
            answer = await reader.read(4)
            writer.close()
    except (OSError, ValueError, KeyError):
        return ""
    found = next((kind for start, kind in _ANSWERS.items() if answer.startswith(start)), "")
    if found in _NAMES and found != protocol:
        return f"; what answers there is {_NAMES[found]}"
    if found == "tls" and not tls:
        return f"; its port has TLS: write {parts.scheme}s://"
    if found == protocol == "redis" and tls:  # of a broker, the error says it
        return "; its port has no TLS: write redis://"
    return ""
