"""The services that the requests of a process share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gateway.amqp.dynamic_queues import DynamicQueues
from gateway.celery_message import TaskIds
from gateway.claims.idempotency import Idempotency
from gateway.failpoints import Failpoint
from gateway.journal.writing import Journal
from gateway.metrics import Metrics
from gateway.relay.attempt import Steps
from gateway.relay.deadlines import Deadlines
from gateway.relay.fairness import Fairness
from gateway.relay.further_tasks import FurtherTasks
from gateway.relay.limits import Limits
from gateway.relay.reply import Recording
from gateway.relay.result_urls import ResultURLs
from gateway.strategies.base import Strategy

if TYPE_CHECKING:
    from gateway.late.answers import LateAnswers


@dataclass(slots=True, frozen=True)
class Context:
    """The services that a request uses."""

    strategy: Strategy
    strategy_name: str
    ids: TaskIds
    metrics: Metrics
    recording: Recording
    limits: Limits
    deadlines: Deadlines
    result_urls: ResultURLs
    failpoint: Failpoint
    steps: Steps
    further: FurtherTasks
    fairness: Fairness
    #: None if nothing is kept.
    journal: Journal | None
    #: Not None if any route has an identity.
    idempotency: Idempotency | None
    #: Not None if any route has late answers.
    late: LateAnswers | None
    #: Not None if any route has dynamic queues.
    queues: DynamicQueues | None
