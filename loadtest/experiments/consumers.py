"""AMQP drivers, numbers of connections, prefetch limits and multiple acknowledgements.

Beside them: what bindings cost, and what the broker's objects hold in memory.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from importlib.metadata import version
from statistics import median

from loadtest import claims, table
from loadtest.bench import Bench, Front
from loadtest.experiments import WrongOption
from loadtest.lab import advice
from loadtest.lab.consumers import broker, drivers
from loadtest.lab.consumers.broker import Cost, Times
from loadtest.lab.consumers.consumer import LIMIT, Consumer, Messages
from loadtest.lab.consumers.part import QUEUES
from loadtest.load import Load, take
from loadtest.plot import Plot, medians
from loadtest.report import Report
from loadtest.stack import Stack
from loadtest.summary import Row
from loadtest.table import Column
from loadtest.targets import number
from loadtest.trials import alternate, aside, running

#: Where a row has its messages/s, its consumer's CPU time for a message, and the time in basic_ack.
RATE, CPU, ACKS = ("rps",), ("cpu_us_per_request", "worker"), ("ack_ms",)

DEFAULTS = {
    "strategies": [],
    "connections": [1, 2, 8, 32],
    "prefetch": [1, 4, 8, 16, 32, 64],
    "repeats": 3,
}

#: Connections with which other limits than 1 are measured, as they were then; the greatest number
#: that is asked for, where these are not among them.
PREFETCHED = (2, 32)

_PACKAGES = {"py-amqp": "amqp", "aio-pika": "aio-pika", "aiormq": "aiormq"}
_START, _RATE = 1.0, 8_000  # seconds and messages/s, for the estimate only

_NO_C = (
    "librabbitmq, the driver in C, is not measured. Its last release, 2.0.0 of 2018, does not "
    "build with Python 3.11 to 3.14: its setup.py opens a file with the mode U. Without that it "
    "needs a function that Debian's librabbitmq does not export. docs/performance.md says how a "
    "fork of it is measured."
)


def run(options: argparse.Namespace, stack: Stack) -> Report:
    """Have each driver empty the same queues in each setting, in turn."""
    if max(options.connections) > len(QUEUES) or options.requests < len(QUEUES):
        raise WrongOption(
            f"consumers: there are {len(QUEUES)} queues: choose at most {len(QUEUES)} "
            f"--connections, and at least {len(QUEUES)} --requests"
        )
    bench = Bench(stack)
    packages = {name: version(package) for name, package in _PACKAGES.items()}
    report = Report("consumers", versions={**bench.versions(), **packages})
    report.heads = ("driver", "setting")
    report.options = {"drivers": drivers.installed(), "queues": len(QUEUES), "duration": None}
    costs = aside(
        report, "memory of queues, exchanges, connections, channels", options.requests / 500,
        lambda: broker.weigh_objects(bench.broker, options.requests // 20),
    )  # fmt: skip
    front = Front("", {"broker": bench.servers["broker"]})
    with Messages(bench.broker.url, options.requests) as messages:
        trials = [
            running(name, front, [_load(bench, messages, name, *setting)])
            for setting in settings(options.connections, options.prefetch)
            for name in drivers.installed()
        ]
        alternate(trials, options, report)
    sizes = sorted({1, options.requests // 10, options.requests})
    times = aside(
        report, "binding queues and exchanges", options.requests / 500,
        lambda: broker.time_binds(bench.broker.url, sizes, options.repeats),
    )  # fmt: skip
    _explain(report, options.requests)
    _judge(report, times or {}, costs or {})
    return report


def settings(connections: Sequence[int], prefetch: Sequence[int]) -> list[tuple[int, int]]:
    """Return the connections and limits that are measured.

    With a limit of 1 these are all numbers of connections, and with others a part of them.
    """
    prefetched = [n for n in connections if n in PREFETCHED] or [max(connections)]
    return [
        (number, limit)
        for limit in prefetch
        for number in (connections if limit == 1 else prefetched)
    ]


def _load(bench: Bench, messages: Messages, name: str, connections: int, prefetch: int) -> Load:
    def measure(front: Front) -> Row:
        try:
            with Consumer(
                bench.broker.url, name, connections, prefetch, messages.number, LIMIT
            ) as consumer:
                messages.fill()  # while it starts
                consumer.wait_ready()
                with_it = replace(front, servers={**front.servers, "worker": consumer})
                row = take(bench, with_it, connections, consumer.run)
                consumer.end()
        finally:
            left = messages.purge()
        return {**_with(consumer.figures, row, left), "prefetch": prefetch}

    seconds = _START + messages.number / _RATE
    return Load(case(connections, prefetch), seconds, measure)


def _with(figures: dict[str, float], row: Row, left: int) -> Row:
    """Return `row` with what the consumer has counted itself, and what it has `left`."""
    errors = {**row["errors_by_kind"], "left in their queues": left}
    user, system = figures["user"], figures["system"]
    cpu = round((user + system) * 1e6 / max(row["requests"], 1), 1)
    return {
        **row,
        "errors_by_kind": errors,
        "errors": sum(errors.values()),
        "cpu_us_per_request": {**row["cpu_us_per_request"], "worker": cpu},
        "user_ms": round(user * 1e3, 1),
        "system_ms": round(system * 1e3, 1),
        "acks": figures["acks"],
        "ack_ms": round(figures["ack_seconds"] * 1e3, 2),
    }


def _explain(report: Report, requests: int) -> None:
    """Say what the rows are, and draw them."""
    report.columns = [
        Column("messages/s", RATE, spread=True),
        Column("consumer us", CPU, spread=True),
        Column("broker us", ("cpu_us_per_request", "broker")),
        Column("user ms", ("user_ms",)),
        Column("system ms", ("system_ms",)),
        Column("acks", ("acks",)),
        Column("ms in them", ACKS),
        *table.FAULTS,
    ]
    report.charts = []
    report.plots = _plots(report)
    report.remarks = [
        f"{requests:,} transient messages, each with a number, in {len(QUEUES)} classic queues "
        "that the connections share; the limit is that of a consumer, so of a queue. The clock "
        "runs from the start signal, when all channels are open, until the broker has closed them "
        "behind the last acknowledgement. With a prefetch of k every k-th message of a connection "
        "is acknowledged with those before it. Time in basic_ack is wall time: in a thread with "
        "the wait for the interpreter, in a task (aio-pika) with that for the writer. wrong: "
        "messages that came twice.",
        "pika: AsyncioConnection. py-amqp: a thread for each connection. aio-pika: a task for each "
        "message. frames: the gateway's connection and frame scanner, which decodes no more of a "
        "delivery than it needs. All loops are asyncio's own.",
        "Memory of the broker: what Erlang counts after a garbage collection of all its processes, "
        "without binaries, and so without the buffers of sockets.",
        *([] if "librabbitmq" in report.options["drivers"] else [_NO_C]),
    ]


def _judge(report: Report, times: Times, costs: dict[str, Cost]) -> None:
    """Compare with what was said, and advise."""
    rows = [
        *report.rows,
        *(
            _single(f"bind {'an' if kind == 'exchange' else 'a'} {kind}", f"{size:,} bindings", n,
                    seconds=each, bindings=size)
            for (kind, size), seconds in times.items()
            for n, each in enumerate(seconds, 1)
        ),
        *(
            _single(f"memory, {kind}", f"{cost.number:,} made", 1, object_kb=cost.each)
            for kind, cost in costs.items()
        ),
    ]  # fmt: skip
    report.remarks += claims.reasons("consumers", rows)
    report.tables = {
        **claims.tables("consumers", rows),
        "Binding to a topic exchange, one bind after the other": [
            ["what is bound, bindings there", "binds/s", "ms a bind", "min-max"],
            *(_binding(f"{kind}, {size:,}", seconds) for (kind, size), seconds in times.items()),
        ],
        "Memory of the broker for one object": [
            ["object", "made", "KB each"],
            *([kind, f"{cost.number:,}", number(cost.each)] for kind, cost in costs.items()),
        ],
    }
    if report.problems():
        report.advice = "Nothing is advised before the failures of this run are gone."
    else:
        report.advice = advice.driver(report.rows)


def _single(strategy: str, case: str, repeat: int, **figures: float) -> Row:
    """Return a figure that is no load's as a row by which claims are judged."""
    name: Row = {"strategy": strategy, "case": case, "repeat": repeat}
    return {**name, "requests": 1, "errors": 0, "wrong_answers": 0, **figures}


def case(connections: int, prefetch: int) -> str:
    """Name a setting."""
    return f"{connections} connection{'s' * (connections != 1)}, prefetch {prefetch}"


def _binding(name: str, seconds: Sequence[float]) -> list[str]:
    middle = median(seconds)
    least, greatest = (number(bound * 1e3) for bound in (min(seconds), max(seconds)))
    return [name, f"{1 / middle:,.0f}", number(middle * 1e3), f"{least}-{greatest}"]


def _plots(report: Report) -> list[Plot]:
    rate = "messages per second"
    plots = [_plot(report, "connections", "Prefetch 1", rate, RATE, {"prefetch": 1})]
    prefetched = sorted({row["connections"] for row in report.rows if row["prefetch"] > 1})
    for n in prefetched:
        title, only = f"{n} connections", {"connections": n}
        plots.append(_plot(report, f"prefetch-{n}", title, rate, RATE, only))
    for n in prefetched:
        title, only = f"CPU, {n} connections", {"connections": n}
        plots.append(_plot(report, f"cpu-{n}", title, "consumer, µs per message", CPU, only))
    return [plot for plot in plots if plot.lines]


def _plot(
    report: Report, name: str, title: str, y: str, path: tuple[str, ...], only: dict[str, int]
) -> Plot:
    """Draw a figure of the rows in which `only` holds, over the other part of the setting."""
    over = "prefetch" if "connections" in only else "connections"
    those = [s for s in report.summaries() if only.items() <= s.rows[0].items()]
    return Plot(name, title, over, y, medians(those, path, lambda s: int(s.rows[0][over])))
