"""The processes of a prefork pool: the end of each is noticed at once."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Any

from celery import bootsteps
from celery.concurrency.asynpool import AsynPool

from appserver.private_parts import PrivateParts

_PARTS = PrivateParts(
    "lost and recycled processes are noticed after up to five seconds",
    "celery.concurrency.asynpool:AsynPool._track_child_process",
    "celery.concurrency.asynpool:AsynPool._sentinel_poll",
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


class PromptProcesses(bootsteps.Step):
    """Let the worker make its processes by `PromptPool`, where it would make them by Celery's."""

    requires = {"celery.worker.components:Pool"}

    def create(self, worker: Any) -> None:
        if getattr(worker.pool, "Pool", None) is AsynPool and _PARTS.there:
            worker.pool.Pool = PromptPool
