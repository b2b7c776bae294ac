"""What requests cost while they wait: memory and CPU of one process that holds thousands."""

from __future__ import annotations

import argparse
import asyncio
from functools import partial
from time import monotonic
from typing import Any

from gateway.errors import GatewayError
from loadtest import table
from loadtest.bench import Bench, Front
from loadtest.client import Connection, Tally
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

    def measure(front: Front) -> Row:
        return take(bench, front, number, lambda: hold(front, number, seconds, bench.deadline))

    loads = [Load(case, seconds + number / 1_000, measure) for case in (FRESH, WARM)]
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


ARRIVAL = 60.0  # seconds until all have to be waiting
#: Seconds of waiting that are measured, at least and at the most.
WINDOW = (0.5, 4.0)

_CONNECTING = 100  # connections that are opened at once
_BODY = 250  # bytes


class NotHeld(GatewayError):
    """Not all requests waited at the same time."""


def hold(front: Front, number: int, seconds: float, timeout: float) -> dict[str, Any]:
    """Have `number` requests wait in `front` at once, each for about `seconds`.

    Returns what `wrk.run` does, and `waiting`: `memory_kb_per_request`, resident, over what the
    server had before the first connection; `cpu_percent` of a core while nothing came or went,
    for so many `seconds`. Whoever answers has to announce in its output that it holds them all.
    Raises `NotHeld`.
    """
    return asyncio.run(_hold(front, number, seconds, timeout))


async def _hold(front: Front, number: int, seconds: float, timeout: float) -> dict[str, Any]:
    server, envelope = front.servers["gateway"], front.envelope
    idle, announced = server.rss_bytes(), front.output().count(f"holding {number}\n")
    tally, connections = Tally(envelope), list[Connection]()

    async def ask(connection: Connection, n: int) -> None:
        body, since = f'{{"n":{n:010},"padding":"{"x" * (_BODY - 30)}"}}'.encode(), monotonic()
        tally.count(since, body, *await connection.ask(envelope.wrap(body), envelope.head(body)))

    try:
        await _connect(front.url, number, connections)
        begin = monotonic()
        tally.sent = number
        crowd = asyncio.gather(*(ask(each, n) for n, each in enumerate(connections)))
        while front.output().count(f"holding {number}\n") == announced:
            if monotonic() > begin + ARRIVAL or tally.answered:
                raise NotHeld(
                    f"{number} requests were not held at once: {tally.answered} answers, "
                    f"{tally.errors.total()} errors after {monotonic() - begin:.1f} s"
                )
            await asyncio.sleep(0.1)
        waiting = await _measure(front, number, begin + seconds, idle)
        if tally.answered:
            raise NotHeld("answers came while waiting was measured")
        async with asyncio.timeout(seconds + timeout):
            await crowd
    except TimeoutError:
        pass  # what has no answer is missing
    finally:
        for connection in connections:
            connection.close()
    return {**tally.figures(monotonic() - begin), "waiting": waiting}


async def _connect(url: str, number: int, connections: list[Connection]) -> None:
    """Add so many open connections to `connections`; raises `NotHeld`."""
    try:
        while len(connections) < number:
            some = range(min(_CONNECTING, number - len(connections)))
            connections += await asyncio.gather(*(Connection.open(url) for _ in some))
    except OSError as exc:
        raise NotHeld(f"{len(connections)} connections were opened: {exc}") from exc


async def _measure(front: Front, number: int, end: float, idle: int) -> dict[str, float]:
    server = front.servers["gateway"]
    least, most = WINDOW
    await asyncio.sleep(least)  # the last to come are still being stored
    window = min(most, end - monotonic() - least)
    if window < least:
        raise NotHeld(f"{number} requests took too long to arrive: let them wait longer")
    cpu, begin = server.cpu_seconds(), monotonic()
    await asyncio.sleep(window)
    cpu, window = server.cpu_seconds() - cpu, monotonic() - begin
    return {
        "memory_kb_per_request": round((server.rss_bytes() - idle) / 1024 / number, 2),
        "cpu_percent": round(cpu / window * 100, 2),
        "seconds": round(window, 2),
    }
