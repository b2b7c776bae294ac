"""Compare the strategies: each gateway alone in front of the same broker, Redis and worker."""

from __future__ import annotations

import argparse
from collections.abc import Set
from functools import partial

from gateway.config.strategies import STRATEGIES
from loadtest.bench import Bench
from loadtest.load import closed
from loadtest.report import Report
from loadtest.stack import Stack
from loadtest.summary import Summary
from loadtest.trials import AT_ONCE, Trial, alternate

#: All others work with any Celery worker.
NEEDS_REPLY_BACKEND = {name for name, info in STRATEGIES.items() if info.replies}

DEFAULTS = {"duration": 30, "repeats": 3}


def run(options: argparse.Namespace, stack: Stack) -> Report:
    """Measure every strategy at every number of connections, `options.repeats` times."""
    task, connections = options.task, options.connections
    bench = Bench(stack, task.deadline(max(*connections, AT_ONCE)))
    report = Report("strategies", versions=bench.versions())
    report.options = {
        "task": task.name,
        "task_seconds": task.seconds,
        "worker_pool": ":".join(map(str, task.pool)),
    }
    loads = [closed(bench, n, options.duration, options.threads) for n in connections]
    trials = [
        Trial(
            strategy,
            partial(bench.gateway, strategy, path=task.path),
            loads,
            seconds_each=task.seconds,
        )
        for strategy in options.strategies
    ]
    with bench.worker(*task.pool):
        faulty = alternate(trials, options, report)
    report.conclusion = conclude(report.summaries(), faulty)
    return report


def conclude(summaries: list[Summary], faulty: Set[str] = frozenset()) -> str:
    """Say which strategy to use and why, from the medians of those without an error.

    `faulty` are those that failed beside the timed runs. Two rates whose ranges over the
    repeats overlap are called equal.
    """
    faulty = faulty | {s.strategy for s in summaries if not s.clean}
    most = max((s.connections for s in summaries), default=0)
    clean = [s for s in summaries if s.connections == most and s.strategy not in faulty]
    text = f"Not before their errors are explained: {', '.join(sorted(faulty))}. " if faulty else ""
    if not clean:
        return text + "No strategy went through without an error: there is nothing to recommend."
    fastest, *others = sorted(clean, key=lambda s: -s.median("rps"))
    cheapest = min(clean, key=lambda s: s.median("cpu_us_per_request", "gateway"))
    equal = [s for s in others if s.range("rps")[1] >= fastest.range("rps")[0]]
    stock = next((s for s in [fastest, *equal] if s.strategy not in NEEDS_REPLY_BACKEND), None)
    use = stock or fastest
    text += (
        f"Use {use.strategy}: at {most} connections it answers {use.median('rps'):,.0f} requests/s "
        f"(p99 {use.median('latency_ms', 'p99'):,.0f} ms)"
    )
    if others and others[-1] not in (use, *equal):
        times = use.median("rps") / others[-1].median("rps")
        text += f", {times:.1f} times what {others[-1].strategy} does"
    text += f", for {use.median('cpu_us_per_request', 'gateway'):,.0f} µs of gateway CPU each"
    if cheapest is not use:
        text += f" ({cheapest.strategy}: {cheapest.median('cpu_us_per_request', 'gateway'):,.0f})"
    text += ". "
    if same := [s.strategy for s in [fastest, *equal] if s is not use]:
        text += f"Not to be told from it by this run's spread: {', '.join(same)}. "
    if use.strategy in NEEDS_REPLY_BACKEND:
        text += "It needs workers with appserver.reply_backend"
        if rest := [s for s in others if s.strategy not in NEEDS_REPLY_BACKEND]:
            text += f"; with any Celery worker, {rest[0].strategy} is next "
            text += f"({rest[0].median('rps'):,.0f} requests/s)"
        text += "."
    else:
        text += "It works with any Celery worker."
    return text
