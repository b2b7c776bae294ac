"""A request's way through the house, step by step."""

from __future__ import annotations

import asyncio
from time import monotonic
from urllib.parse import parse_qsl

from gateway.answer import Answer
from gateway.celery_message import Message, TaskIds, encode_body
from gateway.config.route import RESULTS
from gateway.config.settings import Config
from gateway.delivery import Delivery, Request
from gateway.errors import BadRequest, BodyTooSlow, MethodNotAllowed
from gateway.failpoints import Failpoint
from gateway.journal.store import Journal
from gateway.metrics import Metrics
from gateway.relay import preferences
from gateway.relay.deadlines import Deadlines
from gateway.relay.idempotency import Idempotency
from gateway.relay.in_flight import Respond, Waiter
from gateway.relay.limits import Limits
from gateway.relay.result_urls import Results
from gateway.relay.routes import Endpoint, Routes
from gateway.stores import result_store
from gateway.stores.pipeline import Pipeline
from gateway.strategies.base import Strategy

#: Query parameters a URL may have: more is an attack on the parser.
MAX_PARAMETERS = 256


class Relay:
    """Turns requests into tasks and their outcomes into answers.

    `ids` are the task ids whose results `strategy` hears.
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
        self._config = config
        self._strategy = strategy
        self._ids = ids
        self._routes = Routes(config)
        joined = any(config.joins(route) for route in config.routes)
        self._store = (
            Pipeline(lambda: result_store.connect(config), "looks at results")
            if config.results and (joined or config.secret_key)
            else None
        )
        self._idempotency = (
            Idempotency(config, strategy, self._store, metrics, failpoint) if joined else None
        )
        self._looking: set[asyncio.Task[Answer]] = set()
        # What its waiters need.
        self.metrics = metrics
        self.failpoint = failpoint
        self.claims = self._idempotency and self._idempotency.claims
        self.late = self._idempotency and self._idempotency.late
        self.deadlines = Deadlines()
        self.limits = Limits(config)
        self.results = Results(config, self._store)
        self.journal = Journal(config, metrics) if config.journal else None
        self.logs_requests = config.log_requests

    async def start(self) -> None:
        """Begin to connect to broker and stores."""
        await self._strategy.start()
        if self._store is not None:
            await self._store.start()
        if self._idempotency is not None:
            await self._idempotency.start()
        if self.journal is not None:
            await self.journal.start()

    async def stop(self) -> None:
        if self.journal is not None:
            await self.journal.stop()
        if self._idempotency is not None:
            await self._idempotency.stop()
        if self._store is not None:
            await self._store.stop()
        await self._strategy.stop()

    def checks(self) -> dict[str, str]:
        """Say for each server that requests go through what is wrong with it."""
        checks = self._strategy.checks()
        if self._idempotency is not None:
            checks["state"] = self._idempotency.error
        return checks

    @property
    def in_flight(self) -> int:
        return self.limits.in_flight

    def expect(self, method: str, path: str, size: int) -> None:
        """Raise a `RequestError` where a request with `size` bytes still to come is not taken."""
        if path.startswith(RESULTS):
            _check_look(method)
        else:
            endpoint, _ = self._routes.find(path)
            endpoint.check(method)
        self.limits.admit(size)

    def relay(self, request: Request, respond: Respond) -> Waiter | None:
        """Take `request` all the way; `respond` is called once, at once or later.

        Returns the waiter to cancel should the sender leave, None if it is answered already.
        """
        waiter = Waiter(self, request, respond)
        waiter.attempt(self._take, waiter)
        return None if waiter.gone else waiter

    def _take(self, waiter: Waiter) -> None:
        request = waiter.request
        self.limits.admit(request.size)
        if request.path.startswith(RESULTS):
            self._look(waiter)
            return
        endpoint, params = self._routes.find(request.path)
        waiter.path = endpoint.path
        verified = waiter.verified = endpoint.verify(request)
        if verified.challenge is not None:
            waiter.give(verified.challenge)
            return
        target = waiter.target = endpoint.target(verified.event)
        if target is None:
            self.metrics.add("gateway_events_unrouted_total")
            waiter.give(endpoint.unrouted(verified))
            return
        endpoint.limits.admit()
        waiter.source_limits = endpoint.limits
        waiter.deadline = request.arrived + target.deadline
        waiter.mode = target.answer
        if target.prefer and "prefer" in request.headers:
            self._prefer(waiter)
        if waiter.deadline <= monotonic():
            raise BodyTooSlow("The body came after the deadline.")
        waiter.delivery = self._deliver(waiter, endpoint, params)
        waiter.delivery_id = waiter.delivery.id
        message = waiter.message = self._message(waiter)
        self.limits.admit(waiter.size)
        if identity := target.identity(waiter.delivery, verified):
            self._idempotency.relay(waiter, message, identity)
        elif waiter.mode == "accept":
            waiter.follow(self._strategy.publish(message, waiter.deadline))
        else:
            waiter.follow(self._strategy.send(message, waiter.deadline))
        if not waiter.gone:  # `blocking` has everything at once
            waiter.wait()

    def delivery_id(self) -> str:
        """Return a new delivery id; what is refused has one, too, for whoever looks into it."""
        return self._ids.new()

    def _prefer(self, waiter: Waiter) -> None:
        preference = preferences.read(waiter.request.headers["prefer"])
        if preference is not None:
            waiter.mode = preference.answer
            waiter.applied = preference.applied
            if preference.wait is not None:
                latest = waiter.request.arrived + preference.wait
                waiter.deadline = min(waiter.deadline, latest)

    def _deliver(self, waiter: Waiter, endpoint: Endpoint, params: dict[str, str]) -> Delivery:
        request = waiter.request
        return Delivery(
            id=self.delivery_id(),
            source=endpoint.name,
            route=endpoint.path,
            event=waiter.verified.event,
            params=params,
            query=parse_query(request.query_string),
            query_string=request.query_string,
            headers=endpoint.headers(request),
            body=waiter.verified.body,
            remote=request.remote,
            received_at=request.received_at,
        )

    def _message(self, waiter: Waiter) -> Message:
        delivery, target = waiter.delivery, waiter.target
        later = target.identified or waiter.mode != "wait"
        return Message(
            task_id=self._ids.new(),
            task=target.route.task,
            queue=target.queue_of(delivery),
            body=encode_body(delivery.query, delivery.headers, delivery.body),
            delivery=delivery.table(store=later),
            # Where a 2xx may come before the result, or a retry may join, it has to last.
            persistent=later or target.route.durable,
            # Else nobody waits for it after its deadline: a worker need not begin it.
            expires=None if later else delivery.received_at + target.deadline + 1,
        )

    def _look(self, waiter: Waiter) -> None:
        """Answer for a result's URL."""
        request = waiter.request
        _check_look(request.method)
        waiter.path = RESULTS
        waiter.deadline = request.arrived + self._config.timeout
        ticket = self.results.ticket(request.path)
        waiter.delivery_id, waiter.task_id = ticket.delivery_id, ticket.task_id

        def looked(task: asyncio.Task[Answer]) -> None:
            self._looking.discard(task)
            if not task.cancelled():
                waiter.attempt(lambda: waiter.give(task.result()))

        waiter.wait()
        task = asyncio.create_task(self.results.look(ticket))
        self._looking.add(task)
        task.add_done_callback(looked)


def _check_look(method: str) -> None:
    if method not in ("GET", "HEAD"):
        raise MethodNotAllowed("Send a GET.", headers={"Allow": "GET, HEAD"})


def parse_query(text: str) -> dict[str, str]:
    """Return the query's parameters; the last value of a name wins.

    Raises `BadRequest` where it is not UTF-8 or has too many.
    """
    if not text:
        return {}
    try:
        return dict(
            parse_qsl(text, keep_blank_values=True, errors="strict", max_num_fields=MAX_PARAMETERS)
        )
    except ValueError as exc:
        raise BadRequest(f"The query string cannot be read: {exc}.") from exc
