"""The services that the requests of a process share."""

from __future__ import annotations

from dataclasses import dataclass

from gateway.celery_message import TaskIds
from gateway.failpoints import Failpoint
from gateway.journal.store import Journal
from gateway.metrics import Metrics
from gateway.relay.deadlines import Deadlines
from gateway.relay.idempotency import Idempotency
from gateway.relay.limits import Limits
from gateway.relay.result_urls import ResultURLs
from gateway.strategies.base import Strategy


@dataclass(slots=True, frozen=True)
class Context:
    """What a request needs on its way; ``log_requests``: each is a line in the log."""

    strategy: Strategy
    ids: TaskIds
    metrics: Metrics
    limits: Limits
    deadlines: Deadlines
    result_urls: ResultURLs
    failpoint: Failpoint
    journal: Journal | None
    #: There is one wherever a route has an identity.
    idempotency: Idempotency | None
    log_requests: bool
