"""AMQP drivers as consumers: a file each, a line in this table, one contract.

A module has ``consume(broker, parts, prefetch, run)``. It opens a connection and a channel for each
`Part`, with a limit of `prefetch` for each consumer, and calls ``run.begin()``. Then it consumes
all messages, closes the channels, which the broker confirms behind the last acknowledgement, and
calls ``run.end()``. It raises whatever the library raises.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NoReturn, Protocol

from loadtest.lab.consumers.part import Part

#: `hostname`, `port`, `userid`, `password` and `virtual_host` of the broker.
Broker = Mapping[str, Any]

#: Name -> the module here, and the library that it needs.
DRIVERS = {
    "pika": ("event_loop", "pika"),
    "py-amqp": ("threads", "amqp"),
    "aio-pika": ("tasks", "aio_pika"),
    "frames": ("frame_scanner", "pika"),
    "librabbitmq": ("c_threads", "librabbitmq"),
}

#: Where librabbitmq is installed, if it is: kombu, and so Celery, would use it in place of py-amqp
#: wherever they can import it.
C_LIBRARY = Path(__file__).parents[4] / "build" / "librabbitmq"


class Run(Protocol):
    """What a driver tells."""

    def begin(self) -> None:
        """Wait for the start signal, with everything open; the clock runs from here on."""

    def end(self) -> NoReturn:
        """Stop the clock, and end the process when nobody looks at it any more."""


class Consume(Protocol):
    """The function `consume` of a driver."""

    def __call__(self, broker: Broker, parts: Sequence[Part], prefetch: int, run: Run) -> None: ...


def installed() -> list[str]:
    """Return the names of the drivers whose library is installed."""
    return [
        name
        for name, (_, library) in DRIVERS.items()
        if find_spec(library) or (C_LIBRARY / library).is_dir()
    ]


def find(name: str) -> Consume:
    """Import the driver called `name`; raises KeyError where there is none, and ImportError."""
    module, _ = DRIVERS[name]
    sys.path.append(str(C_LIBRARY))
    consume: Consume = import_module(f"{__name__}.{module}").consume
    return consume


class Ending:
    """Is reached when nothing is left of all `parts`, or when a connection or channel is lost."""

    def __init__(self, parts: Sequence[Part]):
        self._parts = parts
        self._reached: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def wait(self) -> None:
        """Wait for it; raises the error of what was lost."""
        await self._reached

    def acknowledged(self, part: Part, begin: float) -> None:
        """Count an acknowledgement of `part` that was begun at `begin`; the last one is the end."""
        part.acknowledged(begin)
        if not (part.left or any(each.left for each in self._parts) or self._reached.done()):
            self._reached.set_result(None)

    def lost(self, _lost: object, error: BaseException | None) -> None:
        """Called when a connection or a channel is closed, for whatever reason."""
        if not self._reached.done():
            self._reached.set_exception(error or ConnectionError("closed without a reason"))
