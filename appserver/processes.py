"""The processes of a prefork pool: they have their next jobs, and their ends are noticed at once.

A process gets further jobs while it runs one if their tasks are quick on average, and are
acknowledged late. A job that takes longer than `TICK` all the same gets the others
behind it taken back, for another process. Celery is told that a job has begun (which its time
limits, its early acknowledgement and remote control need) when it ends, or after that time.

If a process is lost, the job that it was running is lost with it, as in Celery; those that it has
not begun, and those whose end it has held, are given to another one.
"""

from __future__ import annotations

import os
import pickle
import socket
import sys
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from time import monotonic
from typing import Any

from billiard.pool import ACK, READY, RUN, TERMINATE
from celery import bootsteps
from celery.concurrency import asynpool
from celery.concurrency.asynpool import AsynPool
from celery.worker.request import Request

from appserver.job_queue import ENDS, LATE, JobQueue, Process, Quick, encode
from appserver.private_parts import PrivateParts

AHEAD = 8  # jobs that a process has at the most
TICK = 0.005  # seconds after which a job has nothing behind it

#: The variable that leaves jobs and their ends to Celery's pool.
SWITCH = "GATEWAY_WORKER_BATCHES"

_PARTS = PrivateParts(
    "lost and recycled processes are noticed after up to five seconds",
    "celery.concurrency.asynpool:AsynPool._track_child_process",
    "celery.concurrency.asynpool:AsynPool._sentinel_poll",
)
_BATCH_PARTS = PrivateParts(
    "each process of the pool gets one job at a time",
    "celery.concurrency.asynpool:AsynPool._all_inqueues",
    "celery.concurrency.asynpool:AsynPool._create_write_handlers",
    "celery.concurrency.asynpool:AsynPool._fileno_to_inq",
    "celery.concurrency.asynpool:AsynPool._on_hard_timeout",
    "celery.concurrency.asynpool:AsynPool._on_soft_timeout",
    "celery.concurrency.asynpool:AsynPool._put_back",
    "celery.concurrency.asynpool:AsynPool._quick_put",
    "billiard.pool:ApplyResult._accepted",
    "billiard.pool:ApplyResult._job",
    "billiard.pool:Pool._cache",
    "billiard.pool:Pool._on_ready_counters",
    "billiard.pool:Pool._putlock",
    "billiard.pool:Pool._state",
    "billiard.pool:Worker._make_child_methods",
    "celery.worker.components:Pool._quick_acquire",
    "celery.worker.components:Pool._quick_release",
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


class _ResultHandler(asynpool.ResultHandler):
    """Reads what the processes tell; `BatchPool` counts the ends itself."""

    def __init__(self, *args: Any, **options: Any):
        super().__init__(*args, **{**options, "on_ready_counters": None})


class BatchPool(PromptPool):
    """A pool whose processes have several jobs, and tell several ends at once."""

    ResultHandler = _ResultHandler
    Worker = Process

    def __init__(self, *args: Any, **options: Any):
        #: What each process has and has not told the end of, by the descriptor of its queue and by
        #: the number of the job, in the order in which it runs them.
        self._sent: dict[int, dict[int, Any]] = {}
        #: The processes that run a slow job: they get no further ones.
        self._slow: set[int] = set()
        self._quick = Quick()
        self._request: Any = None  # that of the job which is being made
        self._hub: Any = None
        self._ticks = False
        super().__init__(*args, **options)

    def create_process_queues(self) -> Any:
        pipe, ends, acknowledgements = super().create_process_queues()
        pipe.close()
        return JobQueue(), ends, acknowledgements

    def create_result_handler(self) -> Any:
        handler = super().create_result_handler()
        handler.state_handlers[ENDS] = self._on_ends
        self._tell = handler.state_handlers
        if check_timeouts := handler.check_timeouts:  # while the worker ends, without its loop

            def check() -> None:
                self._see_what_runs(0)
                check_timeouts()

            handler.check_timeouts = check
        return handler

    # Jobs ------------------------------------------------------------------------------------

    def apply_async(self, *args: Any, callback: Any = None, **options: Any) -> Any:
        request = getattr(callback, "__self__", None)
        self._request = request if isinstance(request, Request) else None
        return super().apply_async(*args, callback=callback, **options)

    def has_room(self, request: Any) -> bool:
        """Tell whether a process that runs a job may get this one, too."""
        return (
            request.task.acks_late
            and request.task.name in self._quick
            and not self.outbound_buffer
            and self._find_process(True) is not None
        )

    def _create_write_handlers(self, hub: Any, **options: Any) -> None:
        super()._create_write_handlers(hub, **options)
        self._hub, self._ticks = hub, False
        self._quick_put, self.on_poll_start = self._take, self._send_all
        self._watch()

    def _take(self, task: Any) -> None:
        """Send a job to a process that is free, or has room for it; or let it wait."""
        job = self._cache[task[1][0]]
        try:
            job.data = encode(task)
        except BaseException:
            job.discard()
            raise
        job.request, self._request = self._request, None
        job.late = job.request is not None and job.request.task.acks_late
        if self.outbound_buffer or not self._send(job):
            self.outbound_buffer.append(job)

    def _send_all(self) -> None:
        """Send the jobs that wait, as far as there are processes for them."""
        waiting = self.outbound_buffer
        while waiting and self._state == RUN:
            job = waiting[0]
            known = self._cache.get(job._job) is job and not job._accepted
            if known and self._find_process(self._is_quick(job)) is None:
                return
            if not known:
                waiting.popleft()
            elif job.request is not None and job.request.revoked():  # or expired, meanwhile
                waiting.popleft()
                job.discard()
                self._putlock.release()
            elif self._send(job):
                waiting.popleft()
            else:
                return

    def _send(self, job: Any) -> bool:
        fd = self._find_process(self._is_quick(job))
        if fd is None:
            return False
        process = self._fileno_to_inq[fd]
        try:
            process.inq.send(job._job, LATE if job.late else 0, job.data)
        except BlockingIOError:
            return False
        self._sent.setdefault(fd, {})[job._job] = job
        self.write_stats[process.index] += 1
        self._watch()
        return True

    def _is_quick(self, job: Any) -> bool:
        return bool(job.late) and job.request.task.name in self._quick

    def _find_process(self, quick: bool) -> int | None:
        """Return a process that has no job; for a quick one, else the one that has the fewest."""
        processes: set[int] = self._all_inqueues
        found, least = None, AHEAD
        for fd in processes:
            number = len(self._sent.get(fd, ()))
            if not number:
                return fd
            if quick and number < least and fd not in self._slow:
                found, least = fd, number
        return found

    # Ends ------------------------------------------------------------------------------------

    def _on_ends(self, pid: int, ends: list[bytes]) -> None:
        """Handle the ends of jobs that a process has told at once; raise the first error."""
        error: BaseException | None = None
        for end in ends:
            number, result, fd, begin, seconds = pickle.loads(end)
            job = self._cache.get(number)
            try:
                if job is not None:
                    if not job._accepted:
                        self._tell[ACK](number, None, begin, pid, None)
                    if request := getattr(job, "request", None):
                        self._quick.add(request.task.name, seconds)
                self._tell[READY](number, None, result, fd)
            except BaseException as exc:  # noqa: BLE001 - it is raised below
                error = error or exc
        if counter := self._on_ready_counters.get(pid):
            with counter.get_lock():
                counter.value += len(ends)
        if error is not None:
            raise error

    def on_job_ready(self, job: int, i: Any, obj: Any, inqW_fd: int) -> None:
        if jobs := self._sent.get(inqW_fd):
            jobs.pop(job, None)
        self._slow.discard(inqW_fd)
        super().on_job_ready(job, i, obj, inqW_fd)

    # What runs -------------------------------------------------------------------------------

    def _watch(self) -> None:
        if not self._ticks and self._hub is not None and any(self._sent.values()):
            self._ticks = True
            self._hub.call_later(TICK, self._tick)

    def _tick(self) -> None:
        self._ticks = False
        if self._state == RUN and self._see_what_runs(TICK):
            self._ticks = True
            self._hub.call_later(TICK, self._tick)

    def _see_what_runs(self, seconds: float) -> bool:
        """Let Celery know of each job that has run for so long; tell whether there may be more."""
        more, now = False, monotonic()
        for fd, jobs in list(self._sent.items()):
            process = self._fileno_to_inq.get(fd)
            if not jobs or process is None:
                continue
            number, begin = process.inq.running
            job = jobs.get(number)
            if job is None or now - begin < seconds:
                more = True
            elif fd not in self._slow:
                self._slow.add(fd)
                if not job._accepted:
                    self._tell[ACK](number, None, begin, process.pid, None)
                self._give_to_others(self._take_back(process))
        return more

    def _take_back(self, process: Any) -> list[Any]:
        """Take back the jobs that `process` has not read, and return them."""
        jobs = self._sent.get(process.inqW_fd, {})
        taken = (jobs.pop(number, None) for number in process.inq.take())
        return [job for job in taken if job is not None]

    def _give_to_others(self, jobs: list[Any]) -> None:
        for job in reversed(jobs):
            self._put_back(job)

    def _runs(self, job: int) -> bool:
        """Tell whether a process still runs this job, for its time limits."""
        found = self._cache.get(job)
        process, _ = self._process_by_pid(found._worker_pid) if found else (None, None)
        return process is None or process.inq.running[0] == job

    def _on_soft_timeout(self, job: int, *limits: Any) -> None:
        if self._runs(job):
            super()._on_soft_timeout(job, *limits)

    def _on_hard_timeout(self, job: int) -> None:
        if self._runs(job):
            super()._on_hard_timeout(job)

    def terminate_job(self, pid: int, sig: int | None = None) -> None:
        process, _ = self._process_by_pid(pid)
        job = process and self._cache.get(process.inq.running[0])
        if job is None or job._accepted:  # else the one that is meant has just ended
            super().terminate_job(pid, sig)

    # Losses ----------------------------------------------------------------------------------

    def process_flush_queues(self, process: Any) -> None:
        """Read what a process that has ended has told; what it ran is lost, the rest is not."""
        super().process_flush_queues(process)
        unread = self._take_back(process)
        jobs = self._sent.pop(process.inqW_fd, {})
        self._slow.discard(process.inqW_fd)
        number, begin = process.inq.running
        process.inq.forget()
        job = jobs.pop(number, None)
        if job is not None and not job._accepted:
            self._tell[ACK](number, None, begin, process.pid, None)
        self._give_to_others([*(job for job in jobs.values() if not job._accepted), *unread])

    def flush(self) -> None:
        """Forget what has not begun: the connection is lost, and the messages come again."""
        if self._state != TERMINATE:
            for process in self._fileno_to_inq.values():
                self._take_back(process)
            self._see_what_runs(0)
        super().flush()


class Places:
    """Celery's semaphore: a worker gives its pool as many tasks as this has places.

    A task may have a place beyond that if there `is_room` for it in a process, and none waits.
    """

    def __init__(self, value: int, is_room: Callable[[Any], bool]):
        self.initial_value = self.value = value
        self._is_room = is_room
        self._waiting: deque[tuple[Callable[..., object], Any]] = deque()

    def acquire(self, callback: Callable[..., object], request: Any) -> bool:
        """Call back with `request`, now or later; tell whether it was now."""
        if self._waiting or not self._has_place(request):
            self._waiting.append((callback, request))
            return False
        self.value -= 1
        callback(request)
        return True

    def release(self) -> None:
        self.value = min(self.value + 1, self.initial_value)
        while self._waiting and self._has_place(self._waiting[0][1]):
            callback, request = self._waiting.popleft()
            self.value -= 1
            callback(request)

    def grow(self, n: int = 1) -> None:
        self.initial_value += n
        for _ in range(n):
            self.release()

    def shrink(self, n: int = 1) -> None:
        self.initial_value = max(self.initial_value - n, 0)
        self.value -= n

    def clear(self) -> None:
        self._waiting.clear()
        self.value = self.initial_value

    def _has_place(self, request: Any) -> bool:
        return self.value > 0 or self._is_room(request)


class PromptProcesses(bootsteps.Step):
    """Let the worker make its processes by our pools, where it would make them by Celery's."""

    requires = {"celery.worker.components:Pool"}

    def create(self, worker: Any) -> None:
        pool = worker.pool
        if getattr(pool, "Pool", None) is not AsynPool or not _PARTS.there:
            return
        pool.Pool = PromptPool
        wanted = os.environ.get(SWITCH, "1").lower() not in ("0", "false", "f", "no", "n", "off")
        fair = pool.options.get("sched_strategy") in (None, "default", "fair")
        if not (wanted and fair and _can_batch(worker) and _BATCH_PARTS.there):
            return
        pool.Pool = BatchPool
        places = Places(worker.semaphore.initial_value, lambda request: _has_room(pool, request))
        worker.semaphore = pool.options["semaphore"] = places
        worker._quick_acquire, worker._quick_release = places.acquire, places.release


def _can_batch(worker: Any) -> bool:
    forks = worker.pool.forking_enable and getattr(worker, "semaphore", None) is not None
    return bool(forks and sys.platform == "linux" and hasattr(socket, "SOCK_SEQPACKET"))


def _has_room(pool: Any, request: Any) -> bool:
    return bool(pool._pool.has_room(request))
