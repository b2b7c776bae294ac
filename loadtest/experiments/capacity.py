"""Is `gateway capacity` right? Its costs come from some loads, and it predicts others.

With `--costs`, they come from a report that was made before, and the others are those of a whole
deployment of 20,000 and of 50,000 requests a second, at a scale of 1:100.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import mean
from threading import Event
from typing import Any, cast

from gateway.stack import StackError
from loadtest import openloop, table
from loadtest.bench import SIGNED, Bench, Front
from loadtest.experiments import WrongOption
from loadtest.load import Load, constant, see_that_schedules_were_kept, watched
from loadtest.report import Report, dump
from loadtest.stack import Measured, Stack
from loadtest.summary import Row, figure
from loadtest.table import Column
from loadtest.targets import Target, figures
from loadtest.trials import Trial, alternate

#: Seconds of a measurement; a shorter one says little of the model.
DURATION = 7
DEFAULTS = {"strategies": ["pika", "redis"], "duration": DURATION, "repeats": 3, "checked": 500}

#: What a prediction may be off by: from costs of the same run, and from those of an earlier one.
WITHIN, WITHIN_LATER = 1.15, 1.2
#: Less CPU time a request, in us, is too little to be measured by the clock's ticks.
LEAST = 20
_SAMPLES = 4  # of what is in flight, in a measurement
_SIGNED = f"""\
idempotency_window = 300
{SIGNED}
[[routes]]
path = "/echo"
task = "appserver.tasks.echo"
"""


@dataclass(frozen=True)
class Shape:
    """What is measured: so many requests a second, for tasks of so many `seconds`, by so many
    gateway `processes` and `workers` with a `pool` of a `size`."""

    strategy: str
    rates: tuple[int, ...]
    seconds: float = 0.0
    processes: int = 1
    workers: int = 1
    pool: str = "solo"
    size: int = 1
    signed: bool = False

    @property
    def name(self) -> str:
        what = "signed" if self.signed else f"{self.seconds:g} s" if self.seconds else "echo"
        return f"{what}, {self.processes}+{self.workers} {self.pool}"


#: Where the costs come from, and what is predicted with them: other rates, times and numbers.
CALIBRATION = (
    Shape("pika", (100, 300, 900)),
    Shape("redis", (100, 300, 900)),
    Shape("redis", (300,), signed=True),
    Shape("pika", (75, 150, 450), 0.05, pool="threads", size=64),
    Shape("redis", (75, 300), 0.05, pool="threads", size=64),
)
PREDICTED = (
    Shape("pika", (600,)),
    Shape("redis", (600,)),
    Shape("pika", (400,), 0.2, processes=2, workers=2, pool="threads", size=64),
)
DEPLOYED = tuple(
    Shape(strategy, (200, 500), 0.2, processes=2, workers=3, pool="threads", size=64)
    for strategy in ("pika", "redis")
)


def run(options: argparse.Namespace, stack: Stack) -> Report:
    """Measure what costs are taken from and what the command predicts from them; compare."""
    shapes = DEPLOYED if options.costs else PREDICTED
    there = {shape.strategy for shape in shapes}
    if not there.intersection(options.strategies):
        raise WrongOption(f"capacity: --strategies: it measures {' and '.join(sorted(there))}")
    bench = Bench(stack)
    name = "deployment" if options.costs else "capacity"
    report = Report(name, versions=bench.versions())
    report.options = {"worker_pool": "solo:1"}  # of rows that do not say it themselves
    trials = partial(_trials, bench, stack, options)
    # In turn, as the machine itself is not equally fast at all times.
    measured = () if options.costs else trials(CALIBRATION, "measured")
    alternate([*measured, *trials(shapes, "predicted")], options, report)
    file, within = options.costs, WITHIN_LATER
    if not file:
        file, within = stack.directory / "calibration.json", WITHIN
        rows = [row for row in report.rows if row["case"].startswith("measured")]
        file.write_text(dump(Report("capacity", options=report.options, rows=rows).document()))
    try:
        plans = {
            (shape.strategy, _case(shape, rate, "predicted")): plan(shape, rate, file)
            for shape in shapes
            for rate in shape.rates
            if shape.strategy in options.strategies
        }
    except StackError as exc:  # what was measured is worth having
        report.failures.append(str(exc))
        return report
    see_that_schedules_were_kept(report)
    for row in report.rows:
        if expected := plans.get((row["strategy"], row["case"])):
            row["predicted"], row["off"] = expected, _off(row, expected)
    report.most_others = options.others
    undisturbed = not report.disturbance()
    for strategy, case in plans:
        for name in _FIGURES:
            values = figures(report.rows, strategy, ("off", name), case)
            target = Target(f"off by, {name}, {strategy}, {case}", values, at_most=within)
            if values:
                report.judge(target)
                if not target.reached and options.duration >= DURATION and undisturbed:
                    report.failures.append(f"{target.name}: {target.median:.2f}, at most {within}")
    cpu = ("cpu_us_per_request", "gateway")
    report.charts = [("Gateway CPU per request, µs", "shorter is better", cpu)]
    report.columns = [
        *(
            column
            for name, path in _FIGURES.items()
            for column in (Column(name, path), Column("predicted", ("predicted", *path)))
        ),
        *table.FAULTS,
    ]
    report.remarks = [
        f"Costs are taken from {options.costs.name if options.costs else 'the rows `measured`'}, "
        "by gateway capacity --measured; the rows `predicted` are other runs, at other rates, "
        "with tasks of another time and with other numbers of processes. off by: measured / "
        "predicted, or its inverse, whichever is above 1. Not compared: less than "
        f"{LEAST} us a request, what is predicted as none, and what is in flight of echoes, which "
        "is their latency. 2+2: gateway processes and workers. messages: in the queue and at "
        "workers, once in a run.",
    ]
    return report


#: What is compared, and where a row and its prediction have it.
_FIGURES = {
    **{f"{n} us": ("cpu_us_per_request", n) for n in ("gateway", "worker", "broker", "redis")},
    **{f"{name} MB": ("rss_mb", name) for name in ("gateway", "worker", "broker")},
    "AMQP": ("connections_open", "broker"),
    "Redis": ("connections_open", "redis"),
    "in flight": ("in_flight",),
    "messages": ("messages",),
}


def plan(shape: Shape, rate: int, calibration: Path) -> dict[str, Any]:
    """Return what `gateway capacity` predicts, in the form of a row."""
    numbers = {
        "rate": rate,
        "task-time": shape.seconds,
        "processes": shape.processes,
        "workers": shape.workers,
        "concurrency": shape.size,
        "identified": 0,
    }
    argv = [sys.executable, "-m", "gateway", "capacity", "--json", "--measured", str(calibration)]
    argv += ["--strategy", shape.strategy, "--pool", shape.pool]
    argv += [f"--{name}={value}" for name, value in numbers.items()]
    done = subprocess.run(argv, capture_output=True, text=True)
    if done.returncode:
        raise StackError(done.stderr.strip())
    found = json.loads(done.stdout)["plan"]
    parts = {"gateway": "gateways", "worker": "workers", "broker": "brokers", "redis": "results"}
    gateways, workers = found["gateways"], found["workers"]
    return {
        "cpu_us_per_request": {n: found[part]["cores"] / rate * 1e6 for n, part in parts.items()},
        "rss_mb": {n: found[part]["memory"] / 2**20 for n, part in parts.items() if n != "redis"},
        "connections_open": {
            "broker": found["brokers"]["amqp"],
            "redis": gateways["redis"] + workers["redis"],
        },
        # What a gateway and the broker take for a request is little beside a task that waits.
        **dict.fromkeys(("in_flight", "messages"), found["in_flight"] if shape.seconds else None),
    }


def _off(row: Row, expected: dict[str, Any]) -> dict[str, float]:
    """Return by what factor each figure is off, at least 1."""
    off = {}
    for name, path in _FIGURES.items():
        is_, said = figure(row, path), figure(expected, path)
        if said and is_ and (not name.endswith(" us") or max(is_, said) >= LEAST):
            off[name] = round(max(is_ / said, said / is_), 4)
    return off


def _case(shape: Shape, rate: int, which: str) -> str:
    return f"{which}: {shape.name}, {rate}/s"


def _trials(
    bench: Bench,
    stack: Stack,
    options: argparse.Namespace,
    shapes: tuple[Shape, ...],
    which: str,
) -> list[Trial]:
    file = stack.directory / "signed.toml"
    file.write_text(_SIGNED)

    @contextmanager
    def start(shape: Shape) -> Iterator[Front]:
        config = ("--config", str(file)) if shape.signed else ()
        with (
            bench.worker(shape.pool, shape.size, shape.workers),
            bench.gateway(shape.strategy, "--processes", str(shape.processes), *config) as front,
        ):
            yield front

    return [
        Trial(
            shape.strategy,
            partial(start, shape),
            [_load(bench, shape, rate, options, which) for rate in shape.rates],
        )
        for shape in shapes
        if shape.strategy in options.strategies
    ]


def _load(bench: Bench, shape: Shape, rate: int, options: argparse.Namespace, which: str) -> Load:
    duration = options.duration
    load = constant(
        bench,
        rate,
        duration,
        _case(shape, rate, which),
        f"/sleep?seconds={shape.seconds:g}" if shape.seconds else None,
        answered_after=shape.seconds,
        # All that wait at once, and as many again, so that none is opened meanwhile.
        connections=openloop.OPEN + round(2 * rate * shape.seconds),
    )

    def measure(front: Front) -> Row:
        gateway = cast(Measured, front.servers["gateway"])

        def watch(ended: Event) -> dict[str, float]:
            every = duration / (_SAMPLES + 2)
            found = {"in_flight": _in_flight(gateway, shape.seconds, every, ended)}
            if options.costs:
                listed = bench.broker.ctl("list_queues", "messages", "--no-table-headers").split()
                found["messages"] = sum(map(int, listed))
            return found

        row, there = watched(load, front.signed() if shape.signed else front, watch)
        return {
            **row,
            "processes": shape.processes,
            "worker_pool": f"{shape.workers} x {shape.pool}:{shape.size}",
            "identified": shape.signed,
            **there,
        }

    return Load(load.case, load.seconds, measure)


def _in_flight(gateway: Measured, after: float, every: float, ended: Event) -> float:
    """Return the mean of what the gateway's own metric says, from `after` seconds on."""
    found = []
    ended.wait(after)
    for _ in range(_SAMPLES):
        if ended.wait(every):
            break
        found.append(gateway.metric("gateway_in_flight"))
    return mean(found) if found else 0.0
