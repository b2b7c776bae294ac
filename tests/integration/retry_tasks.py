"""Tasks that do better at a later try: ``celery -A tests.integration.retry_tasks worker``."""

from __future__ import annotations

from appserver import Answer
from tests.faults import tasks

app = tasks.app


@app.task(name="retries.answer", bind=True)
def answer(self, query: dict[str, str], headers: dict[str, str], body: str) -> dict:
    """Answer with the statuses in the query's ``statuses``, one after the other, then with 200.

    The body names the delivery; the answer's body is the task's id. Its ``seconds`` and ``until``
    are those of `tasks.take_time`.
    """
    directory = tasks.take_time(query)
    attempt = tasks.take_effect(directory, f"attempts-{body}")
    statuses = query["statuses"].split(",")
    status = int(statuses[attempt - 1]) if attempt <= len(statuses) else 200
    return Answer(status, self.request.id)


@app.task(name="retries.odd")
def odd(query: dict[str, str], headers: dict[str, str], body: str) -> dict:
    """Return what can be no answer, or with ``quotes`` in the query one with a long header."""
    if "quotes" not in query:
        return {"status": 1, "body": ""}
    tasks.take_time(query)
    return Answer(200, body, {"Link": '"' * int(query["quotes"])})
