"""Answer a request once, and keep what is known of it for those that record it."""

from __future__ import annotations

import logging
from asyncio import Future
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from logging import INFO, WARNING
from typing import Protocol

from gateway import answer, request_log
from gateway.answer import Answer
from gateway.celery_message import Message, TaskIds
from gateway.clock import monotonic
from gateway.config.redaction import Redacted
from gateway.delivery import Request, recorded_trace
from gateway.errors import RequestError, Unverified
from gateway.journal.entry import ACCEPTED, FAILED, GONE, REFUSED
from gateway.metric_table import ERRORS
from gateway.metrics import Metrics
from gateway.tracing.trace import ANSWER, TRACERESPONSE, Trace

log = logging.getLogger(__name__)

Respond = Callable[[Answer], None]

#: The states of deliveries that are answered with an error: with all others there is no task.
_STATES = {502: FAILED, 504: ACCEPTED}


class Recorder(Protocol):
    """Records how requests have ended; one that is switched off is absent."""

    def ended(self, reply: Reply, /) -> None:
        """Record a request that was answered, or whose sender has disconnected."""


@dataclass(slots=True, frozen=True)
class Recording:
    """What all requests of a process are recorded with; `trace` begins the trace of a request."""

    metrics: Metrics
    ids: TaskIds
    trace: Callable[[Request], Trace]
    recorders: Sequence[Recorder]


class Reply:
    """Answers `request` once, by calling `respond`, and has what is known of it.

    ``path`` (the route's), ``source``, ``event``, ``delivery_id``, ``task_id``, ``message``,
    ``sent`` (monotonic seconds at which the message went to the broker, 0: it did not) and
    ``identity`` are set as they become known. ``state`` is the delivery's in the journal, where the
    end of its task is known, ``attempts`` how often that was begun (0: not known), and ``begun`` is
    from `Journal.begin`. ``joined``: an earlier try has published the task. ``failure`` is what the
    task's exception says, which the sender is not told. ``applied`` is what the answer says in
    Preference-Applied. ``kept``: the journal may have the request. ``redacted`` hides the values
    that are not kept, and ``message`` is without them.

    ``closed``: it is ``answered``, or its sender has disconnected.

    At its end it has a ``status`` (0: the sender has disconnected), the ``seconds`` since the
    request has arrived, the type of the ``error`` that was the answer, and a ``reason``: why the
    answer is an error, or why no task was started.
    """

    __slots__ = (
        "_recording", "_respond", "answered", "applied", "attempts", "begun", "closed",
        "delivery_id", "error", "event", "failure", "identity", "joined", "kept", "message",
        "path", "reason", "redacted", "request", "seconds", "sent", "source", "state", "status",
        "task_id", "trace",
    )  # fmt: skip

    def __init__(self, recording: Recording, request: Request, respond: Respond):
        self._recording = recording
        self._respond = respond
        self.request = request
        self.trace = recording.trace(request)
        self.answered = self.closed = self.joined = False
        self.kept = True
        self.path = self.source = self.event = self.delivery_id = self.task_id = self.identity = ""
        self.applied = self.state = self.failure = self.error = self.reason = ""
        self.attempts = self.status = 0
        self.sent = self.seconds = 0.0
        self.begun: Future[bool] | None = None
        self.message: Message | None = None
        self.redacted: Redacted | None = None

    @property
    def kept_request(self) -> Request:
        """The request as it is logged, traced and kept."""
        return self.request if self.redacted is None else self.redacted.request(self.request)

    def _shown(self, text: str) -> str:
        return text if self.redacted is None else self.redacted.text(text)

    @property
    def published(self) -> float | None:
        """The seconds until the message was handed over for publishing, if it was."""
        if not self.sent or self.joined or self.state == REFUSED:
            return None
        return self.sent - self.request.arrived

    def give(self, given: Answer, reason: str = "") -> None:
        """Answer, unless the request is closed.

        `reason` is empty where a task's answer is given, or its acceptance.
        """
        if not self.closed:
            self.answered = True
            if self.applied:
                given.headers["Preference-Applied"] = self.applied
            if self.delivery_id:
                given.headers[answer.DELIVERY_ID] = self.delivery_id
            request, trace = self.request, self.trace
            trace.begin(ANSWER)
            traceparent = trace.traceparent
            if traceparent:
                given.headers[TRACERESPONSE] = traceparent
            else:
                traceparent = dict.get(request.headers, "traceparent", "")
            seconds = monotonic() - request.arrived
            self._recording.metrics.answered(
                self.path, request.method, given.status, seconds, recorded_trace(traceparent)
            )
            self._respond(given)
            self.closed = True  # only now: if `respond` raises, an error can still be given
            self._end(given.status, seconds, reason)

    def refuse(self, error: RequestError) -> None:
        """Answer with `error`, and log it."""
        self.delivery_id = self.delivery_id or self._recording.ids.new()
        # Of 4xx, a 401 may be caused by a setting of the gateway, such as a wrong secret.
        level = WARNING if error.status >= 500 or isinstance(error, Unverified) else INFO
        # Lines are limited by their text before it is filled in; the error's type is part of it, as
        # there are only a few.
        text = f"%d {error.type}: %s (route %s, delivery %s, task %s, source %s, %s %s from %s)"
        known = (self.path, self.delivery_id, self.task_id, self.source)
        # A task's error by its text, which the sender does not get.
        said = request_log.printable(self._shown(self.failure or str(error)))
        request = self.kept_request
        asked = (request.method, request_log.shown_path(request.path), request.remote)
        log.log(level, text, error.status, said, *(each or "none" for each in known), *asked)
        if not self.closed:
            self._recording.metrics.count(ERRORS, error.type)
        self.state = self.state or _STATES.get(error.status, REFUSED)
        self.error = error.type
        given = answer.of_error(error, self.delivery_id, self.task_id)
        self.give(given, f"{error.type}: {self.failure or error}")

    def release(self) -> None:
        """Do nothing, as nothing is waited for yet."""

    def close(self) -> None:
        """Record that the sender has disconnected; the request is not answered any more."""
        self.closed = True
        self._recording.metrics.add("gateway_clients_gone_total")
        if not self.task_id:
            self.state = REFUSED
        self._end(GONE, monotonic() - self.request.arrived)

    def _end(self, status: int, seconds: float, reason: str = "") -> None:
        self.status, self.seconds, self.reason = status, seconds, self._shown(reason)
        if self.message is not None:
            self.state = self.state or ACCEPTED
        for recorder in self._recording.recorders:
            recorder.ended(self)
