"""Wait for the result of a task that another request has published, in any process."""

from __future__ import annotations

import asyncio
import logging

from gateway.background import Service, happens
from gateway.celery_message import decode_result
from gateway.claims.claim import CONFIRMED, DONE, FAILED, PUBLISHING, RELEASED, Claim
from gateway.claims.store import Claims
from gateway.clock import monotonic
from gateway.config.settings import Config
from gateway.errors import StateUnavailable, StoreError
from gateway.outcome import Outcome
from gateway.pending_task import PendingTask
from gateway.stores.results import Results
from gateway.stores.subscription import Subscription

log = logging.getLogger(__name__)

PAUSE = 2.0  # seconds between queries for a result whose message may have been missed


class ResultWaiter(Service):
    """Subscribes to the results and claims that requests wait for, and fetches missed ones."""

    def __init__(self, config: Config, claims: Claims, results: Results):
        self._claims = claims
        self._results = results
        self._claims_subscription = results.subscription
        if config.state != config.results:
            self._claims_subscription = Subscription(claims.redis.connect, "joined claims")
            self.uses = (self._claims_subscription,)
        claims.redis.on_left.append(self._claims_subscription.renew)

    @property
    def channels(self) -> int:
        """How many channels are subscribed."""
        both = {self._results.subscription, self._claims_subscription}
        return sum(subscription.channels for subscription in both)

    @property
    def error(self) -> str:
        """What is wrong with the Redis of the claims, in words; empty when it answers."""
        return self._claims.redis.error or self._claims_subscription.error

    async def stored(self, claim: Claim) -> Outcome | None:
        """Return the stored outcome of the claim's task; None where it is not known."""
        outcome = None
        try:
            async for _, payload in self._results.stored([claim.task_id]):
                outcome = decode_result(payload)
        except StoreError as exc:
            log.warning("cannot fetch a result from the result store: %s", exc)
        return outcome

    async def wait(self, claim: Claim, pending: PendingTask) -> bool:
        """Wait until `pending` has ended, by its task's result or because it was ended elsewhere.

        Returns False if `pending` was abandoned, because the claim has to be taken again.
        """
        if pending.ended:
            return True
        woken = asyncio.Event()

        def on_result(payload: bytes | None) -> None:
            if payload is None:
                woken.set()
            else:
                pending.settle(decode_result(payload))

        def on_claim(state: bytes | None) -> None:
            if state == CONFIRMED.encode():
                pending.confirm()
            woken.set()

        pending.also_release(lambda _pending: woken.set())
        listeners = [
            (self._results.subscription, self._results.prefix + claim.task_id, on_result),
            (self._claims_subscription, self._claims.channel(claim), on_claim),
        ]
        added = []
        try:
            for subscription, channel, on_message in listeners:
                added.append((subscription, channel, on_message))
                subscription.add(channel, on_message)
                await subscription.ready(channel)
            return await self._watch(claim, pending, woken)
        finally:
            for subscription, channel, on_message in added:
                subscription.remove(channel, on_message)

    async def _watch(self, claim: Claim, pending: PendingTask, woken: asyncio.Event) -> bool:
        lapse = monotonic() + claim.lease
        while not pending.ended:
            woken.clear()
            state = await self._fetch(claim, pending)
            publishing = state == PUBLISHING
            lapsed = publishing and not claim.ours and monotonic() >= lapse
            if lapsed or state in (RELEASED, DONE):
                if pending.ended:
                    break
                if state == RELEASED and pending.confirmed:
                    # Redis may have lost the claim: restore it. CONFIRM does nothing where the task
                    # has failed.
                    self._claims.confirm(claim)
                pending.abandon()
                return False
            patience = PAUSE
            if publishing and not claim.ours:
                patience = min(PAUSE, max(lapse - monotonic(), 0))
            await happens(woken, patience)
        return True

    async def _fetch(self, claim: Claim, pending: PendingTask) -> str:
        """Settle `pending` if the task has ended; otherwise return the state of the claim."""
        pending.settle(await self.stored(claim))
        if pending.ended:
            return ""
        try:
            state, outcome = await self._claims.state(claim)
        except StateUnavailable:
            return ""
        if state == FAILED:
            pending.settle(outcome)
        elif state == CONFIRMED:
            pending.confirm()
        return state
