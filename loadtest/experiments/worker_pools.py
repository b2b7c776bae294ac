"""Compare the worker's pools, behind the same gateway."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from loadtest.bench import Bench, Front
from loadtest.load import closed
from loadtest.report import Report
from loadtest.stack import Stack
from loadtest.trials import Trial, alternate

DEFAULTS = {"strategies": ["pika", "redis"], "connections": [64]}

SUPERVISED = "supervised solo"
#: Pool and its size: processes, threads, greenlets; workers of the pool `solo` under a supervisor.
POOLS = {"solo": 1, SUPERVISED: 2, "prefork": 2, "threads": 8, "gevent": 64}
#: The pool whose rate another one is to come near to, with as many processes.
NEAR = {"prefork": SUPERVISED, "threads": "solo", "gevent": "solo"}


def run(options: argparse.Namespace, stack: Stack) -> Report:
    """Load each strategy before one worker of each pool."""
    bench = Bench(stack)
    report = Report("worker-pools", versions=bench.versions())

    @contextmanager
    def start(name: str, pool: str) -> Iterator[Front]:
        size = POOLS[pool]
        supervised = pool == SUPERVISED
        workers = bench.supervised_workers(size) if supervised else bench.worker(pool, size)
        with workers, bench.gateway(name) as front:
            yield front

    trials = [
        Trial(
            name,
            partial(start, name, pool),
            [closed(bench, n, options.duration, options.threads, case=_case(pool, n))],
        )
        for n in options.connections
        for name in options.strategies
        for pool in POOLS
    ]
    alternate(trials, options, report)
    for n in options.connections:
        for name in options.strategies:
            for pool, other in NEAR.items():
                of, over = _case(pool, n), _case(other, n)
                what = f"req/s, {name}, {of} / {over}"
                report.compare(what, ("rps",), (name, of), (name, over), at_least=0.8, aim=0.95)
    report.remarks = ["Echo tasks: what a pool costs, and not what it is good for."]
    return report


def _case(pool: str, connections: int) -> str:
    return f"{pool}:{POOLS[pool]}, {connections} conns"
