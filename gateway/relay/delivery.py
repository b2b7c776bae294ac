"""A delivery that is being relayed, from its message to its answer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from gateway.answer import Answer, of_acceptance, of_outcome
from gateway.celery_message import Message, derived_id, encode_body
from gateway.claims.claim import MINE
from gateway.claims.idempotency import Idempotency
from gateway.clock import monotonic, time
from gateway.config.route import Route, final_statuses
from gateway.delivery import Delivery, Preference, Request, read_prefer
from gateway.errors import (
    BadRequest,
    BodyTooSlow,
    DeadlinePassed,
    NotConfirmed,
    Rejected,
    RequestError,
    StateUnavailable,
    Unroutable,
)
from gateway.failpoints import CONFIRMED
from gateway.journal.entry import FAILED, SUCCEEDED
from gateway.journal.writing import Journal
from gateway.metric_table import MISSES, WAITS
from gateway.outcome import SUCCESS, Outcome
from gateway.pending_task import PendingTask
from gateway.relay.context import Context
from gateway.relay.in_flight import InFlight, Respond
from gateway.sources.base import Verified
from gateway.tracing.trace import ANSWER, CONFIRM, FURTHER, PUBLISH, WAIT

#: Seconds for which an answer waits until it is known whether the result was sent late.
_YIELDING = 1.0


class DeliveryInFlight(InFlight):
    """Answers its request once, at the first of these: outcome, error, confirm, deadline.

    A confirm is an answer only where the mode is ``accept``. `STAGES` has what happens when.
    """

    __slots__ = (
        "delivery", "further", "idempotency", "journal", "mode", "route", "stage", "verified"
    )  # fmt: skip

    #: What writes to its claim; set where deliveries take claims.
    idempotency: Idempotency
    # Set by `make_messages`.
    delivery: Delivery
    message: Message
    route: Route
    verified: Verified

    def __init__(self, context: Context, request: Request, respond: Respond):
        super().__init__(context, request, respond)
        self.mode = ""
        self.stage = CLAIM
        #: Set where the journal has to have the delivery before the answer.
        self.journal: Journal | None = None
        self.further: Sequence[Message] = ()

    def make_messages(self, route: Route, delivery: Delivery, verified: Verified) -> int:
        """Make the messages for the tasks of `route`; return how many bytes the request holds.

        Raises `BodyTooSlow` after the deadline, and `BadRequest` where the delivery lacks a value.
        """
        context, request = self.context, self.request
        self.route, self.delivery, self.verified = route, delivery, verified
        self.mode, self.deadline = route.answer, request.arrived + route.deadline
        if route.prefer and "prefer" in request.headers:
            self._apply(read_prefer(request.headers["prefer"]))
        if self.deadline <= monotonic():
            raise BodyTooSlow("The body came after the deadline.")
        self.kept = route.journal
        self.redacted = None if route.redaction is None else route.redaction.of(delivery)
        self.journal = context.journal if route.journal and self.mode != "wait" else None
        try:
            self.message = message = self._message()
        except BadRequest:
            if context.journal is not None and route.journal:
                self._keep_unsent()
            raise
        if route.identified:
            self.identity = route.identity(delivery, verified)
        if self.identity and route.runs_once:
            message.task_id = derived_id(context.config.prefix, self.identity)
        if context.further is not None and route.also:
            self.further = context.further.messages(route, delivery, self.identity)
        size = request.size
        for each in (message, *self.further):
            self.trace.carry(each)
            size += len(each.body)
        return size

    def _apply(self, preference: Preference | None) -> None:
        """Answer as the sender prefers, within the route's deadline."""
        if preference is not None:
            self.mode, self.applied = preference.answer, preference.applied
            if preference.wait is not None:
                self.deadline = min(self.deadline, self.request.arrived + preference.wait)

    def _message(self) -> Message:
        """Make the message for the route's own task."""
        route, delivery = self.route, self.delivery
        later = route.identified or self.mode != "wait"
        fairness, queue = self.context.fairness, ""
        if fairness is not None and route.fair_by is not None:
            queue = fairness.shorter(route.fair_pair(delivery))
        return route.message(
            delivery,
            self.context.ids.new(),
            store=later,
            # Persistent where a 2xx may come before the result, or a retry may join the task.
            persistent=later or route.durable,
            # Otherwise the result is of no use after the deadline: no worker should begin it then.
            expires=None if later else delivery.received_at + route.deadline + 1,
            queue=queue,
            tracked=self.journal is not None,
        )

    def _keep_unsent(self) -> None:
        """Make what the journal keeps of a delivery that lacks a value for its message.

        It is a message with the call of a route without `args`, and without a queue. It is not
        published. There is none where the delivery cannot be written as a call.
        """
        delivery, task = self.delivery, self.route.task
        with suppress(BadRequest):  # its query or headers cannot be arguments, either
            call = encode_body(delivery.query, delivery.headers, delivery.body)
            table = delivery.table(store=False)
            self.message = Message(self.context.ids.new(), task, "", call, table)

    def begin(self) -> None:
        """Begin to publish the messages."""
        if self.further:
            self.run(self.publish_all())
        else:
            self.follow(self.publish())

    async def publish_all(self, looks: bool = True) -> None:
        """Publish the further tasks, as `publish_further` does, and then the route's own one."""
        await self.publish_further(looks)
        unwanted = self.route.revoke and self.closed  # the sender has disconnected
        if not self.answered and not unwanted:
            self.follow(self.publish())

    async def publish_further(self, looks: bool = True) -> None:
        """Publish the further tasks, and wait until the broker has confirmed all.

        Not `looks`: all of them, without a look at what earlier tries have published. Raises
        the `RequestError` of the first one that was refused.
        """
        further = self.context.further
        if further is not None and self.further:
            self.stage = FURTHER_TASKS
            self.trace.begin(FURTHER)
            await further.publish(self.further, self.identity, self.deadline, looks)

    def publish(self, again: Message | None = None) -> PendingTask:
        """Publish the route's own message, and wait for its confirm or its result.

        Only for its confirm where the mode is ``accept``, or where it is published `again`: then it
        is the message of an earlier try. A dynamic queue is declared before.
        """
        context, strategy, message = self.context, self.context.strategy, again or self.message
        if self.journal is not None and again is None:
            kept = self.recorded(message)
            self.begun = self.journal.begin(kept, message.task_id, self.identity)
        send = strategy.publish if again or self.mode == "accept" else strategy.send
        self.trace.begin(PUBLISH)
        if context.queues is not None and self.route.dynamic:
            pending = context.queues.send(self.route, message, self.deadline, send)
        else:
            pending = send(message, self.deadline)
        self.trace.begin(CONFIRM)
        fairness = context.fairness
        if fairness is not None and self.route.fair_by is not None and again is None:
            fairness.follow(pending)
        return pending

    def follow(self, pending: PendingTask) -> None:
        """Answer with the confirm or the end of `pending`."""
        self.stage, self.pending = CONFIRMS, pending
        self.task_id = pending.message.task_id
        pending.watch(self._changed)

    def _waits_again(self, error: RequestError) -> bool:
        """Is the result, whose connection was lost with `error`, waited for in another way?"""
        return False

    # Events: what calls the actions of a stage --------------------------------------------------

    def _changed(self, pending: PendingTask) -> None:
        self.guarded(self._advance, pending)

    def _advance(self, pending: PendingTask) -> None:
        """Handle the confirm of `pending`, or its end."""
        stage = self.stage
        if pending.confirmed:
            self.stage = RESULT
        if pending.outcome is not None:
            self.stage.ended(self, pending.outcome)
        elif pending.error is not None:
            self.stage.failed(self, pending.error)
        else:
            assert pending.confirmed  # one that was abandoned is not followed
            stage.confirmed(self)

    def release(self) -> None:
        self.stage.left(self)

    def _expire(self) -> None:
        self.stage.deadline(self)

    # Actions ------------------------------------------------------------------------------------

    def _wait_on(self) -> None:
        """Let the step under way decide: it may have taken a claim, or published."""

    def _no_claim(self) -> None:
        self._cancel_step()
        self.refuse(StateUnavailable())

    def _no_further(self) -> None:
        # The step has the same deadline, and then writes what the broker has taken.
        self.refuse(NotConfirmed())

    def _no_confirm(self) -> None:
        self._stop_waiting()
        self._refused(NotConfirmed())

    def _refused(self, error: RequestError) -> None:
        if (claim := self.claim) is not None and claim.ours:
            # Only a returned message is surely not taken. A rejected one may be: when a queue
            # crashes, the broker also rejects messages that are in it after it has recovered.
            self.idempotency.claims.release(claim, not_taken=isinstance(error, Unroutable))
            if not isinstance(error, (Rejected, Unroutable)):
                self._listen()
        self.refuse(error)

    def _left_unconfirmed(self) -> None:
        self._revoke()
        # The confirm has to be written to the claim, or the next try would publish again.
        if self.claim is None or not self.claim.ours:
            self._abandon()

    def _left(self) -> None:
        self._revoke()
        if self.closed:
            self._waited("client-gone")
        self._abandon()
        if self.claim is not None and self.claim.ours:
            self._listen()

    def _confirmed(self) -> None:
        self.context.failpoint.reach(CONFIRMED)
        if (claim := self.claim) is not None and claim.ours:
            self.idempotency.claims.confirm(claim)
        if self.closed:
            self._abandon()
            self._listen()
            self._finish_if_idle()
        elif self.mode == "accept":
            self._abandon()
            self.accept()
        else:
            self.trace.begin(WAIT)
            context = self.context
            needed = context.tracer is not None or (context.journal is not None and self.kept)
            if not needed and not self.identity:  # with a claim it may be published again
                self._free(self.message.empty())

    def _lost(self, error: RequestError) -> None:
        if not self._waits_again(error):
            self._give_up(error)

    def _no_result(self) -> None:
        if self.mode == "accept":  # the broker has it: the answer waits for the journal only
            return
        self._stop_waiting()
        self._listen()
        self._revoke()
        answered = "error"
        if self.mode == "wait-then-accept":
            answered = "fallback" if self.route.fallback is not None else "accepted"
        self.context.metrics.count(MISSES, self.route.path, answered)
        self._give_up(DeadlinePassed())

    def _give_up(self, error: RequestError) -> None:
        """Answer without the result of a task that may still run."""
        self._waited(error.type)
        if self.mode == "wait-then-accept":
            self.accept()
        else:
            self.refuse(error)

    def _ended(self, outcome: Outcome) -> None:
        self._waited(outcome.state.lower())
        self.trace.begin(ANSWER)
        self.outcome = outcome
        try:
            answer = of_outcome(outcome, self.route.content_type)
        except RequestError as error:
            # If the task succeeded, its result cannot be an answer.
            self.state = FAILED if outcome.state == SUCCESS else self.end.state
            taken = outcome.state == SUCCESS or self.route.runs_once
            if self.claim is not None:
                self.idempotency.claims.settle(self.claim, outcome, None, taken)
            if taken and self.mode == "accept":  # the sender does not want the result
                self.accept()
            else:
                self.refuse(error)
        else:
            if self.claim is not None:
                final = answer.status in final_statuses(self.route.final)
                self.idempotency.claims.settle(self.claim, outcome, answer, final)
            self.answer_with(answer)

    def _listen(self) -> None:
        """Have the end of the task written to the claim, as nobody waits for it any more."""
        if self.claim is not None:
            self.idempotency.unattended.listen(self.claim, self.route.reading)

    def _never(self, *_: object) -> None:
        """Nothing is published yet, or it is confirmed already."""
        raise AssertionError(f"while it waits for {self.stage.waits_for}")

    def _stop_waiting(self) -> None:
        self._cancel_step()
        self._abandon()

    def _abandon(self) -> None:
        if self.pending is not None:
            self.pending.abandon()

    def _revoke(self) -> None:
        if self.route.revoke:
            self.context.strategy.revoke(self.message.task_id)

    # Answers ------------------------------------------------------------------------------------

    @property
    def _age(self) -> float:
        """The seconds since the first try."""
        return 0.0 if self.claim is None else self.claim.age

    def _waited(self, outcome: str) -> None:
        """Count how long the task's result was waited for."""
        if self.mode != "accept":
            assert self.pending is not None
            context, seconds = self.context, monotonic() - self.pending.sent
            context.metrics.observe(seconds, WAITS, context.config.strategy, outcome)

    def answer_with(self, answer: Answer) -> None:
        """Answer with a task's answer, or with its acceptance where the mode is ``accept``."""
        self.state = SUCCEEDED
        late = self.context.late if self.route.late is not None else None
        if self.mode == "accept":
            self.accept()
        elif late is not None and self.claim is not None and self.claim.state != MINE:
            # An earlier try may have been answered without it.
            self.extend(monotonic() + _YIELDING)
            give = partial(self.guarded, self._give_unless, answer)
            late.yields(self.task_id, self.deadline, give, doubtful=self.half_closed)
        else:
            self._give_result(answer)

    def _give_unless(self, answer: Answer, sent: bool) -> None:
        """Give a task's answer, unless it was `sent` late."""
        if sent:
            self._give_acceptance()
        else:
            self._give_result(answer)

    def _give_result(self, answer: Answer) -> None:
        """Answer with a task's answer, in the form that the sender expects."""
        source = self.endpoint.source
        if source is not None and answer.status < 300:
            try:
                answer = source.reply(answer, self.verified, time())
            except RequestError as error:
                self.refuse(error)
                return
        self.give(answer)

    def accept(self) -> None:
        """Answer that the message is taken, once the journal has the delivery, if it is to."""
        journal = self.journal
        self.trace.begin(ANSWER)
        if journal is None or self.closed:
            self._accept()
            return
        if self.begun is None:  # the task is an earlier try's
            self.begun = journal.begin(self.recorded(self.message), self.task_id, self.identity)
        journal.when_written(self.begun, partial(self.guarded, self._accept), self.deadline)

    def _accept(self) -> None:
        """Answer that the message is taken, once it is written what has to be sent late."""
        late = self.context.late
        if late is None or self.route.late is None or self.closed:
            self._give_acceptance()
            return
        late.expect(
            self.route, self.delivery, self.task_id, self._age, self.deadline,
            partial(self.guarded, self._accept_and_tell),
        )  # fmt: skip

    def _accept_and_tell(self) -> bool:
        """Answer that the message is taken; tell whether the sender is still there."""
        if self.closed:
            return False
        self._give_acceptance()
        return self.answered

    def _give_acceptance(self) -> None:
        """Answer that the message is taken, and that there is no result yet."""
        route = self.route
        # A sender that expects another answer than a 202 would treat a 202 as a failure.
        own_way = self.endpoint.source is not None and not self.applied
        if route.fallback is not None and (own_way or self.mode == "wait-then-accept"):
            self._give_result(Answer(200, route.content_type, route.fallback.encode()))
            return
        ids, urls, location = (self.delivery_id, self.task_id), self.context.result_urls, ""
        if urls is not None and not route.ignore_result:
            location = urls.location(*ids, route, self._age)
        self.give(of_acceptance(*ids, location))


@dataclass(slots=True, frozen=True, eq=False)
class Stage:
    """What a delivery waits for, and what it does at each event."""

    waits_for: str
    #: The broker has taken the message.
    confirmed: Callable[[DeliveryInFlight], None]
    #: The task has ended.
    ended: Callable[[DeliveryInFlight, Outcome], None]
    #: The message was refused, or the connection for the result is lost.
    failed: Callable[[DeliveryInFlight, RequestError], None]
    deadline: Callable[[DeliveryInFlight], None]
    #: The sender has disconnected, or has got an unexpected error.
    left: Callable[[DeliveryInFlight], None]


_D = DeliveryInFlight
STAGES = (
    CLAIM := Stage(
        "the claim",
        _D._never, _D._never, _D._never, _D._no_claim, _D._wait_on,
    ),
    FURTHER_TASKS := Stage(
        "the confirms of the further tasks",
        _D._never, _D._never, _D._never, _D._no_further, _D._wait_on,
    ),
    CONFIRMS := Stage(
        "the confirm",
        _D._confirmed, _D._ended, _D._refused, _D._no_confirm, _D._left_unconfirmed,
    ),
    RESULT := Stage(
        "the result",
        _D._never, _D._ended, _D._lost, _D._no_result, _D._left,
    ),
)  # fmt: skip
