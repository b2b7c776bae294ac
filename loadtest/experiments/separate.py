"""Do slow tasks hold up quick ones? With a queue and a worker for each, and with one for both."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from concurrent.futures import wait
from contextlib import contextmanager
from functools import partial
from threading import Event
from typing import Any

from loadtest import openloop, table
from loadtest.bench import Bench, Front
from loadtest.experiments import WrongOption
from loadtest.experiments.fair import purge, wait_until_idle
from loadtest.load import AROUND, Load, constant, see_that_schedules_were_kept
from loadtest.over_time import beside
from loadtest.report import Report
from loadtest.stack import Stack
from loadtest.summary import Row
from loadtest.table import Column
from loadtest.tasks import Task
from loadtest.trials import Trial, alternate

DEFAULTS = {
    "strategies": ["pika", "redis"],
    "duration": 15,
    "repeats": 3,
    "checked": 200,
    "task": Task(5),
}

#: Requests a second of the quick route, and of the slow one.
QUICK, SLOW = 100, 40
#: Threads of the worker that runs slow tasks: of five seconds each it ends 8 a second.
SIZE = 40
#: Seconds after which a request is a 504.
DEADLINE = 10.0
_LEAD = 2.0  # seconds that the flood is ahead

_ROUTES = """\
[[routes]]
path = "/{queue}"
task = "appserver.tasks.{task}"
queue = "{queue}"

[[routes]]
path = "/one/{task}"
task = "appserver.tasks.{task}"
queue = "one"

"""


def run(options: argparse.Namespace, stack: Stack) -> Report:
    """Send echoes at a constant rate, while more slow tasks come than can be ended."""
    if not options.task.seconds:
        raise WrongOption("separate: --task: the slow route needs one that sleeps, as sleep:5")
    routes = ("quick", "echo"), ("slow", "sleep")
    config = "".join(_ROUTES.format(queue=queue, task=task) for queue, task in routes)
    bench = Bench(stack, deadline=DEADLINE, config=config)
    report = Report("separate", versions=bench.versions())
    report.options = {"worker_pool": f"threads:{SIZE}", "task_seconds": options.task.seconds}

    @contextmanager
    def start(name: str) -> Iterator[Front]:
        try:
            with (
                bench.worker("threads", SIZE, queues=["slow", "one"]),
                bench.worker(queues=["celery", "quick"]),
                bench.gateway(name) as front,
            ):
                yield front
        finally:
            # What a worker held comes back when it ends, and would be the next one's.
            for queue in ("slow", "one"):
                purge(bench, queue, 0)

    query = f"?seconds={options.task.seconds:g}"
    cases = {
        "apart, calm": ("/quick", ""),
        "apart, flood": ("/quick", f"/slow{query}"),
        "one queue, flood": ("/one/echo", f"/one/sleep{query}"),
    }
    trials = [
        Trial(
            name,
            partial(start, name),
            [_load(bench, options.duration, case, *paths) for case, paths in cases.items()],
        )
        for name in options.strategies
    ]
    alternate(trials, options, report)
    see_that_schedules_were_kept(report)
    p99 = "latency_ms", "p99"
    for name in options.strategies:
        for case, at_most in (("apart", 1.2), ("one queue", None)):
            title = f"p99 with a flood / without, {case}, {name}"
            pair = (name, f"{case}, flood"), (name, "apart, calm")
            report.compare(title, p99, *pair, at_most=at_most)
    report.columns = [
        table.REQUESTS,
        *table.LATENCIES,
        Column("504s", ("unanswered",), total=True),
        Column("slow ones", ("flood", "requests"), total=True),
        Column("their 504s", ("flood", "unanswered"), total=True),
        *table.FAULTS,
    ]
    report.charts = [("99th percentile of echoes, ms", "shorter is better", p99)]
    report.remarks = [
        f"{QUICK} echoes a second wait for their answers. flood: beside them, {SLOW} requests a "
        f"second wait for tasks of {options.task.seconds:g} s, of which a worker with {SIZE} "
        f"threads ends {SIZE / options.task.seconds:g} a second; the deadline is {DEADLINE:g} s. "
        "apart: echoes have a queue and a worker of their own; one queue: the same gateway, one "
        "queue and the worker with threads for both.",
    ]
    return report


def flooded(row: Row, flood: dict[str, Any]) -> Row:
    """Return the row of echoes that were sent beside a `flood`, which is what `Client.send` found.

    A 504 is what the flood does to an echo and to itself, and no fault of the gateway; whatever
    else went wrong with either is an error.
    """
    kinds = {
        **row["errors_by_kind"],
        **{f"{k} of the flood": n for k, n in flood["errors"].items()},
    }
    unanswered, its = kinds.pop("expired"), kinds.pop("expired of the flood")
    return {
        **row,
        "unanswered": unanswered,
        "errors_by_kind": kinds,
        "errors": sum(kinds.values()),
        "wrong_answers": row["wrong_answers"] + flood["wrong_answers"],
        "flood": {
            "requests": flood["requests"], "unanswered": its, "schedule": flood["schedule"],
        },
    }  # fmt: skip


def _load(bench: Bench, seconds: float, case: str, path: str, slow: str) -> Load:
    load = constant(bench, QUICK, seconds, case, path)

    def measure(front: Front) -> Row:
        wait_until_idle(bench, ("quick", "slow", "one"))
        if not slow:
            return {**load.measure(front), "unanswered": 0}
        begun, target = Event(), (front.address + slow, SLOW, _LEAD + seconds)

        def flood() -> dict[str, Any]:
            with openloop.schedule(*target, round(SLOW * DEADLINE)) as client:
                return client.send(DEADLINE + 5, [(_LEAD, begun.set)])

        ended = beside(flood)
        try:
            begun.wait(_LEAD + AROUND)
            row = load.measure(front)
        finally:
            wait([ended])
            for queue in ("slow", "one"):
                purge(bench, queue, 0)
        return flooded(row, ended.result())

    return Load(case, load.seconds + (_LEAD + DEADLINE if slow else 0), measure)
