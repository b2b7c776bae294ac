"""Take each delivery once: its first try runs the task, later tries join and get its answer.

                    take the claim
      mine ──> publish, and wait as the strategy does
      lapsed ──> publish again under the claim's task id, and wait like a joined try
      publishing, confirmed ──> join: wait for that task's stored result
      done ──> the stored answer

If a claim is released while joined tries wait, one of them takes it again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine
from dataclasses import replace
from functools import partial
from typing import Protocol

from gateway.answer import Answer
from gateway.celery_message import Message
from gateway.claims.claim import CONFIRMED, DONE, MINE
from gateway.claims.handle import NO_CLAIM, ClaimHandle, NoClaim
from gateway.claims.late_results import LateResults
from gateway.claims.result_waiter import ResultWaiter
from gateway.claims.state_watch import StateWatch
from gateway.claims.store import Claims
from gateway.claims.taken_tasks import TakenTasks
from gateway.clock import monotonic
from gateway.config.route import Route
from gateway.config.settings import Config
from gateway.delivery import Delivery
from gateway.errors import RequestError, StateUnavailable
from gateway.failpoints import CLAIMED, PUBLISHED, Failpoint
from gateway.metrics import Metrics
from gateway.pending_task import PendingTask
from gateway.stores.pipeline import Pipeline


class Replied(Protocol):
    """Whether a request is answered; ``closed``: or its sender has disconnected."""

    answered: bool

    @property
    def closed(self) -> bool: ...


class Try(Protocol):
    """One try of a delivery, which is relayed or joins an earlier one."""

    claim: ClaimHandle | NoClaim
    deadline: float
    delivery: Delivery
    identity: str
    message: Message
    mode: str
    owner: str
    route: Route

    @property
    def reply(self) -> Replied:
        """Whether its sender has an answer."""

    def run(self, step: Coroutine[None, None, None]) -> None:
        """Run `step` in a task; its error becomes the answer."""

    async def publish_further(self, recorded: bool = True) -> None:
        """Publish the further tasks, and wait until the broker has confirmed all."""

    def publish(self) -> PendingTask:
        """Publish the message of the route's own task."""

    def publish_again(self, message: Message) -> PendingTask:
        """Publish the `message` of an earlier try; wait for its confirm only."""

    def follow(self, pending: PendingTask) -> None:
        """Answer with the confirm or the end of `pending`."""

    def join(self, handle: ClaimHandle, again: bool) -> None:
        """Attach to the task that holds the claim; `again`: this try had another task before."""

    def repeat_answer(self, given: Answer) -> None:
        """Answer with a task's answer."""

    def accept(self) -> None:
        """Answer that the message is taken, and that there is no result yet."""


class Idempotency:
    """Relays deliveries that have an identity; `results` reads the result store."""

    def __init__(
        self,
        config: Config,
        results: Pipeline,
        metrics: Metrics,
        failpoint: Failpoint,
    ):
        self._claims = Claims(config)
        self._watch = StateWatch(config, metrics, self._claims.redis)
        self._waiter = ResultWaiter(config, self._claims, results)
        self._late = LateResults(config, self._claims, results, self._waiter.results_subscription)
        self._failpoint = failpoint
        self._refuse = config.without_state == "refuse"
        #: Which further tasks of a delivery the broker has taken.
        self.taken = TakenTasks(config, self._claims.redis)

    async def start(self) -> None:
        await self._claims.start()
        await self._watch.start()
        await self._waiter.start()
        await self._late.start()

    async def stop(self) -> None:
        await self._late.stop()
        await self._waiter.stop()
        await self._watch.stop()
        await self._claims.stop()

    @property
    def error(self) -> str:
        """Why deliveries cannot be taken, in words; empty when they can."""
        return self._waiter.error if self._refuse else ""

    @property
    def late(self) -> Collection[str]:
        """The ids of tasks that no request waits for, and whose results are listened for."""
        return self._late.awaited

    def held(self) -> dict[str, int]:
        """Return how many leases, subscribed channels, and commands without a reply there are."""
        return {
            "claims leased": self._claims.leased,
            "late results": len(self.late),
            "subscriptions": self._waiter.channels,
            "claims' commands": self._claims.redis.pending,
        }

    def relay(self, delivery: Try) -> None:
        """Begin to take the claim of `delivery`, and to publish or join its task."""
        delivery.run(self._relay(delivery))

    def rejoin(self, delivery: Try, handle: ClaimHandle) -> None:
        """Let `delivery` wait for the stored result, as joined tries do.

        Called where the message is confirmed and the connection for its result was lost.
        """
        message = replace(delivery.message, task_id=handle.claim.task_id)
        pending = PendingTask(message, delivery.deadline)
        pending.confirm()
        delivery.follow(pending)
        delivery.run(self._rejoin(delivery, handle, pending))

    async def _relay(self, delivery: Try, again: bool = False) -> None:
        while not await self._try(delivery, again):
            again = True

    async def _rejoin(self, delivery: Try, handle: ClaimHandle, pending: PendingTask) -> None:
        if not await self._waiter.wait(handle.claim, pending):
            await self._relay(delivery, again=True)

    async def _try(self, delivery: Try, again: bool) -> bool:
        """Take the claim and act on its state; return False if it has to be taken again."""
        try:
            handle = await self._take_claim(delivery, again)
        except StateUnavailable:
            if self._refuse:
                raise
            delivery.claim = NO_CLAIM
            await delivery.publish_further(recorded=False)
            if not delivery.reply.answered:
                delivery.follow(delivery.publish())
            return True
        delivery.join(handle, again)
        if handle.claim.state == DONE:
            await self._repeat_answer(handle, delivery)
            return True
        if handle.claim.state == MINE:
            self._failpoint.reach(CLAIMED)
            published = await self._publish(handle, delivery, delivery.publish)
            if published is not None:
                delivery.follow(published)
            return True
        pending = await self._resume(handle, delivery)
        return pending is not None and await self._waiter.wait(handle.claim, pending)

    async def _take_claim(self, delivery: Try, again: bool) -> ClaimHandle:
        route = delivery.route
        # A delivery that may be relayed without a claim needs time left for that.
        patience = None if self._refuse else (delivery.deadline - monotonic()) / 2
        claim = await self._claims.take(
            delivery.identity,
            delivery.delivery.body,
            delivery.message.task_id,
            owner=delivery.owner,
            span=route.hold + route.deadline if route.tries > 1 else 0.0,
            again=again,
            strict=route.takes_chosen_keys,
            # In the other modes the task need not run again for an expired result: the answer can
            # be the acceptance.
            rerun=delivery.mode == "wait",
            patience=patience,
        )
        return ClaimHandle(claim, self._claims, self._late, route.read)

    async def _repeat_answer(self, handle: ClaimHandle, delivery: Try) -> None:
        """Give the answer that an earlier try got."""
        given = handle.claim.answer
        if given is None and (outcome := await self._waiter.stored(handle.claim)) is not None:
            given, _ = delivery.route.read(outcome)
        if given is not None:
            delivery.repeat_answer(given)
        else:  # too large to be kept, and the result has expired
            delivery.accept()

    async def _resume(self, handle: ClaimHandle, delivery: Try) -> PendingTask | None:
        """Let `delivery` follow the task of an existing claim; None: that task has failed."""
        claim = handle.claim
        pending = PendingTask(replace(delivery.message, task_id=claim.task_id), delivery.deadline)
        if delivery.reply.closed and not handle.ours:
            pending.abandon()
            return pending
        expired = claim.state == CONFIRMED and claim.lease < 0
        # The task may have ended while no process waited for it, or just now.
        try:
            outcome = await self._waiter.stored(claim)
        except asyncio.CancelledError:  # the sender has got an error
            handle.not_published()
            raise
        if outcome is not None:
            given, final = delivery.route.read(outcome)
            if not final:
                handle.ended(outcome, given, final)
                return None
        if outcome is not None:
            pending.settle(outcome)
        elif handle.ours:
            publish = partial(delivery.publish_again, pending.message)
            published = await self._publish(handle, delivery, publish)
            if published is None:
                pending.abandon()
                return pending
            pending = published
        elif claim.state == CONFIRMED:
            pending.confirm()
        delivery.follow(pending)
        if expired and not pending.ended:
            # Listening for the result would prolong the claim, which has to lapse.
            pending.abandon()
            delivery.accept()
        return pending

    async def _publish(
        self, handle: ClaimHandle, delivery: Try, publish: Callable[[], PendingTask]
    ) -> PendingTask | None:
        """Publish for a claim that is ours; release it if publishing raises an error.

        None: further tasks took so long that the sender has got an error.
        """
        handle.publishing(delivery.deadline)
        try:
            await delivery.publish_further()
            if delivery.reply.answered:  # then nothing may be published any more
                handle.not_published()
                return None
            pending = publish()
        except RequestError:  # it was not sent
            handle.not_published()
            raise
        # Reached only after this turn of the loop has written the message.
        loop = asyncio.get_running_loop()
        loop.call_soon(loop.call_soon, self._failpoint.reach, PUBLISHED)
        return pending
