"""The services by which each delivery is taken once, whatever gateway its tries come to."""

from __future__ import annotations

from gateway.background import Service
from gateway.claims.late_results import LateResults
from gateway.claims.result_waiter import ResultWaiter
from gateway.claims.state_watch import StateWatch
from gateway.claims.store import Claims
from gateway.claims.taken_tasks import TakenTasks
from gateway.config.settings import Config
from gateway.metrics import Metrics
from gateway.stores.results import Results


class Idempotency(Service):
    """Claims on deliveries, and who waits for the tasks of others; `results` is their store.

    ``refuse``: a delivery is refused where Redis does not tell whether it has been taken.
    """

    def __init__(self, config: Config, results: Results, metrics: Metrics):
        self.claims = Claims(config, metrics)
        self.waiter = ResultWaiter(config, self.claims, results)
        self.late = LateResults(config, self.claims, results)
        #: Which further tasks of a delivery the broker has taken.
        self.taken = TakenTasks(config, self.claims.redis)
        self.refuse = config.without_state == "refuse"
        watch = StateWatch(metrics, self.claims.redis)
        self.uses = (self.claims, watch, self.waiter, self.late)

    def held(self) -> dict[str, int]:
        """Return how many leases, subscribed channels, and commands without a reply there are."""
        return {
            "claims leased": self.claims.leased,
            "late results": len(self.late.awaited),
            "subscriptions": self.waiter.channels,
            "claims' commands": self.claims.redis.pending,
        }

    @property
    def error(self) -> str:
        """Why deliveries cannot be taken, in words; empty when they can."""
        return (self.waiter.error or self.claims.uncopied) if self.refuse else ""
