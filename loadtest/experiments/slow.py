"""Do tasks that take their time slow the gateway down? 50 ms beside tasks that take none."""

from __future__ import annotations

import argparse
from functools import partial

from gateway.config.strategies import properties
from loadtest.bench import Bench
from loadtest.load import closed
from loadtest.report import Report
from loadtest.stack import Stack
from loadtest.targets import Bounds, Target, figures
from loadtest.tasks import Task
from loadtest.trials import Trial, alternate

DEFAULTS = {
    "strategies": ["pika", "redis", "blocking"],
    "connections": [256],
    "duration": 8,
    "checked": 400,
}

SECONDS = 0.05
#: The cheapest pool for tasks that sleep; two workers, as one's threads share its lock.
#: With 128 threads 2,560 tasks a second can sleep; with 256 in one, each costs a third more.
POOL, SIZE, WORKERS = "threads", 64, 2
# Waits for one task at a time: more connections would only wait longer.
_BLOCKING = 8


def run(options: argparse.Namespace, stack: Stack) -> Report:
    """Load each strategy with both tasks, in front of the same workers."""
    connections = options.connections[0]
    slow = Task(SECONDS)
    bench = Bench(stack, slow.deadline(options.checked))
    report = Report("slow", versions=bench.versions())
    report.options = {"worker_pool": f"{WORKERS} x {POOL}:{SIZE}", "task_seconds": SECONDS}
    cases = {f"{task.seconds * 1e3:g} ms": task for task in (Task(), slow)}
    with bench.worker(POOL, SIZE, WORKERS):
        trials = [
            Trial(
                name,
                partial(bench.gateway, name),
                [
                    closed(
                        bench,
                        _BLOCKING if properties(name).blocks else connections,
                        options.duration,
                        options.threads,
                        task.path,
                        case,
                    )
                    for case, task in cases.items()
                ],
            )
            for name in options.strategies
        ]
        alternate(trials, options, report)
    fast_case, slow_case = cases
    for name in options.strategies:
        blocks = properties(name).blocks
        share_bounds: Bounds = {} if blocks else {"at_least": 0.8}
        rate_bounds: Bounds = {} if blocks else {"at_least": 1_200}
        title = f"req/s of {slow_case} / {fast_case}, {name}"
        report.compare(title, ("rps",), (name, slow_case), (name, fast_case), **share_bounds)
        rate = figures(report.rows, name, ("rps",), slow_case)
        report.judge(Target(f"req/s of {slow_case}, {name}", rate, **rate_bounds))
    report.remarks = [
        f"{WORKERS} workers with a {POOL} pool of {SIZE} each for both tasks, {connections:,} "
        f"connections (blocking: {_BLOCKING}).",
    ]
    return report
