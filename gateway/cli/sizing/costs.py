"""Costs: CPU time and memory of each part of the system, as load tests have measured them.

A cost is named by its part and its strategy, a worker's by its pool as well: ``gateway redis``,
``worker pika threads``, ``broker pika``, ``redis pika``; what claims add to them: ``gateway
claims``; memory: ``memory gateway pika``, ``memory worker threads``, ``memory broker``, ``memory
waiting pika``. `reports.py` takes them from a load test's report. costs.json beside this file has
those of the committed reports; ``python -m loadtest.figures`` writes it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from itertools import pairwise


@dataclass(frozen=True)
class Cost:
    """CPU use over the rate, or an amount of memory, with the name of the report that has it.

    `points` are in the order of their rates: requests a second of one process of the part, and the
    CPU seconds that it uses in a second. Memory has one point, at the rate 0, in bytes.
    """

    points: tuple[tuple[float, float], ...]
    report: str

    def cores(self, rate: float) -> float:
        """Return the CPU seconds a second at `rate`.

        Between two points they lie on the straight line; outside of all points a request costs as
        much as at the nearest one.
        """
        (first, least), (last, most) = self.points[0], self.points[-1]
        if rate <= first:
            return least * rate / first
        for (low, below), (high, above) in pairwise(self.points):
            if rate <= high:
                return below + (above - below) * (rate - low) / (high - low)
        return most * rate / last

    def full(self, cores: float) -> float:
        """Return the greatest rate, requests a second, for which so many cores are enough."""
        (first, least), (last, most) = self.points[0], self.points[-1]
        if cores >= most:
            return last * cores / most if most else float("inf")
        for (low, below), (high, above) in pairwise(self.points):
            if below <= cores < above:
                return low + (high - low) * (cores - below) / (above - below)
        return first * cores / least

    @property
    def amount(self) -> float:
        return self.points[0][1]


Costs = Mapping[str, Cost]


def shipped() -> dict[str, Cost]:
    """Return the costs of the committed reports."""
    document = json.loads((files(__package__) / "costs.json").read_text("utf-8"))
    return {
        name: Cost(tuple((rate, value) for rate, value in each["points"]), each["report"])
        for name, each in document.items()
    }


def dump(costs: Costs) -> str:
    """Return the text of costs.json."""
    document = {
        name: {"report": cost.report, "points": cost.points} for name, cost in sorted(costs.items())
    }
    return (
        re.sub(r"\[\s+([\d.]+),\s+([\d.]+)\s+\]", r"[\1, \2]", json.dumps(document, indent=1))
        + "\n"
    )
