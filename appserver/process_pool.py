"""A pool of processes: tasks wait in the processes, and their ends come back together.

Celery's pool gives a process one task at a time, by two writes, and gets two messages back, each by
two reads; a short task costs twice what it costs in the pool `solo`. Here a process has a queue of
packets, of which it reads one at a time: what it has not read, the worker takes back for a process
that is idle, so that no task waits behind a long one while another process is free. A process holds
the ends of short tasks, with their results, until it has no more to do, or for `HELD` seconds.

The worker knows without a message which task a process runs: the oldest one whose end it has not
been told of. Only a task whose message is acknowledged then is alone in its process, which tells
that it begins: the process may end before, and the worker as well. Where a process is lost, what it
has not read is given to another one.

docs/decisions/0064-tasks-that-wait-in-processes.md has the figures.
"""

from __future__ import annotations

import logging
import os
import pickle
import signal
import socket
import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from struct import Struct, pack
from time import monotonic
from typing import Any

from billiard.einfo import ExceptionInfo
from billiard.exceptions import SoftTimeLimitExceeded
from billiard.pool import ACK, EX_FAILURE, EX_OK, READY, RUN, TimeoutHandler
from billiard.reduction import ForkingPickler
from celery import bootsteps
from celery.app import app_or_default
from celery.concurrency.asynpool import AsynPool, Worker
from celery.worker.request import Request

from appserver.held_results import HeldResults, Reply, Stored
from appserver.private_parts import PrivateParts
from appserver.task_stream import TURN, hold_results

#: Tasks that a process is given at most before it has told the end of the first.
AHEAD = 32
#: The bytes of the longest packet; what is longer is passed as a file in memory.
LONGEST = 65_536
#: Quick tasks for which it is not worth waking another process up.
GROUP = 4
#: Seconds after which a job is not quick: what waits behind it may be run by another process.
LATE = 0.005
#: Seconds in which a process that is terminated writes what it holds.
LAST = 3.0
#: The kind of a message that has several ends, beside billiard's ACK and READY.
ENDS = 64
#: The kind of a message that a process begins a task.
BEGINS = 65

_head = Struct(">Q??")
#: A job's number, billiard's message of its end, pickled, and the seconds that it took.
End = tuple[int, bytes, float]

_NO_JOB = 2**64 - 1  # in place of a job's number
_CONTROL = socket.CMSG_SPACE(4)  # bytes for one descriptor
_SECOND = pack("ll", 1, 0)  # a timeval
#: The signals that raise something in a process, or may do so where a task has set them.
_SIGNALS = {
    *(signal.SIGTERM, signal.SIGQUIT, signal.SIGHUP, signal.SIGINT, signal.SIGALRM),
    *(signal.SIGUSR1, signal.SIGUSR2),
}

log = logging.getLogger(__name__)

_PARTS = PrivateParts(
    "lost and recycled processes are noticed after up to five seconds",
    "celery.concurrency.asynpool:AsynPool._track_child_process",
    "celery.concurrency.asynpool:AsynPool._sentinel_poll",
)
_QUEUE_PARTS = PrivateParts(
    "the processes of a pool get one task at a time",
    "billiard.pool:ApplyResult._accept_callback",
    "billiard.pool:ApplyResult._accepted",
    "billiard.pool:ApplyResult._job",
    "billiard.pool:ApplyResult._on_timeout_cancel",
    "billiard.pool:ApplyResult._time_accepted",
    "billiard.pool:ApplyResult._worker_pid",
    "billiard.pool:ApplyResult._write_to",
    "billiard.pool:Pool._cache",
    "billiard.pool:Pool._maxtasksperchild",
    "billiard.pool:Pool._on_ready_counters",
    "billiard.pool:Pool._process_by_pid",
    "billiard.pool:Pool._quick_put",
    "billiard.pool:Pool._result_handler",
    "billiard.pool:Pool._state",
    "billiard.pool:Pool.TimeoutHandler",
    "billiard.pool:Pool.terminate_job",
    "billiard.pool:ResultHandler.state_handlers",
    "billiard.pool:Worker._ensure_messages_consumed",
    "billiard.pool:Worker._make_child_methods",
    "billiard.pool:Worker._shutdown",
    "billiard.process:BaseProcess._is_alive",
    "celery.concurrency.asynpool:AsynPool._create_write_handlers",
    "celery.concurrency.asynpool:AsynPool._fileno_to_inq",
    "celery.concurrency.asynpool:AsynPool._put_back",
    "celery.concurrency.asynpool:AsynPool.process_flush_queues",
    "celery.worker.worker:WorkController._process_task",
)


class PromptPool(AsynPool):
    """Celery's pool of processes, which is told of a process' end when the process can be reaped.

    Celery watches a pipe that the kernel closes while the process ends. Its loop is often quick
    enough to find the process not yet ended then, watches it no longer, and looks again only every
    five seconds. So long the lost task is not begun again, and a recycled process is not replaced.
    Nor is the pipe closed while a child of that process has it. A pidfd shows nothing but the end.
    """

    def _track_child_process(self, proc: Any, hub: Any) -> None:
        if not hasattr(proc, "_sentinel_poll"):
            with suppress(AttributeError, OSError):  # not Linux 5.3; then Celery's pipe has to do
                proc._sentinel_poll = os.pidfd_open(proc.pid)
        super()._track_child_process(proc, hub)


class _End(socket.socket):
    @property
    def closed(self) -> bool:
        return self.fileno() < 0

    def recv(self, size: int = _head.size, flags: int = 0) -> bytes:
        """Receive a packet; Celery, which empties the queue of a pool that ends, names no size."""
        return super().recv(size, flags)


class Packets:
    """The queue of a process. `put`, `give` and `take_back` are the worker's, `get` the process'.

    A packet is a job's number, whether it is quick, whether its begin is told, and the job,
    pickled.
    """

    def __init__(self) -> None:
        ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._writer, self._reader = (_End(fileno=end.detach()) for end in ends)
        self._buffer = memoryview(bytearray(_head.size + LONGEST))

    def put(self, message: object) -> None:
        """Put a message that is no job at the end."""
        self._writer.send(_head.pack(_NO_JOB, False, False) + pickle.dumps(message))

    def give(self, number: int, quick: bool, told: bool, job: bytes) -> bool:
        """Put a job at the end; False: there is no room for it now."""
        head = _head.pack(number, quick, told)
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
        """Return the oldest message, whether it is quick, and whether its begin is told.

        Raises BlockingIOError if there is none and `flags` has MSG_DONTWAIT.
        """
        size, control, *_ = self._reader.recvmsg_into([self._buffer], _CONTROL, flags)
        _, quick, told = _head.unpack_from(self._buffer)
        if not control:
            return pickle.loads(self._buffer[_head.size : size]), quick, told
        [(_, _, descriptor)] = control
        with open(int.from_bytes(descriptor, sys.byteorder), "rb") as file:
            file.seek(0)
            return pickle.load(file), quick, told


class Pid(int):
    """The id of a process, as a job's request knows it: a signal is meant for that job alone."""

    job = 0

    def __reduce__(self) -> tuple[Any, ...]:
        return int, (int(self),)


class Process(Worker):
    """A process of the pool, as billiard's loop of its tasks sees it."""

    outq: Any

    def _make_child_methods(self, loads: object = None) -> None:
        self.wait_for_job, self.wait_for_syn = self._next, None

    def on_loop_start(self, pid: int) -> None:
        if self._shutdown:  # it may be set while nothing comes
            # Python's own timeout would be waited for with MSG_DONTWAIT as well.
            self.inq._reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _SECOND)
        self.outq = Ends(self.outq, self.inqW_fd)
        signal.signal(signal.SIGUSR1, self.outq.on_soft_timeout)
        super().on_loop_start(pid)  # which asks for the first job

    def _next(self) -> Any:
        """Return the next task; what is held is written before it is waited for."""
        if self._shutdown and self._shutdown.is_set():
            raise SystemExit(EX_OK)
        try:
            message, quick, told = self.inq.get(socket.MSG_DONTWAIT)
        except BlockingIOError:
            self.outq.flush()
            try:
                message, quick, told = self.inq.get()
            except BlockingIOError:  # for a second nothing has come
                return None
        if message is None:
            raise SystemExit(EX_FAILURE)
        self.outq.begin(quick, told)
        return message

    def _ensure_messages_consumed(self, completed: int) -> Any:
        last = threading.Timer(LAST, os._exit, [EX_FAILURE])
        last.daemon = True
        if sys.exc_info()[0]:  # as by a signal: who waits for its end is not to wait for a store
            last.start()
        self.outq.flush()
        last.cancel()
        return super()._ensure_messages_consumed(completed)


class Results(HeldResults):
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


class Ends:
    """What a process tells the worker: the ends of its tasks, several in one message.

    It has their results written before. Those of a task that is not known to be quick are not held,
    nor is anything while it runs.
    """

    def __init__(self, queue: Any, descriptor: int):
        self._queue, self._descriptor = queue, descriptor
        app = app_or_default()
        self._held = hold_results(app, Results, self._tell)
        self._began, self._quick, self._runs = 0.0, False, False

    def begin(self, quick: bool, told: bool) -> None:
        if not quick:
            self._held.flush()
        if told:
            self._queue.put((BEGINS, (self._descriptor,)))
        self._held.begin(quick)
        self._quick, self._began, self._runs = quick, monotonic(), True

    def put(self, message: tuple[int, Any]) -> None:
        """Put a message of billiard's loop. Raises an error if it cannot be pickled."""
        if message[0] == READY:
            self._runs = False
            took = monotonic() - self._began
            self._held.hold_end((message[1][0], bytes(ForkingPickler.dumps(message)), took))
            if not self._quick or took > TURN:
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

    def _tell(self, ends: Sequence[End]) -> None:
        self._queue.put((ENDS, (self._descriptor, ends)))


class Limits(TimeoutHandler):
    """The time limits of tasks. One that has ended has none, also if its end was not told yet."""

    def on_soft_timeout(self, job: Any) -> None:
        if not _has_ended(job):
            super().on_soft_timeout(job)

    def on_hard_timeout(self, job: Any) -> None:
        if not _has_ended(job):
            super().on_hard_timeout(job)


class ProcessPool(PromptPool):
    """A pool whose processes have several quick tasks each, of which they run one.

    A job that waits for its turn, here or in a process, is not run if it was revoked meanwhile.
    """

    Worker, TimeoutHandler = Process, Limits

    def WorkerProcess(self, worker: Process) -> Any:
        process = super().WorkerProcess(worker)
        #: The jobs whose ends were not told: the first is run, the others wait.
        process.given, process.left = deque(), self._maxtasksperchild or sys.maxsize
        return process

    def create_process_queues(self) -> tuple[Any, ...]:
        pipe, *others = super().create_process_queues()
        pipe.close()
        return Packets(), *others

    def create_result_handler(self) -> Any:
        handler = super().create_result_handler()
        handler.state_handlers.update({ENDS: self._on_ends, BEGINS: self._on_begins})
        return handler

    def _create_write_handlers(self, hub: Any, **_options: object) -> None:
        super()._create_write_handlers(hub)
        self._quick_put, self.on_poll_start = self._enqueue, self._share_out
        self._call_later = hub.call_later
        #: The names of the tasks that took less than a turn when they ended last.
        self._quick: set[str] = set()
        self._looks = False

    def _enqueue(self, message: tuple[Any, ...]) -> None:
        job = self._cache[message[1][0]]
        request = getattr(job._accept_callback, "__self__", None)
        job.request = request if isinstance(request, Request) else None
        job.told = job.request is not None and not job.request.task.acks_late
        try:
            job.body = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
        except Exception:
            job.discard()
            raise
        self.outbound_buffer.append(job)

    def _share_out(self) -> None:
        """Give the jobs to the processes: one to each that is idle, or several quick ones."""
        jobs = self.outbound_buffer
        if not jobs:
            return
        processes = list(self._fileno_to_inq.values())
        while jobs:
            job = jobs[0]
            quick = not job.told and self._is_quick(job.request)
            takes = (one for one in processes if _takes(one, quick))
            process = min(takes, key=_groups, default=None)
            if process is None:
                return
            if job.request and job.request.revoked():  # which has been recorded
                job.discard()
            elif not self._give(process, job, quick):
                return
            jobs.popleft()

    def _is_quick(self, request: Request | None) -> bool:
        # One that came again may lose the process again, and that one would lose others, whose ends
        # were not told: their messages have to return to the queue.
        return (
            request is not None
            and not request.delivery_info["redelivered"]
            and request.task.reject_on_worker_lost
            and request.type in self._quick
        )

    def _give(self, process: Any, job: Any, quick: bool) -> bool:
        if not process.inq.give(job._job, quick, job.told, job.body):
            return False
        job.quick, job._write_to = quick, process
        process.given.append(job)
        process.left -= 1
        self.write_stats[process.index] += 1
        if len(process.given) == 1:
            if not job.told:
                self._begun(process, job)
        elif not self._looks:
            self._looks = True
            self._call_later(LATE, self._look)
        return True

    def _look(self) -> None:
        """Take back what waits behind a job that was believed to be quick."""
        self._looks = False
        if self._state != RUN:  # and another thread may be told of ends
            return
        now = monotonic()
        for process in self._fileno_to_inq.values():
            if len(process.given) < 2:
                continue
            if now - process.given[0]._time_accepted < LATE:
                self._looks = True
            else:
                # All of them: the end of the first may be told only after a later one, which holds
                # Python's lock.
                for job in process.given:
                    job.quick = False
                self.outbound_buffer.extendleft(reversed(self._take_back(process)))
        if self._looks:
            self._call_later(LATE, self._look)

    def _take_back(self, process: Any) -> list[Any]:
        """Take back the jobs that `process` has not read, the oldest first."""
        unread = set(iter(process.inq.take_back, None))
        given, process.given = process.given, deque()
        waiting = []
        for job in given:
            # What the worker believes to have begun, and has told others, is given back.
            if job._job not in unread or (
                job._accepted
                and process._is_alive()
                and process.inq.give(job._job, job.quick, job.told, job.body)
            ):
                process.given.append(job)
                continue
            if job._accepted:
                job._on_timeout_cancel(job)
                job._accepted, job._worker_pid, job._time_accepted = False, None, None
            job._write_to = None
            process.left += 1
            waiting.append(job)
        for job in tuple(process.given):  # after all is known: it may be terminated then
            if not (job._accepted or job.told):
                self._begun(process, job)
        return waiting

    def _begun(self, process: Any, job: Any) -> None:
        self.restart_state.R = 0
        pid = Pid(process.pid)
        pid.job = job._job
        try:
            job._ack(None, monotonic(), pid, None)
        except AttributeError:  # of billiard's, where the callback has raised another error
            log.exception("What precedes a task has failed; the task is begun")

    def _on_begins(self, descriptor: int) -> None:
        process = self._fileno_to_inq[descriptor]
        if process.given[0]._job in self._cache:  # else it was forgotten with its connection
            self._begun(process, process.given[0])

    def _on_ends(self, descriptor: int, ends: Sequence[End]) -> None:
        process = self._fileno_to_inq[descriptor]
        for number, end, took in ends:
            job = next((one for one in process.given if one._job == number), None)
            if job is None:  # it is told again, where a signal or a fork came in between
                continue
            process.given.remove(job)
            if job.request:
                (self._quick.add if took < TURN else self._quick.discard)(job.request.type)
            try:
                message = pickle.loads(end)
            except Exception:  # noqa: BLE001 - of a class of the app's, for example
                message = READY, (job._job, None, (False, ExceptionInfo()), descriptor)
            self._result_handler.on_state_change(message)
            if process.given and not process.given[0]._accepted:
                self._begun(process, process.given[0])
        # A process that ends waits until it was heard.
        counter = self._on_ready_counters[process.pid]
        with counter.get_lock():
            counter.value += len(ends)

    def terminate_job(self, pid: int, sig: int | None = None) -> None:
        """Send a signal to the process, unless it runs another task than the one that is meant."""
        process, _ = self._process_by_pid(pid)
        if process:
            self.outbound_buffer.extendleft(reversed(self._take_back(process)))
            for job in process.given:
                job.quick = False  # no other one is to come there before the signal
            if getattr(pid, "job", None) in [job._job for job in process.given][:-1]:
                return
        super().terminate_job(pid, sig)

    def on_job_process_down(self, job: Any, pid_gone: int) -> None:
        """Replace the queues of a process, where it has lost a job.

        One that has ended a moment ago is still to be asked what it has not read.
        """
        if job._write_to not in self._pool:
            super().on_job_process_down(job, pid_gone)

    def process_flush_queues(self, proc: Any) -> None:
        """Take back what a process that has ended has not read, and read what it has told."""
        for job in reversed(self._take_back(proc)):
            self._put_back(job)
        super().process_flush_queues(proc)
        while len(proc.given) > 1:  # it has ended, and its end is lost
            self.mark_as_worker_lost(proc.given.popleft(), proc.exitcode)
        proc.given.clear()

    def flush(self) -> None:
        """Forget what was not begun: its messages come again on the next connection."""
        for process in self._pool:
            self._take_back(process)
        super().flush()

    def close(self) -> None:
        """End after the jobs that were begun; the messages of the others return to their queues."""
        for process in self._pool:
            self.outbound_buffer.extend(self._take_back(process))
        for job in self.outbound_buffer:
            job.discard()
        self.outbound_buffer.clear()
        super().close()


def _takes(process: Any, quick: bool) -> bool:
    """Tell whether a process is given another job."""
    given = process.given
    ahead = quick and given and given[-1].quick and len(given) < AHEAD
    return process.left > 0 and (ahead or not given)


def _has_ended(job: Any) -> bool:
    """Tell whether the process of a job is known to have begun a later one."""
    process = job._write_to
    return process is not None and job in [one for one in process.given if one._accepted][:-1]


def _groups(process: Any) -> int:
    return len(process.given) // GROUP


class Processes(bootsteps.Step):
    """Let the worker make its processes by a pool of ours, where it would make them by Celery's."""

    requires = {"celery.worker.components:Pool"}

    def create(self, worker: Any) -> None:
        pool = worker.pool
        if getattr(pool, "Pool", None) is not AsynPool or not _PARTS.there:
            return
        pool.Pool = PromptPool
        if pool.forking_enable and hasattr(os, "memfd_create") and _QUEUE_PARTS.there:
            pool.Pool = ProcessPool
            # Not by its semaphore, which has a place for each process.
            worker.process_task = worker._process_task
