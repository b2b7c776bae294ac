"""What the requests that are under way in a process have in common."""

from __future__ import annotations

from typing import Protocol

from gateway.claims import Claims
from gateway.deadlines import Deadlines
from gateway.failpoints import Failpoint
from gateway.journal import Journal
from gateway.late import Late
from gateway.limits import Limits
from gateway.metrics import Metrics
from gateway.results import Results


class Desk(Protocol):
    """What all waiters of a process share."""

    limits: Limits
    metrics: Metrics
    deadlines: Deadlines
    claims: Claims | None
    late: Late | None
    results: Results
    journal: Journal | None
    failpoint: Failpoint
    #: Is each request a line in the log?
    logs_requests: bool

    def delivery_id(self) -> str:
        """Return a new delivery id; what is refused has one, too, for whoever looks into it."""
