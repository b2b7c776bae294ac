"""Five ways to wait for many, and what uvloop adds: to a checker, an echo server, the gateway."""

from __future__ import annotations

import argparse
from dataclasses import replace
from functools import partial
from typing import Any

from loadtest import claims, table
from loadtest.bench import Bench, Front
from loadtest.lab import advice, program
from loadtest.lab.checker import AT_ONCE, PROCESSES
from loadtest.lab.echo_client import SIZE
from loadtest.lab.program import serving
from loadtest.lab.sites import LEAST, MOST, statuses
from loadtest.load import Load, closed, take
from loadtest.report import Report
from loadtest.stack import Stack
from loadtest.summary import Row
from loadtest.table import Column
from loadtest.trials import Trial, alternate, running

ASYNCIO, UVLOOP = LOOPS = ("asyncio", "uvloop")
NO_LOOP = "no loop"
INTERFACES = ("sockets", "streams", "protocols")
ONE = "one thread"
MANY = f"{PROCESSES} processes"
THREADS = f"{AT_ONCE} threads"
AIOHTTP = "aiohttp"
#: Way and loop -> what `loadtest.lab.checker` calls it.
WAYS = {
    (ONE, NO_LOOP): "one-thread",
    (MANY, NO_LOOP): "processes",
    (THREADS, NO_LOOP): "threads",
    (AIOHTTP, ASYNCIO): "asyncio",
    (AIOHTTP, UVLOOP): "uvloop",
}

#: Where a row has the time and the CPU of a checker, and the CPU of a server.
MS, CHECKER = ("checker", "ms"), ("cpu_us_per_request", "checker")
SERVER = ("server", "cpu_us")


def echo(interface: str) -> str:
    return f"echo, {interface}"


def gateway(strategy: str) -> str:
    return f"gateway, {strategy}"


DEFAULTS = {
    "strategies": ["pika"],
    "connections": [64],
    "requests": 1_000,
    "duration": 5,
    "repeats": 3,
    "checked": 500,
}

#: Echoed messages for each URL that is checked, over so many connections.
MESSAGES, CONNECTIONS = 50, 50

_START = 0.5  # seconds in which a program starts, for the estimate
_TIMEOUT = 60  # seconds, beside those that the work takes


def run(options: argparse.Namespace, stack: Stack) -> Report:
    """Measure each way and each server on each loop, in turn."""
    bench = Bench(stack)
    report = Report("loops", versions=bench.versions(), heads=("way", "loop"))
    (connections,) = options.connections[:1]
    number: int = options.requests
    relay = partial(closed, bench, connections, options.duration, options.threads)
    with bench.worker(), serving(stack, "sites", f"--number={number}") as sites:
        trials = [
            *(running(way, sites, [_check(bench, way, loop, number)]) for way, loop in WAYS),
            *(
                Trial(
                    echo(name),
                    partial(serving, stack, "echo", f"--interface={name}", f"--loop={loop}"),
                    [_exchange(bench, loop, MESSAGES * number)],
                    checked=False,
                    starts=_START,
                )
                for name in INTERFACES
                for loop in LOOPS
            ),
            *(
                Trial(
                    gateway(name),
                    partial(bench.gateway, name, "--loop", loop),
                    [_served(relay(case=loop), "gateway")],
                )
                for name in options.strategies
                for loop in LOOPS
            ),
        ]
        alternate(trials, options, report)
    servers = [*map(echo, INTERFACES), *map(gateway, options.strategies)]
    for path, what, names in ((MS, "time", [AIOHTTP]), (SERVER, "server CPU", servers)):
        for name in names:
            title = f"{what}, {name}, uvloop / asyncio"
            report.compare(title, path, (name, UVLOOP), (name, ASYNCIO))
    report.conclusion = ""  # no figure has a bound
    report.advice = advice.loop(report.rows)
    report.tables = claims.tables("loops", report.rows)
    report.remarks = [
        *claims.reasons("loops", report.rows),
        f"Checkers: {number:,} URLs, each over a connection of its own, which answer after "
        f"{LEAST * 1e3:.0f} to {MOST * 1e3:.0f} ms, the same in each repeat; {AT_ONCE} requests at "
        f"once with aiohttp. The counts of all statuses have to be right. Echo: "
        f"{MESSAGES * number:,} messages of {SIZE:,} bytes over {CONNECTIONS} connections, each "
        f"answer compared with its message. Gateway: wrk with {connections} connections. checker "
        "us: CPU of the checker and its processes for each URL; checker MB: their resident memory "
        "added up, in which pages that they share count in each; server us: CPU of the echo server "
        "or the gateway for each message or request.",
    ]
    report.charts = [
        ("Time to check all URLs, ms", "shorter is better", MS),
        ("CPU of the checker per URL, µs", "shorter is better", CHECKER),
        ("Memory of the checker, MB", "shorter is better", ("rss_mb", "checker")),
        ("CPU of the echo server per message, µs", "shorter is better", ("server", "echo")),
        ("CPU of the gateway per request, µs", "shorter is better", ("server", "gateway")),
    ]
    report.columns = [
        Column("a second", ("rps",), spread=True),
        Column("checker ms", MS),
        Column("checker us", CHECKER),
        Column("checker MB", ("rss_mb", "checker")),
        Column("server us", SERVER, spread=True),
        *table.LATENCIES[:2],
        *table.FAULTS,
    ]
    return report


def _check(bench: Bench, way: str, loop: str, number: int) -> Load:
    at_once = {ONE: 1, MANY: PROCESSES}.get(way, AT_ONCE)
    seconds = _START + number * (LEAST + MOST) / 2 / at_once + number / 1_000

    def measure(front: Front) -> Row:
        def check() -> dict[str, Any]:
            options = (WAYS[way, loop], f"--url={front.address}", f"--number={number}")
            found = program.run("checker", *options, timeout=_TIMEOUT + 5 * seconds)
            counts = found.pop("statuses")
            return {
                **found,
                "requests": sum(counts.values()),
                **compared(counts, statuses(number)),
                "latency_ms": {},
                "checker": {"ms": round(found["seconds"] * 1e3, 1)},
            }

        row = take(bench, front, at_once, check)
        cpu, memory = row["cpu_us_per_request"], row["rss_mb"]
        # It is no gateway, and not what is measured.
        for figures in (cpu, memory):
            figures["sites"], figures["gateway"] = figures["gateway"], 0.0
        cpu["checker"] = round(row.pop("cpu") * 1e6 / number, 1)
        memory["checker"] = round(row.pop("memory"), 1)
        return row

    return Load(loop, seconds, measure)


def compared(found: dict[str, int], expected: dict[str, int]) -> dict[str, Any]:
    """Return a row's ``wrong_answers`` and ``errors`` of a checker's counts."""
    kinds = found.keys() | expected.keys()
    more = {kind: found.get(kind, 0) - expected.get(kind, 0) for kind in kinds}
    return {
        "wrong_answers": sum(max(0, number) for number in more.values()),
        "errors": {"missing": sum(max(0, -number) for number in more.values())},
    }


def _exchange(bench: Bench, loop: str, number: int) -> Load:
    seconds = _START + number / 25_000

    def exchange(front: Front) -> dict[str, Any]:
        port = front.address.rpartition(":")[2]
        options = (f"--port={port}", f"--number={number}", f"--connections={CONNECTIONS}")
        found = program.run("echo_client", *options, timeout=_TIMEOUT + 5 * seconds)
        return {**found, "errors": {"missing": number - found["requests"]}}

    def measure(front: Front) -> Row:
        return take(bench, front, CONNECTIONS, lambda: exchange(front))

    return _served(Load(loop, seconds, measure), "echo")


def _served(load: Load, kind: str) -> Load:
    """Have the server's CPU in a place that only the rows of servers have, and of its `kind`."""

    def measure(front: Front) -> Row:
        row = load.measure(front)
        cpu = row["cpu_us_per_request"]["gateway"]
        return {**row, "server": {"cpu_us": cpu, kind: cpu}}

    return replace(load, measure=measure)
