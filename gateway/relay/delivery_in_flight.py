"""A delivery that is being relayed, from its message to its answer."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from enum import Enum
from functools import partial

from gateway import answer
from gateway.amqp.dynamic_queues import Send
from gateway.answer import Answer
from gateway.celery_message import Message, encode_body
from gateway.claims.handle import NO_CLAIM, ClaimHandle, NoClaim
from gateway.clock import monotonic, time
from gateway.config.route import Route
from gateway.delivery import Delivery
from gateway.errors import (
    BadRequest,
    DeadlinePassed,
    NotConfirmed,
    RequestError,
    ResultsLost,
    StateUnavailable,
)
from gateway.failpoints import CONFIRMED
from gateway.journal.entry import FAILED, SUCCEEDED, ended
from gateway.metric_table import MISSES, WAITS
from gateway.outcome import SUCCESS, Outcome
from gateway.pending_task import PendingTask
from gateway.relay.attempt import attempt
from gateway.relay.context import Context
from gateway.relay.in_flight import InFlight
from gateway.relay.preferences import Terms
from gateway.relay.reply import Reply
from gateway.relay.routes import Endpoint
from gateway.sources.base import Verified
from gateway.tracing.trace import ANSWER, CLAIM, CONFIRM, FURTHER, PUBLISH, WAIT


class Stage(Enum):
    """What a delivery waits for."""

    CLAIM = "whether another try has taken it"
    FURTHER = "the broker's confirms of the further tasks"
    CONFIRM = "the broker's confirm"
    RESULT = "the task's result"


class DeliveryInFlight(InFlight):
    """Answers its request once, at the first of these: outcome, error, confirm, deadline.

    A confirm is an answer only where the mode is ``accept``.
    """

    __slots__ = (
        "claim", "delivery", "further", "identity", "message", "mode", "owner", "pending", "route",
        "source", "stage", "trace", "verified",
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
    ):
        """Make the messages; raises `BadRequest` where the delivery lacks a value for them."""
        super().__init__(context, reply, terms.deadline, endpoint.limits)
        self.route = route
        self.source = endpoint.source
        self.mode = terms.answer
        self.verified = verified
        self.delivery = delivery
        #: The id of this try; in general it is that of its task, too.
        self.owner = context.ids.new()
        reply.kept = route.journal
        try:
            self.message = self._message()
        except BadRequest:
            reply.message = self._unsent()
            raise
        if route.journal:
            reply.message = self.message
        self.identity = reply.identity = route.identity(delivery, verified)
        self.further: Sequence[Message] = ()
        if route.runs_once and self.identity:
            self.message.task_id = context.further.task_id(self.identity)
        if route.also:
            self.further = context.further.messages(route, delivery, self.identity)
        self.trace = reply.trace
        if self.trace is not None:
            self.trace.message = self.message
            for message in (self.message, *self.further):
                self.trace.carry(message)
        self.stage = Stage.CLAIM
        self.claim: ClaimHandle | NoClaim = NO_CLAIM
        self.pending: PendingTask  # from `follow` on

    def _message(self) -> Message:
        route, delivery, fairness = self.route, self.delivery, self.context.fairness
        later = route.identified or self.mode != "wait"
        queue = ""
        if route.fair_by is not None and fairness is not None:
            queue = fairness.shorter(route.fair_pair(delivery))
        return route.message(
            delivery,
            self.owner,
            store=later,
            # Persistent where a 2xx may come before the result, or a retry may join the task.
            persistent=later or route.durable,
            # Otherwise the result is of no use after the deadline: no worker should begin it then.
            expires=None if later else delivery.received_at + route.deadline + 1,
            queue=queue,
            tracked=self._tracked,
        )

    @property
    def _tracked(self) -> bool:
        """Is the delivery written to the journal before its task has ended?"""
        return self.context.journal is not None and self.route.journal and self.mode != "wait"

    def _unsent(self) -> Message | None:
        """Return what the journal keeps of a delivery that lacks a value for its message.

        It is a message with the call of a route without `args`, and without a queue. It is not
        published. None: there is no journal, or the delivery cannot be written as a call.
        """
        delivery = self.delivery
        if self.context.journal is not None and self.route.journal:
            with suppress(BadRequest):  # its query or headers cannot be arguments, either
                call = encode_body(delivery.query, delivery.headers, delivery.body)
                return Message(self.owner, self.route.task, "", call, delivery.table(store=False))
        return None

    @property
    def size(self) -> int:
        """The bytes that the request holds: its own, and those of its messages."""
        size = self.reply.request.size + len(self.message.body)
        if self.further:
            size += sum(len(each.body) for each in self.further)
        return size

    def start(self) -> None:
        """Publish the messages; with an identity, only if its claim allows that."""
        context = self.context
        if self.identity and context.idempotency is not None:
            if self.trace is not None:
                self.trace.begin(CLAIM)
            context.idempotency.relay(self)
        elif self.further:
            self.run(self._publish_all())
        else:
            self.follow(self.publish())
        if not self.reply.closed:  # `blocking` has answered already
            self.enter(self.size)

    async def _publish_all(self) -> None:
        await self.publish_further()
        unwanted = self.route.revoke and self.reply.closed  # the sender has disconnected
        if not self.reply.answered and not unwanted:
            self.follow(self.publish())

    async def publish_further(self, recorded: bool = True) -> None:
        """Publish the further tasks, and wait until the broker has confirmed all.

        Not `recorded`: all of them, as it is not known what earlier tries have published. Raises
        the `RequestError` of the first one that was refused.
        """
        if self.further:
            self.stage = Stage.FURTHER
            if self.trace is not None:
                self.trace.begin(FURTHER)
            await self.context.further.publish(self.further, self.identity, self.deadline, recorded)

    def publish(self) -> PendingTask:
        """Publish the route's own message, and wait for its confirm or its result.

        Only for its confirm where the mode is ``accept``.
        """
        context, strategy, journal = self.context, self.context.strategy, self.context.journal
        if journal is not None and self._tracked:
            self.reply.begun = journal.begin(self.message, self.message.task_id, self.identity)
        send = strategy.publish if self.mode == "accept" else strategy.send
        pending = self._publish(send, self.message)
        if self.route.fair_by is not None and context.fairness is not None:
            context.fairness.follow(pending)
        return pending

    def publish_again(self, message: Message) -> PendingTask:
        """Publish the `message` of an earlier try; wait for its confirm only."""
        return self._publish(self.context.strategy.publish, message)

    def _publish(self, send: Send, message: Message) -> PendingTask:
        """Publish by `send`; a dynamic queue is declared before."""
        queues, trace = self.context.queues, self.trace
        if trace is not None:
            trace.begin(PUBLISH)
        if queues is not None and self.route.dynamic:
            pending = queues.send(self.route, message, self.deadline, send)
        else:
            pending = send(message, self.deadline)
        if trace is not None:
            trace.begin(CONFIRM)
        return pending

    def follow(self, pending: PendingTask) -> None:
        """Answer with the confirm or the end of `pending`."""
        self.stage = Stage.CONFIRM
        self.pending = self.reply.pending = pending
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
        if not handle.ours and not self.reply.joined:
            self.context.metrics.add("gateway_duplicates_joined_total")
        self.reply.joined = not handle.ours
        if self.trace is not None and not handle.ours:
            self.trace.begin(WAIT)
        if claim.tries < self.route.tries and not again and not self.reply.applied:
            first = self.reply.request.arrived - claim.age
            self.extend(first + self.route.hold + self.route.deadline)

    def release(self) -> None:
        if self.stage in (Stage.CLAIM, Stage.FURTHER):
            return
        if self.route.revoke:
            self.context.strategy.revoke(self.message.task_id)
        # The confirm has to be written to the claim, or the next try would publish again.
        if self.stage is Stage.CONFIRM and self.claim.ours:
            return
        if self.stage is Stage.RESULT and self.reply.closed:
            self._waited("client-gone")
        self.pending.abandon()
        if self.claim.ours:
            self.claim.unattended()

    def _expire(self) -> None:
        if self.stage is not Stage.FURTHER:
            # That one has the same deadline, and then writes what the broker has taken.
            self._cancel_step()
        if self.stage is Stage.CLAIM:
            self.refuse(StateUnavailable())
        elif self.stage is Stage.FURTHER:
            self.refuse(NotConfirmed())
        elif self.stage is Stage.CONFIRM:
            self.pending.abandon()
            error = NotConfirmed()
            self.claim.unconfirmed(error)
            self.refuse(error)
        else:
            self.pending.abandon()
            self.claim.unattended()
            if self.route.revoke:
                self.context.strategy.revoke(self.message.task_id)
            answered = "fallback" if self.route.fallback is not None else "accepted"
            given = answered if self.mode == "wait-then-accept" else "error"
            self.context.metrics.count(MISSES, self.route.path, given)
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
            self._finish_if_idle()
        elif self.mode == "accept":
            pending.abandon()
            self.accept()
        elif self.trace is not None:
            self.trace.begin(WAIT)

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
        self._waited(error.type)
        if self.mode == "wait-then-accept":
            self.accept()
        else:
            self.refuse(error)

    def _end(self, outcome: Outcome) -> None:
        self._waited(outcome.state.lower())
        if self.trace is not None:
            self.trace.begin(ANSWER)
        self.reply.state, self.reply.failure, self.reply.attempts = ended(outcome)
        try:
            given = answer.of_outcome(outcome, self.route.content_type)
        except RequestError as error:
            if outcome.state == SUCCESS:  # the sender hears that it failed
                self.reply.state = FAILED
            taken = outcome.state == SUCCESS or self.route.runs_once
            self.claim.ended(outcome, None, taken)
            if taken and self.mode == "accept":  # the sender does not want the result
                self.accept()
            else:
                self.refuse(error)
        else:
            self.claim.ended(outcome, given, given.status in self.route.final_statuses)
            self.repeat_answer(given)

    def _waited(self, outcome: str) -> None:
        """Count how long the task's result was waited for."""
        if self.mode != "accept":
            seconds = monotonic() - self.pending.sent
            self.context.metrics.observe(seconds, WAITS, self.context.strategy_name, outcome)

    def repeat_answer(self, given: Answer) -> None:
        """Answer with a task's answer, or with its acceptance where the mode is ``accept``."""
        self.reply.state = SUCCEEDED
        if self.mode == "accept":
            self.accept()
        else:
            self._give_result(given)

    def _give_result(self, given: Answer) -> None:
        """Answer with a task's answer, in the form that the sender expects."""
        source = self.source
        if source is not None and given.status < 300:
            try:
                given = source.reply(given, self.verified, time())
            except RequestError as error:
                self.refuse(error)
                return
        self.give(given)

    def accept(self) -> None:
        """Answer that the message is taken, once the journal has the delivery, if it is to."""
        journal = self.context.journal
        if self.trace is not None:
            self.trace.begin(ANSWER)
        if journal is None or not self._tracked or self.reply.closed:
            self._accept()
            return
        reply = self.reply
        if reply.begun is None:  # the task is an earlier try's
            reply.begun = journal.begin(self.message, reply.task_id, self.identity)
        journal.when_written(reply.begun, partial(attempt, self, self._accept), self.deadline)

    def _accept(self) -> None:
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
            location = self.context.result_urls.location(*ids, route, self.claim.age)
        self.give(answer.of_acceptance(*ids, location))
