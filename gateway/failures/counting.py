"""Count failures in groups, in one process of the deployment, off the path of requests.

The journal remembers who has failed and is not counted. One process looks each second, in place of
all others while it does; `JournalStore.count` removes a failure from those and adds it to its group
at once. So nothing is counted twice, and what a killed process leaves is counted by the next one.
"""

from __future__ import annotations

import logging
import secrets
from collections import Counter
from typing import TYPE_CHECKING

from gateway.background import Service, Work, keep_on
from gateway.clock import monotonic
from gateway.config.settings import Config
from gateway.journal.store import JournalStore
from gateway.metrics import Metrics

if TYPE_CHECKING:
    from gateway.failures.telling import Notifier

log = logging.getLogger(__name__)

PAUSE = 1.0  # seconds between two looks
_LEASE = 5.0  # seconds for which a process counts after a look, and the others do not
_MOST = 200  # deliveries of one look
_RATES = 10.0  # seconds between two reports of how many deliveries were answered


class Failures(Service):
    """Counts failures in the journal's `store`, and has a notifier tell them."""

    def __init__(self, config: Config, store: JournalStore, metrics: Metrics):
        self._store = store
        self._notify, self._metrics = config.notify, metrics
        self._process = secrets.token_hex(8)
        self._notifier: Notifier | None = None
        if config.notify is not None:
            # Only here, as it imports clients for HTTP and mail.
            from gateway.failures.telling import Notifier

            self._notifier = Notifier(config, store, metrics)
            self.uses = (self._notifier,)
        self._reported, self._failed = Counter[str](), Counter[str]()
        self._rated = 0.0

    def _work(self) -> Work:
        problem = "failures cannot be counted, and wait in the journal"
        yield "failures", keep_on(self._count, PAUSE, log.warning, problem)

    async def _count(self) -> bool:
        """Count what has failed, if no other process does; tell whether there may be more."""
        failing = await self._store.failing(self._process, _LEASE, _MOST)
        if failing:
            await self._store.count(failing, self._notify is not None)
            self._failed.update(each.about.route for each in failing if each.about)
        if self._notify is not None and self._notify.share is not None:
            await self._rate(self._notify.share)
        if failing is not None and self._notifier is not None:
            self._notifier.send_news()
        return len(failing or ()) == _MOST

    async def _rate(self, share: float) -> None:
        """Add to the deployment's numbers what this process has answered and counted."""
        if monotonic() - self._rated < _RATES:
            return
        answered, failed = self._metrics.answers(), self._failed
        await self._store.rates(share, answered - self._reported, failed)
        self._reported, self._failed, self._rated = answered, Counter(), monotonic()
