"""Tasks that exceed their time limits, each in a way of its own; each run notes its process."""

from __future__ import annotations

import os
import re
import time
from contextlib import suppress
from pathlib import Path

from celery.exceptions import SoftTimeLimitExceeded

from appserver import app, watch

watch.GRACE = 0.5
app.conf.broker_heartbeat = 2
RAN = "ran"


@app.task(name="limited.run")
def run(query: dict[str, str], headers: dict[str, str], body: str) -> str:
    """Query: ``how`` the time passes, ``seconds`` at the most."""
    directory = Path(os.environ["FAULTS_DIRECTORY"])
    with (directory / RAN).open("a") as file:
        file.write(f"{body} {os.getpid()}\n")
    end = time.monotonic() + float(query.get("seconds", 0))
    how = query.get("how", "sleeps")
    if how == "tidies":
        try:
            time.sleep(end - time.monotonic())
        except SoftTimeLimitExceeded:
            return "tidied"
    while time.monotonic() < end:
        if how == "computes":  # in C code, which keeps other threads from running
            re.match("(a+)+$", 40 * "a" + "b")
        elif how == "goes on":
            with suppress(Exception):
                time.sleep(1)
        else:
            time.sleep(0.01)
    return body
