"""The app server with a task that tells which queues its worker knows (pool solo only)."""

from __future__ import annotations

from celery.worker import state

from appserver import app
from tests.faults import tasks

__all__ = ["app", "known", "state", "tasks"]


@app.task(name="dynamic.known")
def known(query: dict[str, str], headers: dict[str, str], body: str) -> list[str]:
    """Return the names of all queues in Celery's table."""
    return sorted(app.amqp.queues)
