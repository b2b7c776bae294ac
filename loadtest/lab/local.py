"""Transports of the standard library: pipes and sockets that processes inherit."""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from multiprocessing import get_context
from typing import Any, ClassVar

from loadtest.lab.transport import MESSAGE, Run, Settings, Transport

_fork = get_context("fork")

_BUFFER = 64 * 1024
_length = struct.Struct("!I")


class SimpleQueue(Transport):
    """`multiprocessing.SimpleQueue`: a pipe and its locks, without a thread."""

    make: ClassVar[Callable[[], Any]] = _fork.SimpleQueue

    def __init__(self, settings: Settings):
        super().__init__(settings)
        self._queue = type(self).make()

    @contextmanager
    def sending(self) -> Iterator[Run]:
        yield partial(self.give, self._queue.put)

    @contextmanager
    def receiving(self, index: int) -> Iterator[Run]:
        yield partial(self.take, self._queue.get)


class Queue(SimpleQueue):
    """`multiprocessing.Queue`: a thread pickles what is put and writes it to a pipe."""

    make = _fork.Queue

    @contextmanager
    def sending(self) -> Iterator[Run]:
        yield partial(self.give, self._queue.put)
        self._queue.close()
        self._queue.join_thread()


class Pipe(Transport):
    """`multiprocessing.Pipe`: a write and two reads for each message, without a lock."""

    def __init__(self, settings: Settings):
        super().__init__(settings)
        self._reader, self._writer = _fork.Pipe(duplex=False)

    @contextmanager
    def sending(self) -> Iterator[Run]:
        writer = self._writer
        yield partial(self.give, writer.send if self.settings.pickles else writer.send_bytes)

    @contextmanager
    def receiving(self, index: int) -> Iterator[Run]:
        reader = self._reader
        yield partial(self.take, reader.recv if self.settings.pickles else reader.recv_bytes)


class UnixSocket(Transport):
    """A stream socket, a write for each message; a message's length comes before it."""

    buffering: ClassVar[int] = 0
    prefixed: ClassVar[bool] = True

    def __init__(self, settings: Settings):
        super().__init__(settings)
        self._reader, self._writer = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)

    @contextmanager
    def sending(self) -> Iterator[Run]:
        if not self.buffering:
            sendall = self._writer.sendall
            yield partial(self.give, lambda message: sendall(_length.pack(len(message)) + message))
            return
        with self._writer.makefile("wb", self.buffering) as file:
            write, pack = file.write, _length.pack
            if self.prefixed:
                yield partial(self.give, lambda message: write(pack(len(message)) + message))
            else:
                yield partial(self.give, write)

    @contextmanager
    def receiving(self, index: int) -> Iterator[Run]:
        # Reading ahead needs no agreement with the sender, so it is always buffered.
        with self._reader.makefile("rb", _BUFFER) as file:
            read, unpack = file.read, _length.unpack
            if self.prefixed:
                yield partial(self.take, lambda: read(unpack(read(_length.size))[0]))
            else:
                yield partial(self.take, partial(read, len(MESSAGE)))


class Buffered(UnixSocket):
    """The same, but messages are written together, 64 KiB at once."""

    buffering = _BUFFER


class FixedSize(Buffered):
    """The same without a length: all messages have the same one."""

    prefixed = False


TRANSPORTS: dict[str, type[Transport]] = {
    "queue": Queue,
    "simple-queue": SimpleQueue,
    "pipe": Pipe,
    "socket": UnixSocket,
    "buffered-socket": Buffered,
    "fixed-size-socket": FixedSize,
}
