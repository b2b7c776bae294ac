"""What relaying costs: a gateway beside Tornado alone, a reply beside a task that gives none."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from loadtest import driver
from loadtest.bench import Bench, Front
from loadtest.load import closed, constant, see_that_schedules_were_kept
from loadtest.report import Report
from loadtest.stack import Stack
from loadtest.targets import Bounds, Target, ratios
from loadtest.trials import Trial, alternate

DEFAULTS = {"strategies": ["pika", "redis"], "connections": [64], "duration": 10}

ALONE = 0.02  # seconds
RATES = (50, 400, 1_600)  # a second
#: Of the worker's CPU for a task, over that of Celery's own worker for one whose result is ignored.
BOUNDS: dict[str, Bounds] = {
    "reply": {"at_most": 0.9, "aim": 0.6},
    "store": {"at_most": 1.3, "aim": 1},
    "ignore_result": {},
}
_STOCK = "stock"
_GATEWAY, _WORKER = ("cpu_us_per_request", "gateway"), ("cpu_us_per_request", "worker")


def run(options: argparse.Namespace, stack: Stack) -> Report:
    """Load gateways and Tornado in turn, then the worker alone.

    At the same number of connections a faster server has more to do, and pays less for each
    request; at the same rate it does not.
    """
    bench = Bench(stack)
    report = Report("cost", versions=bench.versions())
    loads = [closed(bench, n, options.duration, options.threads) for n in options.connections]
    same = [constant(bench, rate, options.duration, f"{rate:,}/s") for rate in RATES]
    ignored = driver.tasks(bench, "ignore_result", options.requests)
    trials = [
        *(Trial(n, partial(_gateway, bench, n), [*loads, *same]) for n in options.strategies),
        Trial("tornado", partial(bench.alone, ALONE), [*loads, *same]),
        Trial("tornado-below", partial(bench.alone, ALONE, "--below"), loads),
        *(
            Trial(
                way,
                partial(_worker, bench),
                [driver.tasks(bench, way, options.requests)],
                checked=False,
            )
            for way in driver.WAYS
        ),
        Trial(_STOCK, partial(_stock_worker, bench), [ignored], checked=False),
    ]
    alternate(trials, options, report)
    see_that_schedules_were_kept(report)
    bounds = {**dict.fromkeys((n.case for n in loads), 1.25), **{n.case: 1.1 for n in same}}
    for case, bound in bounds.items():
        for name in options.strategies:
            values = ratios(report.rows, _GATEWAY, (name, case), ("tornado", case))
            text = f"gateway CPU, {name} / Tornado, {case}"
            report.judge(Target(text, values, at_most=bound, aim=1.0))
    tasks = trials[-1].loads[0].case
    for way, asked in BOUNDS.items():
        values = ratios(report.rows, _WORKER, (way, tasks), (_STOCK, tasks))
        report.judge(Target(f"worker CPU, {way} / {_STOCK}", values, **asked))
    fewest = min((row["requests"] for row in report.rows if "schedule" not in row), default=0)
    report.remarks = [
        f"tornado: a RequestHandler that answers {ALONE * 1e3:g} ms later with the body, without "
        "any relay, on the gateway's event loop; tornado-below: the same by an "
        "HTTPMessageDelegate. reply, store, ignore_result: the worker alone with that many echo "
        f"tasks waiting for it; {_STOCK}: Celery's own worker with as many whose results are "
        f"ignored. At least {fewest:,} requests a measurement, after a warm-up. N "
        "connections: as many requests as each answers; N/s: the same rate for all.",
    ]
    return report


@contextmanager
def _gateway(bench: Bench, strategy: str) -> Iterator[Front]:
    with bench.worker(), bench.gateway(strategy) as front:
        yield front


@contextmanager
def _worker(bench: Bench) -> Iterator[Front]:
    with bench.worker():
        yield Front("", dict(bench.servers))


@contextmanager
def _stock_worker(bench: Bench) -> Iterator[Front]:
    with bench.worker(app="loadtest.servers.plain", results="rpc://"):
        yield Front("", dict(bench.servers))
