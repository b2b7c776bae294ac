"""A request's way through the house, step by step."""

from __future__ import annotations

import logging
from collections.abc import Callable
from time import monotonic
from urllib.parse import parse_qsl

from gateway import answer
from gateway.answer import Answer
from gateway.celery_message import Message, TaskIds, encode_body
from gateway.config import Config, Route
from gateway.deadlines import Deadlines
from gateway.delivery import Delivery, Request
from gateway.errors import (
    BadRequest,
    DeadlinePassed,
    Full,
    NotConfirmed,
    RequestError,
)
from gateway.log import Sparing
from gateway.metrics import Metrics
from gateway.pending import Pending
from gateway.routes import Routes
from gateway.strategies.base import Strategy

log = logging.getLogger(__name__)
# An outage fails every request: the log need not have each.
log.addFilter(Sparing(10))

Respond = Callable[[Answer], None]

#: Query parameters a URL may have: more is an attack on the parser.
MAX_PARAMETERS = 256


class Relay:
    """Turns requests into tasks and their outcomes into answers.

    `ids` are the task ids whose results `strategy` hears.
    """

    def __init__(self, config: Config, strategy: Strategy, metrics: Metrics, ids: TaskIds):
        self._config = config
        self._strategy = strategy
        self._metrics = metrics
        self._ids = ids
        self._routes = Routes(config.routes)
        self._deadlines = Deadlines()
        self.in_flight = 0

    def relay(self, request: Request, respond: Respond) -> Waiter | None:
        """Take `request` all the way; `respond` is called once, at once or later.

        Returns the waiter to cancel should the sender leave, None if it is answered already.
        """
        waiter = Waiter(self, request, respond)
        try:
            self._admit()
            waiter.route, params = self._routes.find(request.method, request.path)
            waiter.deadline = request.arrived + self._config.deadline(waiter.route)
            waiter.delivery = self._deliver(request, waiter.route, params)
            waiter.pending = self._strategy.send(
                self._message(waiter.delivery, waiter.route), waiter.deadline
            )
        except RequestError as error:
            waiter.refuse(error)
            return None
        waiter.wait()
        return waiter

    def delivery_id(self) -> str:
        """Return a new delivery id; what is refused has one, too, for whoever looks into it."""
        return self._ids.new()

    def _admit(self) -> None:
        if self.in_flight >= self._config.max_in_flight:
            raise Full

    def _deliver(self, request: Request, route: Route, params: dict[str, str]) -> Delivery:
        return Delivery(
            id=self.delivery_id(),
            route=route.path,
            params=params,
            query=parse_query(request.query_string),
            query_string=request.query_string,
            headers=request.headers,
            body=request.body,
            remote=request.remote,
            received_at=request.received_at,
        )

    def _message(self, delivery: Delivery, route: Route) -> Message:
        return Message(
            task_id=self._ids.new(),
            task=route.task,
            queue=route.queue,
            body=encode_body(delivery.query, delivery.headers, delivery.body),
            delivery=delivery.table(store=False),
            persistent=route.durable,
            # Nobody waits for it any longer then: a worker need not begin it.
            expires=delivery.received_at + self._config.deadline(route) + 1,
        )


class Waiter:
    """One request that is under way: it is answered once, by whatever comes first."""

    __slots__ = ("_relay", "deadline", "delivery", "pending", "request", "respond", "route")

    def __init__(self, relay: Relay, request: Request, respond: Respond):
        self._relay = relay
        self.request = request
        self.respond: Respond | None = respond
        self.route: Route | None = None
        self.delivery: Delivery | None = None
        self.pending: Pending | None = None
        self.deadline = 0.0

    def wait(self) -> None:
        relay = self._relay
        relay.in_flight += 1
        relay._metrics.add("gateway_in_flight")
        relay._deadlines.add(self)
        self.pending.watch(self._changed)

    def expire(self) -> None:
        """End at the deadline, whatever is missing."""
        self.pending.abandon()
        self._leave()
        self.refuse(DeadlinePassed() if self.pending.confirmed else NotConfirmed())

    def cancel(self) -> None:
        """The sender has gone: the task still runs, nobody waits."""
        if self.respond is not None:
            self.respond = None
            self.pending.abandon()
            self._leave()
            self._relay._metrics.add("gateway_clients_gone_total")

    def refuse(self, error: RequestError) -> None:
        delivery = self.delivery.id if self.delivery else self._relay.delivery_id()
        task = self.pending.message.task_id if self.pending else ""
        if error.status >= 500:
            log.warning("%d %s: delivery %s, task %s", error.status, error.type, delivery, task)
        self._answer(answer.of_error(error, delivery, task))

    def _changed(self, pending: Pending) -> None:
        """Hear of the confirm or the end of what is pending."""
        if pending.outcome is not None:
            self._leave()
            try:
                self._answer(answer.of_outcome(pending.outcome, self.route.content_type))
            except RequestError as error:
                self.refuse(error)
        elif pending.error is not None:
            self._leave()
            self.refuse(pending.error)

    def _leave(self) -> None:
        relay = self._relay
        relay.in_flight -= 1
        relay._metrics.add("gateway_in_flight", -1)
        relay._deadlines.remove(self)

    def _answer(self, given: Answer) -> None:
        respond, self.respond = self.respond, None
        self._relay._metrics.answered(
            self.route.path if self.route else "",
            given.status,
            monotonic() - self.request.arrived,
        )
        respond(given)


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
