"""What relaying costs: a gateway beside Tornado alone, a reply beside a task that gives none."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from statistics import median

from gateway.config.strategies import properties
from loadtest import amqp
from loadtest.bench import Bench, Front
from loadtest.load import closed, constant, see_that_schedules_were_kept
from loadtest.report import Report
from loadtest.stack import Stack
from loadtest.targets import Bounds, figures
from loadtest.trials import Trial, alternate

DEFAULTS = {"strategies": ["pika", "redis"], "connections": [64], "duration": 10}

ALONE = 0.02  # seconds
RATES = (50, 400, 1_600)  # a second
#: Celery's own worker cannot run more on two cores: what waits for it would be measured instead.
STOCK_RATES = RATES[:2]
#: Of the gateway's CPU for a request, over Tornado's at as many connections; at equal rates.
AT_ONCE = {"pika": 0.85, "redis": 0.95}
AT_A_RATE = 1.1
#: What has answered a smaller share of a rate has had another rate, and is not judged at this one.
ANSWERED = 0.95
#: The worker's pools, and how many processes each has.
POOLS = {"solo": 1, "prefork": 2}
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
    same = [constant(bench, rate, options.duration, _at(rate)) for rate in RATES]
    strategies = options.strategies
    trials = [
        *(Trial(n, partial(_gateway, bench, n), [*loads, *same]) for n in strategies),
        *(
            Trial(_stock(n), partial(_stock_gateway, bench, n), same[: len(STOCK_RATES)])
            for n in strategies
        ),
        Trial("tornado", partial(bench.alone, ALONE), [*loads, *same]),
        Trial("tornado-below", partial(bench.alone, ALONE, "--below"), loads),
        *(trial for pool in POOLS for trial in _workers(bench, pool, options.requests)),
    ]
    alternate(trials, options, report)
    see_that_schedules_were_kept(report)
    for name in strategies:
        for load in loads:
            _judge_gateway(report, name, load.case, AT_ONCE.get(name, AT_A_RATE))
    for name in [*strategies, *map(_stock, strategies)]:
        judge_at_rates(report, name)
    for pool in POOLS:
        case = amqp.tasks_case(options.requests, pool)
        for way, asked in BOUNDS.items():
            name = f"worker CPU, {way} / {_STOCK}, {pool}"
            report.compare(name, _WORKER, (way, case), (_STOCK, case), **asked)
    fewest = min((row["requests"] for row in report.rows if "schedule" not in row), default=0)
    report.remarks = [
        f"tornado: a RequestHandler that answers {ALONE * 1e3:g} ms later with the body, without "
        "any relay, on the gateway's event loop; tornado-below: the same by an "
        "HTTPMessageDelegate. Gateways have the app server's worker behind them, or, where the "
        "name says so, Celery's own, with the app server's event loop and prefetch limit, as "
        "Celery's loop stands still for up to a second again and again. reply, store, "
        "ignore_result: the worker alone with that many "
        f"echo tasks waiting for it; {_STOCK}: Celery's own worker with as many whose results are "
        f"ignored. solo has one process, prefork {POOLS['prefork']} and their parent. At least "
        f"{fewest:,} requests a measurement without a rate, after a warm-up. N connections: as "
        "many requests as each answers; N/s: the same rate for all, as far as a worker can run it.",
    ]
    return report


def judge_at_rates(report: Report, name: str) -> None:
    """Compare a gateway with Tornado at each rate; only where it has answered that is it judged."""
    for rate in RATES:
        case = _at(rate)
        answered = figures(report.rows, name, ("rps",), case)
        if answered:
            kept = median(answered) >= ANSWERED * rate
            _judge_gateway(report, name, case, AT_A_RATE if kept else None)


def _at(rate: int) -> str:
    return f"{rate:,}/s"


def _stock(strategy: str) -> str:
    return f"{strategy}, stock worker"


def _judge_gateway(report: Report, name: str, case: str, at_most: float | None) -> None:
    text = f"gateway CPU, {name} / Tornado, {case}"
    if at_most is None:
        answered = median(figures(report.rows, name, ("rps",), case))
        text += f" sent and {answered:,.0f}/s answered"
    report.compare(text, _GATEWAY, (name, case), ("tornado", case), at_most=at_most)


def _workers(bench: Bench, pool: str, requests: int) -> Iterator[Trial]:
    """The worker's trials with a `pool`: each way, and Celery's own worker."""
    for way in amqp.WAYS:
        load = amqp.tasks(bench, way, requests, pool)
        yield Trial(way, partial(bench.worker, pool, POOLS[pool]), [load], checked=False)
    load = amqp.tasks(bench, "ignore_result", requests, pool)
    stock = partial(bench.stock_worker, True, pool, POOLS[pool])
    yield Trial(_STOCK, stock, [load], checked=False)


@contextmanager
def _gateway(bench: Bench, strategy: str) -> Iterator[Front]:
    with bench.worker(), bench.gateway(strategy) as front:
        yield front


@contextmanager
def _stock_gateway(bench: Bench, strategy: str) -> Iterator[Front]:
    with bench.stock_worker(properties(strategy).replies), bench.gateway(strategy) as front:
        yield front
