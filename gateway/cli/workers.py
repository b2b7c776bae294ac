"""What Celery's workers say of themselves: their queues, their tasks, their settings."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from celery import Celery
from kombu import Connection


class Workers:
    """Those workers that have answered within `patience` seconds to each question."""

    def __init__(self, app: Celery, connection: Connection, patience: float):
        self._inspect = app.control.inspect(timeout=patience, connection=connection)
        active, registered = self._inspect.active_queues(), self._inspect.registered()
        self._queues = {name: {q["name"] for q in qs} for name, qs in (active or {}).items()}
        # Celery writes options behind a task's name.
        self._tasks = {
            name: {task.split()[0] for task in tasks} for name, tasks in (registered or {}).items()
        }

    def __bool__(self) -> bool:
        return bool(self._tasks)

    def settings(self) -> dict[str, dict[str, Any]]:
        """Return their configurations by name."""
        return self._inspect.conf() or {}

    def problem(self, task: str, queues: Iterable[str]) -> str:
        """Say what keeps `task` from being run wherever it is sent; empty: nothing."""
        if not self:
            return "no worker answers: start one, or give it its remote control back"
        holders = sorted(name for name, tasks in self._tasks.items() if task in tasks)
        if not holders:
            others = sorted(set().union(*self._tasks.values()))
            return f"no worker has it; they have {', '.join(others)}"
        found = []
        for queue in queues:
            consumers = [name for name, its in self._queues.items() if queue in its]
            if not consumers:
                found.append(f"no worker that answers consumes {queue}")
            found += [f"{name} consumes {queue}" for name in consumers if name not in holders]
        return f"{', '.join(found)}; {', '.join(holders)} has it" if found else ""
