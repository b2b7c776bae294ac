"""What the requests that are under way in a process have in common."""

from __future__ import annotations

from typing import Protocol

from gateway.claims.store import Claims
from gateway.failpoints import Failpoint
from gateway.journal.store import Journal
from gateway.metrics import Metrics
from gateway.relay.deadlines import Deadlines
from gateway.relay.late_results import LateResults
from gateway.relay.limits import Limits
from gateway.relay.result_urls import Results


class Desk(Protocol):
    """What all waiters of a process share."""

    limits: Limits
    metrics: Metrics
    deadlines: Deadlines
    claims: Claims | None
    late: LateResults | None
    results: Results
    journal: Journal | None
    failpoint: Failpoint
    #: Is each request a line in the log?
    logs_requests: bool

    def delivery_id(self) -> str:
        """Return a new delivery id; what is refused has one, too, for whoever looks into it."""
