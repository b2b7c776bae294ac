"""Turn a task's outcome, or an error, into an HTTP answer to the sender."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any
from uuid import UUID

from gateway.errors import RequestError, ResultUnusable, TaskFailed
from gateway.nesting import check_levels
from gateway.outcome import SUCCESS, Outcome

#: The only headers a task may set (names in lower case).
ALLOWED_HEADERS = frozenset(
    [
        "cache-control",
        "content-disposition",
        "content-language",
        "content-type",
        "etag",
        "expires",
        "last-modified",
        "link",
        "location",
        "retry-after",
        "vary",
        "x-slack-no-retry",
    ]
)
#: The header of each answer to a delivery; a task may not set it.
DELIVERY_ID = "X-Delivery-ID"
#: Bytes; a larger result is a mistake in the task, not an answer to a webhook.
MAX_BODY = 16 * 1024 * 1024
TEXT = "text/plain; charset=utf-8"
BINARY = "application/octet-stream"
JSON = "application/json"
PROBLEM = "application/problem+json"

# RFC 9110, 5.5: visible characters, spaces and tabs; others would need escaping.
field_value = re.compile(r"[\t\x20-\x7e]*").fullmatch
#: What Celery stores instead of a result that its serializer refuses.
_NOT_ENCODED = "EncodeError"
_ENVELOPE = {"status", "headers", "body"}
_NEEDED = {"status", "body"}


@dataclass(slots=True)
class Answer:
    """An HTTP answer without its framing; ``content_type`` is left out where it is empty."""

    status: int
    content_type: str
    body: bytes
    headers: dict[str, str] = field(default_factory=dict)


def of_outcome(outcome: Outcome, content_type: str = TEXT) -> Answer:
    """Turn a final `outcome` into the answer; `content_type` is used for a str result.

    Raises `TaskFailed` unless the task succeeded, and `ResultUnusable` where its result cannot
    be sent.
    """
    if outcome.error == _NOT_ENCODED:
        raise ResultUnusable("The task's result is not JSON: its worker could not encode it.")
    if outcome.state != SUCCESS:
        raise TaskFailed(f"The task failed: {outcome.error}.")
    if outcome.error is not None:
        raise ResultUnusable(f"The task's result cannot be read: {outcome.error}.")
    value = outcome.value
    if isinstance(value, dict) and _is_envelope(value):
        answer = _of_envelope(value, content_type)
    else:
        answer = _of_value(200, value, content_type)
    if len(answer.body) > MAX_BODY:
        raise ResultUnusable(f"The task's result is over {MAX_BODY} bytes.")
    return answer


def _is_envelope(value: dict[str, Any]) -> bool:
    """Tell whether a task's result describes a whole answer; any other dict is a JSON body.

    Such a result has an int ``status`` (a bool does not count), a ``body``, perhaps ``headers``,
    and nothing else.
    """
    return _NEEDED <= value.keys() <= _ENVELOPE and type(value["status"]) is int


def _of_value(status: int, value: Any, content_type: str) -> Answer:
    if isinstance(value, bytes):
        return Answer(status, BINARY, value)
    if value is None:
        return Answer(status, "", b"")
    try:
        if isinstance(value, str):
            return Answer(status, content_type, value.encode())
        text = _encode(value)
        check_levels(value, text)
        return Answer(status, JSON, text.encode())
    except (TypeError, ValueError, RecursionError) as exc:
        raise ResultUnusable(f"The task's result is not valid JSON: {exc}.") from exc


def _of_envelope(value: dict[str, Any], content_type: str) -> Answer:
    status = value["status"]
    if not 200 <= status <= 599:
        raise ResultUnusable(
            f"The task returned the status {status!r:.99}; only 200 to 599 can be sent."
        )
    answer = _of_value(status, value["body"], content_type)
    headers = value.get("headers") or {}
    if not isinstance(headers, dict):
        raise ResultUnusable("The task returned headers that are not a dict.")
    for name, text in headers.items():
        # The lower case of some letters outside ASCII is an ASCII letter: U+212A becomes k.
        lower = name.lower() if name.isascii() else ""
        if lower not in ALLOWED_HEADERS:
            raise ResultUnusable(f"The task returned the header {name!r:.99}; it is not allowed.")
        if not isinstance(text, str) or not field_value(text):
            raise ResultUnusable(f"The task returned a malformed value for the header {name!r}.")
        if lower == "content-type":
            answer.content_type = text
        else:
            answer.headers[name] = text
    if status in (204, 205, 304):
        if answer.body:
            raise ResultUnusable(f"The task returned a body with the status {status}.")
        answer.content_type = ""
    return answer


def of_acceptance(delivery_id: str, task_id: str, location: str) -> Answer:
    """Return the 202 for an accepted delivery; `location`: its result's URL, or empty."""
    ids = {"delivery_id": delivery_id, "task_id": task_id}
    headers = {"Location": location} if location else {}
    return Answer(202, JSON, json.dumps(ids).encode(), headers)


def of_error(error: RequestError, delivery_id: str = "", task_id: str = "") -> Answer:
    """Describe `error` as RFC 9457 problem details."""
    problem = {
        "type": f"urn:celery-gateway:{error.type}",
        "title": (type(error).__doc__ or "").strip(),
        "status": error.status,
        "detail": error.detail,
    }
    headers = dict(error.headers)
    if delivery_id:
        problem["delivery_id"] = headers[DELIVERY_ID] = delivery_id
    if task_id:
        problem["task_id"] = task_id
    if error.retry_after is not None:
        headers["Retry-After"] = str(error.retry_after)
    return Answer(error.status, PROBLEM, json.dumps(problem).encode(), headers)


def _plain(value: Any) -> Any:
    """Return the text form of a value that Celery's JSON can carry and plain JSON cannot."""
    if isinstance(value, (datetime, date, time)):
        return value.isoformat()
    if isinstance(value, (UUID, Decimal)):
        return str(value)
    raise TypeError(f"{type(value).__name__} inside a JSON result")


_encode = json.JSONEncoder(
    ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=_plain
).encode
