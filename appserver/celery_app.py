"""The app server's own Celery app.

Nothing is read from the environment before the configuration is first used, and nothing
connects before a worker or a client does.
"""

from __future__ import annotations

import os

from celery import Celery

from appserver.bootsteps import QuietTasks
from appserver.celery_setup import setup
from appserver.settings import settings

# Not the process's current app: a project that only imports a part of appserver has its own.
app = Celery("appserver", include=["appserver.tasks"], set_as_current=False)
setup(app)
app.add_defaults(lambda: settings(os.environ))
app.steps["worker"].add(QuietTasks)
