"""The app server with one more task, which notes what it was called with.

``celery -A tests.integration.recorder worker`` appends a line for each execution to the file
that RECORDS names.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from appserver import app

RECORD = "tests.record"


@app.task(name=RECORD, bind=True)
def record(self, query: dict[str, str], headers: dict[str, str], body: str | bytes) -> str | bytes:
    """Note the call; return the body."""
    raw = body.encode() if isinstance(body, str) else body
    call = {
        "query": query,
        "headers": headers,
        "body": raw.hex(),
        "remote": self.request.headers["delivery"]["remote"],
    }
    with open(os.environ["RECORDS"], "a") as file:
        file.write(json.dumps(call) + "\n")
    return body


def records(path: Path) -> list[dict[str, Any]]:
    """Read the calls in the order of their execution, with bodies as bytes."""
    if not path.exists():
        return []
    calls = [json.loads(line) for line in path.read_text().splitlines()]
    return [{**call, "body": bytes.fromhex(call["body"])} for call in calls]
