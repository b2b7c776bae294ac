"""Bind the listening sockets, or take those that a service manager has passed."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import MutableMapping
from pathlib import Path

from gateway.config.settings import Config
from gateway.errors import ConfigError

#: The first descriptor that a service manager passes.
_FIRST = 3


def inherited(environment: MutableMapping[str, str]) -> list[socket.socket]:
    """Return the sockets that a service manager has passed to this process (sd_listen_fds(3)).

    Its variables are taken out of the `environment`, which the children inherit. Raises
    `ConfigError` where one is not a socket that listens for connections.
    """
    names = ("LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES")
    pid, count, _ = (environment.pop(name, "") for name in names)
    if pid != str(os.getpid()) or not count.isdigit():
        return []
    return [_inherit(_FIRST + i) for i in range(int(count))]


def _inherit(descriptor: int) -> socket.socket:
    try:
        passed = socket.socket(fileno=descriptor)
        listens = passed.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
    except OSError:
        listens = False
    if not listens:
        raise ConfigError(
            [
                f"descriptor {descriptor}, which the service manager has passed, is not a socket "
                "that listens: use ListenStream= and no Accept=yes in its socket unit"
            ]
        )
    return passed


def bind(config: Config) -> list[socket.socket]:
    """Bind the socket, on which the first child listens when it can answer; raises OSError.

    Until then connections are refused, and a proxy tries the next server.
    """
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
