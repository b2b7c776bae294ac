"""A prefork pool replaces a process when it has ended, whatever Celery's own pipe says."""

from __future__ import annotations

import os
import signal
from types import SimpleNamespace

import pytest
from celery.concurrency.asynpool import AsynPool
from celery.concurrency.prefork import TaskPool
from celery.concurrency.solo import TaskPool as SoloPool
from kombu.asynchronous.hub import Hub

from appserver.pools import PromptPool, PromptProcesses

SECONDS = 60  # for which the loop polls where nothing wakes it


class Processes:
    """A pool of one process, which tells each of its beginnings, without Celery's pipe."""

    def __init__(self, pool_class: type[AsynPool]):
        told, tell = os.pipe()

        def begin() -> None:
            os.closerange(3, tell)
            os.closerange(tell + 1, 1024)
            os.write(tell, b".")
            signal.pause()

        self.pool = pool_class(1, threads=False, initializer=begin)
        os.read(told, 1)
        self._pipe = told, tell
        self.hub = Hub()
        self.pool.register_with_event_loop(self.hub)

    def poll(self, seconds: float) -> None:
        """Poll once, as the loop does; run what is read."""
        for descriptor, _ in self.hub.poller.poll(seconds) or ():
            callback, arguments = self.hub.readers[descriptor]
            callback(*arguments)

    def pids(self) -> list[int]:
        return [process.pid for process in self.pool._pool]

    def close(self) -> None:
        self.pool._terminate.cancel()
        for process in self.pool._pool:
            os.kill(process.pid, signal.SIGKILL)
            process.join()
        self.hub.close()
        for descriptor in self._pipe:
            os.close(descriptor)


@pytest.fixture
def processes():
    processes = Processes(PromptPool)
    yield processes
    processes.close()


def test_it_is_replaced_when_it_has_ended(processes):
    [before] = processes.pids()
    processes.poll(0)
    assert processes.pids() == [before]

    os.kill(before, signal.SIGKILL)
    processes.poll(SECONDS)

    assert processes.pids() != [before]


def test_where_there_are_no_pidfds_the_pipe_has_to_do(monkeypatch):
    def refuse(pid: int) -> int:
        raise PermissionError("by a seccomp filter")

    monkeypatch.setattr(os, "pidfd_open", refuse)
    processes = Processes(PromptPool)
    [process] = processes.pool._pool
    assert os.fstat(process._sentinel_poll) == os.fstat(process._popen.sentinel)
    processes.close()


class Own(TaskPool):
    class Pool(AsynPool):
        """Whose wishes we do not know."""


@pytest.mark.parametrize(
    ("pool", "made"), [(TaskPool, PromptPool), (Own, Own.Pool), (SoloPool, None)]
)
def test_only_celery_s_own_pool_is_changed(pool, made):
    worker = SimpleNamespace(pool=pool(1), steps=[])
    PromptProcesses(worker).create(worker)
    assert getattr(worker.pool, "Pool", None) is made
