"""Costs: CPU time and memory of each part of the system, as load tests have measured them.

A cost is named by its part and its strategy, a worker's by its pool as well: ``gateway redis``,
``worker pika threads``, ``broker pika``, ``redis pika``; what claims add to them: ``gateway
claims``; memory: ``memory gateway pika``, ``memory worker threads``, ``memory broker``, ``memory
waiting pika``. `read` takes costs from a load test's JSON report. costs.json beside this file has
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
from typing import Any

from gateway.config.strategies import STRATEGIES
from gateway.errors import ConfigError

PARTS = ("gateway", "worker", "broker", "redis")
#: Experiment -> the parts that its reports tell of. What stands in for workers is no worker.
EXPERIMENTS: Mapping[str, Sequence[str]] = {
    **dict.fromkeys(("strategies", "openloop", "peers", "cost", "slow", "capacity"), PARTS),
    "growth": ("gateway",),
    "soak": (),
    "waiting": (),
}
_RATE = re.compile(r"[\d,]+/s")
_POOL = re.compile(r"(?:(\d+) x )?(\w+):\d+")


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


def read(document: Any, name: str, base: Costs | None = None) -> dict[str, Cost]:
    """Take the costs from a load test's JSON report; `name` is that of its file.

    Repeats count by their median. What claims cost is what deliveries with an identity cost more
    than plain ones, in this report or in `base`. Raises `ConfigError`, with one line, where
    `document` is no such report, has wrong or missing answers, or tells no costs.
    """
    try:
        found = _read(document, name, base or {})
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as exc:
        raise ConfigError([f"{name}: not a report of loadtest/run.sh --json ({exc!r})"]) from exc
    if not found:
        raise ConfigError([f"{name}: no costs in it: no row is of a strategy of this gateway"])
    return found


def _read(document: Mapping[str, Any], name: str, base: Costs) -> dict[str, Cost]:
    experiment, options = document["experiment"], document["options"]
    if experiment not in EXPERIMENTS:
        known = ", ".join(EXPERIMENTS)
        raise ConfigError([f"{name}: a report of {experiment} has no costs; use {known}"])
    rows = [row for row in document["rows"] if row["strategy"] in STRATEGIES]
    if any(row["errors"] or row["wrong_answers"] for row in rows):
        raise ConfigError([f"{name}: it has wrong or missing answers: measure again"])
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in rows:
        name_of = str(row.get("case") or row["connections"])
        if experiment != "growth" or _RATE.fullmatch(name_of):  # tasks that take time are no rate
            groups.setdefault((row["strategy"], name_of), []).append(row)
    cases = [_Case(*which, group, options) for which, group in groups.items()]
    plain = [case for case in cases if not case.identified]
    points: dict[str, list[tuple[float, float]]] = {}
    for case in plain:
        for part in EXPERIMENTS[experiment]:
            rate, cores = case.use(part)
            if cores:
                points.setdefault(case.key(part), []).append((rate, cores))
    found = {key: Cost(_rising(each), name) for key, each in points.items()}
    memory: dict[str, list[float]] = {}
    for case in plain:
        for key, value in case.memory(EXPERIMENTS[experiment]):
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

    def __init__(
        self,
        strategy: str,
        case: str,
        rows: Sequence[Mapping[str, Any]],
        options: Mapping[str, Any],
    ):
        self._strategy, self._rows = strategy, rows
        self.identified = case == "soak" or bool(rows[0].get("identified"))
        said = _POOL.fullmatch(rows[0].get("worker_pool") or options.get("worker_pool", "solo:1"))
        if said is None:
            raise ValueError("worker_pool")
        workers, self._pool = int(said[1] or 1), said[2]
        self._processes = {"gateway": int(rows[0].get("processes", 1)), "worker": workers}

    def key(self, part: str) -> str:
        return f"{part} {self._strategy}" + (f" {self._pool}" if part == "worker" else "")

    def use(self, part: str) -> tuple[float, float]:
        """Return the rate of one process of `part`, and the CPU seconds that it uses a second."""
        sent = ("schedule", "rate") if "schedule" in self._rows[0] else ("rps",)
        rate = self._median(*sent) / self._processes.get(part, 1)
        return round(rate, 1), round(self._median("cpu_us_per_request", part) * rate * 1e-6, 6)

    def memory(self, parts: Sequence[str]) -> Iterable[tuple[str, float]]:
        """Yield the bytes of one process; a gateway's parent counts as one of its processes."""
        if "waiting" in self._rows[0]:
            yield (
                f"memory waiting {self._strategy}",
                1024 * self._median("waiting", "memory_kb_per_request"),
            )
        elif "worker" in parts:
            mb = {part: self._median("rss_mb", part) * 2**20 for part in PARTS}
            processes = 1 + self._processes["gateway"]
            yield f"memory gateway {self._strategy}", mb["gateway"] / processes
            yield f"memory worker {self._pool}", mb["worker"] / self._processes["worker"]
            yield "memory broker", mb["broker"]

    def _median(self, *path: str) -> float:
        values: list[Any] = list(self._rows)
        for name in path:
            values = [value[name] for value in values]
        return float(median(values))
