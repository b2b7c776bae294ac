"""Steps of the worker's start: a loop that does not sleep over its work, and a quiet log."""

from __future__ import annotations

import logging
from typing import Any

from celery import bootsteps


class PromptHub(bootsteps.Step):
    """Have kombu's loop poll without waiting while callbacks are ready.

    Reading goes on by a callback after each message, and so do acknowledgements. What such a
    callback schedules is looked at only after the next poll, for which kombu 5.7 waits until
    something else happens, up to a second: the third of three messages that came in one
    segment, and acknowledgements that would have brought more messages, stand still so long.
    """

    requires = {"celery.worker.components:Hub"}

    def create(self, worker: Any) -> None:
        hub = worker.hub
        if hub is None:  # pools that do without, as gevent's
            return
        fire_timers = hub.fire_timers

        def poll_timeout(**kwargs: Any) -> float:
            delay: float = fire_timers(**kwargs)
            return 0 if hub._ready else delay

        hub.fire_timers = poll_timeout


class QuietTasks(bootsteps.Step):
    """Log no line for each task, unless at the level DEBUG.

    Celery's two lines a task cost more than a small task does, and the second one has the
    result in it, which is somebody's data.
    """

    def create(self, worker: Any) -> None:
        level = logging.INFO if logging.root.isEnabledFor(logging.DEBUG) else logging.WARNING
        for name in ("celery.worker.strategy", "celery.app.trace"):
            logging.getLogger(name).setLevel(level)
