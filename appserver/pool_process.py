"""A process of the pool: it takes one job after the other, and tells several ends together.

It holds the ends of short tasks, with their results, until it has no more to do, or for `HELD`
seconds. The results are written before the ends are told. `appserver.process_pool` is the worker's
side.
"""

from __future__ import annotations

import os
import pickle
import signal
import socket
import sys
import threading
from collections.abc import Callable, Sequence
from struct import Struct, pack
from time import monotonic
from typing import Any

from billiard.exceptions import SoftTimeLimitExceeded
from billiard.pool import ACK, EX_FAILURE, EX_OK, READY
from billiard.reduction import ForkingPickler
from celery.app import app_or_default
from celery.concurrency.asynpool import Worker

from appserver.held_results import HeldResults, Reply, Stored
from appserver.private_parts import PrivateParts
from appserver.task_stream import TURN, hold_results

#: The bytes of the longest packet; what is longer is passed as a file in memory.
LONGEST = 65_536
#: Seconds in which a process that is terminated writes what it holds.
LAST_WRITE = 3.0
AGAIN = 0.01  # seconds until a task that does not run yet is interrupted again
#: The kinds of messages to the worker, beside billiard's: several ends, and that a task begins.
ENDS, BEGINS = 64, 65

_head = Struct(">Q??")
#: A job's number, billiard's message of its end, pickled, and whether the task was quick.
End = tuple[int, bytes, bool]

_NO_JOB = 2**64 - 1  # in place of a job's number
_CONTROL = socket.CMSG_SPACE(4)  # bytes for one descriptor
_SECOND = pack("ll", 1, 0)  # a timeval
#: The signals that raise something in a process, or may do so where a task has set them.
_SIGNALS = {
    *(signal.SIGTERM, signal.SIGQUIT, signal.SIGHUP, signal.SIGINT, signal.SIGALRM),
    *(signal.SIGUSR1, signal.SIGUSR2),
}

PARTS = PrivateParts(
    "the processes of a pool get one task at a time",
    "billiard.pool:Worker._ensure_messages_consumed",
    "billiard.pool:Worker._make_child_methods",
    "billiard.pool:Worker._shutdown",
)


class _PacketSocket(socket.socket):
    @property
    def closed(self) -> bool:
        return self.fileno() < 0

    def recv(self, size: int = _head.size, flags: int = 0) -> bytes:
        """Receive a packet; Celery, which empties the queue of a pool that ends, names no size."""
        return super().recv(size, flags)


class JobQueue:
    """The queue of one process. The worker calls `put`, `give` and `take_back`, the process `get`.

    A packet is a job's number, whether it is quick, whether the process tells that it begins it,
    and the job, pickled.
    """

    def __init__(self) -> None:
        pair = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._writer, self._reader = (_PacketSocket(fileno=each.detach()) for each in pair)
        self._buffer = memoryview(bytearray(_head.size + LONGEST))

    def put(self, message: object) -> None:
        """Put a message that is no job at the end."""
        self._writer.send(_head.pack(_NO_JOB, False, False) + pickle.dumps(message))

    def give(self, number: int, quick: bool, tells_begin: bool, job: bytes) -> bool:
        """Put a job at the end; False: there is no room for it now."""
        head = _head.pack(number, quick, tells_begin)
        try:
            if len(job) <= LONGEST:
                self._writer.send(head + job, socket.MSG_DONTWAIT)
                return True
            with open(os.memfd_create("job"), "wb") as file:
                file.write(job)
                file.flush()
                socket.send_fds(self._writer, [head], [file.fileno()], socket.MSG_DONTWAIT)
        except OSError:  # there may also be too many files
            return False
        return True

    def take_back(self) -> int | None:
        """Take the oldest job that was not read, and return its number; None: there is none."""
        try:
            packet = self._reader.recv(flags=socket.MSG_DONTWAIT)
        except OSError:  # also where the queue was closed, as its process has ended
            return None
        number: int = _head.unpack(packet)[0]
        return number

    def get(self, flags: int = 0) -> tuple[Any, bool, bool]:
        """Return the oldest message, and the two other parts of its packet.

        Raises BlockingIOError if there is none and `flags` has MSG_DONTWAIT.
        """
        size, control, *_ = self._reader.recvmsg_into([self._buffer], _CONTROL, flags)
        _, quick, tells_begin = _head.unpack_from(self._buffer)
        if not control:
            return pickle.loads(self._buffer[_head.size : size]), quick, tells_begin
        [(_, _, descriptor)] = control
        with open(int.from_bytes(descriptor, sys.byteorder), "rb") as file:
            file.seek(0)
            return pickle.load(file), quick, tells_begin


class PoolProcess(Worker):
    """What a process of the pool runs, as Celery's `Worker` does: billiard's loop of its jobs."""

    outq: Any

    def _make_child_methods(self, loads: object = None) -> None:
        self.wait_for_job, self.wait_for_syn = self._next, None

    def on_loop_start(self, pid: int) -> None:
        if self._shutdown:  # it may be set while nothing comes
            # Python's own timeout would be waited for with MSG_DONTWAIT as well.
            self.inq._reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _SECOND)
        self.outq = EndQueue(self.outq, self.inqW_fd)
        signal.signal(signal.SIGUSR1, self.outq.on_soft_timeout)
        super().on_loop_start(pid)  # which asks for the first job

    def _next(self) -> Any:
        """Return the next job; what is held is written before it is waited for."""
        if self._shutdown and self._shutdown.is_set():
            raise SystemExit(EX_OK)
        try:
            message, quick, tells_begin = self.inq.get(socket.MSG_DONTWAIT)
        except BlockingIOError:
            self.outq.flush()
            try:
                message, quick, tells_begin = self.inq.get()
            except BlockingIOError:  # for a second nothing has come
                return None
        if message is None:
            raise SystemExit(EX_FAILURE)
        self.outq.begin(quick, tells_begin)
        return message

    def _ensure_messages_consumed(self, completed: int) -> Any:
        last = threading.Timer(LAST_WRITE, os._exit, [EX_FAILURE])
        last.daemon = True
        if sys.exc_info()[0]:  # as by a signal: who waits for its end is not to wait for a store
            last.start()
        self.outq.flush()
        last.cancel()
        return super()._ensure_messages_consumed(completed)


class EndQueue:
    """What a process tells the worker: the ends of its tasks, several in one message.

    It has their results written before. The end of a task that is not known to be quick is not
    held, nor is anything while that task runs.
    """

    def __init__(self, queue: Any, descriptor: int):
        self._queue, self._descriptor = queue, descriptor
        self._held = hold_results(app_or_default(), ProcessResults, self._tell)
        self._began, self._quick, self._tasks = 0.0, False, 0
        #: The worker may know of the task; it runs.
        self._begins = self._runs = False

    def begin(self, quick: bool, tells_begin: bool) -> None:
        """Begin a task: whether it is known to be quick, and whether the worker is told."""
        if not quick:
            self._held.flush()
        self._begins, self._tasks = True, self._tasks + 1
        if tells_begin:
            self._queue.put((BEGINS, (self._descriptor,)))
        self._held.begin(quick)
        self._quick, self._began, self._runs = quick, monotonic(), True

    def put(self, message: tuple[int, Any]) -> None:
        """Put a message of billiard's loop. Raises an error if it cannot be pickled."""
        if message[0] == READY:
            self._begins = self._runs = False
            quick = monotonic() - self._began < TURN
            self._held.hold_end((message[1][0], bytes(ForkingPickler.dumps(message)), quick))
            if not (quick and self._quick):
                self._held.flush()
        elif message[0] != ACK:
            self._held.flush()
            self._queue.put(message)

    def flush(self) -> None:
        self._held.flush()

    def on_soft_timeout(self, number: int, frame: object) -> None:
        """Interrupt the task. If it has ended meanwhile, its end may be about to be told."""
        if self._runs:
            raise SoftTimeLimitExceeded
        if self._begins:  # the process stood still meanwhile
            # The timer's thread inherits the mask: what it received would interrupt the main one.
            mask = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
            timer = threading.Timer(AGAIN, self._interrupt, [self._tasks])
            timer.daemon = True
            timer.start()
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)

    def _interrupt(self, task: int) -> None:
        """Interrupt a task again, unless it has ended meanwhile."""
        if self._begins and self._tasks == task:
            os.kill(os.getpid(), signal.SIGUSR1)

    def _tell(self, ends: Sequence[End]) -> None:
        self._queue.put((ENDS, (self._descriptor, ends)))


class ProcessResults(HeldResults):
    """Those of a process. No signal interrupts their telling, which may not be done twice, or half.

    A signal may interrupt the wait for a store, after which they are held as before.
    """

    def flush(self) -> None:
        with self._lock:
            self._mask = mask = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
            try:
                super().flush()
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, mask)

    def _write(self, held: list[tuple[Reply | Stored, Callable[[], object]]]) -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)
        try:
            super()._write(held)
        finally:
            signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)

    def _run(self) -> None:
        # What this thread receives would interrupt the main one.
        signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        super()._run()
