"""Compare ways to receive replies, and one worker with several, without a gateway's own cost."""

from __future__ import annotations

import argparse
from functools import partial
from typing import Any

from loadtest.amqp import in_flight
from loadtest.bench import Bench
from loadtest.report import Report
from loadtest.stack import Stack
from loadtest.trials import Trial, alternate

DEFAULTS: dict[str, Any] = {}

#: How replies come: without a queue, or through an exclusive one, which is the gateway's way.
WAYS = {"direct reply-to": True, "reply queue": False}
WORKERS = (1, 2)


def run(options: argparse.Namespace, stack: Stack) -> Report:
    """Keep as many tasks in flight as there would be connections, over bare AMQP."""
    bench = Bench(stack)
    report = Report("replies", versions=bench.versions())

    trials = [
        Trial(
            way,
            partial(bench.worker, count=count),
            [
                in_flight(bench, n, options.duration, _case(count, n), direct)
                for n in options.connections
            ],
            checked=False,
        )
        for count in WORKERS
        for way, direct in WAYS.items()
    ]
    alternate(trials, options, report)
    for count in WORKERS:
        for n in options.connections:
            case = _case(count, n)
            for what, path in (
                ("req/s", ("rps",)),
                ("broker CPU", ("cpu_us_per_request", "broker")),
            ):
                direct, queue = ((way, case) for way in WAYS)
                report.compare(f"{what}, {' / '.join(WAYS)}, {case}", path, direct, queue)
    report.remarks = [
        "Tasks are published by a client without HTTP, transient and confirmed, and answered "
        "by appserver workers with a solo pool.",
    ]
    return report


def _case(count: int, window: int) -> str:
    return f"{count} worker{'s' if count > 1 else ''}, {window:,} at once"
