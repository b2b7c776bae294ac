"""A prefork pool gives quick tasks to a process together, and loses none with it."""

from __future__ import annotations

import os
import pickle
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import psutil
import pytest
from billiard.einfo import ExceptionWithTraceback
from billiard.exceptions import Terminated, WorkerLostError
from billiard.pool import EX_OK, READY
from celery import Celery
from celery.app import app_or_default
from celery.concurrency.asynpool import AsynPool
from celery.concurrency.prefork import TaskPool
from celery.concurrency.solo import TaskPool as SoloPool
from celery.exceptions import SoftTimeLimitExceeded
from celery.worker.request import Request
from kombu.asynchronous.hub import Hub

from appserver import held_results, pool_process, process_pool
from appserver.held_results import Stored
from appserver.pool_process import LONGEST, EndQueue, JobQueue, ProcessResults
from appserver.process_pool import ProcessPool, PromptPool, UseProcessPool

SECONDS = 60.0  # for which something is waited for


class Task(Request):
    """A request, so far as the pool asks it."""

    def __init__(
        self, name: str, again: bool = False, acks_late: bool = True, returns: bool = True
    ):
        self._type, self._delivery_info = name, {"redelivered": again}
        self._task = SimpleNamespace(acks_late=acks_late, reject_on_worker_lost=returns)
        self.is_revoked, self.begun, self.on_begun = False, 0, int

    def on_accepted(self, pid: int, time_accepted: float) -> None:
        self.begun, self.worker_pid = self.begun + 1, pid
        self.on_begun()

    def revoked(self) -> bool:
        return self.is_revoked


class Running:
    """A pool in a loop of its own; `ends` has what its tasks returned or raised, in order."""

    def __init__(self, size: int = 1, pool_class: type[AsynPool] = ProcessPool, **options: Any):
        Celery("tasks", broker="memory://", backend="cache+memory://").set_current()
        self.hub, self.ends = Hub(), list[Any]()
        self.pool = pool_class(size, threads=False, enable_timeouts=True, **options)
        self.pool.register_with_event_loop(self.hub)
        self._turns = self.hub.create_loop()
        self.turn(lambda: len(self.pool._fileno_to_inq) == size)

    def turn(self, until: Callable[[], object]) -> None:
        """Let the loop turn until something is true."""
        end = time.monotonic() + SECONDS
        while not until():
            assert time.monotonic() < end
            self.hub.call_later(0.01, int)  # so that it polls no longer
            next(self._turns)

    def do(
        self, function: Callable[..., Any], *args: object, task: Task | None = None, **options: Any
    ) -> Task:
        """Have a function called, as one of the tasks `some` unless another one is given."""
        task = task or Task("some")
        self.pool.apply_async(
            function,
            args,
            callback=self.ends.append,
            error_callback=self._failed,
            accept_callback=task.on_accepted,
            **options,
        )
        return task

    def _failed(self, info: Any) -> None:
        exc = info.exception
        self.ends.append(type(exc.exc if isinstance(exc, ExceptionWithTraceback) else exc))

    def warm(self) -> Running:
        """Have the tasks `some` known as quick; return itself."""
        while "some" not in self.pool._quick:
            self.do(give_back, 0)
            self.turn(lambda: self.ends)
            self.ends.clear()
        return self

    def stay(self, given: Callable[[Any], object]) -> None:
        """Share out while the processes stand still, and let them begin all that is left there."""
        for process in self.pool._pool:
            os.kill(process.pid, signal.SIGSTOP)
        self.pool._share_out()
        [process] = filter(given, self.pool._pool)
        for each in self.pool._pool:
            os.kill(each.pid, signal.SIGCONT)
        self.turn(lambda: process.given[-1]._accepted)

    def counts(self) -> list[int]:
        return [len(process.given) for process in self.pool._pool]

    def close(self) -> None:
        self.pool._terminate.cancel()
        for process in self.pool._pool:
            with suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)
            process.join()
        for queues in self.pool._queues:
            for queue in filter(None, queues):
                queue._writer.close()
                queue._reader.close()
        self.hub.close()


@pytest.fixture
def start():
    started = []

    def start(*args: Any, **options: Any) -> Running:
        started.append(Running(*args, **options))
        return started[-1]

    yield start
    for running in started:
        running.close()


@pytest.fixture
def start_holding(start, monkeypatch):
    """Start a pool whose processes tell no end while they run another task."""
    monkeypatch.setattr(held_results, "HELD", SECONDS)
    monkeypatch.setattr(pool_process, "TURN", SECONDS)
    monkeypatch.setattr(process_pool, "TAKEN_BACK_AFTER", 0.2)  # it has begun all by then

    return lambda *args: start(*args).warm()


def give_back(value: object) -> object:
    return value


class Unreadable:
    """Has a pickle that only the process that made it can read."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _read, (os.getpid(),)


def _read(pid: int) -> Unreadable:
    if pid != os.getpid() and pid != os.getppid():
        raise KeyError(pid)
    return Unreadable()


def wait_for(file: Path) -> None:
    while not file.exists():
        time.sleep(0.001)


def begin(begun: Path) -> None:
    begun.touch()
    signal.pause()


def append(file: Path, value: object) -> None:
    with file.open("a") as lines:
        lines.write(f"{value}\n")


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def test_quick_tasks_are_given_together_and_others_one_by_one(start):
    running = start().warm()
    for name in ("some", "some", "other", "some"):
        running.do(give_back, name, task=Task(name))
    running.pool._share_out()
    assert running.counts() == [2]
    running.turn(lambda: len(running.ends) == 4)
    assert running.ends == ["some", "some", "other", "some"]


@pytest.mark.parametrize("how", [{"again": True}, {"returns": False}])
def test_what_came_again_or_does_not_return_is_alone_in_its_process(start, how):
    """As it may lose the process, or be lost with it though it has ended."""
    running = start().warm()
    running.do(give_back, 1, task=Task("some", **how))
    running.do(give_back, 2)
    running.pool._share_out()
    assert running.counts() == [1]


def test_all_end_whatever_their_order_and_number(start):
    running = start(3)
    for number in range(2_000):
        running.do(give_back, number, task=Task(f"name{number % 3}"))
    running.turn(lambda: len(running.ends) == 2_000)
    assert sorted(running.ends) == list(range(2_000))
    assert not running.pool._cache


def test_what_waits_behind_a_task_that_turns_slow_is_run_by_another_process(start, tmp_path):
    running = start(2).warm()
    running.do(wait_for, tmp_path / "last")
    for number in range(process_pool.AHEAD):
        running.do(give_back, number)
    running.do((tmp_path / "last").touch)
    running.turn(lambda: len(running.ends) == process_pool.AHEAD + 2)


def test_what_waits_is_run_elsewhere_though_the_first_end_is_not_told(start_holding, tmp_path):
    running = start_holding(2)
    running.do(give_back, 0)
    running.do(wait_for, tmp_path / "go")
    running.stay(lambda process: len(process.given) == 2)
    for number in range(4):
        running.do(give_back, number + 1)
    running.turn(lambda: len(running.ends) == 4)
    (tmp_path / "go").touch()
    running.turn(lambda: len(running.ends) == 6)
    assert running.ends == [1, 2, 3, 4, 0, None]


def test_a_limit_is_none_of_the_next_task_where_the_end_was_not_told(start_holding, tmp_path):
    running = start_holding()
    running.do(give_back, 0, timeout=0.5)
    running.do(wait_for, tmp_path / "go", soft_timeout=SECONDS)
    running.stay(lambda process: len(process.given) == 2)
    running.turn(lambda: len(running.pool._tref_for_id) == 1)
    (tmp_path / "go").touch()
    running.turn(lambda: len(running.ends) == 2)
    assert running.ends == [0, None]


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGKILL])
def test_only_the_task_that_is_meant_is_terminated(start_holding, tmp_path, signum):
    running = start_holding()
    first = running.do(give_back, 0)
    second = running.do(wait_for, tmp_path / "never")
    running.stay(lambda process: len(process.given) == 2)
    running.pool.terminate_job(first.worker_pid, signum)  # it has ended
    running.do(give_back, 2)
    running.pool._share_out()
    running.pool.terminate_job(second.worker_pid, signum)
    running.turn(lambda: len(running.ends) == 3)
    # That it has ended is lost with the process, unless that may end by itself.
    assert running.ends == [0 if signum == signal.SIGTERM else WorkerLostError, Terminated, 2]


def test_a_task_that_is_terminated_when_its_turn_comes_may_have_ended(start_holding, tmp_path):
    running = start_holding()
    running.do(give_back, 0)
    task = running.do(give_back, 1)
    task.on_begun = lambda: running.pool.terminate_job(task.worker_pid)
    running.do(wait_for, tmp_path / "go")
    running.stay(lambda process: len(process.given) == 3)
    (tmp_path / "go").touch()
    running.turn(lambda: len(running.ends) == 3)
    assert running.ends == [0, 1, None]


def test_a_lost_process_loses_the_task_that_it_runs(start):
    running = start().warm()
    running.do(kill)
    for number in range(5):
        running.do(give_back, number)
    running.turn(lambda: len(running.ends) == 6)
    assert running.ends == [WorkerLostError, 0, 1, 2, 3, 4]
    assert not running.pool._cache


def test_a_process_that_has_just_ended_is_asked_what_it_has_not_read(start, tmp_path):
    """Also where it ends while the end of another one is handled."""
    running = start().warm()
    running.do(begin, tmp_path / "begun")
    for number in range(3):
        running.do(give_back, number)
    running.pool._share_out()
    wait_for(tmp_path / "begun")
    [process] = running.pool._pool
    os.kill(process.pid, signal.SIGKILL)
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    for job in list(running.pool._cache.values()):
        running.pool.on_job_process_down(job, process.pid)
    running.turn(lambda: len(running.ends) == 4)
    assert running.ends == [WorkerLostError, 0, 1, 2]


def test_a_result_that_cannot_be_read_is_a_failure(start):
    running = start().warm()
    for value in (Unreadable(), 1):
        running.do(give_back, value)
    running.turn(lambda: len(running.ends) == 2)
    assert running.ends == [KeyError, 1]


def test_an_end_that_is_told_twice_ends_no_other_task(start, monkeypatch):
    """As where a task's own signal handler interrupts its telling, or a task forks and returns."""

    class Twice(EndQueue):
        def put(self, message: tuple[int, Any]) -> None:
            super().put(message)
            if message[0] == READY:
                super().put(message)

    monkeypatch.setattr(pool_process, "EndQueue", Twice)
    running = start().warm()
    for number in range(8):
        running.do(give_back, number, task=Task(f"name{number}"))
    running.do(os.getpid)
    running.turn(lambda: len(running.ends) == 9)
    assert running.ends == [*range(8), running.pool._pool[0].pid]
    running.turn(lambda: running.counts() == [0])


def test_what_cannot_be_given_back_waits_again(start, monkeypatch):
    """As where too many files are open."""
    running = start().warm()
    [process] = running.pool._pool
    os.kill(process.pid, signal.SIGSTOP)
    running.do(len, "x" * LONGEST)
    running.pool._share_out()
    with monkeypatch.context() as patch:
        patch.setattr(os, "memfd_create", Mock(side_effect=OSError("too many files")))
        running.pool.outbound_buffer.extend(running.pool._take_back(process))
    os.kill(process.pid, signal.SIGCONT)
    running.turn(lambda: running.ends)
    assert running.ends == [LONGEST]


def test_the_first_job_of_all_can_be_taken_back():
    queue = JobQueue()
    assert queue.give(0, True, False, b"job")
    assert queue.take_back() == 0
    assert queue.take_back() is None
    queue._writer.close()
    queue._reader.close()


def test_ends_that_were_told_are_not_lost_with_the_process(start, tmp_path):
    running = start().warm()
    for number in range(3):
        running.do(append, tmp_path / "lines", number)
    running.do(kill, task=Task("other"))
    running.turn(lambda: len(running.ends) == 4)
    assert running.ends == [None, None, None, WorkerLostError]
    assert (tmp_path / "lines").read_text().split() == ["0", "1", "2"]


def test_a_process_that_is_replaced_takes_none_along(start):
    running = start(2, maxtasksperchild=7)
    for _ in range(30):
        running.do(os.getpid)
    running.turn(lambda: len(running.ends) == 30)
    pids = set(running.ends)
    assert all(running.ends.count(pid) <= 7 for pid in pids)
    assert len(pids) >= 30 / 7


def test_a_process_that_ends_by_itself_had_not_begun_the_next_one(start):
    """The worker believes so when it is told that the one before has ended."""
    running = start().warm()
    running.do(sys.exit)
    task = running.do(give_back, 1)
    running.turn(lambda: len(running.ends) == 2)
    assert running.ends == [SystemExit, 1]
    assert 1 <= task.begun <= 2


def test_a_task_that_is_acknowledged_when_it_begins_has_begun_then(start):
    """The process to which it was given may end before."""
    running = start().warm()
    [process] = running.pool._pool
    os.kill(process.pid, signal.SIGSTOP)
    task = running.do(give_back, 1, task=Task("some", acks_late=False))
    running.do(give_back, 2)
    running.pool._share_out()
    assert running.counts() == [1]
    assert not task.begun
    os.kill(process.pid, signal.SIGKILL)
    running.turn(lambda: len(running.ends) == 2)
    assert running.ends == [1, 2]
    assert task.begun == 1


def test_what_was_not_begun_is_not_acknowledged_at_the_end(start):
    running = start()
    [process] = running.pool._pool
    os.kill(process.pid, signal.SIGSTOP)
    task = running.do(give_back, 1, task=Task("some", acks_late=False))
    running.pool._share_out()
    running.pool.close()
    os.kill(process.pid, signal.SIGCONT)
    running.pool.join()
    assert not running.ends
    assert not task.begun


@pytest.mark.parametrize("size", [LONGEST - 1_000, LONGEST, 40 * LONGEST])
def test_jobs_of_any_size(start, size):
    running = start().warm()
    for _ in range(3):
        running.do(len, "x" * size)
    running.turn(lambda: len(running.ends) == 3)
    assert running.ends == [size] * 3


def test_a_process_that_takes_no_more_is_given_the_rest_later(start, tmp_path):
    running = start().warm()
    running.do(wait_for, tmp_path / "go")
    for _ in range(20):
        running.do(give_back, "x" * (LONGEST - 1_000))
    running.pool._share_out()
    assert 1 < running.counts()[0] < 20
    assert running.pool.outbound_buffer
    (tmp_path / "go").touch()
    running.turn(lambda: len(running.ends) == 21)


def test_a_task_that_cannot_be_pickled_is_refused(start):
    running = start()
    with pytest.raises(AttributeError, match="pickle"):
        running.do(lambda: None)
    assert not running.pool._cache


def test_a_result_that_cannot_be_pickled_is_a_failure(start):
    running = start()
    running.do(threading.Lock)
    running.do(give_back, 1)
    running.turn(lambda: len(running.ends) == 2)
    assert running.ends[0].__name__ == "MaybeEncodingError"
    assert running.ends[1] == 1


def test_the_soft_limit_interrupts_the_task_and_nothing_else(start, tmp_path):
    running = start()
    running.do(wait_for, tmp_path / "never", soft_timeout=0.01)
    running.turn(lambda: running.ends)
    os.kill(running.pool._pool[0].pid, signal.SIGUSR1)  # too late: nothing runs
    running.do(os.getpid)
    running.turn(lambda: len(running.ends) == 2)
    assert running.ends == [SoftTimeLimitExceeded, running.pool._pool[0].pid]


def test_a_soft_limit_that_ends_before_its_task_runs_interrupts_it(monkeypatch, start, tmp_path):
    # Given processes that stand still when they have told that a task begins
    begin = ProcessResults.begin
    monkeypatch.setattr(ProcessResults, "begin", lambda *args: time.sleep(0.1) or begin(*args))
    running = start()
    # When its limit ends meanwhile, then the task is interrupted when it runs.
    running.do(wait_for, tmp_path / "never", soft_timeout=0.01)
    running.turn(lambda: running.ends)
    assert running.ends == [SoftTimeLimitExceeded]


def test_a_limit_that_ended_before_its_task_ran_interrupts_no_other_task(monkeypatch, start):
    begin, pauses = ProcessResults.begin, [0.1, 0.0]
    monkeypatch.setattr(
        ProcessResults, "begin", lambda *args: time.sleep(pauses.pop(0)) or begin(*args)
    )
    running = start()
    running.do(give_back, 1, soft_timeout=0.01)
    running.do(time.sleep, 3 * pool_process.AGAIN, task=Task("other"))
    running.turn(lambda: len(running.ends) == 2)
    assert running.ends == [1, None]


def test_a_signal_interrupts_a_store_and_loses_nothing(monkeypatch):
    def interrupt(number: int, frame: object) -> None:
        raise SoftTimeLimitExceeded

    def store_all(results: Sequence[Stored]) -> list[bool]:
        stored.append(len(results))
        if len(stored) == 1:
            signal.pthread_kill(threading.get_ident(), signal.SIGUSR1)
        return [True] * len(results)

    def tell(ends: Sequence[str]) -> None:
        signal.pthread_kill(threading.get_ident(), signal.SIGUSR1)
        told.extend(ends)

    monkeypatch.setattr(held_results, "HELD", SECONDS)
    stored, told = list[int](), list[str]()
    results = ProcessResults(bool, store_all, tell)
    results.begin(True)
    results.end(lambda: results.hold_stored(Stored(b"key", "value", 0), int))
    results.hold_end("end")
    before = signal.signal(signal.SIGUSR1, interrupt)
    try:
        for expected in ([], ["end"]):
            with pytest.raises(SoftTimeLimitExceeded):
                results.flush()
            assert told == expected
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert stored == [1, 1]


def never_store(begun: Path) -> None:
    held = app_or_default().reply_connection.held
    held._store_all = lambda _: begun.touch() or time.sleep(SECONDS)
    held._here.ends = held._more = True
    assert held.hold_stored(Stored(b"key", "value", 0), int)


def test_a_process_that_is_terminated_does_not_wait_for_a_store(start, monkeypatch, tmp_path):
    monkeypatch.setattr(pool_process, "LAST_WRITE", 0.1)
    running = start().warm()
    running.do(never_store, tmp_path / "begun")
    running.pool._share_out()
    wait_for(tmp_path / "begun")
    running.pool._pool[0].terminate()
    running.turn(lambda: running.ends)
    assert running.ends == [WorkerLostError]


def test_what_is_revoked_while_it_waits_is_not_run(start, tmp_path):
    running = start().warm()
    running.do(wait_for, tmp_path / "go")
    tasks = [running.do(give_back, number) for number in range(4)]
    running.pool._share_out()
    assert running.counts() == [5]
    running.turn(lambda: len(running.pool.outbound_buffer) == 4)  # the first is slow
    tasks[1].is_revoked = tasks[3].is_revoked = True
    (tmp_path / "go").touch()
    running.turn(lambda: len(running.ends) == 3)
    assert running.ends[1:] == [0, 2]
    assert not running.pool._cache


def test_after_a_lost_connection_what_was_not_begun_is_forgotten(start, tmp_path):
    running = start().warm()
    running.do(wait_for, tmp_path / "go")
    for number in range(3):
        running.do(append, tmp_path / "lines", number)
    running.do(give_back, 4, task=Task("other"))
    running.pool._share_out()
    running.pool.flush()
    (tmp_path / "go").touch()
    running.do(give_back, 5)
    running.turn(lambda: len(running.ends) == 2)
    assert running.ends == [None, 5]
    assert not (tmp_path / "lines").exists()


def test_it_ends_after_what_was_begun(start, tmp_path):
    running = start().warm()
    running.do(wait_for, tmp_path / "go")
    for number in range(3):
        running.do(append, tmp_path / "lines", number)
    running.pool._share_out()
    running.pool.close()
    (tmp_path / "go").touch()
    running.pool.join()
    assert running.ends == [None]
    assert not (tmp_path / "lines").exists()


def test_it_is_terminated_with_what_waits_in_its_processes(start, tmp_path):
    running = start().warm()
    running.do(wait_for, tmp_path / "never")
    running.do(give_back, 1)
    running.pool._share_out()
    assert running.counts() == [2]
    running.pool.terminate()
    assert not any(process.is_alive() for process in running.pool._pool)


def test_a_process_that_is_restarted_ends_by_itself(start):
    running = start(allow_restart=True)
    running.do(os.getpid)
    running.turn(lambda: running.ends)
    [process] = running.pool._pool
    waits = psutil.Process(process.pid)
    running.turn(lambda: waits.status() == psutil.STATUS_SLEEPING)
    running.pool.restart()
    running.turn(lambda: process not in running.pool._pool)
    assert process.exitcode == EX_OK
    running.do(os.getpid)
    running.turn(lambda: len(running.ends) == 2)
    assert running.ends[0] == process.pid != running.ends[1]


def test_a_process_is_replaced_when_it_has_ended(start):
    running = start(pool_class=PromptPool)
    [before] = (process.pid for process in running.pool._pool)
    os.kill(before, signal.SIGKILL)
    running.turn(lambda: [process.pid for process in running.pool._pool] != [before])


def test_where_there_are_no_pidfds_the_pipe_has_to_do(start, monkeypatch):
    def refuse(pid: int) -> int:
        raise PermissionError("by a seccomp filter")

    monkeypatch.setattr(os, "pidfd_open", refuse)
    [process] = start().pool._pool
    assert os.fstat(process._sentinel_poll) == os.fstat(process._popen.sentinel)


class Own(TaskPool):
    class Pool(AsynPool):
        """Whose wishes we do not know."""


@pytest.mark.parametrize(
    ("pool", "made"), [(TaskPool, ProcessPool), (Own, Own.Pool), (SoloPool, None)]
)
def test_only_celery_s_own_pool_is_changed(pool, made):
    worker = SimpleNamespace(pool=pool(1), steps=[], _process_task=pickle.dumps)
    UseProcessPool(worker).create(worker)
    assert getattr(worker.pool, "Pool", None) is made
