"""The app server's own Celery app.

The environment is read when the configuration is first used, and no connection is made before a
worker or a client needs one.
"""

from __future__ import annotations

import os
from typing import Any

from celery import Celery
from celery.exceptions import ImproperlyConfigured

from appserver.bootsteps import QuietTasks
from appserver.celery_setup import setup
from appserver.settings import settings


def _settings() -> dict[str, Any]:
    """Read the environment; what is wrong there ends the process."""
    try:
        return settings(os.environ)
    except ImproperlyConfigured as exc:
        raise SystemExit(f"appserver: {exc}") from exc


# Not set as the current app, because a project that imports a part of appserver has its own app.
app = Celery("appserver", include=["appserver.tasks"], set_as_current=False)
setup(app)
app.add_defaults(_settings)
app.steps["worker"].add(QuietTasks)
