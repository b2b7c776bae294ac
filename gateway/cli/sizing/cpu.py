"""The CPU time that a load takes, by the part of the system, from measured costs."""

from __future__ import annotations

from gateway.cli.sizing.costs import Cost, Costs
from gateway.cli.sizing.load import Load


class CPU:
    """The costs of a load's strategy and pool; `gateway` and so on are those of plain requests.

    Where no report has the pool of the load, `pool` is the one whose costs are used instead. Raises
    `KeyError` where no report has the strategy.
    """

    def __init__(self, load: Load, costs: Costs):
        self._load, self._costs = load, costs
        self.gateway = costs[f"gateway {load.strategy}"]
        self.broker = costs[f"broker {load.strategy}"]
        self.redis = costs[f"redis {load.strategy}"]
        self.pool, self.worker = self._worker()

    def _worker(self) -> tuple[str, Cost]:
        for pool in (self._load.pool, "threads", "solo"):
            cost = self._costs.get(f"worker {self._load.strategy} {pool}")
            if cost is not None:
                return pool, cost
        raise KeyError(f"worker {self._load.strategy}")

    def of_claims(self, part: str) -> float:
        """Return the CPU seconds a second that the load's claims add to `part`."""
        cost, claimed = self._costs.get(f"{part} claims"), self._load.rate * self._load.identified
        return cost.cores(claimed) if cost and claimed else 0.0

    def of_gateway(self, rate: float, count: int) -> float:
        """Return the cores that one of `count` gateways uses at `rate` requests a second in all."""
        return self.gateway.cores(rate / count) + self._share("gateway", rate) / count

    def of_worker(self, rate: float, count: int) -> float:
        """Return the use of the one core that a main process, or its lock, allows a worker.

        It is one of `count` workers at `rate` requests a second in all.
        """
        load = self._load
        share = 1 if load.pool != "prefork" else 0  # prefork's tasks run in other processes
        tasks = share * rate * load.task_time * load.task_cpu
        return self.worker.cores(rate / count) + (self._share("worker", rate) + tasks) / count

    def of_broker(self, rate: float, count: int) -> float:
        """Return the cores that one of `count` queues uses at `rate` requests a second in all."""
        return self.broker.cores(rate / count) + self._share("broker", rate) / count

    def _share(self, part: str, rate: float) -> float:
        """Return what claims add to `part` at another rate than the load's."""
        return self.of_claims(part) * rate / self._load.rate
