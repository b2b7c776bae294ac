"""A delivery is taken once: whoever comes first runs it, the others join and get its answer.

                    take the claim
      mine ──> publish, wait as the strategy does
      lapsed ──> publish again under the claim's task id, wait as those who join
      publishing, confirmed ──> join: wait for that task's stored result
      done ──> the stored answer

A claim that is released while somebody waits on it is taken again, by one of those.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from functools import partial
from time import monotonic

from gateway.celery_message import Message
from gateway.claims.claim import CONFIRMED, DONE, MINE, Claim
from gateway.claims.state_watch import StateWatch
from gateway.claims.store import Claims
from gateway.config.settings import Config
from gateway.errors import RequestError, StateUnavailable
from gateway.failpoints import CLAIMED, PUBLISHED, Failpoint
from gateway.metrics import Metrics
from gateway.pending_task import PendingTask
from gateway.relay.in_flight import Waiter
from gateway.relay.late_results import LateResults
from gateway.relay.result_waiter import ResultWaiter
from gateway.stores.pipeline import Pipeline
from gateway.strategies.base import Strategy


class Idempotency:
    """Takes deliveries that say which one they are; `results` reads the result store."""

    def __init__(
        self,
        config: Config,
        strategy: Strategy,
        results: Pipeline,
        metrics: Metrics,
        failpoint: Failpoint,
    ):
        self.claims = Claims(config)
        self._watch = StateWatch(config, metrics, self.claims.redis)
        self._joins = ResultWaiter(config, self.claims, results)
        self.late = LateResults(config, self.claims, results, self._joins.told)
        self._strategy = strategy
        self._failpoint = failpoint
        self._refuse = config.without_state == "refuse"
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        await self.claims.start()
        await self._watch.start()
        await self._joins.start()
        await self.late.start()

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.late.stop()
        await self._joins.stop()
        await self._watch.stop()
        await self.claims.stop()

    @property
    def error(self) -> str:
        """What keeps deliveries from being taken, in words; empty when nothing does."""
        return self._joins.error if self._refuse else ""

    def relay(self, waiter: Waiter, message: Message, identity: str) -> None:
        """Have `waiter` answered by the one run of the delivery that `identity` names."""
        waiter.rejoin = partial(self._rejoin, waiter, message, identity)
        self._run(waiter, self._relay(waiter, message, identity))

    def _rejoin(self, waiter: Waiter, message: Message, identity: str) -> None:
        """Have `waiter` wait with those who joined: it cannot hear the result by itself any more.

        The message is confirmed, and its result is stored.
        """
        pending = PendingTask(replace(message, task_id=waiter.claim.task_id), waiter.deadline)
        pending.confirm()
        waiter.follow(pending)
        self._run(waiter, self._relay(waiter, message, identity, pending))

    def _run(self, waiter: Waiter, work: Coroutine[None, None, None]) -> None:
        """Begin `work`; what it raises is the answer of `waiter`."""

        def ended(task: asyncio.Task[None]) -> None:
            self._tasks.discard(task)
            if not task.cancelled():
                waiter.attempt(task.result)

        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(ended)

    async def _relay(
        self, waiter: Waiter, message: Message, identity: str, joined: PendingTask | None = None
    ) -> None:
        again = joined is not None
        if joined is not None and await self._joins.wait(waiter.claim, joined):
            return
        while not await self._try(waiter, message, identity, again):
            again = True

    async def _try(self, waiter: Waiter, message: Message, identity: str, again: bool) -> bool:
        """Take the claim and go its way; tell whether `waiter` needs no other try."""
        try:
            claim = await self._take(waiter, message, identity, again)
        except StateUnavailable:
            if waiter.answered:
                return True
            if self._refuse:
                raise
            waiter.claim = waiter.rejoin = None
            waiter.follow(self._send(waiter, message))
            return True
        if self._too_late(waiter, claim):
            return True
        waiter.join(claim, again)
        if claim.state == DONE:
            await self._give_again(claim, waiter)
            return True
        if claim.state == MINE:
            self._failpoint.reach(CLAIMED)
            waiter.follow(self._publish(claim, waiter, lambda: self._send(waiter, message)))
            return True
        message = replace(message, task_id=claim.task_id)
        pending = await self._resume(claim, waiter, message)
        return pending is not None and await self._joins.wait(claim, pending)

    async def _take(self, waiter: Waiter, message: Message, identity: str, again: bool) -> Claim:
        target = waiter.target
        # Whoever can do without the claim must have time left to be relayed.
        patience = None if self._refuse else (waiter.deadline - monotonic()) / 2
        return await self.claims.take(
            identity,
            waiter.delivery.body,
            message.task_id,
            span=target.hold + target.deadline if target.tries > 1 else 0.0,
            again=again,
            strict=target.route.takes_chosen_keys,
            # Without a result all others can say that the delivery is taken.
            rerun=waiter.mode == "wait",
            patience=patience,
        )

    def _too_late(self, waiter: Waiter, claim: Claim) -> bool:
        """Tell whether the sender has been told already that nothing was taken: so it stays."""
        if waiter.answered and claim.ours:
            self.claims.release(claim, certain=True)
        return waiter.answered

    async def _give_again(self, claim: Claim, waiter: Waiter) -> None:
        """Answer as an earlier try was answered."""
        given = claim.answer
        if given is None and (outcome := await self._joins.stored(claim)) is not None:
            given, _ = waiter.target.read(outcome)
        if given is not None:
            waiter.give_again(given)
        else:  # too large to be kept, and the result has expired
            waiter.accept()

    async def _resume(self, claim: Claim, waiter: Waiter, message: Message) -> PendingTask | None:
        """Have `waiter` follow the task of a claim that is there; None: that has failed before."""
        pending = PendingTask(message, waiter.deadline)
        if waiter.gone and not claim.ours:
            pending.abandon()
            return pending
        expired = claim.state == CONFIRMED and claim.lease < 0
        # It may have ended while nobody waited for it, or just now.
        outcome = await self._joins.stored(claim)
        if outcome is not None:
            given, final = waiter.target.read(outcome)
            if not final:
                self.claims.settle(claim, outcome, given, final)
                return None
        if self._too_late(waiter, claim):
            pending.abandon()
            return pending
        if outcome is not None:
            pending.settle(outcome)
        elif claim.ours:
            pending = self._publish(
                claim, waiter, lambda: self._strategy.publish(message, waiter.deadline)
            )
        elif claim.state == CONFIRMED:
            pending.confirm()
        waiter.follow(pending)
        if expired and not pending.ended:
            # Whoever listened for it would keep the claim from lapsing.
            pending.abandon()
            waiter.accept()
        return pending

    def _send(self, waiter: Waiter, message: Message) -> PendingTask:
        send = self._strategy.publish if waiter.mode == "accept" else self._strategy.send
        return send(message, waiter.deadline)

    def _publish(
        self, claim: Claim, waiter: Waiter, publish: Callable[[], PendingTask]
    ) -> PendingTask:
        """Publish for a claim that is ours, which is released where that fails at once."""
        try:
            pending = publish()
        except RequestError:  # it was not sent
            self.claims.release(claim, certain=True)
            raise
        self.claims.hold(claim, waiter.deadline)
        # After what this turn of the loop has written.
        loop = asyncio.get_running_loop()
        loop.call_soon(loop.call_soon, self._failpoint.reach, PUBLISHED)
        return pending
