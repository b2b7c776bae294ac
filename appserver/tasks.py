"""The gateway's default task, and the tasks of the load test.

Each is called as ``task(query, headers, body)``: two dicts of strings, and the body as ``str``
where it is UTF-8, else ``bytes``. Further data of a delivery are in
``self.request.headers["delivery"]`` of a bound task. A task that sets a status or headers returns
an `appserver.Answer`.
"""

from __future__ import annotations

import time
from xml.etree import ElementTree

from appserver import app

SLEEP = 0.05  # seconds
LARGE = 100_000  # characters
LARGEST = 50_000_000  # characters


class TaskFailure(Exception):
    """Raised by the task `fail`."""


@app.task(name="api.core.main")
def main(query: dict[str, str], headers: dict[str, str], body: str | bytes) -> str | bytes:
    """Return the body. Replace this by your own code.

    docs/appserver.md has what a task may return, and which answer that makes.
    """
    return body


@app.task(name="appserver.tasks.echo")
def echo(query: dict[str, str], headers: dict[str, str], body: str | bytes) -> str | bytes:
    """Return the body."""
    return body


@app.task(name="appserver.tasks.reply")
def reply(query: dict[str, str], headers: dict[str, str], body: str) -> str:
    """Answer a WeChat message with its own text; used by the demo of `gateway dev`."""
    return f"You said: {ElementTree.fromstring(body).findtext('Content', 'nothing')}"


@app.task(name="appserver.tasks.sleep")
def sleep(query: dict[str, str], headers: dict[str, str], body: str | bytes) -> str | bytes:
    """Return the body after ``seconds`` of the query."""
    time.sleep(float(query.get("seconds", SLEEP)))
    return body


@app.task(name="appserver.tasks.fail")
def fail(query: dict[str, str], headers: dict[str, str], body: str | bytes) -> None:
    """Raise TaskFailure."""
    raise TaskFailure("as asked")


@app.task(name="appserver.tasks.large")
def large(query: dict[str, str], headers: dict[str, str], body: str | bytes) -> str:
    """Return as many characters as the query's ``bytes``, at most `LARGEST`."""
    return "x" * min(int(query.get("bytes", LARGE)), LARGEST)
