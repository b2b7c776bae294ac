"""Steps of the worker's start: an event loop without delays, and no log line for each task."""

from __future__ import annotations

import logging
from typing import Any

from celery import bootsteps


class PromptHub(bootsteps.Step):
    """Make kombu's loop poll without waiting while callbacks are ready.

    After each message a callback continues reading, and acknowledgements are callbacks as well.
    What such a callback schedules is run only after the next poll, for which kombu 5.7 waits until
    something else happens, up to a second. So long are delayed the third of three messages that
    arrive in one segment, and acknowledgements that would bring more messages.
    """

    requires = {"celery.worker.components:Hub"}

    def create(self, worker: Any) -> None:
        hub = worker.hub
        if hub is None:  # pools without an event loop, for example gevent's
            return
        fire_timers = hub.fire_timers

        def poll_timeout(**kwargs: Any) -> float:
            delay: float = fire_timers(**kwargs)
            return 0 if hub._ready else delay

        hub.fire_timers = poll_timeout


class QuietTasks(bootsteps.Step):
    """Log no lines for single tasks, except at the level DEBUG.

    Celery's two lines for each task cost more time than a small task, and the second one contains
    the result, which may be confidential.
    """

    def create(self, worker: Any) -> None:
        level = logging.INFO if logging.root.isEnabledFor(logging.DEBUG) else logging.WARNING
        for name in ("celery.worker.strategy", "celery.app.trace"):
            logging.getLogger(name).setLevel(level)
