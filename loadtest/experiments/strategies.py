"""Compare the strategies: each gateway alone in front of the same broker, Redis and worker."""

from __future__ import annotations

import argparse
from collections.abc import Set
from typing import Any

from gateway.stack import Stack, StackError
from loadtest.bench import AT_ONCE, CHECKED, Bench
from loadtest.progress import Progress
from loadtest.report import Report
from loadtest.summary import Summary
from loadtest.wrk import WrkError

#: All others work with any Celery worker.
NEEDS_REPLY_BACKEND = {"pika"}

# What a step takes beside the load itself, in seconds: for the estimate only.
_START, _AROUND = 8, 4


def run(options: argparse.Namespace, stack: Stack) -> Report:
    """Measure every strategy at every number of connections, `options.repeats` times.

    The order is A B C A B C, so that what changes on the machine meanwhile hits all of them.
    """
    strategies, connections = options.strategies, options.connections
    a_round = _START + len(connections) * (options.duration + _AROUND)
    progress = Progress(20 + options.repeats * len(strategies) * a_round)
    progress.step("starting RabbitMQ, Redis and a Celery worker", 20)
    bench = Bench(stack, options.task, max(connections))
    report = Report("strategies", versions=bench.versions())
    faulty: set[str] = set()
    for repeat in range(1, options.repeats + 1):
        for strategy in strategies:
            try:
                if not _round(bench, strategy, repeat, options, progress, report):
                    faulty.add(strategy)
            except (StackError, WrkError) as exc:
                # The others' numbers are worth having.
                faulty.add(strategy)
                report.failures.append(f"{strategy}, repeat {repeat}: {exc}")
                progress.note(f"FAILED: {exc}")
    report.conclusion = conclude(report.summaries(), faulty)
    return report


def _round(
    bench: Bench,
    strategy: str,
    repeat: int,
    options: argparse.Namespace,
    progress: Progress,
    report: Report,
) -> bool:
    """Start one gateway, check its answers one to one, then load it.

    Returns whether the check went well.
    """
    which = f"{strategy}, repeat {repeat} of {options.repeats}"
    progress.step(f"{which}: checking {CHECKED:,} requests, {AT_ONCE} at once", _START)
    with bench.gateway(strategy) as gateway:
        check = {"strategy": strategy, "repeat": repeat, **bench.check(gateway)}
        report.checks.append(check)
        if problem := _problem(check):
            progress.note(f"FAILED: {problem}")
        for connections in options.connections:
            progress.step(
                f"{which}: {connections} connections for {options.duration} s",
                options.duration + _AROUND,
            )
            row = bench.measure(gateway, connections, options.threads, options.duration)
            report.rows.append({"strategy": strategy, "repeat": repeat, **row})
            progress.note(
                f"{row['rps']:,.0f} req/s, p99 {row['latency_ms']['p99']:,.1f} ms, "
                f"{row['errors']} errors, {row['wrong_answers']} wrong answers"
            )
    return not problem


def _problem(check: dict[str, Any]) -> str:
    kinds = ("wrong_answers", "not_2xx", "missing")
    return ", ".join(f"{check[kind]} {kind.replace('_', ' ')}" for kind in kinds if check[kind])


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
