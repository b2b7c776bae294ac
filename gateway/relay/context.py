"""The services that the requests of a process share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from gateway.amqp.dynamic_queues import DynamicQueues
from gateway.amqp.publisher import Publisher
from gateway.background import Service, Tasks
from gateway.celery_message import TaskIds
from gateway.claims.idempotency import Idempotency
from gateway.config.settings import Config
from gateway.failpoints import Failpoint
from gateway.failures.counting import Failures
from gateway.journal.writing import Journal
from gateway.metrics import Metrics
from gateway.relay.fairness import Fairness
from gateway.relay.further_tasks import FurtherTasks, TakenTasks
from gateway.relay.limits import Deadlines, Limits
from gateway.relay.result_urls import ResultURLs
from gateway.stores.results import Results
from gateway.strategies.base import Strategy

if TYPE_CHECKING:
    from gateway.late.answers import LateAnswers
    from gateway.tracing.tracer import Tracer


class Recorder(Protocol):
    """Records how requests have ended; one that is switched off is absent."""

    def ended(self, request: Any, /) -> None:
        """Record an `InFlight` that was answered, or whose sender has disconnected."""


class Context(Service):
    """What no route needs is None here.

    `ids` makes the task ids; `strategy` receives the results of these.
    """

    def __init__(
        self,
        config: Config,
        strategy: Strategy,
        metrics: Metrics,
        ids: TaskIds,
        failpoint: Failpoint,
    ):
        self.config, self.strategy, self.ids = config, strategy, ids
        self.metrics, self.failpoint = metrics, failpoint
        self.limits, self.deadlines, self.steps = Limits(config), Deadlines(), Tasks()
        self.recorders: list[Recorder] = []
        joined = any(route.identified for route in config.routes)
        late = any(route.late is not None for route in config.routes)
        results = None
        if config.results and (joined or late or config.secret_key or config.journal):
            results = Results(config, listens=joined or late)
        self.idempotency = Idempotency(config, results, metrics) if joined and results else None
        self.journal = journal = Journal(config, metrics, results) if config.journal else None
        failures = None if journal is None else Failures(config, journal.store, metrics)
        self.tracer: Tracer | None = None
        if config.trace_sample is not None:
            # Only here, as it imports OpenTelemetry.
            from gateway.tracing.tracer import Tracer

            self.tracer = Tracer(config)
        self.late: LateAnswers | None = None
        if late and results:
            # Only here, as it imports an HTTP client.
            from gateway.late.answers import LateAnswers

            self.late = LateAnswers(config, metrics, results, journal, self.tracer, failpoint)
        self.further: FurtherTasks | None = None
        if any(route.also for route in config.routes):
            taken = TakenTasks(config, self.idempotency.claims.redis) if self.idempotency else None
            self.further = FurtherTasks(config.prefix, strategy, ids, taken)
        signed = config.secret_key is not None
        self.result_urls = ResultURLs(config, results.commands) if signed and results else None
        fair = {q for route in config.routes if route.fair_by for q in route.queue_names}
        self.fairness = Fairness(fair, strategy.publisher) if fair else None
        self.queues: DynamicQueues | None = None
        if config.dynamic_paths:
            assert isinstance(strategy.publisher, Publisher)  # `cross_checks` refuses other brokers
            self.queues = DynamicQueues(config, metrics, strategy.publisher)
        # While it stops, the strategy still ends tasks, whose claims and entries are to be written.
        own = (self.tracer, results, self.idempotency, journal, failures, self.late)
        services = (*own, strategy, self.queues, self.fairness)
        self.uses = [service for service in services if service is not None]

    async def stop(self) -> None:
        await self.steps.stop()
        await super().stop()
