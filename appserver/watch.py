"""Watch the task of the pool `solo` from a thread, as the worker's loop stands still meanwhile.

The thread sends heartbeats. Without them the broker closes the connection of a task that takes
longer than twice `broker_heartbeat`, and delivers its message again.

Under `appserver.supervisor` a task's time is limited, as in a pool of processes. At the soft limit
a signal raises SoftTimeLimitExceeded where the task is. At the hard limit a signal raises what no
task should catch, the failure TimeLimitExceeded is recorded, and the worker ends and is replaced,
as what was interrupted may be broken. If a task then goes on, because it is in C code or catches
everything, a timer of the kernel ends the process: the worker is lost, as with any other such task.
"""

from __future__ import annotations

import logging
import math
import os
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import amqp
from billiard.compat import mem_rss
from celery import bootsteps
from celery.exceptions import SoftTimeLimitExceeded, TimeLimitExceeded
from celery.worker import state

from appserver.supervisor import RECYCLED, VARIABLE

LOOK = 0.1  # seconds between two looks at the task
IDLE = 10  # looks without a task after which the thread waits to be woken up
BEAT = 1.0  # seconds between two heartbeats
GRACE = 5.0  # seconds after its time limit in which a task has to end, before its process does
SIGNAL = signal.SIGVTALRM  # Celery and its tasks use SIGUSR1 and SIGALRM

log = logging.getLogger(__name__)


class TimeIsUp(BaseException):
    """Raised where a task is when its hard time limit has passed."""


@dataclass(slots=True)
class _Task:
    """What runs, and when something is to be done, in monotonic seconds; `inf`: it was done."""

    tell: Callable[[bool, float], object]
    soft: float
    tell_at: float
    soft_at: float
    hard_at: float
    beat_at: float


class Watch:
    """Watches the tasks of one worker; `limits`: their time is limited, and their number."""

    _task: _Task | None = None
    _thread: threading.Thread | None = None
    _ended = 0

    def __init__(self, worker: Any, limits: bool):
        self._worker, self._limits = worker, limits
        #: Held while something is done about a task, which cannot end meanwhile.
        self._lock = threading.Lock()
        self._watching = threading.Event()
        if limits:
            signal.signal(SIGNAL, self._interrupt)

    @property
    def runs(self) -> bool:
        """Whether a task runs."""
        return self._task is not None

    def run(
        self,
        target: Callable[[], Any],
        tell: Callable[[bool, float], object],
        soft: float | None,
        hard: float | None,
    ) -> Any:
        """Run a task with its own limits in seconds, or else the worker's; return its result.

        `tell` is called with each limit that was exceeded, and whether it is the soft one. Raises
        what the task raises, or TimeLimitExceeded.
        """
        options = self._worker.pool.options
        soft = self._limits and (soft or options.get("soft_timeout")) or math.inf
        hard = self._limits and (hard or options.get("timeout")) or math.inf
        try:
            try:
                self._begin(tell, soft, hard)
                return target()
            finally:
                self._end(hard)
        except TimeIsUp:
            self._end(hard)  # again, as a limit may have interrupted it
            self._replace()
            tell(False, hard)
            raise TimeLimitExceeded(hard) from None
        finally:
            self._end(hard)
            self._wear()

    def _begin(self, tell: Callable[[bool, float], object], soft: float, hard: float) -> None:
        if hard < math.inf:
            signal.setitimer(signal.ITIMER_REAL, hard + GRACE)
        now = time.monotonic()
        with self._lock:
            self._task = _Task(tell, soft, now + soft, now + soft, now + hard, now + BEAT)
            if not self._watching.is_set():
                self._watching.set()
                self._start()

    def _start(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="watch", daemon=True)
            self._thread.start()

    def _end(self, hard: float) -> None:
        with self._lock:
            self._task = None
        if hard < math.inf:
            signal.setitimer(signal.ITIMER_REAL, 0)

    def _interrupt(self, number: int, frame: object) -> None:
        """Raise in the task what is due; Python calls this in the main thread, where it runs."""
        task, now = self._task, time.monotonic()
        if task is None:
            return
        if task.hard_at <= now:
            task.hard_at = task.soft_at = math.inf
            raise TimeIsUp
        if task.soft_at <= now:
            task.soft_at = math.inf
            raise SoftTimeLimitExceeded

    def _wear(self) -> None:
        """Count a task, and end the worker where it has run, or its memory is, enough."""
        self._ended += 1
        options = self._worker.pool.options if self._limits else {}
        tasks, memory = options.get("maxtasksperchild"), options.get("max_memory_per_child")
        if (tasks and self._ended >= tasks) or (memory and mem_rss() > memory):
            self._replace()

    def _replace(self) -> None:
        """Let the worker end as soon as its loop continues, and a new one begin."""
        if state.should_stop is None:
            state.should_stop = RECYCLED

    # In the thread ---------------------------------------------------------------------------

    def _run(self) -> None:
        idle = 0
        while self._watching.wait():
            time.sleep(LOOK)
            with self._lock:
                idle = 0 if self._task else idle + 1
                if self._task:
                    self._look(self._task, time.monotonic())
                elif idle >= IDLE:
                    self._watching.clear()

    def _look(self, task: _Task, now: float) -> None:
        if task.tell_at <= now:
            task.tell_at = math.inf
            task.tell(True, task.soft)
        if min(task.soft_at, task.hard_at) <= now:
            os.kill(os.getpid(), SIGNAL)  # Python runs what handles it in the main thread
        if task.beat_at <= now:
            task.beat_at = now + BEAT
            beat(self._worker)


def beat(worker: Any) -> None:
    """Send a heartbeat on the connections that the worker's loop has open."""
    consumer = getattr(worker, "consumer", None)
    for one in (consumer, getattr(consumer, "event_dispatcher", None)):
        connection = getattr(getattr(one, "connection", None), "connection", None)
        if isinstance(connection, amqp.Connection) and connection.heartbeat:
            # A connection that is lost is found by the loop, when the task has ended.
            with suppress(OSError, amqp.AMQPError):
                connection.send_heartbeat()
                # The broker's own heartbeats were not read meanwhile, and are not missing.
                connection.bytes_recv += 1


class EndWithSupervisor(bootsteps.StartStopStep):
    """End the worker, as by SIGTERM, after its supervisor has ended in whatever way."""

    requires = {"celery.worker.components:Hub"}

    def include_if(self, worker: Any) -> bool:
        return is_supervised() and worker.hub is not None

    def create(self, worker: Any) -> None:
        self._end = int(os.environ[VARIABLE])

    def register_with_event_loop(self, worker: Any, hub: Any) -> None:
        hub.add_reader(self._end, self._ended, hub)

    def _ended(self, hub: Any) -> None:
        log.warning("The supervisor has ended, and so does this worker")
        hub.remove_reader(self._end)
        state.should_stop = os.EX_OK


def is_supervised() -> bool:
    return VARIABLE in os.environ
