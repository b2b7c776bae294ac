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
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from itertools import pairwise
from statistics import median
from typing import Annotated, Any, TypeVar

from pydantic import Field, ValidationError

from gateway.config.problems import explain
from gateway.config.strategies import STRATEGIES
from gateway.errors import ConfigError
from gateway.model import Model, matching


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


PARTS = ("gateway", "worker", "broker", "redis")
#: Experiment -> the parts that its reports tell of. What stands in for workers is no worker.
EXPERIMENTS: Mapping[str, Sequence[str]] = {
    **dict.fromkeys(("strategies", "openloop", "peers", "cost", "slow", "capacity"), PARTS),
    "growth": ("gateway",),
    "soak": (),
    "waiting": (),
}
_RATE = re.compile(r"[\d,]+/s")
_POOL = re.compile(r"(?:([1-9]\d*) x )?(\w+):\d+")

_Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
_Amount = Annotated[float, Field(ge=0, allow_inf_nan=False)]
_Pool = Annotated[str, matching(_POOL.pattern, "is written as in solo:1 or 4 x threads:8")]


_Some = TypeVar("_Some", bound=Model)


class _Figures(Model, extra="ignore"):
    """A part of a report, of which we read only some figures."""


class _Options(_Figures):
    worker_pool: _Pool = "solo:1"


class _Report(_Figures):
    experiment: str
    options: _Options
    rows: list[dict[str, Any]]


class _Parts(_Figures):
    gateway: _Amount
    worker: _Amount
    broker: _Amount
    redis: _Amount


class _Schedule(_Figures):
    rate: _Positive


class _Waiting(_Figures):
    memory_kb_per_request: _Amount


class _Row(_Figures):
    strategy: str
    case: str = ""
    connections: int = 0
    errors: int
    wrong_answers: int
    rps: _Positive
    schedule: _Schedule | None = None
    cpu_us_per_request: _Parts
    rss_mb: _Parts
    waiting: _Waiting | None = None
    processes: int = Field(1, ge=1)
    worker_pool: _Pool = ""
    identified: bool = False

    @property
    def rate(self) -> float:
        """The requests a second: those that were to be sent, where there was a schedule."""
        return self.schedule.rate if self.schedule else self.rps


def read(document: Any, name: str, base: Costs | None = None) -> dict[str, Cost]:
    """Take the costs from a load test's JSON report; `name` is that of its file.

    Repeats count by their median. What claims cost is what deliveries with an identity cost more
    than plain ones, in this report or in `base`. Raises `ConfigError`, with one line, where
    `document` is no such report, has wrong or missing answers, or tells no costs.
    """
    if not isinstance(document, dict):
        raise _no_report(name, "it is no JSON object")
    report = _checked(_Report, document, name)
    if report.experiment not in EXPERIMENTS:
        known = ", ".join(EXPERIMENTS)
        raise ConfigError([f"{name}: a report of {report.experiment} has no costs; use {known}"])
    rows = [
        _checked(_Row, row, name, f"rows[{i}].")
        for i, row in enumerate(report.rows)
        if str(row.get("strategy")) in STRATEGIES and row.get("answer", "wait") == "wait"
    ]
    if any(row.errors or row.wrong_answers for row in rows):
        raise ConfigError([f"{name}: it has wrong or missing answers: measure again"])
    if found := _costs(report, rows, name, base or {}):
        return found
    raise ConfigError([f"{name}: no costs in it: no row is of a strategy of this gateway"])


def _checked(model: type[_Some], given: Any, name: str, place: str = "") -> _Some:
    try:
        return model.model_validate(given)
    except ValidationError as exc:
        # One problem is enough: each row of what is no report has the same ones.
        raise _no_report(name, explain(exc, model, place)[0]) from exc


def _no_report(name: str, why: str) -> ConfigError:
    return ConfigError([f"{name}: not a report of loadtest/run.sh --json: {why}"])


def _costs(report: _Report, rows: Sequence[_Row], name: str, base: Costs) -> dict[str, Cost]:
    groups: dict[tuple[str, str], list[_Row]] = {}
    for row in rows:
        named = row.case or str(row.connections)
        # The other cases of this experiment vary the task's time, and not the rate.
        if report.experiment != "growth" or _RATE.fullmatch(named):
            groups.setdefault((row.strategy, named), []).append(row)
    cases = [_Case(*which, group, report.options) for which, group in groups.items()]
    plain = [case for case in cases if not case.identified]
    parts = EXPERIMENTS[report.experiment]
    points: dict[str, list[tuple[float, float]]] = {}
    for case in plain:
        for part in parts:
            rate, cores = case.use(part)
            if cores:
                points.setdefault(case.key(part), []).append((rate, cores))
    found = {key: Cost(_rising(each), name) for key, each in points.items()}
    memory: dict[str, list[float]] = {}
    for case in plain:
        for key, value in case.memory(parts):
            memory.setdefault(key, []).append(value)
    for key, each in memory.items():  # of a process that has just started
        amount = max(each) if "waiting" in key else min(each)
        found[key] = Cost(((0, round(amount)),), name)
    for case in (case for case in cases if case.identified):
        for part in PARTS:
            rate, cores = case.use(part)
            cost = {**base, **found}.get(case.key(part))
            more = cores - (cost.cores(rate) if cost else 0)
            found[f"{part} claims"] = Cost(((rate, round(max(more, 1e-6), 6)),), name)
    return found


def _rising(points: Iterable[tuple[float, float]]) -> tuple[tuple[float, float], ...]:
    """Sort `points`; more requests never use less, though at saturation each may cost less."""
    found: list[tuple[float, float]] = []
    for rate, cores in sorted(points):
        if not found or rate > found[-1][0]:
            found.append((rate, max(cores, found[-1][1] if found else 0)))
    return tuple(found)


class _Case:
    """The repeats of a strategy in one case."""

    def __init__(self, strategy: str, case: str, rows: Sequence[_Row], options: _Options):
        self._strategy, self._rows = strategy, rows
        self.identified = case == "soak" or rows[0].identified
        number, self._pool = _POOL.findall(rows[0].worker_pool or options.worker_pool)[0]
        self._processes = {"gateway": rows[0].processes, "worker": int(number or 1)}

    def key(self, part: str) -> str:
        return f"{part} {self._strategy}" + (f" {self._pool}" if part == "worker" else "")

    def use(self, part: str) -> tuple[float, float]:
        """Return the rate of one process of `part`, and the CPU seconds that it uses a second."""
        rate = median(row.rate for row in self._rows) / self._processes.get(part, 1)
        us = median(getattr(row.cpu_us_per_request, part) for row in self._rows)
        return round(rate, 1), round(us * rate * 1e-6, 6)

    def memory(self, parts: Sequence[str]) -> Iterable[tuple[str, float]]:
        """Yield the bytes of one process; a gateway's parent counts as one of its processes."""
        waiting = [row.waiting.memory_kb_per_request for row in self._rows if row.waiting]
        if waiting:
            yield f"memory waiting {self._strategy}", 1024 * median(waiting)
        elif "worker" in parts:
            mb = {part: median(getattr(row.rss_mb, part) for row in self._rows) for part in PARTS}
            processes = 1 + self._processes["gateway"]
            yield f"memory gateway {self._strategy}", mb["gateway"] * 2**20 / processes
            yield f"memory worker {self._pool}", mb["worker"] * 2**20 / self._processes["worker"]
            yield "memory broker", mb["broker"] * 2**20
