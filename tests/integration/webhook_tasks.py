"""The app server with tasks that say what they got."""

from __future__ import annotations

import json
from typing import Any

from appserver import app


@app.task(name="tests.seen", bind=True)
def seen(self, query: dict, headers: dict, body: str) -> dict:
    """Return what the task got."""
    delivery = self.request.headers["delivery"]
    queue = self.request.delivery_info["routing_key"]
    return {
        "query": query, "headers": headers, "body": body, "delivery": delivery, "queue": queue
    }  # fmt: skip


@app.task(name="tests.said")
def said(query: dict, headers: dict, body: str) -> str:
    """Return how long the body was, as text."""
    return f"größe {len(body)}"


@app.task(name="tests.returned")
def returned(query: dict, headers: dict, body: str) -> Any:
    """Return what the body says in JSON."""
    return json.loads(body)
