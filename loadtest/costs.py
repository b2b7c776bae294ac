"""The costs that `gateway capacity` calculates with: CPU time and memory of each part, as measured.

Their names are explained in `gateway.cli.commands.capacity`.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from gateway.cli.commands.capacity import Cost
from gateway.config.strategies import STRATEGIES
from loadtest.summary import Row, Summary, summarize

PARTS = ("gateway", "worker", "broker", "redis")
#: The experiments whose reports have costs, and the cases that count. `growth` varies the task's
#: time as well, and not only the rate; what waits above a warm process takes memory that is free.
EXPERIMENTS = {
    **dict.fromkeys(("strategies", "openloop", "peers", "cost", "slow", "capacity"), ".*"),
    "growth": r"[\d,]+/s",
    "waiting": "above a fresh process",
}
_Point = tuple[float, float]


def costs(experiment: str, options: Mapping[str, Any], rows: Iterable[Row]) -> dict[str, Cost]:
    """Return the costs that follow from an experiment's rows; none if an answer is not right.

    Repeats count by their median. What claims cost is what deliveries with an identity cost more
    than plain ones.
    """
    cases = [
        case
        for case in summarize(rows)
        if case.strategy in STRATEGIES
        and case.rows[0].get("answer", "wait") == "wait"
        and re.fullmatch(EXPERIMENTS.get(experiment, "(?!)"), case.case)
    ]
    points: dict[str, list[_Point]] = defaultdict(list)
    found: dict[str, Cost] = {}
    if not all(case.clean for case in cases):
        return found
    for case in sorted(cases, key=_identified):
        pool = case.rows[0].get("worker_pool") or options.get("worker_pool", "solo:1")
        for name, rate, value in _figures(case, pool, alone=experiment == "growth"):
            if not _identified(case):
                points[name].append((rate, value))
                found[name] = Cost(points=_rising(points[name]))
            elif not name.startswith("memory"):
                more = value - found[name].cores(rate) if name in found else value
                claims = f"{name.split()[0]} claims"
                found[claims] = Cost(points=[(rate, round(max(more, 1e-6), 6))])
    return found


def _identified(case: Summary) -> bool:
    return bool(case.rows[0].get("identified"))


def _figures(case: Summary, pools: str, *, alone: bool) -> Iterator[tuple[str, float, float]]:
    """Yield the costs of a case, each with its name and the rate of one process of the part.

    `pools` is written as in ``solo:1`` or ``4 x threads:8``. `alone`: the workers are stand-ins.
    """
    strategy = case.strategy
    if case.values("waiting"):
        kib = case.median("waiting", "memory_kb_per_request")
        yield f"memory waiting {strategy}", 0, round(1024 * kib)
        return
    number, pool = re.findall(r"(?:(\d+) x )?(\w+):", pools)[0]
    # A gateway's parent counts as one of its processes, in its memory.
    gateways, workers = case.rows[0].get("processes", 1), int(number or 1)
    total = case.median("schedule", "rate") if case.values("schedule") else case.median("rps")
    for part in PARTS[: 1 if alone else None]:
        rate = total / {"gateway": gateways, "worker": workers}.get(part, 1)
        cores = round(case.median("cpu_us_per_request", part) * rate * 1e-6, 6)
        if cores:
            of = f"{strategy} {pool}" if part == "worker" else strategy
            yield f"{part} {of}", round(rate, 1), cores
    names = {f"gateway {strategy}": 1 + gateways, f"worker {pool}": workers, "broker": 1}
    for name, count in ({} if alone else names).items():
        mb = case.median("rss_mb", name.split()[0])
        yield f"memory {name}", 0, round(mb * 2**20 / count)


def _rising(points: Iterable[_Point]) -> list[_Point]:
    """Sort `points`; more requests never use less, though at saturation each may cost less."""
    found: list[_Point] = []
    for rate, value in sorted(points):  # of memory there is only the least, as the rate is 0
        if not found or rate > found[-1][0]:
            found.append((rate, max(value, found[-1][1] if found else 0)))
    return found
