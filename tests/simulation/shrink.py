"""Make a failing seed smaller: take faults, senders and gateways away as long as it fails."""

from __future__ import annotations

import copy
from collections.abc import Iterator

from tests.simulation import pool
from tests.simulation.run import run
from tests.simulation.senders import Senders
from tests.simulation.world import DELIVERIES, Plan

_KEPT: list[Plan] = []


def main(seed: int, strategy: str) -> int:
    """Print the smallest plan that still breaks the same rule, and its trace."""
    plan = Plan(seed, strategy)
    rules = _broken(seed, strategy, plan)
    if not rules:
        print(f"seed {seed} {strategy} breaks nothing")
        return 0
    print(f"seed {seed} {strategy} breaks: {', '.join(sorted(rules))}")
    plan.senders = set(range(DELIVERIES))
    while True:
        smaller = next((s for s in _smaller(plan) if _broken(seed, strategy, s) & rules), None)
        if smaller is None:
            break
        plan = smaller
        print(
            f"  {len(plan.faults)} faults, {len(plan.senders)} senders, {plan.gateways} gateways",
            flush=True,
        )
    lines: list[str] = []
    result = run(seed, strategy, plan, lines)
    print("\n".join(lines))
    print("faults:", *plan.faults, sep="\n  ")
    print("\n".join(result.problems))
    return 1


def _broken(seed: int, strategy: str, plan: Plan) -> set[str]:
    """Return the names of the rules that are broken, found in a process of its own."""
    work = lambda *_: run(seed, strategy, plan).plain()  # noqa: E731
    (result,) = pool.each(iter([(seed, strategy)]), work, 1)
    return {problem.partition(":")[0] for problem in result["problems"]}


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


__all__ = ["Senders", "main"]
