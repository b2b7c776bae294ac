"""One request that is under way, and what it is answered with."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from time import monotonic

from gateway import answer, request_log
from gateway.answer import Answer
from gateway.celery_message import Message
from gateway.claim import Claim
from gateway.delivery import Delivery, Request
from gateway.desk import Desk
from gateway.errors import (
    DeadlinePassed,
    NotConfirmed,
    Rejected,
    RequestError,
    ResultsLost,
    ResultsUnavailable,
    StateUnavailable,
    Unroutable,
)
from gateway.failpoints import CONFIRMED
from gateway.journal import GONE
from gateway.limits import Held, SourceLimits
from gateway.outcome import SUCCESS, Outcome
from gateway.pending import Pending
from gateway.routes import Target
from gateway.sources.base import Verified

log = logging.getLogger(__name__)

Respond = Callable[[Answer], None]


class Waiter:
    """Answers its request once, with whatever comes first: outcome, error, confirm, deadline."""

    __slots__ = (
        "_desk", "_held", "_waiting", "answered", "applied", "claim", "deadline", "delivery",
        "delivery_id", "message", "mode", "path", "pending", "rejoin", "request", "respond",
        "source_limits", "target", "task_id", "verified",
    )  # fmt: skip

    def __init__(self, desk: Desk, request: Request, respond: Respond):
        self._desk = desk
        self._waiting = False
        self._held: Held | None = None
        self.request = request
        self.respond: Respond | None = respond
        self.answered = False
        self.path = ""
        self.mode = "wait"
        self.applied = ""
        self.delivery_id = ""
        self.task_id = ""
        self.deadline = 0.0
        self.target: Target | None = None
        self.verified: Verified | None = None
        self.delivery: Delivery | None = None
        self.message: Message | None = None
        self.pending: Pending | None = None
        self.claim: Claim | None = None
        #: Has the request wait for a stored result, where the strategy cannot hear of it any more.
        self.rejoin: Callable[[], None] | None = None
        self.source_limits: SourceLimits | None = None

    @property
    def size(self) -> int:
        """The number of bytes that the request and its message keep."""
        return self.request.size + (len(self.message.body) if self.message else 0)

    def attempt(self, step: Callable[..., None], *arguments: object) -> None:
        """Take a `step` towards the answer; what it raises is this request's answer."""
        try:
            try:
                step(*arguments)
            except RequestError as error:
                self.refuse(error)
        # Steps are called by connections and sweeps that all requests share: whatever is wrong
        # with one request must not end those, and with them all the others.
        except Exception:
            log.exception("a request could not be answered (route %s)", self.path or "none")
            self._let_go()
            # From the loop itself, as the next answer may fail in the same way.
            asyncio.get_running_loop().call_soon(self.refuse, RequestError())

    def wait(self) -> None:
        """Count as under way, until `deadline` at the latest."""
        desk = self._desk
        self._waiting = True
        self._held = desk.limits.enter(self.size)
        if self.source_limits is not None:
            self.source_limits.in_flight += 1
        desk.metrics.add("gateway_in_flight")
        desk.deadlines.add(self)

    def follow(self, pending: Pending) -> None:
        """Be answered by what becomes of `pending`."""
        self.pending = pending
        self.task_id = pending.message.task_id
        pending.watch(self._changed)

    def move(self, deadline: float) -> None:
        """Wait until another `deadline`."""
        if self._waiting:
            self._desk.deadlines.remove(self)
            self.deadline = deadline
            self._desk.deadlines.add(self)

    @property
    def gone(self) -> bool:
        """Is nobody there to be answered, as the sender has left or has been answered?"""
        return self.respond is None

    def join(self, claim: Claim, again: bool = False) -> None:
        """Stand by the run of the delivery that `claim` names; `again`: by another than before.

        Of several tries all but the last are held until the moment at which the last one
        should end, so that whichever the sender still listens to gets the answer; but who has
        said how long to wait is not held.
        """
        self.claim = claim
        self.task_id = claim.task_id
        if claim.tries < self.target.tries and not again and not self.applied:
            first = self.request.arrived - claim.age
            self.move(first + self.target.hold + self.target.deadline)

    def expire(self) -> None:
        """End at the deadline, whatever is missing."""
        self.attempt(self._expire)

    def _expire(self) -> None:
        pending = self.pending
        if pending is None:
            # A delivery waits for its claim, a result's URL for the result.
            self.refuse(StateUnavailable() if self.target else ResultsUnavailable())
        elif not pending.confirmed:
            pending.abandon()
            error = NotConfirmed()
            self.unpublished(error)
            self.refuse(error)
        else:
            pending.abandon()
            self._leave_to_late()
            if self.mode == "wait-then-accept":
                self.accept()
            else:
                self.refuse(DeadlinePassed())

    def cancel(self) -> None:
        """The sender has gone: the task still runs, nobody waits."""
        if self.gone:
            return
        self.respond = None
        self._leave()
        self._desk.metrics.add("gateway_clients_gone_total")
        self._record(GONE, monotonic() - self.request.arrived)
        self._let_go()

    def _let_go(self) -> None:
        """Wait no more for what is pending."""
        # A claim has to be told of the confirm, or the next try would publish again.
        unclaimed = self.claim is None or not self.claim.ours
        if self.pending is not None and (unclaimed or self.pending.confirmed):
            self.pending.abandon()
            if not unclaimed:
                self._leave_to_late()

    def _leave_to_late(self) -> None:
        """Have the claim told of the task's end, though nobody waits for it here any more."""
        if self.claim is not None:
            self._desk.late.listen(self.claim, self.target)

    def refuse(self, error: RequestError) -> None:
        delivery = self.delivery_id = self.delivery_id or self._desk.delivery_id()
        if error.status >= 500:
            # The types are few: lines are limited by their text before it is filled in.
            text = f"%d {error.type}: %s (route %s, delivery %s, task %s)"
            ids = (self.path or "none", delivery, self.task_id or "none")
            log.warning(text, error.status, error, *ids)
        self.give(answer.of_error(error, delivery, self.task_id), f"{error.type}: {error}")

    def give(self, given: Answer, error: str = "") -> None:
        """Answer, unless the sender has gone; `error` says why it is none of a task's."""
        self._leave()
        respond = self.respond
        if respond is not None:
            self.answered = True
            if self.applied:
                given.headers["Preference-Applied"] = self.applied
            seconds = monotonic() - self.request.arrived
            self._desk.metrics.answered(self.path, given.status, seconds)
            respond(given)
            self.respond = None  # now that nothing else has to be answered
            self._record(given.status, seconds, error)

    def give_result(self, given: Answer) -> None:
        """Answer with a task's, in the form that the sender wants."""
        source = self.target.source
        if source is not None and given.status < 300:
            try:
                given = source.reply(given, self.verified, time.time())
            except RequestError as error:
                self.refuse(error)
                return
        self.give(given)

    def give_again(self, given: Answer) -> None:
        """Answer with a task's, or with its acceptance where that is all the sender gets."""
        if self.mode == "accept":
            self.accept()
        else:
            self.give_result(given)

    def unpublished(self, error: RequestError) -> None:
        """Let the next try publish, as the message of this one was not confirmed."""
        if self.claim is not None and self.claim.ours:
            # Whatever else it was, the broker may have taken the message: of a queue that crashes
            # it rejects also what is in there when that has come back.
            self._desk.claims.release(self.claim, certain=isinstance(error, Unroutable))
            if not isinstance(error, (Rejected, Unroutable)):
                self._leave_to_late()

    def _changed(self, pending: Pending) -> None:
        """Hear of the confirm or the end of what is pending."""
        self.attempt(self._hear, pending)

    def _hear(self, pending: Pending) -> None:
        if pending.outcome is not None:
            self._end(pending.outcome)
        elif pending.error is not None:
            if not pending.confirmed:
                self.unpublished(pending.error)
            elif isinstance(pending.error, ResultsLost) and self.rejoin and not self.gone:
                self.rejoin()
                return
            if pending.confirmed and self.mode == "wait-then-accept":
                self.accept()
            else:
                self.refuse(pending.error)
        else:
            self._desk.failpoint.reach(CONFIRMED)
            if self.claim is not None and self.claim.ours:
                self._desk.claims.confirm(self.claim)
            if self.gone:
                pending.abandon()
                self._leave_to_late()
            elif self.mode == "accept":
                pending.abandon()
                self.accept()

    def _end(self, outcome: Outcome) -> None:
        try:
            given = answer.of_outcome(outcome, self.target.content_type)
        except RequestError as error:
            taken = outcome.state == SUCCESS
            self._settle(outcome, None, taken)
            if taken and self.mode == "accept":  # who wants no result need not hear of it
                self.accept()
            else:
                self.refuse(error)
        else:
            self._settle(outcome, given, given.status in self.target.final)
            self.give_again(given)

    def _settle(self, outcome: Outcome, given: Answer | None, final: bool) -> None:
        if self.claim is not None:
            self._desk.claims.settle(self.claim, outcome, given, final)

    def accept(self) -> None:
        """Say that the message is taken: its result is not there yet."""
        target = self.target
        # A sender whose way of saying so is not a 202 would take that for a failure.
        own_way = target.source is not None and not self.applied
        if target.fallback is not None and (own_way or self.mode == "wait-then-accept"):
            self.give_result(Answer(200, target.content_type, target.fallback.encode()))
            return
        age = self.claim.age if self.claim is not None else 0.0
        location = self._desk.results.location(self.delivery_id, self.task_id, self.path, age)
        self.give(answer.of_acceptance(self.delivery_id, self.task_id, location))

    def _record(self, status: int, seconds: float, error: str = "") -> None:
        """Write how the request has ended to the journal and to the log, where these are on."""
        desk, message, request = self._desk, self.message, self.request
        if desk.journal is not None and message is not None:
            desk.journal.write(message, self.task_id or message.task_id, status, seconds, error)
        if desk.logs_requests:
            request_log.write(request.method, request.path, status, seconds, self.delivery_id)

    def _leave(self) -> None:
        self.rejoin = None
        if self._waiting:
            self._waiting = False
            desk = self._desk
            desk.limits.leave()
            if self.source_limits is not None:
                self.source_limits.in_flight -= 1
            desk.metrics.add("gateway_in_flight", -1)
            desk.deadlines.remove(self)
