"""Put a strategy's repeats together: the median, and between what the repeats lay."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median
from typing import Any


@dataclass(frozen=True)
class Summary:
    """All repeats of one strategy at one number of connections."""

    strategy: str
    connections: int
    rows: list[dict[str, Any]]

    def values(self, *path: str) -> list[float]:
        """Return a figure of every repeat, as `values("latency_ms", "p99")`."""
        found = []
        for row in self.rows:
            value: Any = row
            for name in path:
                value = value[name]
            found.append(value)
        return found

    def median(self, *path: str) -> float:
        return median(self.values(*path))

    def range(self, *path: str) -> tuple[float, float]:
        """Return the least and the greatest of the repeats."""
        return min(self.values(*path)), max(self.values(*path))

    def total(self, *path: str) -> int:
        return int(sum(self.values(*path)))

    @property
    def clean(self) -> bool:
        """Was every request answered, and rightly?"""
        answered = min(self.values("requests")) > 0
        return answered and not self.total("errors") and not self.total("wrong_answers")


def summarize(rows: Iterable[dict[str, Any]]) -> list[Summary]:
    """Group `rows` by number of connections and strategy, in the order they first appear."""
    groups: dict[tuple[int, str], list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault((row["connections"], row["strategy"]), []).append(row)
    return [
        Summary(strategy, connections, group)
        for (connections, strategy), group in sorted(groups.items(), key=lambda item: item[0][0])
    ]
