"""What a task returns where the answer is more than a body: a status, headers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class Answer(dict[str, Any]):
    """The answer to the request: ``return Answer(201, "created", {"Location": "/orders/7"})``.

    `status` is 200 to 599. `body` is text, bytes, or a JSON value, which the gateway sends as
    application/json. docs/errors.md lists the `headers` that a task may set.

    It is a dict, so that Celery's JSON carries it; a task in another language returns the same
    object. Raises ValueError where `status` is none that can be sent.
    """

    def __init__(self, status: int = 200, body: Any = "", headers: Mapping[str, str] | None = None):
        if not isinstance(status, int) or not 200 <= status <= 599:
            raise ValueError(f"the status is {status!r}, and not a number from 200 to 599")
        super().__init__(status=int(status), headers=dict(headers or {}), body=body)
