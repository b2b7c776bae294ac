"""Tasks that do better at a later try: ``celery -A tests.integration.retry_tasks worker``."""

from __future__ import annotations

import os
import time
from pathlib import Path

from appserver import Answer
from tests.faults import tasks

app = tasks.app


@app.task(name="retries.answer", bind=True)
def answer(self, query: dict[str, str], headers: dict[str, str], body: str) -> dict:
    """Answer with the statuses in the query's ``statuses``, one after the other, then with 200.

    The body names the delivery; the answer's body is the task's id. It takes ``seconds``.
    """
    time.sleep(float(query.get("seconds", 0)))
    directory = Path(os.environ["FAULTS_DIRECTORY"])
    attempt = tasks.take_effect(directory, f"attempts-{body}")
    statuses = query["statuses"].split(",")
    status = int(statuses[attempt - 1]) if attempt <= len(statuses) else 200
    return Answer(status, self.request.id)


@app.task(name="retries.odd")
def odd(query: dict[str, str], headers: dict[str, str], body: str) -> dict:
    """Return what can be no answer, or with ``quotes`` in the query one with a long header."""
    if "quotes" not in query:
        return {"status": 1, "body": ""}
    time.sleep(float(query.get("seconds", 0)))
    return Answer(200, body, {"Link": '"' * int(query["quotes"])})
