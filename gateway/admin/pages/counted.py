"""What the gateway has counted since its start, as pages show it."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from gateway.admin.families import Buckets, Family, families
from gateway.metric_table import REQUESTS, UNVERIFIED
from gateway.process.supervisor import Supervisor


@dataclass
class Answers:
    """The answers of a route: how many, how many of these with 4xx and 5xx, and how long they took.

    ``buckets`` has counts by their upper bounds in seconds.
    """

    number: int = 0
    refused: int = 0
    errors: int = 0
    buckets: dict[float, float] = field(default_factory=lambda: defaultdict(float))

    def add(self, status: str, found: Buckets) -> None:
        number = int(sum(found.counts.values()))
        self.number += number
        self.refused += number if status.startswith("4") else 0
        self.errors += number if status.startswith("5") else 0
        for bound, count in found.counts.items():
            self.buckets[float(bound)] += count

    def quantile(self, share: float) -> float | None:
        """Return the seconds within which a share of answers was given, to the bucket; or None."""
        left = share * self.number
        for bound, count in sorted(self.buckets.items()):
            left -= count
            if self.number and left <= 0:
                return None if bound == float("inf") else bound
        return None


class Counted:
    """All metrics, by their names."""

    def __init__(self, supervisor: Supervisor):
        self._families = {each.name: each for each in families(supervisor.totals(), {})}

    def of(self, name: str) -> Family:
        return self._families[name]

    def gauge(self, name: str) -> float | None:
        """Return a gauge without labels; None: no process has set it."""
        return self._families[name].values.get(())

    def answers(self) -> dict[str, Answers]:
        """Return the answers by routes."""
        found: dict[str, Answers] = defaultdict(Answers)
        for (route, _method, status), buckets in self.of(REQUESTS).buckets.items():
            found[route].add(status, buckets)
        return found

    def unverified(self) -> dict[str, dict[str, int]]:
        """Return by sources how many requests were refused, by reasons."""
        found: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
        for (source, _scheme, reason), number in self.of(UNVERIFIED).values.items():
            if number:
                found[source][reason] += int(number)
        return found
