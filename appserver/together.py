"""What several threads write at the same time, one of them writes for all."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

from appserver.singletons import call_after_fork

T = TypeVar("T")


class Together(Generic[T]):
    """Whoever comes while another thread writes waits, and is in the next write.

    `write_all` writes several things at once, and returns the outcome of each.
    """

    _lock: Any
    _waiting: deque[tuple[T, list[Any]]]

    def __init__(self, write_all: Callable[[Sequence[T]], Sequence[Any]]):
        self._write_all = write_all
        self._forget()
        call_after_fork(self._forget)

    def write(self, thing: T) -> Any:
        """Return the outcome. Raises what `write_all` raises."""
        outcome: list[Any] = []
        self._waiting.append((thing, outcome))
        with self._lock:
            if not outcome:
                waiting = [self._waiting.popleft() for _ in range(len(self._waiting))]
                try:
                    outcomes = self._write_all([each for each, _ in waiting])
                except BaseException:  # this task may have reached its time limit; the others not
                    self._waiting.extendleft(
                        one for one in reversed(waiting) if one[1] is not outcome
                    )
                    raise
                for (_, its), found in zip(waiting, outcomes, strict=True):
                    its.append(found)
        return outcome[0]

    def _forget(self) -> None:
        # In a child after a fork, the threads that wait are the parent's.
        self._lock, self._waiting = threading.Lock(), deque()
