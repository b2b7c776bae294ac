"""Does anything grow while a gateway serves for long: memory, files, keys, channels, queues?"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import partial
from statistics import median
from threading import Event
from time import monotonic
from typing import Any

from loadtest import table
from loadtest.bench import SIGNED, Bench, Front
from loadtest.load import Load, closed, constant, see_that_schedules_were_kept, watched
from loadtest.plot import Plot, Point, single
from loadtest.report import Report
from loadtest.stack import Stack
from loadtest.summary import Row, summarize
from loadtest.table import Column
from loadtest.targets import Target, figures
from loadtest.trials import Trial, alternate

DEFAULTS = {"strategies": ["pika", "redis"], "connections": [64], "duration": 600, "repeats": 1}

CEILING, LONG = "ceiling", "soak"
SHARE = 0.2  # of the ceiling; such a delivery costs more than twice what a plain one does
SAMPLES = 60
#: What grows until then warms up; results begin to expire before.
SETTLED = 0.3  # of the duration
EXPIRES = 0.1  # of the duration: the life of a result
_CEILING_SECONDS = 10
#: More than ever wait at once: a client that opened some meanwhile would be seen as growth.
CONNECTIONS = 2_000
JOURNAL = 10_000  # deliveries
#: Before the route of signed deliveries, whose identity makes claims of them.
_CONFIG = """\
journal = {journal}
idempotency_window = {expires}

"""
#: What is still called flat: the median of the last third over that of the first, once settled.
FLAT = 1.05

#: A sample's figures, and what they are called.
WATCHED = {
    "memory": "gateway memory, MB",
    "worker_memory": "worker memory, MB",
    "descriptors": "gateway file descriptors",
    "keys": "Redis keys",
    "redis_memory": "Redis memory, MB",
    "channels": "AMQP channels",
    "queues": "AMQP queues",
    "messages": "messages in queues",
}
#: As many as there are requests under way at the moment.
_PASSING = {"messages"}


def run(options: argparse.Namespace, stack: Stack) -> Report:
    """Find each strategy's ceiling with wrk, then send at a share of it for `duration` seconds.

    The ceiling is that of a plain route; what follows has a signature and an identity, and the
    journal is on: claims, answers that are given again and what was received come and go, too.
    """
    expires = max(1, round(EXPIRES * options.duration))
    config = _CONFIG.format(journal=JOURNAL, expires=expires) + SIGNED
    bench = Bench(stack, result_expires=expires, config=config)
    report = Report("soak", versions=bench.versions())
    seconds = min(_CEILING_SECONDS, options.duration)
    (connections,) = options.connections[:1]
    with bench.worker():
        trials = [
            Trial(
                name,
                partial(bench.gateway, name),
                [
                    closed(bench, connections, seconds, options.threads, case=CEILING),
                    _watched(bench, report, name, options.duration),
                ],
            )
            for name in options.strategies
        ]
        alternate(trials, options, report)
    see_that_schedules_were_kept(report)
    for name in options.strategies:
        for what in (what for what in WATCHED if what not in _PASSING):
            values = figures(report.rows, name, ("growth", what), LONG)
            report.judge(Target(f"{WATCHED[what]}, last / first, {name}", values, at_most=FLAT))
    report.plots = [
        Plot(what, title, "minutes", title, _lines(report, what), linear=True)
        for what, title in WATCHED.items()
    ]
    report.charts = []
    report.columns = [
        Column("minutes", ("minutes",)),
        Column("rate", ("schedule", "rate")),
        Column("sent/s", ("schedule", "sent")),
        Column("requests", ("requests",)),
        *table.LATENCIES,
        *(Column(f"{title}, end", ("last", what)) for what, title in WATCHED.items()),
        *table.FAULTS,
    ]
    report.remarks = [
        f"{SHARE:.0%} of what wrk gets of a plain route out of {connections} connections, as "
        f"signed deliveries, one of 25 of them a later try of another, over {CONNECTIONS:,}, "
        f"which are used in turn; the journal keeps {JOURNAL:,}. Flat: of what is seen "
        f"from {SETTLED:.0%} of the time on, the median of the last third is at most {FLAT:g} "
        f"times that of the first. Results and claims live {expires} s here, so that they expire "
        "meanwhile. Each sample starts rabbitmqctl twice, which the greatest latencies show.",
    ]
    return report


def _watched(bench: Bench, report: Report, name: str, duration: float) -> Load:
    """Send at a share of the ceiling that was just measured, and take samples meanwhile."""

    def rate() -> float:
        return SHARE * median(figures(report.rows, name, ("rps",), CEILING))

    load = constant(bench, rate, duration, LONG, connections=CONNECTIONS)

    def measure(front: Front) -> Row:
        row, samples = watched(
            load, front.signed(), partial(_sample, bench, front, duration / SAMPLES)
        )
        return {
            **row,
            "minutes": round(duration / 60, 2),
            "samples": samples,
            "last": samples[-1],
            "growth": growths(samples, SETTLED * duration),
        }

    return Load(LONG, load.seconds, measure)


def _sample(bench: Bench, front: Front, every: float, ended: Event) -> list[dict[str, Any]]:
    """Take up to `SAMPLES` samples; one that overlaps the end is of what is being stopped."""
    begin, samples = monotonic(), list[dict[str, Any]]()
    while len(samples) < SAMPLES and not ended.wait(begin + len(samples) * every - monotonic()):
        sample = {"seconds": round(monotonic() - begin, 1), **bench.holdings(front)}
        if ended.is_set() and samples:
            break
        samples.append(sample)
    return samples


def growths(samples: Sequence[dict[str, Any]], settled: float) -> dict[str, float]:
    """Return the `growth` of all that there was of what is watched: nothing cannot stay level."""
    there = [what for what in WATCHED if any(sample[what] for sample in samples)]
    return {what: growth(samples, what, settled) for what in there}


def growth(samples: Sequence[dict[str, Any]], what: str, settled: float) -> float:
    """Divide the median of the last third by that of the first, from `settled` seconds on.

    Where the first is 0, what has come counts from 1.
    """
    # On a machine that was too busy for samples, the last one is all there is.
    settled = min(settled, samples[-1]["seconds"])
    values = [sample[what] for sample in samples if sample["seconds"] >= settled]
    third = max(1, len(values) // 3)
    first, last = median(values[:third]), median(values[-third:])
    if first == last:
        return 1.0
    return round(last / first, 4) if first else float(last + 1)


def _lines(report: Report, what: str) -> dict[str, Sequence[Point]]:
    return {
        summary.strategy: single(
            [sample["seconds"] / 60 for sample in summary.rows[0]["samples"]],
            [sample[what] for sample in summary.rows[0]["samples"]],
        )
        for summary in summarize(report.rows)
        if summary.case == LONG
    }
