"""Answer a request once, and record the answer in metrics, log and journal."""

from __future__ import annotations

import logging
from asyncio import Future
from collections.abc import Callable
from logging import INFO, WARNING
from random import random

from gateway import answer, request_log
from gateway.answer import Answer
from gateway.celery_message import Message
from gateway.clock import monotonic
from gateway.delivery import Request, recorded_trace, traceparent_of
from gateway.errors import RequestError, Unverified
from gateway.journal.entry import ACCEPTED, FAILED, GONE, IGNORED, REFUSED
from gateway.journal.refusals import Kept
from gateway.journal.writing import Journal
from gateway.metric_table import ERRORS
from gateway.pending_task import PendingTask
from gateway.relay.context import Context
from gateway.tracing.trace import ANSWER, TRACERESPONSE, Trace

log = logging.getLogger(__name__)

Respond = Callable[[Answer], None]

#: The states of deliveries that are answered with an error: with all others there is no task.
_STATES = {502: FAILED, 504: ACCEPTED}


class Reply:
    """Answers `request` once, by calling `respond`, and counts and records the answer.

    ``path`` (the route's), ``source``, ``event``, ``delivery_id``, ``task_id``, ``message``,
    ``pending`` and ``identity`` are set as they become known; they are part of the record.
    ``state`` is the delivery's in the journal, where the end of its task is known, ``attempts`` how
    often that was begun (0: not known), and ``begun`` is from `Journal.begin`. ``joined``: an
    earlier try has published the task. ``failure`` is what the task's exception says, which the
    sender is not told. ``applied`` is what the answer says in Preference-Applied. ``trace`` is None
    unless requests are traced. ``kept``: the journal may have the request if it is refused before
    it has a message.
    """

    __slots__ = (
        "_context", "_respond", "answered", "applied", "attempts", "begun", "delivery_id", "event",
        "failure", "identity", "joined", "kept", "message", "path", "pending", "request", "source",
        "state", "task_id", "trace",
    )  # fmt: skip

    def __init__(self, context: Context, request: Request, respond: Respond):
        self._context = context
        self._respond: Respond | None = respond
        self.request = request
        self.answered = False
        self.path = ""
        self.source = ""
        self.event = ""
        self.delivery_id = ""
        self.task_id = ""
        self.identity = ""
        self.applied = ""
        self.state = ""
        self.failure = ""
        self.attempts = 0
        self.joined = False
        self.kept = True
        self.begun: Future[bool] | None = None
        self.message: Message | None = None
        self.pending: PendingTask | None = None
        tracer = context.tracer
        self.trace: Trace | None = None if tracer is None else tracer.begin(request)

    @property
    def closed(self) -> bool:
        """Has the request been answered, or has its sender disconnected?"""
        return self._respond is None

    def give(self, given: Answer, reason: str = "") -> None:
        """Answer, unless the request is closed.

        `reason` is for the journal and the log: why the answer is an error, or why no task was
        started. It is empty otherwise.
        """
        respond = self._respond
        if respond is not None:
            self.answered = True
            if self.applied:
                given.headers["Preference-Applied"] = self.applied
            if self.delivery_id:
                given.headers[answer.DELIVERY_ID] = self.delivery_id
            request, metrics = self.request, self._context.metrics
            traceparent = dict.get(request.headers, "traceparent", "")
            if self.trace is not None:
                self.trace.begin(ANSWER)
                given.headers[TRACERESPONSE] = traceparent = self.trace.traceparent
            seconds = monotonic() - request.arrived
            trace = recorded_trace(traceparent)
            metrics.answered(self.path, request.method, given.status, seconds, trace)
            respond(given)
            self._respond = None  # only now: if `respond` raises, an error can still be given
            self._record(given.status, seconds, reason)

    def refuse(self, error: RequestError) -> None:
        """Answer with `error`, and log it."""
        self.delivery_id = self.delivery_id or self._context.ids.new()
        # Of 4xx, a 401 may be caused by a setting of the gateway, such as a wrong secret.
        level = WARNING if error.status >= 500 or isinstance(error, Unverified) else INFO
        # Lines are limited by their text before it is filled in; the error's type is part of it, as
        # there are only a few.
        text = f"%d {error.type}: %s (route %s, delivery %s, task %s, source %s, %s %s from %s)"
        known = (self.path, self.delivery_id, self.task_id, self.source)
        # A task's error by its text, which the sender does not get.
        said, request = request_log.printable(self.failure or str(error)), self.request
        asked = (request.method, request_log.shown_path(request.path), request.remote)
        log.log(level, text, error.status, said, *(each or "none" for each in known), *asked)
        if not self.closed:
            self._context.metrics.count(ERRORS, error.type)
        self.state = self.state or _STATES.get(error.status, REFUSED)
        if self.trace is not None:
            self.trace.error = error.type
        given = answer.of_error(error, self.delivery_id, self.task_id)
        self.give(given, f"{error.type}: {self.failure or error}")

    def _log(self, status: int, seconds: float, reason: str) -> None:
        request, published = self.request, self._published()
        traceparent = traceparent_of(request.headers)
        steps = {}
        if published is not None:
            steps["published_ms"] = round(published * 1e3, 3)
            steps["waited_ms"] = round((seconds - published) * 1e3, 3)
        joined = f"an earlier try has published the task {self.task_id}" if self.joined else ""
        request_log.write(
            request.method,
            request.path,
            status,
            seconds,
            reason or joined,
            delivery=self.delivery_id,
            task=self.task_id,
            trace=traceparent[3:35] if self.trace is None else self.trace.trace_id,
            route=self.path,
            source=self.source,
            event=self.event,
            state=self.state,
            strategy=self._context.strategy_name,
            remote=request.remote,
            **steps,
        )

    def _published(self) -> float | None:
        """Return the seconds until the message was handed over for publishing, if it was."""
        if self.pending is None or self.joined or self.state == REFUSED:
            return None
        return self.pending.sent - self.request.arrived

    def _keep(self, journal: Journal, status: int, seconds: float, reason: str) -> None:
        """Keep the request, which has no message, if such ones are kept."""
        if journal.refusals is not None:
            state = IGNORED if self.state == IGNORED else REFUSED
            about = Kept(self.delivery_id, state, self.path, self.source, self.event)
            journal.refusals.write(self.request, about, status, seconds, reason)

    def _untaken(self, status: int) -> bool:
        return status >= 400 or self.state == IGNORED

    def release(self) -> None:
        """Do nothing, as nothing is waited for yet."""

    def close(self) -> None:
        """Record that the sender has disconnected; the request is not answered any more."""
        self._respond = None
        self._context.metrics.add("gateway_clients_gone_total")
        if not self.task_id:
            self.state = REFUSED
        self._record(GONE, monotonic() - self.request.arrived)

    def _record(self, status: int, seconds: float, reason: str = "") -> None:
        """Write how the request has ended to journal, log and trace, where these are on."""
        context, message = self._context, self.message
        if message is not None:
            self.state = self.state or ACCEPTED
        if context.journal is not None and message is not None:
            ids, published = (self.task_id or message.task_id, self.identity), self._published()
            answered = (
                str(status),
                f"{seconds:.6f}",
                "" if published is None else f"{published:.6f}",
                reason,
                str(self.attempts or ""),
            )
            context.journal.write(message, *ids, self.state, answered, self.begun)
        elif reason and self.kept and context.journal is not None and self._untaken(status):
            self._keep(context.journal, status, seconds, reason)
        share = context.log_requests
        if share and (not 100 <= status < 400 or random() < share):
            self._log(status, seconds, reason)
        if context.tracer is not None and self.trace is not None:
            context.tracer.end(self, self.trace, status)
