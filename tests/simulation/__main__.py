"""``python -m tests.simulation``: run seeds, show one, make one smaller, try the mutants."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

from tests.simulation import seams

seams.install()

from tests.simulation import pool, shrink, stages  # noqa: E402
from tests.simulation.run import plan_of, run  # noqa: E402
from tests.support.numbers import numbers  # noqa: E402

#: Where it is kept which seed `--minutes` goes on with.
NEXT = Path("build/simulation-next")
FIRST = 1_000_000
#: A seed that is run before all others.
WARM_UP = 0
#: Seconds between two lines that say how far it is.
TELL = 60


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--strategies", default="pika,redis")
    parser.add_argument("--seeds", type=numbers, help="some, or from one to another: 307,1-200")
    parser.add_argument(
        "--minutes", type=float, help="run for so long, from where the last run stopped"
    )
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--first", action="store_true", help="end at the first violation")
    parser.add_argument("--json", type=Path, help="write what was found to this file")
    parser.add_argument("--trace", type=int, metavar="SEED", help="write what happens in a seed")
    parser.add_argument("--bytes", action="store_true", help="with --trace: what is sent, too")
    parser.add_argument("--shrink", type=int, metavar="SEED", help="make a failing seed smaller")
    parser.add_argument(
        "--mutants", action="store_true", help="test the simulator: see docs/simulation.md"
    )
    parser.add_argument("--only", default="", help="with --mutants: those whose name has this")
    parser.add_argument("--most", type=int, help="with --mutants: give one up after so many seeds")
    parser.add_argument(
        "--report", action="store_true", help="add what was found to docs/reports/simulation.json"
    )
    return parser.parse_args()


def main() -> int:
    options = _options()
    strategies = options.strategies.split(",")
    if options.mutants:
        from tests.simulation import mutants

        most = options.most or mutants.SEEDS
        return mutants.main(options.only, options.jobs, options.json, most, options.report)
    if options.trace is not None:
        return max(_trace(options.trace, strategy, options.bytes) for strategy in strategies)
    if options.shrink is not None:
        return max(shrink.main(options.shrink, strategy, options.jobs) for strategy in strategies)
    return _seeds(options, strategies)


#: Worlds that are not to end in the middle of another one.
_worlds: list[object] = []


def _trace(seed: int, strategy: str, wires: bool) -> int:
    plan, lines = plan_of(seed, strategy), list[str]()
    plan.wires = wires
    result = run(seed, strategy, plan, lines, _worlds)
    print("\n".join(lines))
    print(f"digest {result.digest}")
    for problem in result.problems:
        print(f"seed {seed} {strategy}: {problem}")
    return int(bool(result.problems))


def _seeds(options: argparse.Namespace, strategies: list[str]) -> int:
    first = int(NEXT.read_text()) if NEXT.exists() else FIRST
    seeds: Iterable[int] = options.seeds or count(first)
    end = time.monotonic() + (options.minutes or 1e9) * 60

    def jobs() -> Iterator[pool.Job]:
        for number in seeds:
            if time.monotonic() > end:
                NEXT.parent.mkdir(exist_ok=True)
                NEXT.write_text(str(number))
                return
            yield from ((number, strategy) for strategy in strategies)

    stages.watch()
    began, results = time.monotonic(), list[dict[str, Any]]()
    told = began
    for strategy in strategies:  # what is cached and compiled once, all forked processes have then
        _worlds.append(run(WARM_UP, strategy, worlds=_worlds))
    for result in pool.each(
        jobs(), lambda seed, strategy: run(seed, strategy).plain(), options.jobs
    ):
        results.append(result)
        for problem in result["problems"]:
            print(f"seed {result['seed']} {result['strategy']}: {problem}", flush=True)
        if options.first and result["problems"]:
            break
        if time.monotonic() > told + TELL:
            told = time.monotonic()
            print(_line(results, told - began), file=sys.stderr, flush=True)
    seconds = time.monotonic() - began
    violations = _violations(results)
    summary = _summary(results, violations, seconds)
    if options.json:
        options.json.write_text(json.dumps(summary, indent=1) + "\n")
    if options.report and results:
        from tests.simulation import report

        report.add_run(summary)
    print(f"{summary['means']}")
    print(_line(results, seconds))
    return int(violations > 0)


def _violations(results: list[dict[str, Any]]) -> int:
    return sum(bool(result["problems"]) for result in results)


def _line(results: list[dict[str, Any]], seconds: float) -> str:
    rate = len(results) / seconds
    return f"{len(results)} seeds, {_violations(results)} violations, {rate:.2f} seeds a second"


def _summary(results: list[dict[str, Any]], violations: int, seconds: float) -> dict[str, Any]:
    whole = [result for result in results if "digest" in result]
    faults: Counter[str] = Counter()
    statuses: Counter[str] = Counter()
    for result in whole:
        faults.update(result["faults"])
        statuses.update(result["statuses"])
    keys = (
        "seconds",
        "gateways",
        "deliveries",
        "identified",
        "tries",
        "executions",
        "callbacks",
        "cpu",
    )
    means = {key: round(sum(r[key] for r in whole) / max(len(whole), 1), 3) for key in keys}
    cpu = sum(result["cpu"] for result in whole)
    numbers = [result["seed"] for result in results]
    return {
        "strategies": dict(sorted(Counter(r["strategy"] for r in results).items())),
        "first": min(numbers, default=None),
        "last": max(numbers, default=None),
        "seeds": len(results),
        "violations": violations,
        "seconds": round(seconds, 1),
        "seeds_per_second": round(len(results) / seconds, 2),
        "virtual_hours": round(sum(r["seconds"] for r in whole) / 3600, 2),
        "calm": sum(r["calm"] for r in whole),
        "means": means,
        "callbacks_per_cpu_second": round(sum(r["callbacks"] for r in whole) / max(cpu, 1e-9)),
        "faults": dict(sorted(faults.items())),
        "statuses": dict(sorted(statuses.items())),
        "stages": sorted({cell for result in whole for cell in result["stages"]}),
        "failed": [
            {key: r[key] for key in ("seed", "strategy", "problems")}
            for r in results
            if r["problems"]
        ],
    }


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    # Without an orderly end: what simulated processes have left is no concern of this one.
    os._exit(status)
