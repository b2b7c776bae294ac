"""The app server with one more task, which notes what it was called with."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from appserver import Answer, app

RECORD = "tests.record"
_FILE = "records"


@app.task(name=RECORD, bind=True)
def record(self, query: dict[str, str], headers: dict[str, str], body: str | bytes) -> Any:
    """Note the call as a line in the directory FAULTS_DIRECTORY.

    Returns the body, with the status that the query asks for.
    """
    raw = body.encode() if isinstance(body, str) else body
    call = {
        "query": query,
        "headers": headers,
        "body": raw.hex(),
        "remote": self.request.headers["delivery"]["remote"],
    }
    with open(f"{os.environ['FAULTS_DIRECTORY']}/{_FILE}", "a") as file:
        file.write(json.dumps(call) + "\n")
    return Answer(int(query["status"]), body) if "status" in query else body


def records(directory: Path) -> list[dict[str, Any]]:
    """Read the calls in the order of their execution, with bodies as bytes."""
    path = directory / _FILE
    if not path.exists():
        return []
    calls = [json.loads(line) for line in path.read_text().splitlines()]
    return [{**call, "body": bytes.fromhex(call["body"])} for call in calls]
