"""Put the repeats of a measurement together: the median, and between what the repeats lay."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median
from typing import Any

Row = dict[str, Any]

#: Percentiles of a row's ``latency_ms``; its ``max`` is beside them.
PERCENTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p999": 0.999}


@dataclass(frozen=True)
class Summary:
    """All repeats of one strategy in one case."""

    strategy: str
    case: str
    rows: list[Row]

    @property
    def connections(self) -> int:
        connections: int = self.rows[0]["connections"]
        return connections

    def values(self, *path: str) -> list[float]:
        """Return a figure of every repeat that has it, as `values("latency_ms", "p99")`."""
        return [value for row in self.rows if (value := figure(row, path)) is not None]

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


def figure(row: Row, path: Iterable[str]) -> Any:
    """Return what `row` has at `path`, None where it has nothing."""
    value: Any = row
    for name in path:
        value = value.get(name)
        if value is None:
            return None
    return value


def case_of(row: Row) -> str:
    """Return what tells `row` from its strategy's other rows: the connections, where nothing is
    said."""
    return row.get("case") or f"{row['connections']:,} connections"


def summarize(rows: Iterable[Row]) -> list[Summary]:
    """Group `rows` by case and strategy, both in the order in which they first appear."""
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        groups.setdefault((case_of(row), row["strategy"]), []).append(row)
    order = {case: n for n, case in enumerate(dict.fromkeys(case for case, _ in groups))}
    return [
        Summary(strategy, case, group)
        for (case, strategy), group in sorted(groups.items(), key=lambda item: order[item[0][0]])
    ]


def latency(seconds: Iterable[float]) -> dict[str, float]:
    """Return a row's ``latency_ms`` of single latencies; nothing where there is none."""
    ordered = sorted(seconds)
    if not ordered:
        return {}
    found = {name: ordered[int((len(ordered) - 1) * q)] for name, q in PERCENTILES.items()}
    return {name: round(value * 1e3, 3) for name, value in {**found, "max": ordered[-1]}.items()}
