"""Synchronous code in virtual time: threads are greenlets, and what blocks lets the others run.

`install` replaces the clocks, sockets, polls and locks of Celery, kombu, py-amqp, redis-py and the
app server. Outside a simulated process all are as they were, except for the sockets. The processes
of the simulation share the modules' globals, so at most one of these may live at a time.
"""

from __future__ import annotations

import asyncio
import errno
import select
import socket
import sys
import threading
import time
from collections.abc import Callable
from datetime import datetime
from importlib import import_module
from random import Random
from types import SimpleNamespace
from typing import Any
from weakref import WeakKeyDictionary

from celery import bootsteps
from greenlet import getcurrent, greenlet

from tests.simulation import seams
from tests.simulation.loop import DEAD, Party
from tests.simulation.network import End, Network

_LIBRARIES = ("amqp", "celery", "kombu", "redis", "vine", "appserver")
TICK = 1e-6  # seconds; less may be too little for the clock to advance
_FIRST = 1_000_000  # the number of the first descriptor: no real one has it


class Process:
    """A process: its threads, its sockets, and those of its threads that wait."""

    def __init__(self, party: Party, network: Network, random: Random):
        self.party, self.network, self.loop, self.random = party, network, network.loop, random
        self.hub = getcurrent()  # runs the loop
        self.sockets: dict[int, Socket] = {}
        self.number = _FIRST
        self._waiting: dict[Callable[[], object], None] = {}
        #: Is told what is sent: the socket, the bytes.
        self.on_send: Callable[[Socket, bytes], object] = lambda *_: None

    def start(self, function: Callable[[], object]) -> None:
        """Begin a thread."""
        self.loop.soon_in(self.party, greenlet(function, self.hub).switch)

    def changed(self) -> None:
        """Let each thread look again whether that is so what it waits for."""
        waiting, self._waiting = self._waiting, {}
        for resume in waiting:
            self.loop.soon_in(self.party, resume)

    def wait(self, true: Callable[[], Any], seconds: float | None = None) -> bool:
        """Let others run until something is true; False: the time is over."""
        end = None if seconds is None else self.loop.time() + (seconds and max(seconds, TICK))
        while not true():
            if end is not None and self.loop.time() >= end:
                return False
            resume = _Once(getcurrent())
            self._waiting[resume] = None
            timer = end if end is None else self.loop.at_in(self.party, end, resume)
            self.hub.switch()
            self._waiting.pop(resume, None)
            if timer is not None:
                timer.cancel()
        return True

    def sleep(self, seconds: float) -> None:
        self.wait(lambda: False, seconds)


class _Once:
    """Resumes a greenlet, the first time that it is called."""

    def __init__(self, waiting: Any):
        self._waiting = waiting

    def __call__(self) -> None:
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            waiting.switch()


#: The process that runs now; None: this is no simulated process.
process: Process | None = None


def enter(entered: Process | None) -> None:
    global process
    process = entered


def running() -> Process:
    assert process is not None
    return process


def _simulated() -> bool:
    return process is not None and getcurrent() is not process.hub


class Socket(asyncio.Protocol):
    """A TCP socket, as far as py-amqp and redis-py use it."""

    family = socket.AF_INET

    def __init__(self, *_: object):
        self._process = running()
        self._process.number += 1
        self._number = self._process.number
        self._process.sockets[self._number] = self
        self.end: End | None = None
        self._data = b""
        self.ended = self._full = False
        self._error: Exception | None = None
        self._timeout: float | None = None

    # What the system tells --------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        self._data += data
        self._process.changed()

    def eof_received(self) -> bool:
        self.ended = True
        self._process.changed()
        return True  # it may still send

    def connection_lost(self, exc: Exception | None) -> None:
        self.ended, self._full, self._error = True, False, exc
        self._process.changed()

    def pause_writing(self) -> None:
        self._full = True

    def resume_writing(self) -> None:
        self._full = False
        self._process.changed()

    # What the libraries call ------------------------------------------------------------------

    def connect(self, address: tuple[str, int]) -> None:
        process = self._process
        task = process.loop.start(
            process.party, process.network.connect(process.party, address[:2])
        )
        task.add_done_callback(lambda _: process.changed())
        if not process.wait(task.done, self._timeout):
            task.cancel()
            raise TimeoutError("timed out")
        self.end = task.result()
        self.end.attach(self)

    @property
    def readable(self) -> bool:
        return bool(self._data) or self.ended

    def recv(self, size: int, flags: int = 0) -> bytes:
        self._open()
        timeout = 0.0 if flags & socket.MSG_DONTWAIT else self._timeout
        if not self.readable and timeout == 0:
            raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")
        if not self._process.wait(lambda: self.readable, timeout):
            raise TimeoutError("timed out")
        if not self._data:
            error, self._error = self._error, None
            if error is not None:
                raise error
            return b""
        if self._process.random.random() < 0.1:
            size = min(size, self._process.random.randint(1, len(self._data)))
        data = self._data[:size]
        if not flags & socket.MSG_PEEK:
            self._data = self._data[size:]
        return data

    def recv_into(self, buffer: Any) -> int:
        data = self.recv(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def sendall(self, data: bytes | memoryview) -> None:
        end = self._open()
        if not end.is_closing():
            data = bytes(data)
            self._process.on_send(self, data)
            end.write(data)
        if end.is_closing():
            raise BrokenPipeError(errno.EPIPE, "Broken pipe")
        if not self._process.wait(lambda: not self._full, self._timeout):
            raise TimeoutError("timed out")

    def _open(self) -> End:
        if self.end is None or self._number not in self._process.sockets:
            raise OSError(errno.EBADF, "Bad file descriptor")
        return self.end

    def fileno(self) -> int:
        return self._number if self._number in self._process.sockets else -1

    def settimeout(self, seconds: float | None) -> None:
        self._timeout = seconds

    def gettimeout(self) -> float | None:
        return self._timeout

    def setsockopt(self, *_: object) -> None: ...

    def getsockopt(self, *_: object) -> int:
        return 0

    def shutdown(self, how: int) -> None:
        self._open().write_eof()
        if how == socket.SHUT_RDWR:
            self.ended = True
            self._process.changed()

    def close(self) -> None:
        self._process.sockets.pop(self._number, None)
        if self.end is not None and self._process.party.state != DEAD:
            self.end.close()


class Poll:
    """Finds the sockets that can be read; real descriptors never can. `unit` is of its timeout."""

    unit = 1.0  # seconds, as kombu's own

    def __init__(self) -> None:
        self._numbers: dict[int, None] = {}

    def register(self, fd: Any, _events: int) -> None:
        self._numbers[fd if isinstance(fd, int) else fd.fileno()] = None

    def unregister(self, fd: int) -> None:
        self._numbers.pop(fd, None)

    def poll(self, timeout: float | None) -> list[tuple[int, int]]:
        process = running()
        seconds = None if timeout is None or timeout < 0 else timeout * self.unit
        process.wait(self._ready, seconds)
        ready = self._ready()
        process.random.shuffle(ready)
        return ready

    def _ready(self) -> list[tuple[int, int]]:
        sockets = running().sockets
        found = ((number, sockets.get(number)) for number in self._numbers)
        return [(number, select.POLLIN) for number, one in found if one and one.readable]

    def close(self) -> None: ...


class _Milliseconds(Poll):
    unit = 0.001


class Lock:
    """A lock that the same thread may take again if it is `reentrant`."""

    reentrant = False

    def __init__(self) -> None:
        self._owner: Any = None
        self._count = 0

    def __enter__(self) -> None:
        if not _simulated():
            return
        process = running()
        if process.random.random() < 0.2:  # the system lets another thread run
            process.sleep(0)
        me = getcurrent()
        if not (self.reentrant and self._owner is me):
            process.wait(lambda: self._owner is None)
        self._owner = me
        self._count += 1

    def __exit__(self, *_: object) -> None:
        if _simulated():
            self._count -= 1
            if not self._count:
                self._owner = None
                running().changed()


class _RLock(Lock):
    reentrant = True


class _Event:
    def __init__(self) -> None:
        self._set = False

    def is_set(self) -> bool:
        return self._set

    def set(self) -> None:
        self._set = True
        if process is not None:
            process.changed()

    def clear(self) -> None:
        self._set = False

    def wait(self) -> bool:
        return running().wait(self.is_set)


class _Thread:
    def __init__(self, target: Callable[[], object], name: str, daemon: bool):
        self._target = target

    def start(self) -> None:
        running().start(self._target)


class _Ordered(dict[Any, None]):
    """A set without an order of its own, which would be that of addresses in memory."""

    def add(self, one: Any) -> None:
        self[one] = None

    def discard(self, one: Any) -> None:
        self.pop(one, None)

    remove = discard

    def __iter__(self) -> Any:
        found = list(self.keys())
        if process is not None:
            process.random.shuffle(found)
        return iter(found)


class _WeakSet(WeakKeyDictionary[Any, None]):
    def add(self, one: Any) -> None:
        self[one] = None


class _Moments(datetime):
    @classmethod
    def now(cls, tz: Any = None) -> datetime:
        return datetime.fromtimestamp(time.time(), tz)


def _steps(blueprint: Any) -> dict[str, Any]:
    """Load the steps of a worker, which are a set, in an order that the seed decides."""
    steps = sorted((blueprint.load_step(step) for step in blueprint.types), key=lambda one: one[0])
    running().random.shuffle(steps)
    return dict(steps)


def _addresses(host: str, port: int, *_: object) -> list[Any]:
    return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (host, port))]


def install() -> None:
    """Replace it all, before the worker's modules are imported."""
    assert "kombu.asynchronous.hub" not in sys.modules, "it keeps the real clock"
    real = time.monotonic, time.time, time.sleep
    ours = {
        real[0]: lambda: process.loop.time() if process and _simulated() else real[0](),
        real[1]: lambda: seams.now() if _simulated() else real[1](),
        real[2]: lambda s: process.sleep(s) if process and _simulated() else real[2](s),
    }
    time.monotonic, time.time, time.sleep = ours.values()
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] in _LIBRARIES:
            for attribute, value in list(vars(module).items()):
                if any(value is each for each in real):
                    setattr(module, attribute, ours[value])
    sockets = SimpleNamespace(**{**vars(socket), "socket": Socket, "getaddrinfo": _addresses})
    polls = SimpleNamespace(**{**vars(select), "poll": _Milliseconds})
    primitives = {
        "Lock": Lock, "RLock": _RLock, "Event": _Event, "Thread": _Thread,
        "get_ident": lambda: id(getcurrent()),
    }  # fmt: skip
    threads = SimpleNamespace(**{**vars(threading), **primitives})
    for name, replaced in {
        "amqp.transport": {"socket": sockets, "set_cloexec": lambda *_: None},
        "redis.connection": {"socket": sockets},
        "redis._parsers.hiredis": {"select": polls},
        "kombu.asynchronous.hub": {"poll": Poll, "set": _Ordered},
        "celery.app.base": {"datetime": _Moments},
        "appserver.beginnings": {"WeakSet": _WeakSet},
        "appserver.dead_letters": {"datetime": _Moments},
        "appserver.result_script": {"datetime": _Moments},
        "appserver.reply_connection": {"select": polls, "threading": threads},
        "appserver.held_results": {"threading": threads},
        "appserver.together": {"threading": threads},
        "appserver.watch": {"threading": threads},
    }.items():
        module = import_module(name)
        for attribute, value in replaced.items():
            setattr(module, attribute, value)
    bootsteps.Blueprint.claim_steps = _steps
