"""Compare ways to receive replies, and one worker with several, without a gateway's own cost."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from loadtest.amqp import Requester
from loadtest.bench import Bench, Front
from loadtest.load import AROUND, Load, take
from loadtest.report import Report
from loadtest.stack import Stack
from loadtest.summary import Row
from loadtest.targets import Target, ratios
from loadtest.trials import Trial, alternate

DEFAULTS: dict[str, Any] = {}

#: How replies come: without a queue, or through an exclusive one, which is the gateway's way.
WAYS = {"direct reply-to": True, "reply queue": False}
WORKERS = (1, 2)


def run(options: argparse.Namespace, stack: Stack) -> Report:
    """Keep as many tasks in flight as there would be connections, over bare AMQP."""
    bench = Bench(stack)
    report = Report("replies", versions=bench.versions())

    @contextmanager
    def start(count: int) -> Iterator[Front]:
        with bench.worker(count=count):
            yield Front("", dict(bench.servers))

    trials = [
        Trial(
            way,
            partial(start, count),
            [_load(bench, direct, count, n, options.duration) for n in options.connections],
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
                values = ratios(report.rows, path, *((way, case) for way in WAYS))
                report.judge(Target(f"{what}, {' / '.join(WAYS)}, {case}", values))
    report.remarks = [
        "Tasks are published by a client without HTTP, transient and confirmed, and answered "
        "by appserver workers with a solo pool.",
    ]
    return report


def _load(bench: Bench, direct: bool, count: int, window: int, duration: int) -> Load:
    def measure(front: Front) -> Row:
        with Requester(bench.broker.url, direct=direct) as requester:
            requester.warm_up(window)
            trips = partial(requester.round_trips, window, seconds=duration)
            return take(bench, front, window, trips)

    return Load(_case(count, window), duration + AROUND, measure)


def _case(count: int, window: int) -> str:
    return f"{count} worker{'s' if count > 1 else ''}, {window:,} at once"
