"""What joins the models of servers to whatever carries their bytes.

A model knows no sockets and no event loop: under the simulator its bytes go through
`tests.simulation.network`, and in the contract suite through a real TCP server.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol


class Wire(Protocol):
    """The server's end of one connection."""

    def write(self, data: bytes) -> None:
        """Send bytes; what is written after the connection has ended is dropped."""

    def close(self) -> None:
        """End the connection when all that was written has been sent."""

    def abort(self) -> None:
        """End the connection now."""


class Peer(Protocol):
    """What a model makes for a connection; nothing is called after `lost`."""

    def received(self, data: bytes) -> None:
        """Take bytes of the client, which may be cut anywhere."""

    def lost(self) -> None:
        """Forget the connection, which has ended: by the client, by a fault, or by the model."""


class Server(Protocol):
    """A model of a server."""

    def accept(self, wire: Wire) -> Peer:
        """Serve a new connection."""


class Timer(Protocol):
    """A call that is due later."""

    def cancel(self) -> None:
        """Do not make the call, if it was not made yet."""


class Clock(Protocol):
    """The time that a model lives in; an event loop is one."""

    def time(self) -> float:
        """Return monotonic seconds."""

    def call_later(self, delay: float, callback: Callable[..., Any], *args: Any) -> Timer:
        """Call `callback` after `delay` seconds."""
