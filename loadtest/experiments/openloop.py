"""Latencies at constant rates: what senders see who do not wait for each other.

Tornado alone is asked for the same rates, for what they cost it; a client without HTTP too, for
what of the latencies is the worker's and the broker's; and this client beside a process that uses
as much CPU time as the gateway, for what is this machine's.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from statistics import median

from gateway.stack import StackError
from loadtest import table
from loadtest.amqp import Requester
from loadtest.bench import Bench, Front
from loadtest.experiments.cost import ALONE
from loadtest.load import AROUND, Load, closed, constant, see_that_schedules_were_kept, take
from loadtest.report import Report
from loadtest.stack import Stack
from loadtest.summary import Row
from loadtest.table import Column
from loadtest.targets import Bounds, Target, figures
from loadtest.trials import Trial, alternate, running

DEFAULTS = {"strategies": ["pika", "redis"], "connections": [64], "duration": 6}

SHARES = {"30 %": 0.3, "60 %": 0.6, "80 %": 0.8}
CEILING = "ceiling"
#: What the 99th percentile at the second may be of that at the first.
LOW, HIGH = "30 %", "60 %"
_CPU = "cpu_us_per_request", "gateway"
_P99 = "latency_ms", "p99"
#: What a percentile may be of that of the client without HTTP, at most.
BARE = "amqp"
#: The same client beside a process that uses as much CPU time as the gateway did.
BESIDE = "amqp, busy"
BOUNDS: dict[tuple[str, str], Bounds] = {
    ("p99", LOW): {"at_most": 1.5, "aim": 1.2},
    ("p99", HIGH): {"at_most": 2, "aim": 1.2},
    ("p999", LOW): {"at_most": 2},
    ("p999", HIGH): {"at_most": 3},
}


def run(options: argparse.Namespace, stack: Stack) -> Report:
    """Find each strategy's ceiling with wrk, then send at shares of it."""
    bench = Bench(stack)
    report = Report("openloop", versions=bench.versions())

    def rate(name: str, share: float) -> Callable[[], float]:
        def of_ceiling() -> float:
            # Of all so far: one round's may have been disturbed.
            ceilings = figures(report.rows, name, ("rps",), CEILING)
            if not ceilings:
                raise StackError(f"{name} has no ceiling: nothing is known to be a share of it")
            return share * median(ceilings)

        return of_ceiling

    (connections,) = options.connections[:1]
    with bench.worker() as worker:
        trials = [
            Trial(
                name,
                partial(bench.gateway, name),
                [
                    closed(bench, connections, options.duration, options.threads, case=CEILING),
                    *(
                        constant(bench, rate(name, share), options.duration, case)
                        for case, share in SHARES.items()
                    ),
                ],
            )
            for name in options.strategies
        ]
        shares = [
            (_of(case, name), rate(name, share))
            for name in options.strategies
            for case, share in SHARES.items()
        ]
        alone = [constant(bench, rate, options.duration, case) for case, rate in shares]
        trials.append(Trial("tornado", partial(bench.alone, ALONE), alone))
        bare = [_bare(bench, rate, options.duration, case) for case, rate in shares]
        trials.append(running(BARE, worker, bare))

        def used(name: str, case: str) -> Callable[[], float]:
            return lambda: median(figures(report.rows, name, _CPU, case))

        busy = [
            _bare(
                bench, rate(name, SHARES[case]), options.duration, _of(case, name), used(name, case)
            )
            for name in options.strategies
            for case in (LOW, HIGH)
        ]
        trials.append(running(BESIDE, worker, busy))
        alternate(trials, options, report)
    see_that_schedules_were_kept(report)
    for name in options.strategies:
        for case in SHARES:
            values = figures(report.rows, name, _P99, case)
            report.judge(Target(f"p99 at {case}, {name}", values, " ms"))
        title = f"p99 at {HIGH} / at {LOW}, {name}"
        report.compare(title, _P99, (name, HIGH), (name, LOW), at_most=5, aim=2)
        for (percentile, case), bounds in BOUNDS.items():
            path = "latency_ms", percentile
            for client in (BARE, BESIDE):
                title = f"{percentile} at {case}, {name} / {client}"
                report.compare(title, path, (name, case), (client, _of(case, name)), **bounds)
        for case in SHARES:
            title = f"gateway CPU at {case}, {name} / Tornado"
            report.compare(title, _CPU, (name, case), ("tornado", _of(case, name)))
    report.columns = [
        Column("rate", ("schedule", "rate")),
        Column("sent/s", ("schedule", "sent")),
        table.REQUESTS,
        Column("p50 ms", ("latency_ms", "p50"), spread=True),
        Column("p90 ms", ("latency_ms", "p90")),
        *table.LATENCIES[1:],
        Column("late p50", ("schedule", "late_ms", "p50")),
        Column("late p99", ("schedule", "late_ms", "p99")),
        Column("late max", ("schedule", "late_ms", "max")),
        Column("client us", ("schedule", "client_cpu_us")),
        Column("gateway us", _CPU),
        *table.FAULTS,
    ]
    report.remarks = [
        f"Ceiling: wrk with {connections} connections. Rates are shares of the median of the "
        "ceilings measured so far. Latencies count from when a request was due, not from when it "
        "was sent; late: how long after it was due the client sent it, in ms. tornado: a "
        f"RequestHandler that answers {ALONE * 1e3:g} ms later, without any relay, at the same "
        f"rates. {BARE}: the same tasks at the same rates without HTTP, with confirms. {BESIDE}: "
        "the same client, beside a process that does nothing but use as much CPU time at that rate "
        "as the gateway did, which is its gateway us: what of a latency is this machine's.",
    ]
    return report


def _bare(
    bench: Bench,
    rate: Callable[[], float],
    seconds: float,
    case: str,
    us: Callable[[], float] | None = None,
) -> Load:
    """Send without HTTP; `us`: beside a process that uses so much CPU time for each request."""

    def measure(front: Front) -> Row:
        a_second = rate()
        with (
            nullcontext(front) if us is None else bench.busy(a_second, us()) as front,
            Requester(bench.broker.url) as requester,
        ):
            requester.warm_up(64)
            return take(bench, front, 1, partial(requester.at_rate, a_second, seconds))

    return Load(case, seconds + AROUND, measure)


def _of(case: str, name: str) -> str:
    return f"{case} of {name}"
