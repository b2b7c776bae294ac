"""Waiting with whoever runs a task, in this process or another one."""

from __future__ import annotations

import asyncio
import logging
from time import monotonic

from redis.exceptions import RedisError

from gateway.celery_message import decode_result
from gateway.claims.claim import CONFIRMED, DONE, FAILED, PUBLISHING, RELEASED, Claim
from gateway.claims.store import Claims
from gateway.config.settings import Config
from gateway.errors import StateUnavailable
from gateway.outcome import Outcome
from gateway.pending_task import PendingTask
from gateway.stores import result_store
from gateway.stores.pipeline import Pipeline
from gateway.stores.subscription import Subscription

log = logging.getLogger(__name__)

PAUSE = 2.0  # seconds between queries for a result that nobody has told of


class ResultWaiter:
    """Hears of the results and claims that somebody waits for, and fetches what it missed."""

    def __init__(self, config: Config, claims: Claims, results: Pipeline):
        self._claims = claims
        self._results = results
        self._prefix = result_store.key_prefix(config)
        #: Hears the channels of results.
        self.told = Subscription(lambda: result_store.connect(config), "joined results")
        self._claimed = self.told
        if config.state != config.results:
            self._claimed = Subscription(
                lambda: result_store.connect(config, config.state), "joined claims"
            )

    async def start(self) -> None:
        for subscription in {self.told, self._claimed}:
            await subscription.start()

    async def stop(self) -> None:
        for subscription in {self.told, self._claimed}:
            await subscription.stop()

    @property
    def error(self) -> str:
        """What is wrong with the store of claims, in words; empty when it answers."""
        return self._claimed.error

    async def stored(self, claim: Claim) -> Outcome | None:
        """Return how the claim's task ended; None where that is not known."""
        try:
            payload = await self._results.run("GET", self._prefix + claim.task_id)
        except (RedisError, OSError) as exc:
            log.warning("a result cannot be fetched: %s", exc)
            return None
        return decode_result(payload) if payload is not None else None

    async def wait(self, claim: Claim, pending: PendingTask) -> bool:
        """Wait until `pending` has ended, by its task's result or by anybody's hand.

        False: it has been abandoned, as the claim has to be taken again.
        """
        if pending.ended:
            return True
        woken = asyncio.Event()

        def hear_result(payload: bytes | None) -> None:
            if payload is None:
                woken.set()
            else:
                pending.settle(decode_result(payload))

        def hear_claim(state: bytes | None) -> None:
            if state == CONFIRMED.encode():
                pending.confirm()
            woken.set()

        pending.on_release = lambda _pending: woken.set()
        heard = [
            (self.told, self._prefix + claim.task_id, hear_result),
            (self._claimed, claim.channel, hear_claim),
        ]
        added = []
        try:
            for subscription, channel, hear in heard:
                added.append((subscription, channel, hear))
                await subscription.add(channel, hear)
            return await self._watch(claim, pending, woken)
        finally:
            for subscription, channel, hear in added:
                await subscription.remove(channel, hear)

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
                    # Redis has lost it, unless the task has failed, which is looked at there.
                    self._claims.confirm(claim)
                pending.abandon()
                return False
            patience = PAUSE
            if publishing and not claim.ours:
                patience = min(PAUSE, max(lapse - monotonic(), 0))
            try:
                async with asyncio.timeout(patience):
                    await woken.wait()
            except TimeoutError:
                continue
        return True

    async def _fetch(self, claim: Claim, pending: PendingTask) -> str:
        """See whether the task has ended; else return what has become of the claim."""
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
