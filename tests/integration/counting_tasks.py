"""The app server with a task that counts its executions.

``celery -A tests.integration.counting_tasks worker`` appends a line for each execution to the file
that COUNTED names.
"""

from __future__ import annotations

import os

from appserver import Answer, app


@app.task(name="tests.count")
def count(query: dict[str, str], headers: dict[str, str], body: str) -> Answer:
    """Note the body, and answer it with the status that the query asks for."""
    with open(os.environ["COUNTED"], "a") as file:
        file.write(f"{body}\n")
    return Answer(int(query.get("status", 200)), body)
