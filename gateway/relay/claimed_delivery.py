"""A delivery with an identity: its first try runs the task, later tries get that task's answer.

                    take the claim
      mine ──> publish, and wait as the strategy does
      lapsed ──> publish again under the claim's task id, and wait like a joined try
      publishing, confirmed ──> join: wait for that task's stored result
      done ──> the stored answer

If a claim is released while joined tries wait, one of them takes it again.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace

from gateway.celery_message import Message
from gateway.claims.claim import CONFIRMED, DONE, MINE, Claim
from gateway.clock import monotonic
from gateway.errors import (
    NotConfirmed,
    RequestError,
    ResultsLost,
    StateUnavailable,
    Unavailable,
)
from gateway.failpoints import CLAIMED, PUBLISHED
from gateway.pending_task import PendingTask
from gateway.relay.delivery import DeliveryInFlight
from gateway.tracing.trace import CLAIM, WAIT


class ClaimedDelivery(DeliveryInFlight):
    """Takes a claim before it publishes, and writes what follows to it, as long as that is its own.

    Where Redis does not tell whether another try has the claim, and the configuration allows it,
    the delivery is relayed without one.
    """

    __slots__ = ("owner", "sent")

    #: The id of this try, which is that of its task, too, unless other tries have the same task id.
    owner: str
    #: Has this try sent a message? Then no refusal that follows may say that nothing runs.
    sent: bool

    def begin(self) -> None:
        assert self.context.idempotency is not None  # the relay has looked
        self.idempotency, self.sent = self.context.idempotency, False
        if self.identity:
            runs_once = self.route.runs_once
            self.owner = self.context.ids.new() if runs_once else self.message.task_id
            self.trace.begin(CLAIM)
            self.run(self._relay())
        else:
            super().begin()

    def _waits_again(self, error: RequestError) -> bool:
        """Wait for the stored result, as joined tries do, where the connection for it was lost."""
        claim = self.claim
        if claim is None or self.closed or not isinstance(error, ResultsLost):
            return False
        pending = PendingTask(replace(self.message, task_id=claim.task_id), self.deadline)
        pending.confirm()
        self.follow(pending)
        self.run(self._wait_again(claim, pending))
        return True

    # The claim ---------------------------------------------------------------------------------

    async def _relay(self, again: bool = False) -> None:
        try:
            while not await self._try(again):
                again = True
        except Unavailable as exc:
            if self.sent:
                raise NotConfirmed from exc
            raise

    async def _wait_again(self, claim: Claim, pending: PendingTask) -> None:
        if not await self.idempotency.waiter.wait(claim, pending):
            await self._relay(again=True)

    async def _try(self, again: bool) -> bool:
        """Take the claim and act on its state; return False if it has to be taken again.

        `again`: this try had another task before.
        """
        try:
            claim = await self._take(again)
        except StateUnavailable:
            if self.idempotency.required:
                raise
            self.claim = None
            await self.publish_all(looks=False)
            return True
        self.join(claim, again)
        if claim.state == DONE:
            await self._repeat_answer(claim)
            return True
        if claim.state == MINE:
            self.context.failpoint.reach(CLAIMED)
            published = await self._publish_for(claim)
            if published is not None:
                self.follow(published)
            return True
        pending = await self._resume(claim)
        return pending is not None and await self.idempotency.waiter.wait(claim, pending)

    async def _take(self, again: bool) -> Claim:
        route, required = self.route, self.idempotency.required
        return await self.idempotency.claims.take(
            self.identity,
            self.delivery.body,
            self.message.task_id,
            owner=self.owner,
            span=route.hold + route.deadline if route.tries > 1 else 0.0,
            again=again,
            strict=route.takes_chosen_keys,
            # In the other modes the task need not run again for an expired result: the answer can
            # be the acceptance.
            rerun=self.mode == "wait",
            # A delivery that may be relayed without a claim needs time left for that.
            patience=None if required else (self.deadline - monotonic()) / 2,
        )

    def join(self, claim: Claim, again: bool) -> None:
        """Attach to the task that holds the claim.

        All tries but the last are held until the time at which the last one should end, because it
        is not known for which of them the sender still waits. A try whose sender has said how long
        to wait is not held.
        """
        if not claim.ours:
            if not self.joined:
                self.context.metrics.add("gateway_duplicates_joined_total")
            self.trace.begin(WAIT)
        self.claim, self.task_id = claim, claim.task_id
        claim.redacted = self.redacted and self.redacted.without_body()
        if claim.tries < self.route.tries and not again and not self.applied:
            first = self.request.arrived - claim.age
            self.extend(first + self.route.hold + self.route.deadline)

    async def _repeat_answer(self, claim: Claim) -> None:
        """Give the answer that an earlier try got."""
        answer = claim.answer
        if answer is None and (outcome := await self.idempotency.waiter.stored(claim)) is not None:
            answer, _ = self.route.reading.read(outcome)
        if answer is not None:
            self.answer_with(answer)
        else:  # too large to be kept, and the result has expired
            self.accept()

    async def _resume(self, claim: Claim) -> PendingTask | None:
        """Follow the task of an existing claim; None: that task has failed."""
        pending = PendingTask(replace(self.message, task_id=claim.task_id), self.deadline)
        if self.closed and not claim.ours:
            pending.abandon()
            return pending
        expired = claim.state == CONFIRMED and claim.lease < 0
        # The task may have ended while no process waited for it, or just now.
        try:
            outcome = await self.idempotency.waiter.stored(claim)
        except asyncio.CancelledError:  # the sender has got an error
            self._not_published(claim)
            raise
        if outcome is not None:
            answer, final = self.route.reading.read(outcome)
            if not final:
                self.idempotency.claims.settle(claim, outcome, answer, final)
                return None
            pending.settle(outcome)
        elif claim.ours:
            published = await self._publish_for(claim, pending.message)
            if published is None:
                pending.abandon()
                return pending
            pending = published
        elif claim.state == CONFIRMED:
            pending.confirm()
        self.follow(pending)
        if expired and not pending.ended:
            # Listening for the result would prolong the claim, which has to lapse.
            pending.abandon()
            self.accept()
        return pending

    async def _publish_for(self, claim: Claim, again: Message | None = None) -> PendingTask | None:
        """Publish for a claim that is ours; release it if publishing raises an error.

        `again`: the message of an earlier try. None: further tasks took so long that the sender has
        got an error.
        """
        self.idempotency.claims.hold(claim, self.deadline)
        try:
            await self.publish_further()
            if self.answered:  # then nothing may be published any more
                self._not_published(claim)
                return None
            pending = self.publish(again)
            self.sent = True
        except RequestError:  # it was not sent
            self._not_published(claim)
            raise
        # Reached only after this turn of the loop has written the message.
        loop = asyncio.get_running_loop()
        loop.call_soon(loop.call_soon, self.context.failpoint.reach, PUBLISHED)
        return pending

    def _not_published(self, claim: Claim) -> None:
        """Release the claim: the next try publishes, under its own task id if nothing was sent."""
        if claim.ours:
            self.idempotency.claims.release(claim, not_taken=not self.sent)
