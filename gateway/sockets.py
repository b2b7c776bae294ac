"""Binding the listening sockets."""

from __future__ import annotations

import socket

from gateway.config import Config


def bind(config: Config) -> list[socket.socket]:
    """Bind the listening socket; raises OSError."""
    if config.uds:
        listener = socket.socket(socket.AF_UNIX)
        if config.uds.is_socket():
            config.uds.unlink()
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


def bind_tcp(host: str, port: int) -> socket.socket:
    """Bind a TCP socket of the family that `host` is of; raises OSError."""
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
