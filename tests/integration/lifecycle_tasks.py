"""A task that succeeds, fails, hangs or ends its worker, as the first word of its body says.

It notes each run that was not a failure. ``fails`` fails until the file `REPAIRED` is in the
directory LIFECYCLE_DIRECTORY, ``hangs`` waits there for the file `RELEASED`. ``rambles`` fails with
a word that is longer than a line, and that turns the direction of what follows.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

from appserver import app
from gateway.stack.server import poll

REPAIRED, RELEASED, RAN = "repaired", "released", "ran"
LONGEST = 1_200.0  # seconds that a task hangs at the most


@app.task(name="lifecycle.run")
def run(query: dict[str, str], headers: dict[str, str], body: str) -> str:
    directory = Path(os.environ["LIFECYCLE_DIRECTORY"])
    kind = body.partition(" ")[0]
    if kind == "fails" and not (directory / REPAIRED).exists():
        raise RuntimeError("not repaired yet")
    if kind == "rambles":
        raise RuntimeError("\u202e" + "x" * 400)
    if kind == "hangs":
        poll((directory / RELEASED).exists, LONGEST)
    if kind == "kills":
        os.kill(os.getpid(), signal.SIGKILL)
    with (directory / RAN).open("a") as file:
        file.write(f"{body}\n")
    return body
