"""Ports of the loopback interface: find a free one, check whether a server answers."""

from __future__ import annotations

import secrets
import socket
from collections import deque
from contextlib import closing, suppress
from http.client import HTTPConnection, HTTPException

#: Below the range for outgoing connections. A client that tries again and again to reach a stopped
#: server could otherwise get the server's port as its own, connect to itself, and occupy the port.
#: Test processes that run at the same time use parts of this range.
PORTS = range(10_000, 32_000)


#: The ports that were returned last. Whoever asked for one may not listen on it yet.
_recent: deque[int] = deque(maxlen=100)


def free_port() -> int:
    """Return one of `PORTS` of the loopback interface that is free."""
    while True:
        port = secrets.choice(PORTS)
        with suppress(OSError), socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
            if port not in _recent:
                _recent.append(port)
                return port


def accepts(port: int) -> bool:
    """Tell whether a server accepts TCP connections on `port`."""
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False


def answers_ok(port: int, path: str) -> bool:
    """Tell whether an HTTP server on `port` answers `GET path` with 200."""
    with (
        suppress(OSError, HTTPException),
        closing(HTTPConnection("127.0.0.1", port, timeout=2)) as connection,
    ):
        connection.request("GET", path)
        return connection.getresponse().status == 200
    return False
