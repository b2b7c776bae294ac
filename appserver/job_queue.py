"""What a process of the pool and its parent tell each other: jobs, and how they ended.

Celery writes a job into a pipe when the process has told the end of the one before: both wait for
each other, and are woken up, for each task. Here the next jobs are in a socket already. It keeps
the boundaries of messages, so the parent can read there as well, and so takes back what the process
has not read. Which job a process runs is in memory that both share, so nothing has to be written at
the beginning of a task. The ends of quick tasks are held for a moment (`HeldResults`), after their
results, and written together.

https://man7.org/linux/man-pages/man7/unix.7.html (SOCK_SEQPACKET, SCM_RIGHTS)
"""

from __future__ import annotations

import os
import pickle
import signal
import socket
from array import array
from contextlib import suppress
from mmap import mmap
from struct import Struct
from time import monotonic
from typing import Any

from billiard.common import TERM_SIGNAL
from billiard.pool import ACK, EX_FAILURE, EX_OK, READY, SIG_SOFT_TIMEOUT
from celery.concurrency import asynpool

from appserver.held_results import HeldResults
from appserver.reply_connection import reply_connection
from appserver.result_script import ResultScript

TURN = 0.002  # seconds for which ends are held
QUICK = 0.005  # seconds; a task that takes longer on average is slow
LARGEST = 32_768  # bytes of a message; a longer job is passed as a file
BUFFER = 1 << 20  # bytes; the kernel may allow less

#: The kind of a message with the ends of several jobs, beside billiard's.
ENDS = 1_000

#: How a job is passed: its message is acknowledged after it has run; it is in a file.
LATE, IN_FILE = 1, 2

_SENTINEL = -1
_Worker: Any = asynpool.Worker  # for mypy: Celery has no types
_head = Struct("=qB")  # the number of a job, and flags
_running = Struct("=qd")  # the number of a job, 0: none; the monotonic time of its beginning
_SPACE = socket.CMSG_SPACE(4)  # for one file descriptor
#: What would interrupt a write half-way: they raise an exception, in the main thread.
_SIGNALS = {each for each in (SIG_SOFT_TIMEOUT, TERM_SIGNAL) if each is not None}


class _End(socket.socket):
    """An end of the socket, as billiard uses one of a pipe."""

    @property
    def closed(self) -> bool:
        return self.fileno() < 0

    def recv(self, bufsize: int = LARGEST, flags: int = 0) -> bytes:
        return super().recv(bufsize, flags)


class JobQueue:
    """The jobs that a process is to run next, and the one that it runs."""

    def __init__(self) -> None:
        reader, writer = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._reader, self._writer = _End(fileno=reader.detach()), _End(fileno=writer.detach())
        self._writer.setblocking(False)
        self._writer.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER)
        self._running = mmap(-1, _running.size)

    # In the parent ---------------------------------------------------------------------------

    def send(self, number: int, flags: int, job: bytes) -> None:
        """Add a job. Raises BlockingIOError where there is no room."""
        head = _head.pack(number, flags)
        if len(job) <= LARGEST:
            self._writer.send(head + job)
            return
        file = os.memfd_create("job")
        try:
            with open(file, "wb", closefd=False) as written:
                written.write(job)
            head = _head.pack(number, flags | IN_FILE)
            socket.send_fds(self._writer, [head], [file])
        finally:
            os.close(file)

    def take(self) -> list[int]:
        """Take back what the process has not read; return the numbers of these jobs."""
        numbers = []
        with suppress(BlockingIOError):
            while True:
                # `recv_fds` ignores the flags.
                head, files, _, _ = self._reader.recvmsg(_head.size, _SPACE, socket.MSG_DONTWAIT)
                for _, _, file in files:
                    os.close(*array("i", file))
                numbers.append(_head.unpack(head)[0])
        if _SENTINEL in numbers:
            numbers.remove(_SENTINEL)
            self.put(None)
        return numbers

    def put(self, sentinel: None) -> None:
        """Let the process end when it has run what is in the queue."""
        self._writer.send(_head.pack(_SENTINEL, 0))

    @property
    def running(self) -> tuple[int, float]:
        """The number of the job that is running, 0: none; the monotonic time of its beginning."""
        number, begin = _running.unpack_from(self._running)
        return number, begin

    def forget(self) -> None:
        _running.pack_into(self._running, 0, 0, 0.0)

    # In the process --------------------------------------------------------------------------

    def begin(self, number: int, at: float) -> None:
        _running.pack_into(self._running, 0, number, at)

    def receive(self, flags: int = 0) -> tuple[int, int, bytes]:
        """Return a job's number, flags and data. Raises BlockingIOError; EOFError at the end."""
        data, files, _, _ = self._reader.recvmsg(_head.size + LARGEST, _SPACE, flags)
        if not data:
            raise EOFError
        number, how = _head.unpack_from(data)
        if number == _SENTINEL:
            raise EOFError
        if not how & IN_FILE:
            return number, how, data[_head.size :]
        [file] = array("i", files[0][2])
        with open(file, "rb") as read:
            read.seek(0)
            return number, how, read.read()


class Quick:
    """The names of the tasks that are quick, on average.

    What the machine lets wait once in a while stays quick.
    """

    def __init__(self) -> None:
        self._averages: dict[str, float] = {}

    def add(self, name: str, seconds: float) -> None:
        """Say how long a task took."""
        average = self._averages.get(name, QUICK)
        self._averages[name] = average + (min(seconds, 5 * QUICK) - average) / 8

    def __contains__(self, name: str) -> bool:
        return self._averages.get(name, QUICK) < QUICK


class Ends:
    """Writes what a process tells its parent: several ends at once, after their results.

    billiard's loop in the process calls `put` where a job begins, and with its result.
    """

    def __init__(self, pipe: Any, jobs: JobQueue, app: Any):
        self._pipe, self._reader, self._jobs = pipe, pipe._reader, jobs
        connection, backend = reply_connection(app), app.backend
        store = backend if isinstance(backend, ResultScript) else None
        self._held = connection.held = HeldResults(connection, store, self._write)
        self._quick = Quick()
        self._name, self._flags, self._begin = "", 0, 0.0
        self._turn_ends = 0.0

    def next_job(self) -> Any:
        """Wait for a job, and return it as billiard's loop wants it. Raises EOFError."""
        if monotonic() > self._turn_ends:
            self._flush()
        try:
            number, self._flags, data = self._jobs.receive(socket.MSG_DONTWAIT)
            more = True
        except BlockingIOError:
            self._flush()
            number, self._flags, data = self._jobs.receive()
            more = False
        job = pickle.loads(data)
        arguments = job[1][3]
        self._name = str(arguments[0]) if arguments else ""
        if not self._flags & LATE or self._name not in self._quick:
            self._flush()
        self._held.begin(more)
        return job

    def put(self, message: Any) -> None:
        """Tell the parent that a job has begun or ended, or something else."""
        kind, arguments = message
        if kind == ACK:
            number, _, self._begin, _, _ = arguments
            self._jobs.begin(number, self._begin)
            if not self._flags & LATE:  # its message is acknowledged now
                self._flush(encode(message))
        elif kind == READY:
            seconds = monotonic() - self._begin
            number, _, result, fd = arguments
            end = encode((number, result, fd, self._begin, seconds))
            self._quick.add(self._name, seconds)
            held = seconds < QUICK and self._flags & LATE and self._held.hold_end(end)
            if self._flags & LATE:
                self._jobs.forget()
            if not held:
                self._flush(encode((ENDS, (os.getpid(), [end]))))
        else:
            self._flush(encode(message))

    def _flush(self, message: bytes | None = None) -> None:
        """Write what is held, and a message behind it."""
        self._turn_ends = monotonic() + TURN
        if message is None and not self._held.holds:
            return
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        try:
            self._held.flush(message)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def _write(self, ends: list[bytes], message: bytes | None) -> None:
        if ends:
            self._pipe.send_payload(encode((ENDS, (os.getpid(), ends))))
        if message is not None:
            self._pipe.send_payload(message)


def encode(message: Any) -> bytes:
    """Return what the other side decodes. Raises what pickle does."""
    return pickle.dumps(message, pickle.HIGHEST_PROTOCOL)


class Process(_Worker):  # type: ignore[misc]
    """A process of the pool, which has several jobs."""

    outq: Any

    def on_loop_start(self, pid: int) -> None:
        self.outq = Ends(self.outq, self.inq, self.initargs[0])
        super().on_loop_start(pid)

    def _make_child_methods(self, *_: object) -> None:
        self.wait_for_syn = None

    def wait_for_job(self) -> Any:
        """Return the next job; SystemExit where there is none any more."""
        if self._shutdown and self._shutdown.is_set():
            raise SystemExit(EX_OK)
        try:
            return self.outq.next_job()
        except (EOFError, OSError) as exc:
            # What is held is written with the last message, DEATH.
            raise SystemExit(EX_FAILURE) from exc
