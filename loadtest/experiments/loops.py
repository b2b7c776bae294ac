"""Compare the event loops that a gateway can run on."""

from __future__ import annotations

import argparse
from functools import partial

from loadtest.bench import Bench
from loadtest.load import closed
from loadtest.report import Report
from loadtest.stack import Stack
from loadtest.targets import Target, ratios
from loadtest.trials import Trial, alternate

DEFAULTS = {"strategies": ["pika", "redis"], "connections": [64]}

LOOPS = ("asyncio", "uvloop")


def run(options: argparse.Namespace, stack: Stack) -> Report:
    """Load each strategy on each loop."""
    bench = Bench(stack)
    report = Report("loops", versions=bench.versions())
    (connections,) = options.connections[:1]
    trials = [
        Trial(
            name,
            partial(bench.gateway, name, "--loop", loop),
            [closed(bench, connections, options.duration, options.threads, case=loop)],
        )
        for name in options.strategies
        for loop in LOOPS
    ]
    with bench.worker():
        alternate(trials, options, report)
    for name in options.strategies:
        cpu = ("cpu_us_per_request", "gateway")
        values = ratios(report.rows, cpu, (name, LOOPS[1]), (name, LOOPS[0]))
        report.judge(Target(f"gateway CPU, {name}, uvloop / asyncio", values))
    report.remarks = [f"{connections} connections."]
    return report
