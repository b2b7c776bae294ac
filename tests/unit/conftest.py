"""Unit tests connect to nothing: whoever tries is refused."""

from __future__ import annotations

import errno
import os
import socket

import pytest


@pytest.fixture(autouse=True)
def no_connections(monkeypatch):
    """Refuse every connection, as a port does where nobody listens."""

    def refuse(self: socket.socket, address: object) -> None:
        raise ConnectionRefusedError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED))

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket.socket, "connect_ex", lambda self, address: errno.ECONNREFUSED)
