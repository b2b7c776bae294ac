"""Celery's own worker, to compare the app server's with: it ignores results, or replies by rpc://.

It has the app server's prefetch limit and its loop, without which it stands still for up to a
second again and again, and like it has no log line for each task.
"""

from __future__ import annotations

from appserver.bootsteps import PromptHub, QuietTasks
from loadtest.servers.stock import app

app.conf.worker_prefetch_multiplier = 16
app.steps["worker"].update((PromptHub, QuietTasks))
