"""What the gateway tells a task about the webhook, beside the arguments."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
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
