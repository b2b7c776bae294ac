"""A pool of processes: tasks wait in the processes, and their ends come back together.

Celery's pool gives a process one task at a time, by two writes, and gets two messages back, each by
two reads; a short task costs twice what it costs in the pool `solo`. Here a process has a queue of
packets, of which it reads one at a time: what it has not read, the worker takes back for a process
that is idle, so that no task waits behind a long one while another process is free.

The worker knows without a message which task a process runs: the oldest one whose end it has not
been told of. Only a task whose message is acknowledged then is alone in its process, which tells
that it begins: the process may end before, and the worker as well. Where a process is lost, what it
has not read is given to another one.

`appserver.pool_process` is the processes' side.
docs/decisions/0064-tasks-that-wait-in-processes.md has the figures.
"""

from __future__ import annotations

import logging
import os
import pickle
import sys
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from time import monotonic
from typing import Any

from billiard.einfo import ExceptionInfo
from billiard.pool import READY, RUN, TimeoutHandler
from celery import bootsteps
from celery.concurrency.asynpool import AsynPool
from celery.worker.request import Request

from appserver import pool_process
from appserver.pool_process import BEGINS, ENDS, End, JobQueue, PoolProcess
from appserver.private_parts import PrivateParts

#: Tasks that a process is given at most before it has told the end of the first.
AHEAD = 32
#: Quick tasks for which it is not worth waking another process up.
GROUP = 4
#: Seconds that a quick task may take until what waits behind it is taken back.
TAKEN_BACK_AFTER = 0.005

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


class JobPid(int):
    """The id of a process, as a job's request knows it: a signal is meant for that job alone."""

    job = 0

    def __reduce__(self) -> tuple[Any, ...]:
        return int, (int(self),)


class TimeLimits(TimeoutHandler):
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

    Worker, TimeoutHandler = PoolProcess, TimeLimits

    def WorkerProcess(self, worker: PoolProcess) -> Any:
        process = super().WorkerProcess(worker)
        #: The jobs whose ends were not told: the first is run, the others wait.
        process.given, process.may_take = deque(), self._maxtasksperchild or sys.maxsize
        return process

    def create_process_queues(self) -> tuple[Any, ...]:
        pipe, *others = super().create_process_queues()
        pipe.close()
        return JobQueue(), *others

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
        self._unblock_follows = False

    def _enqueue(self, message: tuple[Any, ...]) -> None:
        job = self._cache[message[1][0]]
        request = getattr(job._accept_callback, "__self__", None)
        job.request = request if isinstance(request, Request) else None
        job.tells_begin = job.request is not None and not job.request.task.acks_late
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
            quick = not job.tells_begin and self._is_quick(job.request)
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
        if not process.inq.give(job._job, quick, job.tells_begin, job.body):
            return False
        job.quick, job._write_to = quick, process
        process.given.append(job)
        process.may_take -= 1
        self.write_stats[process.index] += 1
        if len(process.given) == 1:
            if not job.tells_begin:
                self._begun(process, job)
        elif not self._unblock_follows:
            self._unblock_follows = True
            self._call_later(TAKEN_BACK_AFTER, self._unblock)
        return True

    def _unblock(self) -> None:
        """Take back what waits behind a job that was believed to be quick."""
        self._unblock_follows = False
        if self._state != RUN:  # and another thread may be told of ends
            return
        now = monotonic()
        for process in self._fileno_to_inq.values():
            if len(process.given) < 2:
                continue
            if now - process.given[0]._time_accepted < TAKEN_BACK_AFTER:
                self._unblock_follows = True
            else:
                # All of them: the end of the first may be told only after a later one, which holds
                # Python's lock.
                for job in process.given:
                    job.quick = False
                self.outbound_buffer.extendleft(reversed(self._take_back(process)))
        if self._unblock_follows:
            self._call_later(TAKEN_BACK_AFTER, self._unblock)

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
                and process.inq.give(job._job, job.quick, job.tells_begin, job.body)
            ):
                process.given.append(job)
                continue
            if job._accepted:
                job._on_timeout_cancel(job)
                job._accepted, job._worker_pid, job._time_accepted = False, None, None
            job._write_to = None
            process.may_take += 1
            waiting.append(job)
        for job in tuple(process.given):  # after all is known: it may be terminated then
            if not (job._accepted or job.tells_begin):
                self._begun(process, job)
        return waiting

    def _begun(self, process: Any, job: Any) -> None:
        self.restart_state.R = 0
        pid = JobPid(process.pid)
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
        for number, end, quick in ends:
            job = next((one for one in process.given if one._job == number), None)
            if job is None:  # it is told again, where a signal or a fork came in between
                continue
            process.given.remove(job)
            if job.request:
                (self._quick.add if quick else self._quick.discard)(job.request.type)
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
    return process.may_take > 0 and (ahead or not given)


def _has_ended(job: Any) -> bool:
    """Tell whether the process of a job is known to have begun a later one."""
    process = job._write_to
    return process is not None and job in [one for one in process.given if one._accepted][:-1]


def _groups(process: Any) -> int:
    return len(process.given) // GROUP


class UseProcessPool(bootsteps.Step):
    """Let a pool of ours make the worker's processes where Celery's own would make them."""

    requires = {"celery.worker.components:Pool"}

    def create(self, worker: Any) -> None:
        pool = worker.pool
        if getattr(pool, "Pool", None) is not AsynPool or not _PARTS.there:
            return
        pool.Pool = PromptPool
        if hasattr(os, "memfd_create") and _QUEUE_PARTS.there and pool_process.PARTS.there:
            pool.Pool = ProcessPool
            # Not by its semaphore, which has a place for each process.
            worker.process_task = worker._process_task
