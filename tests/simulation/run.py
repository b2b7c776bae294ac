"""Run one seed with one strategy, and judge it."""

from __future__ import annotations

import gc
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

from tests.simulation import oracle, seams, stages
from tests.simulation.world import Plan, World


@dataclass
class Result:
    """What a seed has shown; ``problems`` has a line for each promise that was broken."""

    seed: int
    strategy: str
    problems: list[str] = field(default_factory=list)
    digest: str = ""
    calm: bool = False
    callbacks: int = 0
    seconds: float = 0.0  # virtual
    cpu: float = 0.0  # seconds
    gateways: int = 0
    deliveries: int = 0
    identified: int = 0
    tries: int = 0
    executions: int = 0
    statuses: dict[str, int] = field(default_factory=dict)
    faults: dict[str, int] = field(default_factory=dict)
    stages: list[str] = field(default_factory=list)  # the cells of the table that were entered

    def plain(self) -> dict[str, Any]:
        return asdict(self)


def plan_of(seed: int, strategy: str) -> Plan:
    if strategy == "worker":
        from tests.simulation.celery_world import WorkerPlan

        return WorkerPlan(seed)
    return Plan(seed, strategy)


def run(
    seed: int,
    strategy: str,
    plan: Plan | None = None,
    lines: list[str] | None = None,
    worlds: list[object] | None = None,
) -> Result:
    """Run it; `lines` gets what happens, in words, and `worlds` the world."""
    judge: Callable[[Any], list[str]] = oracle.judge
    make = World
    if strategy == "worker":
        from tests.simulation import celery_world

        judge, make = celery_world.judge, celery_world.CeleryWorld
    plan = plan or plan_of(seed, strategy)
    began = time.process_time()
    gc.disable()  # so that what a cycle of references keeps is still there at the end
    world = make(seed, strategy, plan, lines)
    if worlds is not None:
        worlds.append(world)
    seen = world.run()
    seams.leave()
    result = Result(seed, strategy, judge(world), world.digest.hexdigest(), plan.calm)
    gc.enable()
    result.callbacks, result.seconds = world.loop.steps, world.loop.time() - world.began
    result.cpu = time.process_time() - began
    result.gateways = plan.gateways
    routes = {one.delivery: one.route for one in seen.tries}
    result.deliveries = len(routes)
    result.identified = sum(route in oracle.IDENTIFIED for route in routes.values())
    result.tries, result.executions = len(seen.tries), len(seen.executions)
    result.statuses = dict(Counter(f"{one.status} {one.type}".strip() for one in seen.tries))
    result.stages = sorted(stages.entered)
    result.faults = dict(Counter(f"{_kind(one.target)} {one.kind}" for one in seen.injected))
    return result


def _kind(target: str) -> str:
    return "link" if ">" in target else target.rstrip("0123456789")
