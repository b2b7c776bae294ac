"""A complete request until its end: what is known of it, its answer, its deadline."""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from asyncio import Future, Task
from collections.abc import Callable, Coroutine
from logging import INFO, WARNING
from typing import TypeVar

from gateway import request_log
from gateway.answer import DELIVERY_ID, Answer, of_error
from gateway.celery_message import Message
from gateway.claims.claim import Claim
from gateway.clock import monotonic
from gateway.config.redaction import Redacted
from gateway.config.route import RESULTS
from gateway.delivery import Request, recorded_trace
from gateway.errors import (
    MethodNotAllowed,
    NotFound,
    RequestError,
    ResultsUnavailable,
    Unverified,
    cut_off,
)
from gateway.journal.entry import ACCEPTED, FAILED, REFUSED, End, ended
from gateway.metric_table import ERRORS
from gateway.outcome import Outcome
from gateway.pending_task import PendingTask
from gateway.relay.context import Context
from gateway.relay.limits import SourceLimits
from gateway.relay.result_urls import UNKNOWN, ResultURLs, Ticket
from gateway.relay.routes import Endpoint
from gateway.tracing.trace import ANSWER, TRACERESPONSE, UNTRACED

log = logging.getLogger(__name__)

Respond = Callable[[Answer], None]
T = TypeVar("T")

#: The states of deliveries that are answered with these errors; after all others there is no task.
_STATES = {502: FAILED, 504: ACCEPTED}
#: The endpoints of requests for which no route is known, and of GETs of results' URLs.
_NONE = Endpoint("", "", None, SourceLimits(None), [])
_RESULTS = Endpoint(RESULTS, "", None, SourceLimits(None), [])


class InFlight(ABC):
    """A request that is answered once, by calling `respond`; it has what is known of it.

    While it waits, it is counted, and it ends at its ``deadline`` (monotonic seconds). If its
    sender has disconnected, it ends when nothing is under way for it, neither a step nor a message
    that waits for its confirm, and at its deadline at the latest.

    ``endpoint``, ``event``, ``delivery_id``, ``task_id``, ``message``, ``pending``, ``outcome`` and
    ``identity`` are set as they become known. ``state`` is the delivery's in the journal, where the
    end of its task is known, and ``begun`` is from `Journal.begin`. ``claim`` is the one that it
    has taken or joined; None: it has none, or none yet. ``applied`` is what the answer says in
    Preference-Applied. ``kept``: the journal may have the request. ``redacted`` hides the values
    that may not be kept anywhere; None: there are none. ``closed``: it is ``answered``, or its
    sender has disconnected. ``half_closed``: its sender sends no more, and may have disconnected.

    At its end it has a ``status`` (0: the sender has disconnected), the ``seconds`` since the
    request has arrived, the ``error_type`` of the error that was the answer, and a ``reason``: why
    the answer is an error, or why no task was started.
    """

    __slots__ = (
        "_counted", "_gone", "_respond", "_size", "_step", "answered", "applied", "begun", "claim",
        "closed", "context", "deadline", "delivery_id", "endpoint", "error_type", "event",
        "half_closed", "identity", "kept", "message", "outcome", "pending", "reason", "redacted",
        "request", "seconds", "state", "status", "task_id", "trace",
    )  # fmt: skip

    def __init__(self, context: Context, request: Request, respond: Respond):
        self.context = context
        self.request = request
        self._respond = respond
        tracer = context.tracer
        self.trace = UNTRACED if tracer is None else tracer.begin(request)
        self.endpoint = _NONE
        self.deadline = 0.0
        self.answered = self.closed = self.half_closed = self._counted = self._gone = False
        self.kept = True
        self.event = self.delivery_id = self.task_id = self.identity = ""
        self.applied = self.state = self.error_type = self.reason = ""
        self.status = 0
        self.seconds = 0.0
        self.begun: Future[bool] | None = None
        self.claim: Claim | None = None
        self.message: Message | None = None
        self.pending: PendingTask | None = None
        self.outcome: Outcome | None = None
        self.redacted: Redacted | None = None
        self._size = 0  # bytes that are counted for it
        self._step: Task[None] | None = None

    # What those that record it read -------------------------------------------------------------

    @property
    def path(self) -> str:
        """The route's path; empty where no route is known."""
        return self.endpoint.path

    @property
    def joined(self) -> bool:
        """Has another try published the task, or is it about to?"""
        return self.claim is not None and not self.claim.ours

    @property
    def published(self) -> float | None:
        """The seconds until the message was handed over for publishing, if it was."""
        if self.pending is None or self.joined or self.state == REFUSED:
            return None
        return self.pending.sent - self.request.arrived

    @property
    def end(self) -> End:
        """What became of the task: how often it was begun, and its error, which is not told."""
        end = End("") if self.outcome is None else ended(self.outcome)
        if self.redacted is not None:  # what the exception says may have such a value
            end = end._replace(error=end.error.partition(": ")[0])
        return end

    @property
    def kept_request(self) -> Request:
        """The request as it is logged and traced; if it is redacted, without its body."""
        return self.request if self.redacted is None else self.redacted.request(self.request)

    @property
    def whole_request(self) -> Request:
        """The request as it is kept."""
        return self.request if self.redacted is None else self.redacted.request(self.request, True)

    def recorded(self, message: Message) -> Message:
        """Return its message as the journal and traces have it."""
        return message if self.redacted is None else self.redacted.message(message)

    def _shown(self, text: str) -> str:
        return text if self.redacted is None else self.redacted.text(text)

    # Its limits ---------------------------------------------------------------------------------

    def enter(self, size: int) -> None:
        """Count the request and its `size` bytes, and let it end at its deadline."""
        context = self.context
        self._counted, self._size = True, size
        context.limits.in_flight += 1
        context.limits.bytes += size
        self.endpoint.limits.in_flight += 1
        context.metrics.add("gateway_in_flight")
        context.deadlines.add(self)

    def _free(self, size: int) -> None:
        """Stop counting `size` bytes, which are not held any more."""
        if self._counted:
            self._size -= size
            self.context.limits.bytes -= size

    def extend(self, deadline: float) -> None:
        """Change the deadline."""
        if self._counted:
            self.context.deadlines.remove(self)
            self.deadline = deadline
            self.context.deadlines.add(self)

    def expire(self) -> None:
        """End the request; called at its deadline."""
        self.guarded(self._expire)

    def _finish(self) -> None:
        """Stop counting the request and its bytes."""
        self._leave()
        self.context.limits.bytes -= self._size
        self._size = 0
        self.context.deadlines.remove(self)

    def _leave(self) -> None:
        """Stop counting the request as in flight."""
        if self._counted:
            self._counted = False
            context = self.context
            context.limits.in_flight -= 1
            self.endpoint.limits.in_flight -= 1
            context.metrics.add("gateway_in_flight", -1)

    # Its steps ----------------------------------------------------------------------------------

    def guarded(self, step: Callable[..., T], *arguments: object) -> T | None:
        """Run `step` and return its result; an error becomes the answer, and None is returned."""
        try:
            return step(*arguments)
        # Steps are called by connections and sweeps that all requests share. An unexpected error in
        # one request must not end those, because that would end all other requests.
        except Exception as error:  # noqa: BLE001 - `_fail` logs it
            self._fail(error)
        return None

    def run(self, step: Coroutine[None, None, None]) -> None:
        """Run `step` in a task; its error becomes the answer."""
        self._step = self.context.steps.run(step, self._stepped)

    def _stepped(self, step: Task[None]) -> None:
        """Handle the end of `step`."""
        if self._step is step:
            self._step = None
        if not step.cancelled() and (error := step.exception()) is not None:
            self._fail(error)
        self._finish_if_idle()

    def _cancel_step(self) -> None:
        """Cancel the step that is under way, as the request ends without it."""
        if self._step is not None:
            self._step.cancel()

    def _finish_if_idle(self) -> None:
        """End the request if its sender has disconnected and nothing is under way for it."""
        waits = self.pending is not None and not self.pending.ended
        if self.closed and self._step is None and not waits:
            self._finish()
            self._record_gone()

    def _fail(self, error: BaseException) -> None:
        """Answer with `error`; one that is not a `RequestError` is logged."""
        if not isinstance(error, RequestError):
            self._fail_unexpectedly(error)
        else:
            try:
                self.refuse(error)
            except Exception as failure:  # noqa: BLE001 - it is logged
                self._fail_unexpectedly(failure)
        cut_off(error)

    def _fail_unexpectedly(self, error: BaseException) -> None:
        route = self.path or "none"
        log.error("a request could not be answered (route %s)", route, exc_info=error)
        self.release()
        # Called later by the loop, because this answer may fail in the same way.
        asyncio.get_running_loop().call_soon(self.refuse, RequestError())

    # Its end ------------------------------------------------------------------------------------

    @abstractmethod
    def _expire(self) -> None:
        """Answer with what is known at the deadline."""

    @abstractmethod
    def release(self) -> None:
        """Stop waiting, and free what the wait holds."""

    def cancel(self) -> None:
        """Stop waiting, because the sender has disconnected; a published task still runs."""
        if self.closed:
            return
        self._leave()
        self.closed = self._gone = True
        self.seconds = monotonic() - self.request.arrived
        self.context.metrics.add("gateway_clients_gone_total")
        self.release()
        self._finish_if_idle()

    def refuse(self, error: RequestError) -> None:
        """Answer with `error`, unless the sender has disconnected, and log it."""
        self._finish()
        self.delivery_id = self.delivery_id or self.context.ids.new()
        # Of 4xx, a 401 may be caused by a setting of the gateway, such as a wrong secret.
        level = WARNING if error.status >= 500 or isinstance(error, Unverified) else INFO
        # Lines are limited by their text before it is filled in; the error's type is part of it, as
        # there are only a few.
        text = f"%d {error.type}: %s (route %s, delivery %s, task %s, source %s, %s %s from %s)"
        ids = (self.path, self.delivery_id, self.task_id, self.endpoint.name)
        # A task's error by its text, which the sender does not get.
        why, request = self._shown(self.end.error or str(error)), self.kept_request
        method, shown = (request_log.printable(each) for each in (request.method, why))
        asked = (method, request_log.shown_path(request.path), request.remote)
        log.log(level, text, error.status, shown, *(each or "none" for each in ids), *asked)
        if not self.closed:
            self.context.metrics.count(ERRORS, error.type)
        self.state = self.state or _STATES.get(error.status, REFUSED)
        self.error_type = error.type
        answer = of_error(error, self.delivery_id, self.task_id)
        self.give(answer, f"{error.type}: {why}")

    def give(self, answer: Answer, reason: str = "") -> None:
        """Answer, unless the sender has disconnected.

        `reason` is empty where a task's answer is given, or its acceptance.
        """
        self._finish()
        if self.closed:
            self._record_gone(reason)
            return
        self.answered = True
        if self.applied:
            answer.headers["Preference-Applied"] = self.applied
        if self.delivery_id:
            answer.headers[DELIVERY_ID] = self.delivery_id
        request, trace = self.request, self.trace
        trace.begin(ANSWER)
        traceparent = trace.traceparent
        if traceparent:
            answer.headers[TRACERESPONSE] = traceparent
        else:
            traceparent = dict.get(request.headers, "traceparent", "")
        seconds = monotonic() - request.arrived
        recorded = recorded_trace(traceparent) if traceparent else ""
        self.context.metrics.answered(
            self.endpoint.path, request.method, answer.status, seconds, recorded
        )
        self._respond(answer)
        self.closed = True  # only now: if `respond` raises, an error can still be given
        self.status, self.seconds = answer.status, seconds
        self._record(reason)

    def _record_gone(self, reason: str = "") -> None:
        """Record a request whose sender has disconnected, now that its task is known."""
        if self._gone:
            self._gone = False
            self._record(reason)

    def _record(self, reason: str) -> None:
        self.reason = self._shown(reason)
        if self.message is not None and not self.state:
            pending, claim = self.pending, self.claim
            sent = pending is not None and (pending.confirmed or not self.joined)
            taken = claim is not None and claim.taken
            self.state = ACCEPTED if self.answered or taken or sent else REFUSED
        for recorder in self.context.recorders:
            recorder.ended(self)


class ResultLookup(InFlight):
    """A GET of a result's URL, which is answered with the result."""

    def begin(self) -> None:
        """Begin to fetch the result from the result store; raises `RequestError`."""
        self.context.limits.admit(self.request.size)
        check_method(self.request.method)
        self.endpoint, self.kept = _RESULTS, False
        urls = self.context.result_urls
        if urls is None:
            raise NotFound(UNKNOWN)
        ticket = urls.ticket(self.request.path)
        self.delivery_id, self.task_id = ticket.delivery_id, ticket.task_id
        self.enter(self.request.size)
        self.run(self._answer(urls, ticket))

    async def _answer(self, urls: ResultURLs, ticket: Ticket) -> None:
        self.give(await urls.fetch(ticket))

    def _expire(self) -> None:
        self.release()
        self.refuse(ResultsUnavailable())

    def release(self) -> None:
        self._cancel_step()


def check_method(method: str) -> None:
    """Raise `MethodNotAllowed` for any method of a result's URL but GET and HEAD."""
    if method not in ("GET", "HEAD"):
        raise MethodNotAllowed(
            f"Send a GET to a result's URL, not a {method[:20]}.", headers={"Allow": "GET, HEAD"}
        )
