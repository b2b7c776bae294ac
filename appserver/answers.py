"""The result of a task that sets the answer's status or headers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class Answer(dict[str, Any]):
    """The answer to the request: ``return Answer(201, "created", {"Location": "/orders/7"})``.

    `status` is 200 to 599. `body` is text, bytes, or a JSON value, which the gateway sends as
    application/json. docs/errors.md lists the `headers` that a task may set.

    It is a dict, so that Celery can encode it as JSON; a task in another language returns the same
    object. Raises ValueError where `status` cannot be sent.
    """

    def __init__(self, status: int = 200, body: Any = "", headers: Mapping[str, str] | None = None):
        if not isinstance(status, int) or not 200 <= status <= 599:
            raise ValueError(f"the status has to be a number from 200 to 599, and is {status!r}")
        super().__init__(status=int(status), headers=dict(headers or {}), body=body)
