"""How a request's cost grows: with the rate of requests, and with the time that tasks take."""

from __future__ import annotations

import argparse
import math
from functools import partial

from gateway.config.strategies import STRATEGIES, properties
from loadtest import table
from loadtest.bench import Bench
from loadtest.load import Load, constant, see_that_schedules_were_kept
from loadtest.openloop import OPEN
from loadtest.plot import Plot, medians
from loadtest.report import Report
from loadtest.stack import Stack
from loadtest.table import Column
from loadtest.trials import Trial, alternate

DEFAULTS = {
    "strategies": ["pika", "redis", "threadpool", "blocking"],
    "duration": 5,
    "checked": 500,
}

RATES = (50, 200, 400, 800, 1_600)  # a second
TIMES = (0.01, 0.1, 1, 5)  # seconds that a task takes
TIMED_RATE = 200  # a second, while the tasks' time grows
#: Open then, whatever the tasks take, and used in turn: they hold all that wait for the longest.
CONNECTIONS = OPEN + math.ceil(1.1 * TIMED_RATE * TIMES[-1])
#: Those that push results; the others are there for contrast, as far as they can go.
PUSH = {n for n in STRATEGIES if properties(n).replies or properties(n).subscribes == "prefix"}
CONTRAST = (50, 200)
#: What is still called the same, as repeats differ by more.
SAME = 1.05

_CPU = ("cpu_us_per_request", "gateway")


def run(options: argparse.Namespace, stack: Stack) -> Report:
    """Send at constant rates, before a stand-in for workers that takes any number of tasks."""
    bench = Bench(stack)
    report = Report("growth", versions=bench.versions())
    with bench.stand_in(0):
        trials = [
            Trial(name, partial(bench.gateway, name), _loads(bench, name, options.duration))
            for name in options.strategies
        ]
        alternate(trials, options, report)
    see_that_schedules_were_kept(report)
    for name in (name for name in options.strategies if name in PUSH):
        for what, cases in (
            ("rate", [_rate_case(rate) for rate in RATES]),
            ("task time", [_time_case(seconds) for seconds in TIMES]),
        ):
            text = f"gateway CPU, {name}, greatest / least {what}"
            report.compare(text, _CPU, (name, cases[-1]), (name, cases[0]), at_most=SAME)
    report.plots = _plots(report)
    report.charts = []
    report.columns = [
        Column("gateway us", _CPU, spread=True),
        Column("sent/s", ("schedule", "sent"), spread=True),
        *table.LATENCIES[:2],
        Column("late p99", ("schedule", "late_ms", "p99")),
        *table.FAULTS,
    ]
    report.remarks = [
        "A stand-in for Celery workers answers each task when its time is over, any number of "
        f"them at once; over the task's time, the rate is {TIMED_RATE} a second, over "
        f"{CONNECTIONS:,} connections, and CPU counts from the first answer to the last request, "
        "for each that was due. Within "
        f"{SAME - 1:.0%} is the same. threadpool and blocking: for contrast, as far as they go.",
    ]
    return report


def _rate_case(rate: float) -> str:
    return f"{rate:,}/s"


def _time_case(seconds: float) -> str:
    return f"{seconds:g} s tasks"


def _loads(bench: Bench, name: str, duration: float) -> list[Load]:
    rates, times = (RATES, TIMES) if name in PUSH else (CONTRAST, ())
    return [
        *(constant(bench, rate, duration, _rate_case(rate)) for rate in rates),
        *(
            constant(
                bench,
                TIMED_RATE,
                duration,
                _time_case(seconds),
                f"/sleep?seconds={seconds:g}",
                answered_after=seconds,
                connections=CONNECTIONS,
            )
            for seconds in times
        ),
    ]


def _plots(report: Report) -> list[Plot]:
    y = "gateway CPU per request, µs"
    rates = {_rate_case(rate): rate for rate in RATES}
    times = {_time_case(seconds): seconds for seconds in TIMES}
    over_rate = medians(report.summaries(), _CPU, lambda s: rates.get(s.case))
    over_time = medians(report.summaries(), _CPU, lambda s: times.get(s.case))
    return [
        # threadpool and blocking cost many times what the others do.
        Plot("rate", "CPU over the rate", "requests per second", y, over_rate, log=True),
        Plot("time", "CPU over the tasks' time", "seconds a task takes", y, over_time),
    ]
