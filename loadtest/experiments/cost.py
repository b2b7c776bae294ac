"""What relaying costs: a gateway beside Tornado alone, a reply beside a task that gives none."""

from __future__ import annotations

import argparse
from contextlib import nullcontext
from functools import partial

from loadtest import driver
from loadtest.bench import Bench, Front
from loadtest.load import closed
from loadtest.report import Report
from loadtest.stack import Stack
from loadtest.targets import Bounds, Target, ratios
from loadtest.trials import Trial, alternate

DEFAULTS = {"strategies": ["pika", "redis"], "connections": [64], "duration": 10}

ALONE = 0.02  # seconds
#: Of the worker's CPU for a task, over that for one whose result is ignored.
BOUNDS: dict[str, Bounds] = {"reply": {"at_most": 1.35, "aim": 1.2}, "store": {}}
_GATEWAY, _WORKER = ("cpu_us_per_request", "gateway"), ("cpu_us_per_request", "worker")


def run(options: argparse.Namespace, stack: Stack) -> Report:
    """Load gateways and Tornado in turn, then the worker alone."""
    bench = Bench(stack)
    report = Report("cost", versions=bench.versions())
    loads = [closed(bench, n, options.duration, options.threads) for n in options.connections]
    with bench.worker():
        worker = Front("", dict(bench.servers))
        trials = [
            *(Trial(name, partial(bench.gateway, name), loads) for name in options.strategies),
            Trial("tornado", partial(bench.alone, ALONE), loads),
            Trial("tornado-below", partial(bench.alone, ALONE, "--below"), loads),
            *(
                Trial(
                    way,
                    lambda: nullcontext(worker),
                    [driver.tasks(bench, way, options.requests)],
                    checked=False,
                )
                for way in driver.WAYS
            ),
        ]
        alternate(trials, options, report)
    for case in (load.case for load in loads):
        for name in options.strategies:
            values = ratios(report.rows, _GATEWAY, (name, case), ("tornado", case))
            text = f"gateway CPU, {name} / Tornado, {case}"
            report.judge(Target(text, values, at_most=1.25, aim=1.0))
    tasks = trials[-1].loads[0].case
    for way, bounds in BOUNDS.items():
        values = ratios(report.rows, _WORKER, (way, tasks), ("ignore_result", tasks))
        report.judge(Target(f"worker CPU, {way} / ignore_result", values, **bounds))
    fewest = min((row["requests"] for row in report.rows), default=0)
    report.remarks = [
        f"tornado: a RequestHandler that answers {ALONE * 1e3:g} ms later with the body, without "
        "any relay, on the gateway's event loop; tornado-below: the same by an "
        "HTTPMessageDelegate. reply, store, ignore_result: the worker alone with that many echo "
        f"tasks waiting for it. At least {fewest:,} requests a measurement, after a warm-up.",
    ]
    return report
