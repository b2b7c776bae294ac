"""The app server with one more task, which notes each of its executions before it ends.

``celery -A tests.faults.tasks worker`` writes below the directory FAULTS_DIRECTORY.
"""

from __future__ import annotations

import json
import os
import secrets
import signal
import time
from pathlib import Path

from appserver import app
from gateway.stack.server import poll

EXECUTED = "executed.jsonl"
BEGUN = "begun"  # the file that a task makes which waits for another one
LONGEST = 60.0  # seconds that it waits at the most
_APPEND = os.O_CREAT | os.O_WRONLY | os.O_APPEND


@app.task(name="faults.run", bind=True)
def run(self, query: dict[str, str], headers: dict[str, str], body: str) -> str:
    """Take effect, note it on disk, return the body, whose first word is the request's id.

    Query: ``seconds`` and ``until``, see `take_time`; ``die``: kill the own process after the
    effect and before the acknowledgement, ``once`` or ``always``; ``retries``: ask for so many more
    tries before; ``word``: return a word after the body that no other execution returns. The
    header ``X-Try`` names the request that was published.
    """
    if self.request.retries < int(query.get("retries", 0)):
        raise self.retry(countdown=0)
    directory = take_time(query)
    attempt = take_effect(directory, self.request.id)
    execution = {
        "id": body.partition(" ")[0],
        "attempt": attempt,
        "task": self.request.id,
        "redelivered": bool(self.request.delivery_info.get("redelivered")),
        "replay": self.request.headers["delivery"].get("replay", 0),
        # A route with `args` may give it something else.
        "by": headers.get("x-try", "") if isinstance(headers, dict) else "",
        "nonce": secrets.token_hex(8),
        "at": time.monotonic(),
    }
    with open(directory / EXECUTED, "ab", buffering=0, opener=_open) as file:
        file.write(json.dumps(execution).encode() + b"\n")
        os.fsync(file)
    if query.get("die") == "always" or (query.get("die") == "once" and attempt == 1):
        os.kill(os.getpid(), signal.SIGKILL)
    return f"{body} {execution['nonce']}" if "word" in query else body


def take_time(query: dict[str, str]) -> Path:
    """Sleep for the query's ``seconds``, wait for the file of its ``until``; return the directory.

    When ``until`` is given, the file BEGUN tells that the task has begun.
    """
    time.sleep(float(query.get("seconds", 0)))
    directory = Path(os.environ["FAULTS_DIRECTORY"])
    if "until" in query:
        (directory / BEGUN).touch()
        poll((directory / query["until"]).exists, LONGEST)
    return directory


def take_effect(directory: Path, key: str) -> int:
    """Make the file that is the effect of `key`, once; return how often it has been asked for."""
    with open(directory / key, "ab", buffering=0, opener=_open) as file:
        file.write(b".")
        return file.tell()


def _open(path: str, _flags: int) -> int:
    return os.open(path, _APPEND, 0o600)
