"""What requests cost while they wait: memory and CPU of one process that holds thousands."""

from __future__ import annotations

import argparse
from functools import partial
from typing import Any

from loadtest import crowd, table
from loadtest.bench import Bench, Front
from loadtest.load import Load, take
from loadtest.report import Report
from loadtest.stack import Stack
from loadtest.summary import Row
from loadtest.table import Column
from loadtest.targets import Target, figures
from loadtest.tasks import Task
from loadtest.trials import Trial, alternate

DEFAULTS = {"strategies": ["pika", "redis"], "connections": [10_000], "task": Task(10.0)}

#: The same twice: over a process that has done nothing yet, and over one that has held as many.
FRESH, WARM = "above a fresh process", "above a warm process"
_MEMORY, _CPU = ("waiting", "memory_kb_per_request"), ("waiting", "cpu_percent")


def run(options: argparse.Namespace, stack: Stack) -> Report:
    """Hold requests in gateways before a stand-in for workers, and in Tornado alone."""
    (number,), seconds = options.connections[:1], options.task.seconds
    bench = Bench(stack, deadline=seconds + 60)
    report = Report("waiting", versions=bench.versions())
    report.options = {"task_seconds": seconds}

    def hold(front: Front) -> Row:
        waiting = {}

        def run() -> dict[str, Any]:
            found = crowd.hold(front, number, seconds, bench.deadline)
            waiting.update(found.pop("waiting"))
            return found

        return {**take(bench, front, number, run), "waiting": waiting}

    loads = [Load(case, seconds + number / 1_000, hold) for case in (FRESH, WARM)]
    announce = ("--announce", str(number))
    gateway = ("--max-in-flight", str(number))
    with bench.stand_in(seconds, announce=number):
        trials = [
            *(
                Trial(name, partial(bench.gateway, name, *gateway), loads, checked=False)
                for name in options.strategies
            ),
            Trial("tornado", partial(bench.alone, seconds, *announce), loads, checked=False),
        ]
        alternate(trials, options, report)
    for trial in trials:
        ours = trial.strategy in options.strategies
        fresh, warm, cpu = (
            figures(report.rows, trial.strategy, path, case)
            for path, case in ((_MEMORY, FRESH), (_MEMORY, WARM), (_CPU, FRESH))
        )
        report.judge(
            Target(
                f"memory per request {FRESH}, {trial.strategy}",
                fresh,
                " KB",
                **({"at_most": 16, "aim": 12} if ours else {}),
            ),
            Target(f"memory per request {WARM}, {trial.strategy}", warm, " KB"),
            Target(
                f"of a core while waiting, {trial.strategy}",
                cpu,
                " %",
                **({"at_most": 5} if ours else {}),
            ),
        )
    report.columns = [
        Column("KB each", _MEMORY, spread=True),
        Column("% of a core", _CPU, spread=True),
        Column("for s", ("waiting", "seconds")),
        Column("answered", ("requests",)),
        *table.LATENCIES,
        *table.cpu(report.rows),
        *table.FAULTS,
    ]
    report.charts = [
        ("Memory per waiting request, KB", "shorter is better", _MEMORY),
        ("CPU while waiting, % of a core", "shorter is better", _CPU),
    ]
    report.remarks = [
        f"{number:,} requests at once in one process, one connection each, answered after "
        f"{seconds:g} s by a stand-in for Celery workers, or by Tornado itself. KB each: "
        "resident memory of the server's processes while all wait, minus what they had before the "
        "first connection, divided; once over a process that has just started, once over the "
        "same process after a first wave of the same size, whose memory it has kept. % of a "
        "core: while nothing comes or goes.",
    ]
    return report
