"""Bind the listening sockets."""

from __future__ import annotations

import errno
import os
import socket
from pathlib import Path

from gateway.config.settings import Config


def bind(config: Config) -> list[socket.socket]:
    """Bind the listening socket; raises OSError."""
    if config.uds:
        if config.uds.is_socket():
            _remove_left(config.uds)
        listener = socket.socket(socket.AF_UNIX)
        try:
            listener.bind(str(config.uds))
        except OSError as exc:
            listener.close()
            raise OSError(exc.errno, exc.strerror or str(exc)) from exc
        config.uds.chmod(0o666)
    else:
        listener = bind_tcp(config.host, config.port)
    listener.listen(config.backlog)
    return [listener]


def _remove_left(path: Path) -> None:
    """Remove the socket file of a process that has ended; raises OSError where one listens."""
    with socket.socket(socket.AF_UNIX) as probe:
        probe.setblocking(False)
        # EAGAIN: the queue of the process that listens is full.
        if probe.connect_ex(str(path)) in (0, errno.EAGAIN):
            raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
    path.unlink(missing_ok=True)


def bind_tcp(host: str, port: int) -> socket.socket:
    """Bind a TCP socket of the address family of `host`; raises OSError."""
    family, kind, protocol, _, address = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError:
        listener.close()
        raise
    return listener


def address(bound: socket.socket) -> str:
    """Return the address of `bound` as in a URL (host:port); of a UNIX socket its path."""
    name = bound.getsockname()
    if not isinstance(name, tuple):
        return os.fsdecode(name)
    host, port = name[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
