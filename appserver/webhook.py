"""What the gateway tells a task about the webhook, and the answer that a task may return."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from urllib.parse import parse_qs

from celery import current_task


@dataclass(frozen=True, slots=True)
class Delivery:
    """A webhook that the gateway has received.

    ``id`` is in the gateway's log and in its error answers; ``source``, ``route`` and ``event`` are
    empty where there is none; ``params`` are the parameters in the path; ``remote`` is the sender's
    address; ``traceparent`` is the W3C header of the gateway's span if it traces requests, else
    that of the sender, or empty. ``replay``: 0, or which replay from the journal this is.
    ``edited_from`` is the id of the delivery of which this is an edited copy, or empty.
    """

    id: str
    source: str
    route: str
    event: str
    params: dict[str, str]
    query_string: str
    remote: str
    received_at: datetime
    traceparent: str
    replay: int = 0
    edited_from: str = ""

    @property
    def queries(self) -> dict[str, list[str]]:
        """All values of each query parameter; a task's argument `query` has the last one only."""
        return parse_qs(self.query_string, keep_blank_values=True)

    @property
    def trace_id(self) -> str:
        """The id of its trace, 32 hexadecimal digits; empty where there is none."""
        return self.traceparent[3:35]


def delivery() -> Delivery | None:
    """Return the delivery that the running task was called for; None: somebody else called it."""
    found = (current_task.request.headers or {}).get("delivery") if current_task else None
    if not found:
        return None
    fields = {name: found.get(name, "") for name in Delivery.__slots__}
    fields |= {
        "params": dict(found.get("params", {})),
        "received_at": datetime.fromisoformat(found["received_at"]),
        "replay": found.get("replay", 0),
    }
    return Delivery(**fields)


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
