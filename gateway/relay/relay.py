"""Relay a request, step by step: limits, route, verification, message, claim, answer."""

from __future__ import annotations

from contextlib import suppress

from gateway.background import Service
from gateway.config.route import RESULTS
from gateway.delivery import Delivery, Request, traceparent_of
from gateway.errors import BadRequest, RequestError, Unverified
from gateway.journal.entry import IGNORED
from gateway.metric_table import FILTERED, UNROUTED, UNVERIFIED
from gateway.relay.claimed_delivery import ClaimedDelivery
from gateway.relay.context import Context
from gateway.relay.delivery import DeliveryInFlight
from gateway.relay.in_flight import InFlight, Respond, ResultLookup, check_method
from gateway.relay.recorders import JournalRecorder, LogRecorder
from gateway.relay.routes import MAX_EVENT, Routes
from gateway.sources.base import Verified
from gateway.sources.reading import read_query
from gateway.tracing.trace import NOTHING, UNTRACED, VERIFY


class Relay(Service):
    """Turns requests into tasks and their outcomes into answers."""

    def __init__(self, context: Context):
        self.context, self.limits, config = context, context.limits, context.config
        self._timeout = config.timeout
        self._routes = Routes(config)
        # From the beginning, as an alert has to see how each of them has come to its first value.
        for route in config.routes:
            for name in (UNROUTED, FILTERED):
                context.metrics.place(name, route.path)
        #: Only where a route has identities there are claims.
        self._made = DeliveryInFlight if context.idempotency is None else ClaimedDelivery
        if context.journal is not None:
            context.recorders.append(JournalRecorder(context.journal))
        if config.log_requests:
            context.recorders.append(LogRecorder(config.log_requests, config.strategy))
        if context.tracer is not None:
            context.recorders.append(context.tracer)
        self.uses = (context, *self._routes.fetched_keys)

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

        All are 0 when nothing is under way, but for unattended tasks and their subscriptions.
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

    def refuse(self, request: Request, error: RequestError, respond: Respond) -> None:
        """Answer a request, which is not complete or cannot be read, with `error`."""
        refused = DeliveryInFlight(self.context, request, respond)
        refused.trace, refused.kept = UNTRACED, not request.path.startswith(RESULTS)
        with suppress(RequestError):  # no route has this path
            self._find(refused)
        refused.guarded(refused.refuse, error)

    def _deliver(self, in_flight: DeliveryInFlight) -> None:
        """Verify a delivery, find its route and publish its messages.

        It is answered at once if it is a handshake, or if no route takes it.
        """
        request = in_flight.request
        self.limits.admit(request.size)
        params = self._find(in_flight)
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

    def _find(self, in_flight: DeliveryInFlight) -> dict[str, str]:
        """Find the endpoint of a request, and return the parameters in its path."""
        request = in_flight.request
        in_flight.endpoint, params = self._routes.find(request.path)
        endpoint = in_flight.endpoint
        in_flight.kept = endpoint.journal
        if endpoint.redaction is not None:
            in_flight.redacted = endpoint.redaction.of_request(request, params)
        return params

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
