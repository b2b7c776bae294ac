"""A Celery app as anybody's web application has one: the client of the gateway's own workers.

``celery -A loadtest.servers.stock flower`` serves it over HTTP.
"""

from __future__ import annotations

import os

from celery import Celery

app = Celery(
    "stock",
    broker=os.environ["GATEWAY_BROKER_URL"],
    backend=os.environ["GATEWAY_RESULT_BACKEND"],
)
app.conf.update(result_expires=300, accept_content=["json"])


@app.task(name="appserver.tasks.echo")
def echo(query: dict[str, str], headers: dict[str, str], body: str) -> str:
    """Return the body; what runs is the worker's task of this name."""
    return body
