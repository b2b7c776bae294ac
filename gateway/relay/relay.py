"""Relay a request, step by step: limits, route, verification, message, claim, answer."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Protocol

from gateway.amqp.dynamic_queues import DynamicQueues
from gateway.amqp.publisher import Publisher
from gateway.amqp.queue_lengths import QueueLengths
from gateway.celery_message import TaskIds
from gateway.claims.idempotency import Idempotency
from gateway.clock import monotonic
from gateway.config.route import RESULTS, Route
from gateway.config.settings import Config
from gateway.delivery import Delivery, Request, traceparent_of
from gateway.errors import BadRequest, BodyTooSlow, RequestError, Unverified
from gateway.failpoints import Failpoint
from gateway.journal.entry import IGNORED, REFUSED
from gateway.journal.refusals import Kept, Refusals
from gateway.journal.writing import Journal
from gateway.metric_table import FILTERED, UNROUTED, UNVERIFIED
from gateway.metrics import Metrics
from gateway.relay import preferences
from gateway.relay.attempt import Steps, attempt
from gateway.relay.claimed_delivery import ClaimedDelivery
from gateway.relay.context import Context
from gateway.relay.deadlines import Deadlines
from gateway.relay.delivery_in_flight import DeliveryInFlight
from gateway.relay.fairness import Fairness
from gateway.relay.further_tasks import FurtherTasks
from gateway.relay.in_flight import InFlight
from gateway.relay.limits import Limits
from gateway.relay.preferences import Terms
from gateway.relay.recorders import JournalRecorder, LogRecorder
from gateway.relay.reply import Recorder, Recording, Reply, Respond
from gateway.relay.result_lookup import ResultLookup, check_method
from gateway.relay.result_urls import ResultURLs
from gateway.relay.routes import MAX_EVENT, Endpoint, Routes
from gateway.sources.base import Verified
from gateway.sources.envelopes import read_query
from gateway.stores import result_store
from gateway.stores.pipeline import Pipeline
from gateway.strategies.base import Strategy
from gateway.tracing.trace import NOTHING, UNTRACED, VERIFY, Trace

if TYPE_CHECKING:
    from gateway.late.answers import LateAnswers
    from gateway.tracing.tracer import Tracer


class Service(Protocol):
    """What runs as long as the relay."""

    async def start(self) -> None: ...
    async def stop(self) -> None: ...


class Relay:
    """Turns requests into tasks and their outcomes into answers.

    `ids` makes the task ids; `strategy` receives the results of these.
    """

    def __init__(
        self,
        config: Config,
        strategy: Strategy,
        metrics: Metrics,
        ids: TaskIds,
        failpoint: Failpoint | None = None,
    ):
        failpoint = failpoint or Failpoint()
        self._timeout = config.timeout
        self.limits = Limits(config)
        self._routes = Routes(config)
        # From the beginning, as an alert has to see how each of them has come to its first value.
        self._ignored = {
            (route.path, name): metrics.counter(name, route.path)
            for route in config.routes
            for name in (UNROUTED, FILTERED)
        }
        joined = any(route.identified for route in config.routes)
        self._results = (
            Pipeline(lambda: result_store.connect(config), "results that are asked for")
            if config.results and (joined or config.secret_key)
            else None
        )
        idempotency = (
            Idempotency(config, self._results, metrics)
            if joined and self._results is not None
            else None
        )
        journal = Journal(config, metrics) if config.journal else None
        self._tracer = _tracer(config)
        recorders: list[Recorder] = []
        if journal is not None:
            recorders.append(JournalRecorder(journal))
        if config.log_requests:
            recorders.append(LogRecorder(config.log_requests, config.strategy))
        if self._tracer is not None:
            recorders.append(self._tracer)
        trace = _untraced if self._tracer is None else self._tracer.begin
        taken = idempotency.taken if idempotency else None
        self.context = Context(
            strategy=strategy,
            strategy_name=config.strategy,
            ids=ids,
            metrics=metrics,
            recording=Recording(metrics, ids, trace, recorders),
            limits=self.limits,
            deadlines=Deadlines(),
            result_urls=ResultURLs(config, self._results),
            failpoint=failpoint,
            steps=Steps(),
            further=FurtherTasks(config.prefix, strategy, ids, taken),
            fairness=_fairness(config, strategy),
            journal=journal,
            idempotency=idempotency,
            late=_late_answers(config, metrics, journal, self._tracer, failpoint),
            queues=_dynamic_queues(config, metrics, strategy),
        )

    async def start(self) -> None:
        """Begin to connect to the broker and the stores."""
        for service in self._services():
            await service.start()

    async def stop(self) -> None:
        await self.context.steps.stop()
        for service in reversed(self._services()):
            await service.stop()

    def _services(self) -> list[Service]:
        """Return the services in the order in which they are started."""
        context = self.context
        # While it stops, the strategy still ends tasks, whose claims and entries are to be written.
        own = (self._tracer, self._results, context.idempotency, context.journal, context.late)
        some: Sequence[Service | None]
        keys = self._routes.fetched_keys
        some = (*own, context.strategy, context.queues, context.fairness, *keys)
        return [service for service in some if service is not None]

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
            "requests in flight": self.in_flight,
            "bytes": self.limits.bytes,
            "steps": context.steps.running,
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

    @property
    def in_flight(self) -> int:
        return self.limits.in_flight

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
        reply = Reply(self.context.recording, request, respond)
        in_flight = attempt(reply, self._begin, reply)
        return None if reply.closed else in_flight

    @property
    def refusals(self) -> Refusals | None:
        """What keeps requests without a message, if the journal has room for them."""
        journal = self.context.journal
        return None if journal is None else journal.refusals

    def keep(self, request: Request, delivery_id: str, error: RequestError, seconds: float) -> None:
        """Keep a request that was refused before it was read, if such ones are kept."""
        route = source = ""
        with suppress(RequestError):  # no route has this path
            endpoint, _ = self._routes.find(request.path)
            if not endpoint.journal:
                return
            route, source = endpoint.path, endpoint.name
        if self.refusals is not None and not request.path.startswith(RESULTS):
            about = Kept(delivery_id, REFUSED, route, source)
            self.refusals.write(request, about, error.status, seconds, f"{error.type}: {error}")

    def _begin(self, reply: Reply) -> InFlight | None:
        """Start the request of `reply`; None: it is answered already."""
        request = reply.request
        self.limits.admit(request.size)
        in_flight: InFlight | None
        if request.path.startswith(RESULTS):
            in_flight = self._lookup(reply)
        else:
            in_flight = self._delivery(reply)
        if in_flight is not None:
            attempt(in_flight, in_flight.start)
        return in_flight

    def _lookup(self, reply: Reply) -> ResultLookup:
        """Return the look-up for a GET of a result's URL."""
        request = reply.request
        check_method(request.method)
        reply.path, reply.kept = RESULTS, False
        ticket = self.context.result_urls.ticket(request.path)
        reply.delivery_id, reply.task_id = ticket.delivery_id, ticket.task_id
        return ResultLookup(self.context, reply, request.arrived + self._timeout, ticket)

    def _delivery(self, reply: Reply) -> DeliveryInFlight | None:
        """Verify a delivery and make its message; None: it is answered without a task."""
        request = reply.request
        endpoint, params = self._routes.find(request.path)
        reply.path, reply.source, reply.kept = endpoint.path, endpoint.name, endpoint.journal
        verified = self._verify(reply, endpoint)
        if verified.challenge is not None:
            reply.give(verified.challenge)
            return None
        reply.delivery_id, reply.event = self.context.ids.new(), verified.event[:MAX_EVENT]
        delivery = _deliver(reply, endpoint, params, verified)
        try:
            in_flight = self._routed(reply, endpoint, verified, delivery)
        finally:
            # Parsed JSON takes up to 30 times its text: it lasts only until the messages are made.
            delivery.document = None
        if in_flight is not None:
            self.limits.admit(in_flight.size)
        return in_flight

    def _routed(
        self, reply: Reply, endpoint: Endpoint, verified: Verified, delivery: Delivery
    ) -> DeliveryInFlight | None:
        """Find the route of a delivery and make its messages; None: no route takes it."""
        request = reply.request
        route = endpoint.route(delivery, verified.event)
        if route is None:
            self._unrouted(reply, endpoint, verified)
            return None
        endpoint.limits.admit()
        terms = _terms(route, request)
        reply.applied = terms.applied
        if terms.deadline <= monotonic():
            raise BodyTooSlow("The body came after the deadline.")
        claimed = route.identified and self.context.idempotency is not None
        made = ClaimedDelivery if claimed else DeliveryInFlight
        return made(self.context, reply, endpoint, route, terms, verified, delivery)

    def _verify(self, reply: Reply, endpoint: Endpoint) -> Verified:
        """Return what is known of the verified request; raises as `Endpoint.verify` does."""
        reply.trace.begin(VERIFY)
        try:
            verified = endpoint.verify(reply.request)
        except (Unverified, BadRequest) as error:
            failure = endpoint.name, endpoint.scheme, error.reason
            self.context.metrics.count(UNVERIFIED, *failure)
            raise
        reply.trace.begin(NOTHING)
        return verified

    def _unrouted(self, reply: Reply, endpoint: Endpoint, verified: Verified) -> None:
        """Answer a delivery that no route takes, and say whether that is because of `when`."""
        counter, reason = UNROUTED, f"no route takes the event {reply.event!r}"
        if endpoint.routed(verified.event):
            counter, reason = FILTERED, "the `when` of no route takes it"
        self._ignored[endpoint.path, counter].add()
        reply.state = IGNORED
        reply.give(endpoint.unrouted(verified), reason)


def _late_answers(
    config: Config,
    metrics: Metrics,
    journal: Journal | None,
    tracer: Tracer | None,
    failpoint: Failpoint,
) -> LateAnswers | None:
    if all(route.late is None for route in config.routes):
        return None
    # Only here, as it imports an HTTP client.
    from gateway.late.answers import LateAnswers

    return LateAnswers(config, metrics, journal, tracer, failpoint)


def _fairness(config: Config, strategy: Strategy) -> Fairness:
    queues = {q for route in config.routes if route.fair_by is not None for q in route.queue_names}
    publisher = strategy.publisher
    if queues and isinstance(publisher, Publisher):
        return Fairness(QueueLengths(queues, publisher))
    return Fairness(QueueLengths())


def _dynamic_queues(config: Config, metrics: Metrics, strategy: Strategy) -> DynamicQueues | None:
    if not config.dynamic_paths:
        return None
    publisher = strategy.publisher
    assert isinstance(publisher, Publisher)  # `cross_checks` refuses other brokers
    return DynamicQueues(config, metrics, publisher)


def _terms(route: Route, request: Request) -> Terms:
    """Return how `request` is answered, according to its route and its Prefer header."""
    deadline = request.arrived + route.deadline
    if route.prefer and "prefer" in request.headers:
        preference = preferences.read(request.headers["prefer"])
        if preference is not None:
            if preference.wait is not None:
                deadline = min(deadline, request.arrived + preference.wait)
            return Terms(preference.answer, deadline, preference.applied)
    return Terms(route.answer, deadline)


def _tracer(config: Config) -> Tracer | None:
    if config.trace_sample is None:
        return None
    # Only here, as it imports OpenTelemetry.
    from gateway.tracing.tracer import Tracer

    return Tracer(config)


def _untraced(_: Request) -> Trace:
    return UNTRACED


def _deliver(
    reply: Reply, endpoint: Endpoint, params: dict[str, str], verified: Verified
) -> Delivery:
    request = reply.request
    return Delivery(
        id=reply.delivery_id,
        source=endpoint.name,
        route=endpoint.path,
        event=reply.event,
        params=params,
        # A sender has verified, and would send the same again, if its URL cannot be read.
        query=read_query(request.query_string, "replace" if endpoint.source else "strict"),
        query_string=request.query_string,
        headers=endpoint.headers(request),
        body=verified.body,
        remote=request.remote,
        received_at=request.received_at,
        traceparent=reply.trace.traceparent or traceparent_of(request.headers),
    )
