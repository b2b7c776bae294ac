"""AMQP drivers as consumers: a line in this table each, one contract.

A function ``consume(broker, parts, prefetch, run)`` opens a connection and a channel for each
`Part`, with a limit of `prefetch` for each consumer, and calls ``run.begin()``. Then it consumes
all messages, closes the channels, which the broker confirms behind the last acknowledgement, and
calls ``run.end()``. It raises whatever the library raises.
"""

from __future__ import annotations

import asyncio
import faulthandler
import json
import os
import resource
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from time import perf_counter
from typing import Any, NoReturn

from loadtest.lab.consumers.part import Part

#: `hostname`, `port`, `userid`, `password` and `virtual_host` of the broker.
Broker = Mapping[str, Any]

#: Name -> the function in a module here, and the library that it needs.
DRIVERS = {
    "pika": ("event_loop.consume", "pika"),
    "py-amqp": ("threads.consume", "amqp"),
    "aio-pika": ("tasks.consume", "aio_pika"),
    "frames": ("frame_scanner.consume", "pika"),
    "librabbitmq": ("threads.consume_in_c", "librabbitmq"),
}

#: Where librabbitmq is installed, if it is: kombu, and so Celery, would use it in place of py-amqp
#: wherever they can import it.
C_LIBRARY = Path(__file__).parents[4] / "build" / "librabbitmq"

_OPEN = 60  # seconds until its connections are open and it is started
_HUNG = 10  # seconds after its limit until a process is killed that does not look at it


class Run:
    """The clock, and what came."""

    def __init__(self, parts: Sequence[Part], limit: int):
        self._parts = parts
        self._begin = self._user = self._system = 0.0
        # In a signal handler, as a further thread would wait for the interpreter as well.
        signal.signal(signal.SIGALRM, lambda *_: self.end())
        signal.alarm(_OPEN)
        faulthandler.dump_traceback_later(_OPEN + limit + _HUNG, exit=True)
        self._limit = limit

    def begin(self) -> None:
        """Wait for the start signal, with everything open; the clock runs from here on."""
        print("ready", flush=True)
        if not sys.stdin.readline():
            raise SystemExit("consume: nobody has started it")
        signal.alarm(self._limit)
        self._user, self._system = _cpu()
        self._begin = perf_counter()

    def end(self) -> NoReturn:
        """Stop the clock and print what there is; end the process when its input ends."""
        seconds = perf_counter() - self._begin
        user, system = _cpu()
        signal.alarm(0)
        if not self._begin:
            raise SystemExit("consume: its connections were not open in time")
        figures = {
            "seconds": seconds,
            "user": user - self._user,
            "system": system - self._system,
            "missing": self._sum("left"),
            "wrong": self._sum("wrong"),
            "acks": self._sum("acks"),
            "ack_seconds": self._sum("ack_seconds"),
        }
        print(json.dumps(figures), flush=True)
        sys.stdin.read()
        # All is acknowledged; what a library does at its end is not measured.
        os._exit(0)

    def _sum(self, name: str) -> Any:
        return sum(getattr(part, name) for part in self._parts)


def _cpu() -> tuple[float, float]:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime, used.ru_stime


def installed() -> list[str]:
    """Return the names of the drivers whose library is installed."""
    return [
        name
        for name, (_, library) in DRIVERS.items()
        if find_spec(library) or (C_LIBRARY / library).is_dir()
    ]


def find(name: str) -> Callable[[Broker, Sequence[Part], int, Run], None]:
    """Import the driver called `name`; raises KeyError where there is none, and ImportError."""
    module, _, function = DRIVERS[name][0].partition(".")
    sys.path.append(str(C_LIBRARY))
    consume: Callable[[Broker, Sequence[Part], int, Run], None]
    consume = getattr(import_module(f"{__name__}.{module}"), function)
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
