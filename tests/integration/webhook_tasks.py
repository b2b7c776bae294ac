"""The app server with tasks that say what they got."""

from __future__ import annotations

import json
from typing import Any

from celery.exceptions import Ignore

from appserver import app
from appserver.reply_backend import REPLY_PREFIXES
from appserver.reply_connection import reply_connection


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


@app.task(name="tests.stored", bind=True)
def stored(self, query: dict, headers: dict, body: str | bytes) -> None:
    """Store the body as the result, or reply it, as somebody else's worker might."""
    payload = body.encode() if isinstance(body, str) else body
    reply_to, task_id = self.request.reply_to or "", self.request.id
    if reply_to.startswith(REPLY_PREFIXES):
        reply_connection(app).publish_all([(reply_to, task_id, payload)])
    else:
        key, client = app.backend.get_key_for_task(task_id), app.backend.client
        client.set(key, payload, ex=60)
        client.publish(key, payload)
    raise Ignore()
