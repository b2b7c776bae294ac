"""One request at a time: what HTTP and the gateway add to an AMQP round trip's latency.

The round trip is measured twice: by a client of pika, which is what the gateway has, too, and by
one that writes frames it has made before, below which nothing can get.
"""

from __future__ import annotations

import argparse
from contextlib import nullcontext
from functools import partial

from loadtest import client, pika_client
from loadtest.amqp import Requester
from loadtest.bench import Bench, Front
from loadtest.load import Load, take
from loadtest.report import Report
from loadtest.stack import Stack
from loadtest.summary import Row
from loadtest.targets import Bounds, Target, ratios
from loadtest.trials import Trial, alternate

DEFAULTS = {"strategies": ["pika", "redis"], "requests": 3_000}

CASE = "one at a time"
LIBRARY, FRAMES = "amqp, pika", "amqp, frames"
#: The most that p50 may be of a bare round trip's with `LIBRARY`.
BOUNDS: dict[str, Bounds] = {
    "pika": {"at_most": 1.4, "aim": 1.25},
    "redis": {"at_most": 1.6, "aim": 1.25},
}


def run(options: argparse.Namespace, stack: Stack) -> Report:
    """Ask each strategy and the bare connection in turn, with the same worker behind."""
    bench = Bench(stack)
    report = Report("alone", versions=bench.versions())

    def over_http(front: Front) -> Row:
        ask = partial(client.one_by_one, front.url, options.requests, bench.deadline + 5)
        return take(bench, front, 1, ask)

    def over_amqp(front: Front) -> Row:
        with Requester(bench.broker.url) as requester:
            requester.warm_up(64)
            ask = partial(requester.round_trips, 1, requests=options.requests)
            return take(bench, front, 1, ask)

    def over_pika(front: Front) -> Row:
        ask = partial(pika_client.one_by_one, bench.broker.url, options.requests, bench.deadline)
        return take(bench, front, 1, ask)

    seconds = options.requests / 500
    with bench.worker():
        worker = Front("", dict(bench.servers))
        trials = [
            *(
                Trial(name, partial(bench.gateway, name), [Load(CASE, seconds, over_http)])
                for name in options.strategies
            ),
            *(
                Trial(name, lambda: nullcontext(worker), [Load(CASE, seconds, over)], checked=False)
                for name, over in ((LIBRARY, over_pika), (FRAMES, over_amqp))
            ),
        ]
        alternate(trials, options, report)
    for bare in (LIBRARY, FRAMES):
        for name in options.strategies:
            values = ratios(report.rows, ("latency_ms", "p50"), (name, CASE), (bare, CASE))
            bounds: Bounds = BOUNDS.get(name, {}) if bare == LIBRARY else {}
            report.judge(Target(f"p50, {name} / {bare}", values, **bounds))
    report.remarks = [
        f"{options.requests:,} requests a measurement, each sent when the one before it is "
        f"answered. {LIBRARY}: a bare AMQP round trip with pika on the gateway's event loop, as "
        f"anybody would write it. {FRAMES}: the same with frames that were made before, on a "
        "blocking socket, as the HTTP client has one. Both have an exclusive reply queue, and "
        "publish transient and unconfirmed.",
    ]
    return report
