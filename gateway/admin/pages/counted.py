"""What the gateway has counted since its start, as pages show it."""

from __future__ import annotations

from collections import defaultdict
from operator import add

from gateway.admin.families import Family, families
from gateway.history.ring import WIDTH, Slot, row
from gateway.metric_table import BUCKETS, REQUESTS, UNVERIFIED
from gateway.process.supervisor import Supervisor

#: The upper bounds of a histogram's buckets.
_BOUNDS = (*map(str, BUCKETS), "+Inf")


class Counted:
    """All metrics, by their names."""

    def __init__(self, supervisor: Supervisor):
        self._families = {each.name: each for each in families(supervisor.totals(), {})}

    def of(self, name: str) -> Family:
        return self._families[name]

    def gauge(self, name: str) -> float | None:
        """Return a gauge without labels; None: no process has set it."""
        return self._families[name].values.get(())

    def answers(self) -> dict[str, Slot]:
        """Return the answers by routes."""
        found = defaultdict[str, list[float]](lambda: [0.0] * WIDTH)
        for (route, _method, status), its in self.of(REQUESTS).buckets.items():
            values = [*(its.counts.get(bound, 0.0) for bound in _BOUNDS), its.seconds]
            found[route] = [*map(add, found[route], row(status, values))]
        return {route: Slot(0.0, 0.0, [*map(round, counts)]) for route, counts in found.items()}

    def unverified(self) -> dict[str, dict[str, int]]:
        """Return by sources how many requests were refused, by reasons."""
        found: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
        for (source, _scheme, reason), number in self.of(UNVERIFIED).values.items():
            if number:
                found[source][reason] += int(number)
        return found
