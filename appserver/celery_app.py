"""The app server's own Celery app.

The environment is read when the configuration is first used, and no connection is made before a
worker or a client needs one.
"""

from __future__ import annotations

import os

from celery import Celery

from appserver.bootsteps import QuietTasks
from appserver.celery_setup import setup
from appserver.settings import settings

# Not set as the current app, because a project that imports a part of appserver has its own app.
app = Celery("appserver", include=["appserver.tasks"], set_as_current=False)
setup(app)
app.add_defaults(lambda: settings(os.environ))
app.steps["worker"].add(QuietTasks)
