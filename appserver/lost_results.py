"""Count the results of a worker that could be neither replied nor stored.

A request waits for such a result until its deadline, and the task does not run again. So the
worker tells how many there are: in its log, and in the answer to Celery's command ``stats``, which
needs no result store.
"""

from __future__ import annotations

import logging
import os
import tempfile
import time
from collections.abc import Callable
from struct import Struct
from typing import Any

from celery import bootsteps

from appserver.singletons import one_of_app

#: The name in the answer to ``stats``, which `gateway check` and the gateways read.
STATS = "lost_results"

_time = Struct("=d")

log = logging.getLogger(__name__)


class LostResults:
    """The number of lost results, of the processes of a pool as well.

    It is the offset of a file that these have inherited. The kernel moves that for one after the
    other, so nothing has to be locked that a killed process would keep. The file contains the time
    of the last loss.
    """

    def __init__(self) -> None:
        if hasattr(os, "memfd_create"):  # Linux
            self._file = os.memfd_create("lost-results")
        else:
            with tempfile.TemporaryFile() as file:
                self._file = os.dup(file.fileno())

    def add(self, task_id: str, why: object) -> None:
        """Count and log the result of a task; `why` it is lost."""
        number = os.lseek(self._file, 1, os.SEEK_CUR)
        os.pwrite(self._file, _time.pack(time.time()), 0)
        log.error(
            "The result of task %s is lost, and %d since this worker was started: %s",
            task_id,
            number,
            why,
        )

    @property
    def number(self) -> int:
        return os.lseek(self._file, 0, os.SEEK_CUR)

    @property
    def last(self) -> float | None:
        """The time of the last loss, in seconds since the epoch; None: there was none."""
        found = os.pread(self._file, _time.size, 0)
        return _time.unpack(found)[0] if found else None


#: Returns the `LostResults` of an app.
lost_results = one_of_app("lost_results", lambda _: LostResults())


def store_or_count(app: Any, task_id: str, store: Callable[[], object]) -> None:
    """Store a result by `store`, where its task has ended already."""
    try:
        store()
    except Exception as exc:  # noqa: BLE001 - it is counted, and logged
        lost_results(app).add(task_id, repr(exc))


class CountLostResults(bootsteps.StartStopStep):
    """Count from the worker's start, before its pool is, and tell the number in its ``stats``.

    Only steps that could be started are asked for that.
    """

    def create(self, worker: Any) -> None:
        lost_results(worker.app)

    def info(self, worker: Any) -> dict[str, Any]:
        lost = lost_results(worker.app)
        return {STATS: {"number": lost.number, "last": lost.last}}
