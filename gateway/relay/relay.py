"""Relay a request, step by step: limits, route, verification, message, claim, answer."""

from __future__ import annotations

from contextlib import suppress

from gateway.amqp.dynamic_queues import DynamicQueues
from gateway.amqp.publisher import Publisher
from gateway.background import Service, Tasks
from gateway.celery_message import TaskIds
from gateway.claims.idempotency import Idempotency
from gateway.config.route import RESULTS
from gateway.config.settings import Config
from gateway.delivery import Delivery, Request, traceparent_of
from gateway.errors import BadRequest, RequestError, Unverified
from gateway.failpoints import Failpoint
from gateway.failures.counting import Failures
from gateway.journal.entry import IGNORED, REFUSED
from gateway.journal.refusals import Kept
from gateway.journal.writing import Journal
from gateway.metric_table import FILTERED, UNROUTED, UNVERIFIED
from gateway.metrics import Metrics
from gateway.relay.claimed_delivery import ClaimedDelivery
from gateway.relay.delivery import DeliveryInFlight
from gateway.relay.fairness import Fairness
from gateway.relay.further_tasks import FurtherTasks, TakenTasks
from gateway.relay.in_flight import (
    Context,
    InFlight,
    Recorder,
    Respond,
    ResultLookup,
    check_method,
)
from gateway.relay.limits import Deadlines, Limits
from gateway.relay.recorders import JournalRecorder, LogRecorder
from gateway.relay.result_urls import ResultURLs
from gateway.relay.routes import MAX_EVENT, Routes
from gateway.sources.base import Verified
from gateway.sources.reading import read_query
from gateway.stores.results import Results
from gateway.strategies.base import Strategy
from gateway.tracing.trace import NOTHING, VERIFY


class Relay(Service):
    """Turns requests into tasks and their outcomes into answers.

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
        self._timeout = config.timeout
        self.limits = Limits(config)
        self._routes = Routes(config)
        # From the beginning, as an alert has to see how each of them has come to its first value.
        for route in config.routes:
            for name in (UNROUTED, FILTERED):
                metrics.place(name, route.path)
        joined = any(route.identified for route in config.routes)
        late = any(route.late is not None for route in config.routes)
        results = None
        if config.results and (joined or late or config.secret_key or config.journal):
            results = Results(config, listens=joined or late)
        idempotency = Idempotency(config, results, metrics) if joined and results else None
        #: Only where a route has identities there are claims.
        self._made = DeliveryInFlight if idempotency is None else ClaimedDelivery
        journal = Journal(config, metrics, results) if config.journal else None
        failures = None if journal is None else Failures(config, journal.store, metrics)
        tracer = None
        if config.trace_sample is not None:
            # Only here, as it imports OpenTelemetry.
            from gateway.tracing.tracer import Tracer

            tracer = Tracer(config)
        late_answers = None
        if late and results:
            # Only here, as it imports an HTTP client.
            from gateway.late.answers import LateAnswers

            late_answers = LateAnswers(config, metrics, results, journal, tracer, failpoint)
        recorders: list[Recorder] = []
        if journal is not None:
            recorders.append(JournalRecorder(journal))
        if config.log_requests:
            recorders.append(LogRecorder(config.log_requests, config.strategy))
        if tracer is not None:
            recorders.append(tracer)
        taken = TakenTasks(config, idempotency.claims.redis) if idempotency else None
        self.context = Context(
            strategy=strategy,
            strategy_name=config.strategy,
            ids=ids,
            metrics=metrics,
            recorders=recorders,
            limits=self.limits,
            deadlines=Deadlines(),
            result_urls=ResultURLs(config, results.commands if results else None),
            failpoint=failpoint,
            steps=Tasks(),
            further=FurtherTasks(config.prefix, strategy, ids, taken),
            fairness=_fairness(config, strategy),
            tracer=tracer,
            journal=journal,
            idempotency=idempotency,
            late=late_answers,
            queues=_dynamic_queues(config, metrics, strategy),
        )
        context, keys = self.context, self._routes.fetched_keys
        # While it stops, the strategy still ends tasks, whose claims and entries are to be written.
        own = (tracer, results, idempotency, journal, failures, late_answers)
        services = (*own, strategy, context.queues, context.fairness, *keys)
        self.uses = [service for service in services if service is not None]

    async def stop(self) -> None:
        await self.context.steps.stop()
        await super().stop()

    def checks(self) -> dict[str, str]:
        """Return for each server that requests need what is wrong with it; empty: nothing."""
        checks = self.context.strategy.checks()
        if self.context.idempotency is not None:
            checks["state"] = self.context.idempotency.error
            if part := self.context.idempotency.claims.redis.partly:
                checks["shards"] = part
        return checks

    def held(self) -> dict[str, int]:
        """Return what is kept for requests and their tasks: how many of each, or bytes.

        All are 0 when nothing is under way, but for late results and their subscriptions.
        """
        context = self.context
        held = {
            "requests in flight": self.limits.in_flight,
            "bytes": self.limits.bytes,
            "steps": len(context.steps),
            "deadlines": context.deadlines.pending,
            **context.strategy.held(),
        }
        if context.idempotency is not None:
            held |= context.idempotency.held()
        if context.late is not None:
            held |= context.late.held()
        if context.journal is not None:
            held["bytes of the journal"] = context.journal.bytes
        return held

    def delivery_id(self) -> str:
        """Return a new delivery id; a refused request has one, too, so that it can be found."""
        return self.context.ids.new()

    def expect(self, method: str, path: str, size: int) -> None:
        """Raise a `RequestError` where a request would be refused before its body is read.

        `size` is the number of its bytes that have not arrived yet.
        """
        if path.startswith(RESULTS):
            check_method(method)
        else:
            endpoint, _ = self._routes.find(path)
            endpoint.check(method)
        self.limits.admit(size)

    def relay(self, request: Request, respond: Respond) -> InFlight | None:
        """Relay `request`; `respond` is called once with the answer, immediately or later.

        Returns the request in flight, which is to be cancelled if the sender disconnects, or None
        if the request is answered already.
        """
        in_flight: InFlight
        if request.path.startswith(RESULTS):
            in_flight = lookup = ResultLookup(self.context, request, respond)
            lookup.deadline = request.arrived + self._timeout
            lookup.guarded(lookup.begin)
        else:
            in_flight = delivery = self._made(self.context, request, respond)
            delivery.guarded(self._deliver, delivery)
        return None if in_flight.closed else in_flight

    def keep(
        self, request: Request, delivery_id: str, error: RequestError, seconds: float
    ) -> Request:
        """Keep a request that was refused before it was read, if such ones are kept.

        Returns it as it is logged and kept.
        """
        route, source, kept = "", "", not request.path.startswith(RESULTS)
        with suppress(RequestError):  # no route has this path
            endpoint, params = self._routes.find(request.path)
            route, source, kept = endpoint.path, endpoint.name, endpoint.journal
            if endpoint.redaction is not None:
                request = endpoint.redaction.of_request(request, params).request(request, True)
        journal = self.context.journal
        if kept and journal is not None and journal.refusals is not None:
            about = Kept(delivery_id, REFUSED, route, source)
            journal.refusals.write(request, about, error.status, seconds, f"{error.type}: {error}")
        return request

    def _deliver(self, in_flight: DeliveryInFlight) -> None:
        """Verify a delivery, find its route and publish its messages.

        It is answered at once if it is a handshake, or if no route takes it.
        """
        request = in_flight.request
        self.limits.admit(request.size)
        in_flight.endpoint, params = self._routes.find(request.path)
        in_flight.kept = in_flight.endpoint.journal
        if in_flight.endpoint.redaction is not None:
            in_flight.redacted = in_flight.endpoint.redaction.of_request(request, params)
        verified = self._verify(in_flight)
        if verified.challenge is not None:
            in_flight.give(verified.challenge)
            return
        in_flight.delivery_id, in_flight.event = self.context.ids.new(), verified.event[:MAX_EVENT]
        delivery = _delivery(in_flight, params, verified)
        try:
            route = in_flight.endpoint.route(delivery, verified.event)
            if route is None:
                self._ignore(in_flight, verified)
                return
            in_flight.endpoint.limits.admit()
            size = in_flight.make_messages(route, delivery, verified)
        finally:
            # Parsed JSON takes up to 30 times its text: it lasts only until the messages are made.
            delivery.document = None
        self.limits.admit(size)
        in_flight.begin()
        if not in_flight.closed:  # `blocking` has answered already
            in_flight.enter(size)

    def _verify(self, in_flight: DeliveryInFlight) -> Verified:
        """Return what is known of the verified request; raises as `Endpoint.verify` does."""
        in_flight.trace.begin(VERIFY)
        try:
            verified = in_flight.endpoint.verify(in_flight.request)
        except (Unverified, BadRequest) as error:
            failure = in_flight.endpoint.name, in_flight.endpoint.scheme, error.reason
            self.context.metrics.count(UNVERIFIED, *failure)
            raise
        in_flight.trace.begin(NOTHING)
        return verified

    def _ignore(self, in_flight: DeliveryInFlight, verified: Verified) -> None:
        """Answer a delivery that no route takes, and say whether that is because of `when`."""
        counter, reason = UNROUTED, f"no route takes the event {in_flight.event!r}"
        if in_flight.endpoint.routed(verified.event):
            counter, reason = FILTERED, "the `when` of no route takes it"
        self.context.metrics.count(counter, in_flight.path)
        in_flight.state = IGNORED
        in_flight.give(in_flight.endpoint.unrouted(verified), reason)


def _fairness(config: Config, strategy: Strategy) -> Fairness:
    queues = {q for route in config.routes if route.fair_by is not None for q in route.queue_names}
    publisher = strategy.publisher
    if queues and isinstance(publisher, Publisher):
        return Fairness(queues, publisher)
    return Fairness()


def _dynamic_queues(config: Config, metrics: Metrics, strategy: Strategy) -> DynamicQueues | None:
    if not config.dynamic_paths:
        return None
    publisher = strategy.publisher
    assert isinstance(publisher, Publisher)  # `cross_checks` refuses other brokers
    return DynamicQueues(config, metrics, publisher)


def _delivery(in_flight: DeliveryInFlight, params: dict[str, str], verified: Verified) -> Delivery:
    request, endpoint = in_flight.request, in_flight.endpoint
    return Delivery(
        id=in_flight.delivery_id,
        source=endpoint.name,
        route=endpoint.path,
        event=in_flight.event,
        params=params,
        # A sender has verified, and would send the same again, if its URL cannot be read.
        query=read_query(request.query_string, "replace" if endpoint.source else "strict"),
        query_string=request.query_string,
        headers=endpoint.headers(request),
        body=verified.body,
        remote=request.remote,
        received_at=request.received_at,
        traceparent=in_flight.trace.traceparent or traceparent_of(request.headers),
    )
