"""Compare the ways from a sender to the gateway: TCP, nginx and TCP, nginx and a UNIX socket."""

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

DEFAULTS = {"strategies": ["pika"], "connections": [64]}

WAYS = ("TCP", "nginx, TCP", "nginx, UNIX socket")


def run(options: argparse.Namespace, stack: Stack) -> Report:
    """Load each strategy over each way; connections are kept alive on all of them."""
    bench = Bench(stack)
    report = Report("fronts", versions=bench.versions())
    (connections,) = options.connections[:1]

    @contextmanager
    def start(name: str, way: str) -> Iterator[Front]:
        socket = stack.directory / "gateway.sock"
        flags = ("--uds", str(socket)) if way == WAYS[2] else ()
        with bench.gateway(name, *flags) as front:
            if way == WAYS[0]:
                yield front
                return
            upstream = f"unix:{socket}" if flags else front.address.removeprefix("http://")
            with bench.nginx(upstream, front) as through:
                yield through

    trials = [
        Trial(
            name,
            partial(start, name, way),
            [closed(bench, connections, options.duration, options.threads, case=way)],
        )
        for name in options.strategies
        for way in WAYS
    ]
    with bench.worker():
        alternate(trials, options, report)
    for name in options.strategies:
        for way in WAYS[1:]:
            what = f"req/s, {name}, {way} / TCP"
            report.compare(what, ("rps",), (name, way), (name, WAYS[0]))
    report.remarks = [
        f"{connections} connections; nginx with deploy/nginx.conf, beside the gateway.",
    ]
    return report
