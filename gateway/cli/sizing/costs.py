"""Costs: CPU time and memory of each part of the system, as load tests have measured them.

A cost is named by its part and its strategy, a worker's by its pool as well: ``gateway redis``,
``worker pika threads``, ``broker pika``, ``redis pika``; what claims add to them: ``gateway
claims``; memory: ``memory gateway pika``, ``memory worker threads``, ``memory broker``, ``memory
waiting pika``. `loadtest.costs` takes them from what was measured; costs.json has those of the
committed reports.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.resources import files
from importlib.resources.abc import Traversable
from itertools import pairwise
from pathlib import Path
from typing import Annotated

from pydantic import Field, ValidationError

from gateway.config.problems import explain
from gateway.errors import ConfigError
from gateway.model import Model

_Amount = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class Cost(Model, strict=False):  # JSON has no type for a tuple
    """CPU use over the rate, or an amount of memory, with the name of the report that has it.

    `points` are in the order of their rates: requests a second of one process of the part, and the
    CPU seconds that it uses in a second. Memory has one point, at the rate 0, in bytes.
    """

    points: Annotated[list[tuple[_Amount, _Amount]], Field(min_length=1)]
    report: str = ""

    def cores(self, rate: float) -> float:
        """Return the CPU seconds a second at `rate`.

        Between two points they lie on the straight line; outside of all points a request costs as
        much as at the nearest one.
        """
        return _along(self.points, rate)

    def rate(self, cores: float) -> float:
        """Return the rate for which so many `cores` are enough."""
        return _along([(cores, rate) for rate, cores in self.points], cores)

    def plus(self, seconds: float) -> Cost:
        """Return the cost of requests that take so many CPU seconds more."""
        points = [(rate, cores + seconds * rate) for rate, cores in self.points]
        return Cost(points=points, report=self.report)

    @property
    def amount(self) -> float:
        return self.points[0][1]


Costs = Mapping[str, Cost]


def _along(points: Sequence[tuple[float, float]], at: float) -> float:
    """Return the height `at` which the line through zero and the `points` is, or would be."""
    last = height = 0.0
    for (first, start), (last, height) in pairwise([(0.0, 0.0), *points]):
        if at <= last:
            return start + (height - start) * (at - first) / (last - first)
    return height * at / last


class _Report(Model, extra="ignore"):
    costs: Annotated[dict[str, Cost], Field(min_length=1)]


def shipped() -> dict[str, Cost]:
    """Return the costs of the committed reports."""
    return read(files(__package__) / "costs.json")


def read(file: Path | Traversable) -> dict[str, Cost]:
    """Return the costs in a load test's JSON report.

    Raises `OSError`, or a `ConfigError` with one line where it is no such report or has no costs.
    """
    try:
        found = _Report.model_validate_json(file.read_bytes()).costs
    except ValidationError as exc:
        why = explain(exc, _Report)[0]
        problem = f"{file.name}: no report with costs of loadtest/run.sh --json: {why}"
        raise ConfigError([problem]) from exc
    return {
        name: cost.model_copy(update={"report": cost.report or file.name})
        for name, cost in found.items()
    }
