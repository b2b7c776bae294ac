"""The services that the requests of a process share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gateway.amqp.dynamic_queues import DynamicQueues
from gateway.celery_message import TaskIds
from gateway.failpoints import Failpoint
from gateway.journal.writing import Journal
from gateway.metrics import Metrics
from gateway.relay.attempt import Steps
from gateway.relay.deadlines import Deadlines
from gateway.relay.fairness import Fairness
from gateway.relay.further_tasks import FurtherTasks
from gateway.relay.idempotency import Idempotency
from gateway.relay.limits import Limits
from gateway.relay.result_urls import ResultURLs
from gateway.strategies.base import Strategy

if TYPE_CHECKING:
    from gateway.tracing.tracer import Tracer


@dataclass(slots=True, frozen=True)
class Context:
    """The services that a request uses; ``log_requests``: the share of requests to log."""

    strategy: Strategy
    ids: TaskIds
    metrics: Metrics
    limits: Limits
    deadlines: Deadlines
    result_urls: ResultURLs
    failpoint: Failpoint
    steps: Steps
    further: FurtherTasks
    journal: Journal | None
    #: Not None if any route has an identity.
    idempotency: Idempotency | None
    #: Not None if any route has dynamic queues.
    queues: DynamicQueues | None
    #: Not None if any route has `fair_by`.
    fairness: Fairness | None
    log_requests: float
    strategy_name: str
    #: Not None if requests are traced.
    tracer: Tracer | None
