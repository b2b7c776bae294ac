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
from collections.abc import Callable, Coroutine
from dataclasses import replace
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING

from gateway.claims.claim import CONFIRMED, DONE, MINE
from gateway.claims.handle import NO_CLAIM, ClaimHandle
from gateway.claims.late_results import LateResults
from gateway.claims.result_waiter import ResultWaiter
from gateway.claims.state_watch import StateWatch
from gateway.claims.store import Claims
from gateway.config.settings import Config
from gateway.errors import RequestError, StateUnavailable
from gateway.failpoints import CLAIMED, PUBLISHED, Failpoint
from gateway.metrics import Metrics
from gateway.pending_task import PendingTask
from gateway.relay.attempt import attempt
from gateway.stores.pipeline import Pipeline

if TYPE_CHECKING:
    from gateway.relay.delivery_in_flight import DeliveryInFlight


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
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        await self._claims.start()
        await self._watch.start()
        await self._waiter.start()
        await self._late.start()

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._late.stop()
        await self._waiter.stop()
        await self._watch.stop()
        await self._claims.stop()

    @property
    def error(self) -> str:
        """Why deliveries cannot be taken, in words; empty when they can."""
        return self._waiter.error if self._refuse else ""

    def relay(self, delivery: DeliveryInFlight) -> None:
        """Begin to take the claim of `delivery`, and to publish or join its task."""
        self._run(delivery, self._relay(delivery))

    def rejoin(self, delivery: DeliveryInFlight, handle: ClaimHandle) -> None:
        """Let `delivery` wait for the stored result, as joined tries do.

        Called where the message is confirmed and the connection for its result was lost.
        """
        message = replace(delivery.message, task_id=handle.claim.task_id)
        pending = PendingTask(message, delivery.deadline)
        pending.confirm()
        delivery.follow(pending)
        self._run(delivery, self._rejoin(delivery, handle, pending))

    def _run(self, delivery: DeliveryInFlight, work: Coroutine[None, None, None]) -> None:
        """Run `work` in a task; an error becomes the answer of `delivery`."""

        def ended(task: asyncio.Task[None]) -> None:
            self._tasks.discard(task)
            if not task.cancelled():
                attempt(delivery, task.result)

        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(ended)

    async def _relay(self, delivery: DeliveryInFlight, again: bool = False) -> None:
        while not await self._try(delivery, again):
            again = True

    async def _rejoin(
        self, delivery: DeliveryInFlight, handle: ClaimHandle, pending: PendingTask
    ) -> None:
        if not await self._waiter.wait(handle.claim, pending):
            await self._relay(delivery, again=True)

    async def _try(self, delivery: DeliveryInFlight, again: bool) -> bool:
        """Take the claim and act on its state; return False if it has to be taken again."""
        try:
            handle = await self._take_claim(delivery, again)
        except StateUnavailable:
            if delivery.reply.answered:
                return True
            if self._refuse:
                raise
            delivery.claim = NO_CLAIM
            delivery.follow(delivery.publish())
            return True
        if self._too_late(delivery, handle):
            return True
        delivery.join(handle, again)
        if handle.claim.state == DONE:
            await self._repeat_answer(handle, delivery)
            return True
        if handle.claim.state == MINE:
            self._failpoint.reach(CLAIMED)
            delivery.follow(self._publish(handle, delivery.publish, delivery.deadline))
            return True
        pending = await self._resume(handle, delivery)
        return pending is not None and await self._waiter.wait(handle.claim, pending)

    async def _take_claim(self, delivery: DeliveryInFlight, again: bool) -> ClaimHandle:
        route = delivery.route
        # A delivery that may be relayed without a claim needs time left for that.
        patience = None if self._refuse else (delivery.deadline - monotonic()) / 2
        claim = await self._claims.take(
            delivery.identity,
            delivery.delivery.body,
            delivery.message.task_id,
            span=route.hold + route.deadline if route.tries > 1 else 0.0,
            again=again,
            strict=route.takes_chosen_keys,
            # In the other modes the task need not run again for an expired result: the answer can
            # be the acceptance.
            rerun=delivery.mode == "wait",
            patience=patience,
        )
        return ClaimHandle(claim, self._claims, self._late, route.read)

    def _too_late(self, delivery: DeliveryInFlight, handle: ClaimHandle) -> bool:
        """Tell whether the sender has got an error already; then nothing may be published."""
        if delivery.reply.answered:
            handle.not_published()
        return delivery.reply.answered

    async def _repeat_answer(self, handle: ClaimHandle, delivery: DeliveryInFlight) -> None:
        """Give the answer that an earlier try got."""
        given = handle.claim.answer
        if given is None and (outcome := await self._waiter.stored(handle.claim)) is not None:
            given, _ = delivery.route.read(outcome)
        if given is not None:
            delivery.repeat_answer(given)
        else:  # too large to be kept, and the result has expired
            delivery.accept()

    async def _resume(self, handle: ClaimHandle, delivery: DeliveryInFlight) -> PendingTask | None:
        """Let `delivery` follow the task of an existing claim; None: that task has failed."""
        claim = handle.claim
        pending = PendingTask(replace(delivery.message, task_id=claim.task_id), delivery.deadline)
        if delivery.reply.closed and not handle.ours:
            pending.abandon()
            return pending
        expired = claim.state == CONFIRMED and claim.lease < 0
        # The task may have ended while no process waited for it, or just now.
        outcome = await self._waiter.stored(claim)
        if outcome is not None:
            given, final = delivery.route.read(outcome)
            if not final:
                handle.ended(outcome, given, final)
                return None
        if self._too_late(delivery, handle):
            pending.abandon()
            return pending
        if outcome is not None:
            pending.settle(outcome)
        elif handle.ours:
            publish = partial(delivery.publish_again, pending.message)
            pending = self._publish(handle, publish, delivery.deadline)
        elif claim.state == CONFIRMED:
            pending.confirm()
        delivery.follow(pending)
        if expired and not pending.ended:
            # Listening for the result would prolong the claim, which has to lapse.
            pending.abandon()
            delivery.accept()
        return pending

    def _publish(
        self, handle: ClaimHandle, publish: Callable[[], PendingTask], deadline: float
    ) -> PendingTask:
        """Publish for a claim that is ours; release it if publishing raises an error."""
        try:
            pending = publish()
        except RequestError:  # it was not sent
            handle.not_published()
            raise
        handle.published(deadline)
        # Reached only after this turn of the loop has written the message.
        loop = asyncio.get_running_loop()
        loop.call_soon(loop.call_soon, self._failpoint.reach, PUBLISHED)
        return pending
