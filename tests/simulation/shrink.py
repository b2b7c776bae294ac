"""Make a failing seed smaller: take faults, senders and gateways away as long as it fails."""

from __future__ import annotations

import copy
from collections.abc import Generator, Iterator
from itertools import count
from typing import Any

from tests.simulation import pool
from tests.simulation.run import run
from tests.simulation.world import DELIVERIES, Plan

#: A world that ends in the middle of everything would tell of each coroutine that it has left.
_worlds: list[object] = []


def main(seed: int, strategy: str, jobs: int) -> int:
    """Print the smallest plan that still breaks one of the same rules, and its trace."""
    plan = Plan(seed, strategy)
    ((_, rules),) = _tried(seed, strategy, iter([plan]), jobs)
    if not rules:
        print(f"seed {seed} {strategy} breaks nothing")
        return 0
    print(f"seed {seed} {strategy} breaks: {', '.join(sorted(rules))}")
    plan.senders = set(range(DELIVERIES + plan.hasty + plan.late))
    seen: set[str] = set()
    while True:
        candidates = (one for one in _smaller(plan) if _new(one, seen))
        tried = _tried(seed, strategy, candidates, jobs)
        smaller = next((one for one, broken in tried if broken & rules), None)
        tried.close()
        if smaller is None:
            break
        plan = smaller
        print(
            f"  still with {len(plan.faults)} faults, {len(plan.senders or ())} senders,"
            f" {plan.gateways} gateways, {plan.persons} persons",
            flush=True,
        )
    lines: list[str] = []
    result = run(seed, strategy, plan, lines, _worlds)
    print(*lines, "", "what is left:", *plan.faults, sep="\n")
    print(f"senders of {', '.join(f'd{number}' for number in sorted(plan.senders))}")
    print(*(f"seed {seed} {strategy}: {problem}" for problem in result.problems), sep="\n")
    return 1


def _new(plan: Plan, seen: set[str]) -> bool:
    """Tell whether a plan was not tried yet, and remember it."""
    left = plan.gateways, plan.persons, sorted(plan.senders or ()), *map(str, plan.faults)
    what = str(left)
    new = what not in seen
    seen.add(what)
    return new


def _tried(
    seed: int, strategy: str, plans: Iterator[Plan], jobs: int
) -> Generator[tuple[Plan, set[str]], None, None]:
    """Run plans in processes of their own; yield each with the names of the rules it breaks."""
    running: dict[int, Plan] = {}

    def numbered() -> Iterator[pool.Job]:
        for number, plan in zip(count(), plans, strict=False):
            running[number] = plan
            yield number, strategy

    def work(number: int, strategy: str) -> dict[str, Any]:
        return run(seed, strategy, running[number]).plain() | {"seed": number}

    for result in pool.each(numbered(), work, jobs):
        problems = {problem.partition(":")[0] for problem in result["problems"]}
        yield running.pop(result["seed"]), problems


def _smaller(plan: Plan) -> Iterator[Plan]:
    """Yield plans that lack something, the boldest first."""
    parts = 2
    while parts <= 16:
        for name in ("faults", "senders"):
            whole = list(getattr(plan, name))
            if len(whole) < (1 if name == "faults" else 2):
                continue
            size = max(1, len(whole) // parts)
            for at in range(0, len(whole), size):
                smaller = copy.copy(plan)
                rest = whole[:at] + whole[at + size :]
                setattr(smaller, name, set(rest) if name == "senders" else rest)
                yield smaller
        parts *= 2
    if plan.persons:
        smaller = copy.copy(plan)
        smaller.persons -= 1
        yield smaller
    if plan.gateways > 1:
        smaller = copy.copy(plan)
        smaller.gateways -= 1
        named = {f"gateway{i + 1}" for i in range(smaller.gateways)}
        smaller.faults = [
            f
            for f in plan.faults
            if not f.target.startswith("gateway") or f.target.partition(">")[0] in named
        ]
        yield smaller
