"""What threads write at the same time is one write, and each gets its own outcome."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from appserver.together import Together

SECONDS = 60.0


class Slow:
    """Writes when it is let; the outcome of a thing is itself."""

    fails = 0  # the number of the write that fails

    def __init__(self) -> None:
        self.writes, self.begun, self.may_end = [], threading.Semaphore(0), threading.Event()

    def write_all(self, things: Sequence[int]) -> Sequence[int]:
        self.writes.append(list(things))
        self.begun.release()
        assert self.may_end.wait(SECONDS)
        if len(self.writes) == self.fails:
            raise OSError("interrupted")
        return things


def test_who_comes_while_another_writes_is_in_the_next_write():
    slow = Slow()
    together = Together(slow.write_all)
    with ThreadPoolExecutor(10) as threads:
        first = threads.submit(together.write, 0)
        assert slow.begun.acquire(timeout=SECONDS)
        others = [threads.submit(together.write, number) for number in range(1, 10)]
        while len(together._waiting) < 9:
            pass
        slow.may_end.set()
        assert [one.result(SECONDS) for one in (first, *others)] == list(range(10))
    assert slow.writes[0] == [0]
    assert sorted(slow.writes[1]) == list(range(1, 10))


def test_who_is_interrupted_loses_only_its_own():
    slow = Slow()
    together = Together(slow.write_all)
    with ThreadPoolExecutor(4) as threads:
        first = threads.submit(together.write, 0)
        assert slow.begun.acquire(timeout=SECONDS)
        others = [threads.submit(together.write, number) for number in (1, 2, 3)]
        while len(together._waiting) < 3:
            pass
        slow.fails = 2
        slow.may_end.set()
        assert first.result(SECONDS) == 0
        errors = [one.exception(SECONDS) for one in others]
    assert sum(isinstance(error, OSError) for error in errors) == 1
    assert all(one.result() for one, error in zip(others, errors, strict=True) if not error)


def test_a_child_after_a_fork_does_not_wait_for_the_parents_threads():
    slow = Slow()
    together = Together(slow.write_all)
    with ThreadPoolExecutor(1) as threads:
        first = threads.submit(together.write, 1)
        assert slow.begun.acquire(timeout=SECONDS)
        if not (pid := os.fork()):
            slow.may_end = threading.Event()
            slow.may_end.set()
            os._exit(together.write(2))
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 2
        slow.may_end.set()
        assert first.result(SECONDS) == 1
