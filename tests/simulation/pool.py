"""Run seeds in forked processes, one process a seed, on all cores."""

from __future__ import annotations

import gc
import json
import os
import resource
import selectors
import signal
import time
import traceback
from collections.abc import Callable, Iterator
from typing import Any

#: Seconds of CPU time after which a seed is ended, as it does not end by itself; and seconds.
MOST_CPU, PATIENCE = 120, 1_200.0

Job = tuple[int, str]


def each(
    jobs: Iterator[Job], work: Callable[[int, str], dict[str, Any]], cores: int
) -> Iterator[dict[str, Any]]:
    """Yield what `work` returns for each job, in the order in which they end."""
    gc.collect()
    gc.freeze()
    selector = selectors.DefaultSelector()
    running: dict[int, tuple[int, Job, float, bytearray]] = {}  # by the pipe's descriptor
    try:
        while True:
            while len(running) < cores and (job := next(jobs, None)) is not None:
                pid, pipe = _fork(job, work)
                running[pipe] = pid, job, time.monotonic(), bytearray()
                selector.register(pipe, selectors.EVENT_READ)
            if not running:
                return
            for key, _ in selector.select(1.0):
                data = os.read(key.fd, 1 << 20)
                if data:
                    running[key.fd][3].extend(data)
                    continue
                yield _end(selector, key.fd, *running.pop(key.fd))
            now = time.monotonic()
            for _, (pid, _job, since, _data) in list(running.items()):
                if now - since > PATIENCE:
                    os.kill(pid, signal.SIGKILL)
    finally:
        for pid, *_ in running.values():
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def _end(
    selector: selectors.BaseSelector, pipe: int, pid: int, job: Job, since: float, data: bytearray
) -> dict[str, Any]:
    selector.unregister(pipe)
    os.close(pipe)
    _, status = os.waitpid(pid, 0)
    if status == 0:
        result: dict[str, Any] = json.loads(data)
        return result
    seed, strategy = job
    problem = f"the simulation itself failed (status {status}): {data.decode(errors='replace')}"
    return {"seed": seed, "strategy": strategy, "problems": [problem]}


def _fork(job: Job, work: Callable[[int, str], dict[str, Any]]) -> tuple[int, int]:
    reading, writing = os.pipe()
    pid = os.fork()
    if pid:
        os.close(writing)
        return pid, reading
    status = 1
    try:
        os.close(reading)
        resource.setrlimit(resource.RLIMIT_CPU, (MOST_CPU, MOST_CPU))
        try:
            text, status = json.dumps(work(*job)), 0
        except BaseException:  # noqa: BLE001 # the parent is told
            text = traceback.format_exc()
        with os.fdopen(writing, "w") as file:
            file.write(text)
    finally:
        os._exit(status)
