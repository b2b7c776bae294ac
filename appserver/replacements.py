"""Let a task that takes the place of another one answer the gateway, too.

Celery's ``self.replace()`` sends another message under the same task id, or a chain or a chord
whose last task has it. That message, or that signature within it, gets the address for the reply
and the ``delivery`` header of the task that is replaced.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from celery import current_task

from appserver.reply_backend import REPLY_PREFIXES


def carry_over(
    body: Any = None, headers: Any = None, properties: Any = None, **_signal: object
) -> None:
    """Receive Celery's signal `before_task_publish`, and change what is about to be sent."""
    if not current_task:
        return
    request = current_task.request
    reply_to = request.reply_to
    if not reply_to or not reply_to.startswith(REPLY_PREFIXES):
        return
    delivery = (request.headers or {}).get("delivery")
    if headers.get("id") == request.id:
        properties["reply_to"] = reply_to
        headers.setdefault("delivery", delivery)
        return
    embed = body[2] if isinstance(body, (tuple, list)) and len(body) == 3 else None
    for signature in _signatures(embed):
        options = signature["options"]
        if options.get("task_id") == request.id:
            options["reply_to"] = reply_to
            options["headers"] = {"delivery": delivery, **(options.get("headers") or {})}


def _signatures(value: Any) -> Iterator[dict[str, Any]]:
    """Yield all signatures in `value`, which are dicts with `options`."""
    if isinstance(value, dict):
        if isinstance(value.get("options"), dict):
            yield value
        value = value.values()
    elif not isinstance(value, (list, tuple)):
        return
    for each in list(value):
        yield from _signatures(each)
