"""What stands between the product and the world: clocks, randomness, sockets, signals.

`install` has to run before anything of the product is imported. Without a `world` everything is
as it was, so that the parent process of the simulations is not affected.
"""

from __future__ import annotations

import os
import random
import socket
import time
from functools import cache
from types import SimpleNamespace
from typing import Any, Protocol

from gateway import clock
from tests.simulation.loop import Killed, Loop

#: Seconds since the epoch at the loop's time 0.
EPOCH = 1_800_000_000.0


class World(Protocol):
    """What the seams need of a simulated world."""

    loop: Loop

    def signal(self, number: int) -> None:
        """Take the signal that the running party has sent itself."""


world: World | None = None

_urandom, _kill = os.urandom, os.kill


def enter(entered: World, seed: str) -> None:
    """Let everything be decided by `seed` and by the clock of the world's loop."""
    global world
    world = entered
    random.seed(seed)


def leave() -> None:
    global world
    world = None


def now() -> float:
    """Return the wall clock of the running party, in seconds since the epoch."""
    assert world is not None
    return EPOCH + world.loop._now + world.loop.current.skew


def install() -> None:
    """Replace the clocks and the random source, then the sockets of the libraries."""
    clock.monotonic = lambda: time.monotonic() if world is None else world.loop._now
    clock.time = lambda: time.time() if world is None else now()
    os.urandom = _bytes
    random._urandom = _bytes  # type: ignore[attr-defined]
    os.kill = _signal

    import pika.adapters.utils.connection_workflow as workflow
    import pika.adapters.utils.io_services_utils as services
    import redis.asyncio.client
    import redis.utils

    import gateway.celery_message
    import gateway.late.sender
    import gateway.process.child
    from tests.simulation.late_answers import HttpClient
    from tests.simulation.network import Socket

    given = {**vars(socket), "socket": lambda *_: Socket()}
    workflow.socket = SimpleNamespace(**given)  # type: ignore[attr-defined]
    services.SocketConnectionMixin.connect_socket = _connect  # type: ignore[method-assign]
    gateway.late.sender.HttpClient = HttpClient  # type: ignore[misc,assignment]
    gateway.celery_message._ORIGIN = "gateway-1@simulation"
    # redis-py reads its own package's metadata from disk for each connection.
    redis.utils.get_lib_version = cache(redis.utils.get_lib_version)
    # For each client redis-py writes the names of 170 commands in capitals; ours are.
    redis.asyncio.client.CaseInsensitiveDict = dict  # type: ignore[misc,assignment]
    # A collection would take longer than all the rest of a start.
    gateway.process.child.gc = SimpleNamespace(  # type: ignore[attr-defined]
        collect=lambda: None, freeze=lambda: None, enable=lambda: None
    )


def _bytes(size: int) -> bytes:
    return _urandom(size) if world is None else random.randbytes(size)


def _signal(pid: int, number: int) -> None:
    if world is None or pid != os.getpid():
        _kill(pid, number)
    else:
        world.signal(number)


class _Attempt:
    """pika's attempt to connect a socket."""

    def __init__(self, services: Any, sock: Any, address: Any, on_done: Any):
        loop = services._loop
        self._task = loop.create_task(loop.network.connect(loop.current, address[:2]))

        def done(task: Any) -> None:
            if task.cancelled():
                return
            if (exc := task.exception()) is None:
                sock.end = task.result()
            on_done(exc)

        self._task.add_done_callback(done)

    def cancel(self) -> bool:
        return bool(self._task.cancel())


def _connect(services: Any, sock: Any, resolved_addr: Any, on_done: Any) -> _Attempt:
    return _Attempt(services, sock, resolved_addr, on_done)


__all__ = ["EPOCH", "Killed", "enter", "install", "leave", "now"]
