"""Unit tests connect to nothing."""

from __future__ import annotations

import socket

import pytest


@pytest.fixture(autouse=True)
def no_connections(monkeypatch):
    """Fail a test that connects."""

    def refuse(self: socket.socket, address: object) -> None:
        raise AssertionError(f"a unit test connects to {address}")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket.socket, "connect_ex", refuse)
