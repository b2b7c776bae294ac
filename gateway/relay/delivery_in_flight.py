"""A delivery that is being relayed, from its message to its answer."""

from __future__ import annotations

import time
from enum import Enum

from gateway import answer
from gateway.answer import Answer
from gateway.celery_message import Message
from gateway.claims.handle import NO_CLAIM, ClaimHandle, NoClaim
from gateway.config.route import Route
from gateway.delivery import Delivery
from gateway.errors import (
    DeadlinePassed,
    NotConfirmed,
    RequestError,
    ResultsLost,
    StateUnavailable,
)
from gateway.failpoints import CONFIRMED
from gateway.outcome import SUCCESS, Outcome
from gateway.pending_task import PendingTask
from gateway.relay.attempt import attempt
from gateway.relay.context import Context
from gateway.relay.in_flight import InFlight
from gateway.relay.preferences import Terms
from gateway.relay.reply import Reply
from gateway.relay.routes import Endpoint
from gateway.sources.base import Verified


class Stage(Enum):
    """What a delivery waits for."""

    CLAIM = "whether another try has taken it"
    CONFIRM = "the broker's confirm"
    RESULT = "the task's result"


class DeliveryInFlight(InFlight):
    """Answers its request once, at the first of these: outcome, error, confirm, deadline.

    A confirm is an answer only where the mode is ``accept``.
    """

    __slots__ = (
        "claim", "delivery", "identity", "message", "mode", "pending", "route", "source", "stage",
        "verified",
    )  # fmt: skip

    def __init__(
        self,
        context: Context,
        reply: Reply,
        endpoint: Endpoint,
        route: Route,
        terms: Terms,
        verified: Verified,
        delivery: Delivery,
        message: Message,
    ):
        super().__init__(context, reply, terms.deadline, endpoint.limits)
        self.route = route
        self.source = endpoint.source
        self.mode = terms.answer
        self.verified = verified
        self.delivery = delivery
        self.message = message
        self.identity = route.identity(delivery, verified)
        self.stage = Stage.CLAIM
        self.claim: ClaimHandle | NoClaim = NO_CLAIM
        self.pending: PendingTask  # from `follow` on

    def start(self) -> None:
        """Publish the message; with an identity, only if its claim allows that."""
        idempotency = self.context.idempotency
        if self.identity and idempotency is not None:
            idempotency.relay(self)
        else:
            self.follow(self.publish())
        if not self.reply.closed:  # `blocking` has answered already
            self.enter(self.reply.request.size + len(self.message.body))

    def publish(self) -> PendingTask:
        """Publish the message; wait for its confirm only, or for its result, as the mode says."""
        strategy = self.context.strategy
        send = strategy.publish if self.mode == "accept" else strategy.send
        pending = send(self.message, self.deadline)
        if self.route.fair_by is not None and self.context.fairness is not None:
            self.context.fairness.follow(pending)
        return pending

    def follow(self, pending: PendingTask) -> None:
        """Answer with the confirm or the end of `pending`."""
        self.stage = Stage.CONFIRM
        self.pending = pending
        self.reply.task_id = pending.message.task_id
        pending.watch(self._on_change)

    def join(self, handle: ClaimHandle, again: bool) -> None:
        """Attach to the task that holds the claim; `again`: this try had another task before.

        All tries but the last are held until the time at which the last one should end, because it
        is not known for which of them the sender still waits. A try whose sender has said how long
        to wait is not held.
        """
        self.claim, claim = handle, handle.claim
        self.reply.task_id = claim.task_id
        if claim.tries < self.route.tries and not again and not self.reply.applied:
            first = self.reply.request.arrived - claim.age
            self.extend(first + self.route.hold + self.route.deadline)

    def release(self) -> None:
        # The confirm has to be written to the claim, or the next try would publish again.
        if self.stage is Stage.CLAIM or (self.stage is Stage.CONFIRM and self.claim.ours):
            return
        self.pending.abandon()
        if self.claim.ours:
            self.claim.unattended()

    def _expire(self) -> None:
        if self.stage is Stage.CLAIM:
            self.refuse(StateUnavailable())
        elif self.stage is Stage.CONFIRM:
            self.pending.abandon()
            error = NotConfirmed()
            self.claim.unconfirmed(error)
            self.refuse(error)
        else:
            self.pending.abandon()
            self.claim.unattended()
            self._give_up(DeadlinePassed())

    def _on_change(self, pending: PendingTask) -> None:
        """Handle the confirm or the end of `pending`, which calls this."""
        attempt(self, self._advance, pending)

    def _advance(self, pending: PendingTask) -> None:
        if pending.confirmed:
            self.stage = Stage.RESULT
        if pending.outcome is not None:
            self._end(pending.outcome)
        elif pending.error is not None:
            self._fail(pending.error)
        else:
            self._confirm(pending)

    def _confirm(self, pending: PendingTask) -> None:
        self.context.failpoint.reach(CONFIRMED)
        self.claim.confirmed()
        if self.reply.closed:
            pending.abandon()
            self.claim.unattended()
        elif self.mode == "accept":
            pending.abandon()
            self.accept()

    def _fail(self, error: RequestError) -> None:
        claim, idempotency = self.claim, self.context.idempotency
        if self.stage is Stage.CONFIRM:
            claim.unconfirmed(error)
            self.refuse(error)
        elif (
            isinstance(error, ResultsLost)
            and isinstance(claim, ClaimHandle)
            and idempotency is not None
            and not self.reply.closed
        ):
            # The result is stored as well, and can be read there, as joined tries do.
            idempotency.rejoin(self, claim)
        else:
            self._give_up(error)

    def _give_up(self, error: RequestError) -> None:
        """Answer without the result of a task that may still run."""
        if self.mode == "wait-then-accept":
            self.accept()
        else:
            self.refuse(error)

    def _end(self, outcome: Outcome) -> None:
        try:
            given = answer.of_outcome(outcome, self.route.content_type)
        except RequestError as error:
            taken = outcome.state == SUCCESS
            self.claim.ended(outcome, None, taken)
            if taken and self.mode == "accept":  # the sender does not want the result
                self.accept()
            else:
                self.refuse(error)
        else:
            self.claim.ended(outcome, given, given.status in self.route.final_statuses)
            self.repeat_answer(given)

    def repeat_answer(self, given: Answer) -> None:
        """Answer with a task's answer, or with its acceptance where the mode is ``accept``."""
        if self.mode == "accept":
            self.accept()
        else:
            self._give_result(given)

    def _give_result(self, given: Answer) -> None:
        """Answer with a task's answer, in the form that the sender expects."""
        source = self.source
        if source is not None and given.status < 300:
            try:
                given = source.reply(given, self.verified, time.time())
            except RequestError as error:
                self.refuse(error)
                return
        self.give(given)

    def accept(self) -> None:
        """Answer that the message is taken, and that there is no result yet."""
        route, reply = self.route, self.reply
        # A sender that expects another answer than a 202 would treat a 202 as a failure.
        own_way = self.source is not None and not reply.applied
        if route.fallback is not None and (own_way or self.mode == "wait-then-accept"):
            self._give_result(Answer(200, route.content_type, route.fallback.encode()))
            return
        ids = reply.delivery_id, reply.task_id
        location = ""
        if not route.ignore_result:
            location = self.context.result_urls.location(*ids, reply.path, self.claim.age)
        self.give(answer.of_acceptance(*ids, location))
