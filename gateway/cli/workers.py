"""What Celery's workers say of themselves: their queues, their tasks, their settings."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from celery import Celery
from kombu import Connection

_QUICK = 1.0  # seconds in which the workers usually have answered


class Workers:
    """The workers that answer to remote control within `timeout` seconds."""

    def __init__(self, app: Celery, connection: Connection, timeout: float):
        names: list[str] = []
        for patience in (_QUICK, timeout):
            names = names or [
                name
                for reply in app.control.ping(timeout=patience, connection=connection)
                for name in reply
            ]
        # Who has answered once is waited for, and nobody else.
        inspect = app.control.inspect(
            destination=names or None, timeout=timeout, connection=connection, limit=len(names)
        )
        active = (inspect.active_queues() or {}) if names else {}
        registered = (inspect.registered() or {}) if names else {}
        #: Their configuration by name.
        self.settings: dict[str, dict[str, Any]] = (inspect.conf() or {}) if names else {}
        self._queues = {name: {q["name"] for q in queues} for name, queues in active.items()}
        # Celery writes options behind a task's name.
        self._tasks = {name: {t.split()[0] for t in tasks} for name, tasks in registered.items()}

    def problem(self, task: str, queues: Iterable[str]) -> str:
        """Say what keeps `task` from being run wherever it is sent; empty: nothing."""
        if not self._tasks:
            return "no worker answers: start one, or give it its remote control back"
        if not any(task in tasks for tasks in self._tasks.values()):
            others = sorted(set().union(*self._tasks.values()))
            return f"no worker has it; they have {', '.join(others)}"
        lacking = [
            f"{name} on the queue {queue}"
            for queue in queues
            for name, tasks in self._tasks.items()
            if task not in tasks and queue in self._queues.get(name, ())
        ]
        if not lacking:
            return ""
        others = sorted(name for name, tasks in self._tasks.items() if task in tasks)
        return f"{', '.join(lacking)}: does not have it, as {', '.join(others)} has"
