"""Does one tenant hold up the others? A flood, or tasks that hang, on fair queues and on one."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from gateway.config.task import fair_names
from loadtest import table, tenants
from loadtest.bench import Bench, Front
from loadtest.load import AROUND, Load, take
from loadtest.report import Report
from loadtest.stack import Stack
from loadtest.summary import Row
from loadtest.table import Column
from loadtest.targets import Target, figures
from loadtest.tasks import Task
from loadtest.tenants import FLOOD, HANG, NOTHING, Beside
from loadtest.trials import Trial, alternate

DEFAULTS = {
    "strategies": ["pika", "redis"],
    "requests": 20_000,
    "duration": 20,
    "repeats": 1,
    "checked": 200,
    "task": Task(0.1),
    "fair_queues": [16],
    "fair_prefetch": [1],
}

#: Processes of the worker.
POOL = 8
#: Seconds after which a request is a 504.
DEADLINE = 10.0
#: Seconds after which the worker ends a task that hangs, by an exception. A hard limit kills the
#: process, for which the worker's loop stops; that would be measured instead.
TIME_LIMIT = 3
#: What a request may take, measured by the 99th percentile where nobody disturbs, and takes
#: without noticing anything.
UNNOTICED = 1.1

_ROUTES = """\
[[routes]]
path = "/{queue}"
task = "appserver.tasks.sleep"
queue = "{queue}"
{fair}

[[routes]]
path = "/{queue}/taken"
task = "appserver.tasks.sleep"
queue = "{queue}"
answer = "accept"
ignore_result = true
{fair}

[[routes]]
path = "/{queue}/hanging"
task = "appserver.tasks.sleep"
queue = "{queue}"
answer = "accept"
ignore_result = true
soft_time_limit = {limit}
{fair}

"""


def run(options: argparse.Namespace, stack: Stack) -> Report:
    """Let nine tenants send one request a second each, while a tenth does what it wants."""
    config = _routes("plain", "")
    for number in options.fair_queues:
        config += _routes(f"fair-{number}", f'fair_by = "header:x-tenant"\nfair_queues = {number}')
    bench = Bench(stack, deadline=DEADLINE, config=config)
    report = Report("fair", versions=bench.versions())
    report.options = {
        "worker_pool": f"prefork:{POOL}",
        "task_seconds": options.task.seconds,
        "time_limit": TIME_LIMIT,
    }

    @contextmanager
    def start(strategy: str, number: int, prefetch: int) -> Iterator[Front]:
        fair = {"GATEWAY_FAIR_QUEUES": f"fair-{number}:{number}"}
        fair["GATEWAY_FAIR_PREFETCH"] = str(prefetch)
        queues = ["celery", "plain", f"fair-{number}"]
        try:
            with (
                bench.worker("prefork", POOL, queues=queues, env=fair),
                bench.gateway(strategy) as front,
            ):
                yield front
        finally:
            # What the worker held comes back when it ends.
            tenants.purge(bench, "plain", 0)
            tenants.purge(bench, f"fair-{number}", number)

    settings = [(n, k) for n in options.fair_queues for k in options.fair_prefetch]
    trials = [
        Trial(
            strategy,
            partial(start, strategy, number, prefetch),
            [
                *_loads(bench, options, f"fair-{number}", _fair(number, prefetch), number),
                # Once is enough.
                *(_loads(bench, options, "plain", "off") if not n else ()),
            ],
        )
        for strategy in options.strategies
        for n, (number, prefetch) in enumerate(settings)
    ]
    alternate(trials, options, report)
    for strategy in options.strategies:
        for number, prefetch in settings:
            _judge(report, strategy, _fair(number, prefetch))
        _compare(report, strategy, "off")
    report.columns = [
        Column("answered", ("requests",), total=True),
        Column("504s", ("unanswered",), total=True),
        *table.LATENCIES,
        Column("unnoticed %", ("unnoticed_percent",)),
        Column("taken of the tenth", ("beside", "taken")),
        Column("left of it", ("beside", "left")),
        *table.FAULTS,
    ]
    report.charts = [
        ("99th percentile of nine tenants, ms", "shorter is better", ("latency_ms", "p99")),
    ]
    report.remarks = [
        f"Nine tenants send a request a second each, whose task sleeps {options.task.seconds:g} s, "
        f"in a prefork pool of {POOL}; a 504 counts as {DEADLINE:g} s. A tenth has "
        f"{options.requests:,} deliveries taken as fast as it can (flood), or sends four a second "
        f"whose tasks hang until their time limit of {TIME_LIMIT} s (hang). N: fair queues, k: "
        "prefetch of each. unnoticed: the share of the nine's requests that took at most "
        f"{UNNOTICED:g} times the 99th percentile of the calm run with the same settings.",
        *(tenants.sharing(number) for number in options.fair_queues),
    ]
    return report


def _fair(number: int, prefetch: int) -> str:
    return f"N={number} k={prefetch}"


def _routes(queue: str, fair: str) -> str:
    return _ROUTES.format(queue=queue, fair=fair, limit=TIME_LIMIT)


def _loads(
    bench: Bench, options: argparse.Namespace, queue: str, name: str, number: int = 0
) -> list[Load]:
    """Return the measurements of one setting; the calm one is first, as others refer to it."""
    calm: list[float] = []

    def measure(kind: str, front: Front) -> Row:
        beside = Beside(kind, options.requests)
        seconds = options.task.seconds
        target = f"{front.address}/{queue}", f"?seconds={seconds:g}"
        tenants.wait_until_idle(bench, fair_names(queue, number))
        run = partial(tenants.send, *target, options.duration, DEADLINE, beside)
        row = take(bench, front, len(tenants.OTHERS), run)
        if kind == NOTHING:
            calm[:] = [row["latency_ms"]["p99"]]
        unnoticed = [ms <= UNNOTICED * calm[0] for ms in row.pop("each_ms")]
        row["unnoticed_percent"] = round(100 * sum(unnoticed) / len(unnoticed), 2)
        row["beside"]["left"] = tenants.purge(bench, queue, number)
        return row

    return [
        Load(f"{name}, {kind}", options.duration + AROUND + rest, partial(measure, kind))
        for kind, rest in ((NOTHING, 0), (FLOOD, 4), (HANG, 2 * TIME_LIMIT))
    ]


def _judge(report: Report, strategy: str, name: str) -> None:
    _compare(report, strategy, name, at_most=2)
    hang = figures(report.rows, strategy, ("unnoticed_percent",), f"{name}, {HANG}")
    report.judge(Target(f"unnoticed with a hang, {name}, {strategy}", hang, " %", at_least=95))


def _compare(report: Report, strategy: str, name: str, at_most: float | None = None) -> None:
    pair = (strategy, f"{name}, {FLOOD}"), (strategy, f"{name}, {NOTHING}")
    what = f"p99 with a flood / without, {name}, {strategy}"
    report.compare(what, ("latency_ms", "p99"), *pair, at_most=at_most)
