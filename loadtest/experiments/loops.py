"""Five ways to wait for many, and what uvloop adds: to a checker, an echo server, the gateway."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from statistics import median
from typing import Any

from loadtest import table
from loadtest.bench import Bench, Front
from loadtest.lab import claims, program
from loadtest.lab.checker import AT_ONCE, PROCESSES
from loadtest.lab.claims import Claim
from loadtest.lab.echo_client import SIZE
from loadtest.lab.sites import LEAST, MOST, statuses
from loadtest.load import Load, closed, take
from loadtest.report import Report
from loadtest.stack import Stack
from loadtest.summary import Row, summarize
from loadtest.table import Column
from loadtest.targets import Target, ratios
from loadtest.trials import Trial, alternate

DEFAULTS = {
    "strategies": ["pika"],
    "connections": [64],
    "requests": 1_000,
    "duration": 5,
    "repeats": 3,
    "checked": 500,
}

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
#: Echoed messages for each URL that is checked, over so many connections.
MESSAGES, CONNECTIONS = 50, 50

#: URLs a second: 31 in 5.7 s, 365 in 7.86 s and in 4.44 s.
THEN = {
    (THREADS, NO_LOOP): 31 / 5.7,
    (AIOHTTP, ASYNCIO): 365 / 7.86,
    (AIOHTTP, UVLOOP): 365 / 4.44,
}
#: Less is no difference, as repeats differ by as much.
_DIFFERENT = 1.2

_MS, _CHECKER = ("checker", "ms"), ("cpu_us_per_request", "checker")
_SERVER = ("server", "cpu_us")
_START = 0.5  # seconds in which a program starts, for the estimate
_TIMEOUT = 60  # seconds, beside those that the work takes


def run(options: argparse.Namespace, stack: Stack) -> Report:
    """Measure each way and each server on each loop, in turn."""
    bench = Bench(stack)
    report = Report("loops", versions=bench.versions(), heads=("way", "loop"))
    (connections,) = options.connections[:1]
    number: int = options.requests
    with bench.worker(), _serving(stack, "sites", f"--number={number}") as sites:
        trials = [
            *(
                Trial(
                    way,
                    lambda: nullcontext(sites),
                    [_check(bench, way, loop, number)],
                    checked=False,
                    starts=0,
                )
                for way, loop in WAYS
            ),
            *(
                Trial(
                    _echo(name),
                    partial(_serving, stack, "echo", f"--interface={name}", f"--loop={loop}"),
                    [_exchange(bench, loop, MESSAGES * number)],
                    checked=False,
                    starts=_START,
                )
                for name in INTERFACES
                for loop in LOOPS
            ),
            *(
                Trial(
                    _gateway(name),
                    partial(bench.gateway, name, "--loop", loop),
                    [_relay(bench, loop, connections, options)],
                )
                for name in options.strategies
                for loop in LOOPS
            ),
        ]
        alternate(trials, options, report)
    servers = [*map(_echo, INTERFACES), *map(_gateway, options.strategies)]
    for path, what, names in ((_MS, "time", [AIOHTTP]), (_SERVER, "server CPU", servers)):
        for name in names:
            values = ratios(report.rows, path, (name, UVLOOP), (name, ASYNCIO))
            report.judge(Target(f"{what}, {name}, uvloop / asyncio", values))
    report.conclusion = ""  # no figure has a bound
    report.advice = advice(report.rows)
    report.tables = {
        "The original's figures beside ours": beside(report.rows),
        "What was said, and what is found here": claims.lines(judge(report.rows)),
    }
    report.remarks = [
        *why(report.rows),
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
        ("Time to check all URLs, ms", "shorter is better", _MS),
        ("CPU of the checker per URL, µs", "shorter is better", _CHECKER),
        ("Memory of the checker, MB", "shorter is better", ("rss_mb", "checker")),
        ("CPU of the echo server per message, µs", "shorter is better", ("server", "echo")),
        ("CPU of the gateway per request, µs", "shorter is better", ("server", "gateway")),
    ]
    report.columns = [
        Column("a second", ("rps",), spread=True),
        Column("checker ms", _MS),
        Column("checker us", _CHECKER),
        Column("checker MB", ("rss_mb", "checker")),
        Column("server us", _SERVER, spread=True),
        *table.LATENCIES[:2],
        *table.FAULTS,
    ]
    return report


def _echo(interface: str) -> str:
    return f"echo, {interface}"


def _gateway(strategy: str) -> str:
    return f"gateway, {strategy}"


@contextmanager
def _serving(stack: Stack, module: str, *options: str) -> Iterator[Front]:
    with program.serving(stack, module, *options) as (server, port):
        yield Front(f"http://127.0.0.1:{port}", {"gateway": server})


def _check(bench: Bench, way: str, loop: str, number: int) -> Load:
    at_once = {ONE: 1, MANY: PROCESSES}.get(way, AT_ONCE)
    seconds = _START + number * (LEAST + MOST) / 2 / at_once + number / 1_000

    def measure(front: Front) -> Row:
        found: dict[str, Any] = {}

        def check() -> dict[str, Any]:
            options = (WAYS[way, loop], f"--url={front.address}", f"--number={number}")
            found.update(program.run("checker", *options, timeout=_TIMEOUT + 5 * seconds))
            return {
                "requests": sum(found["statuses"].values()),
                "seconds": found["seconds"],
                **compared(found["statuses"], statuses(number)),
                "latency_ms": {},
            }

        row = take(bench, front, at_once, check)
        cpu, memory = row["cpu_us_per_request"], row["rss_mb"]
        # It is no gateway, and not what is measured.
        for figures in (cpu, memory):
            figures["sites"], figures["gateway"] = figures["gateway"], 0.0
        cpu["checker"] = round(found["cpu"] * 1e6 / number, 1)
        memory["checker"] = round(found["memory"], 1)
        return {**row, "checker": {"ms": round(found["seconds"] * 1e3, 1)}}

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


def _relay(bench: Bench, loop: str, connections: int, options: argparse.Namespace) -> Load:
    load = closed(bench, connections, options.duration, options.threads, case=loop)
    return _served(load, "gateway")


def _served(load: Load, kind: str) -> Load:
    """Have the server's CPU in a place that only the rows of servers have, and of its `kind`."""

    def measure(front: Front) -> Row:
        row = load.measure(front)
        cpu = row["cpu_us_per_request"]["gateway"]
        return {**row, "server": {"cpu_us": cpu, kind: cpu}}

    return replace(load, measure=measure)


def judge(rows: Sequence[Row]) -> list[Claim]:
    """Decide what was said of ways and loops by `rows`."""
    return [_many(rows), _saved(rows), _differ(rows)]


def _many(rows: Sequence[Row]) -> Claim:
    text = (
        "Threads, processes and asyncio wait for many URLs in less than half of one thread's time"
    )
    others = [key for key in WAYS if key != (ONE, NO_LOOP)]
    factors = {key: ratios(rows, _MS, (ONE, NO_LOOP), key) for key in others}
    if not all(factors.values()):
        return Claim(text, None)
    shown = "; ".join(
        f"{_called(key)}: {median(found):.1f} times" for key, found in factors.items()
    )
    return Claim(text, min(map(min, factors.values())) > 2, f"faster than one thread: {shown}")


def _saved(rows: Sequence[Row]) -> Claim:
    before, after = (THEN[AIOHTTP, loop] for loop in LOOPS)
    then = 1 - before / after
    text = f"uvloop saves a checker on asyncio {then:.0%} of its time (at least half of that)"
    shares = ratios(rows, _MS, (AIOHTTP, UVLOOP), (AIOHTTP, ASYNCIO))
    if not shares:
        return Claim(text, None)
    saved = sorted(1 - share for share in shares)
    shown = f"{median(saved):.0%} saved by {AIOHTTP} ({saved[0]:.0%} to {saved[-1]:.0%})"
    return Claim(text, median(saved) >= then / 2, shown)


def _differ(rows: Sequence[Row]) -> Claim:
    text = (
        "uvloop only helps where the library uses it well: sockets, streams, protocols and "
        "transports differ"
    )
    gains = _gains(rows)
    by_interface = {name: gains[_echo(name)] for name in INTERFACES if _echo(name) in gains}
    if len(by_interface) < len(INTERFACES):
        return Claim(text, None)
    least, most = (f(by_interface.values(), key=median) for f in (min, max))
    # The repeats of the one are all above those of the other.
    apart = max(least) < min(most) and median(most) >= _DIFFERENT * median(least)
    shown = "; ".join(f"{name} {median(found):.2f}" for name, found in gains.items())
    return Claim(
        text,
        apart and median(most) >= _DIFFERENT,
        f"the server's CPU on asyncio / on uvloop: {shown}",
    )


def advice(rows: Sequence[Row]) -> str:
    """Say what to do, in a sentence; empty where what decides it was not measured."""
    checkers = {(s.strategy, s.case): s for s in summarize(rows) if (s.strategy, s.case) in WAYS}
    # A server that has used less than a tick of the clock shows nothing.
    gains = {name: gain for name, found in _gains(rows).items() if (gain := median(found)) > 0}
    if ONE not in {way for way, _ in checkers} or not gains:
        return ""
    seconds = {key: summary.median(*_MS) / 1e3 for key, summary in checkers.items()}
    best, *slower = sorted(seconds, key=lambda key: seconds[key])
    near = [key for key in slower if seconds[key] <= _DIFFERENT * seconds[best]]
    as_fast = "; ".join(f"{_called(key)}, {seconds[key]:.2f} s" for key in near)
    saved = {name: f"{name}: {1 - 1 / gain:.0%}" for name, gain in gains.items()}
    helped: list[str] = []
    others: list[str] = []
    for name, gain in gains.items():
        (helped if gain >= _DIFFERENT else others).append(saved[name])
    uvloop = f"take uvloop where it lowers a server's CPU time ({'; '.join(helped)})"
    if not helped:
        uvloop = "do without uvloop"
    elif others:
        uvloop += f", and do not expect much of it elsewhere ({'; '.join(others)})"
    return (
        f"To wait for many, use {_called(best)}: {seconds[best]:.2f} s and "
        f"{checkers[best].median('rss_mb', 'checker'):.0f} MB where one thread takes "
        f"{seconds[ONE, NO_LOOP]:.2f} s{f' (about as fast: {as_fast})' if near else ''}; and "
        f"{uvloop}."
    )


def beside(rows: Sequence[Row]) -> list[list[str]]:
    """Lay out the original's figures beside ours."""
    ours = _rates(rows)
    lines = [["URLs per second", "then", "here", "here / then"]]
    for key, then in THEN.items():
        here = ours.get(key)
        figures = [f"{here:,.0f}", f"{here / then:.0f}"] if here else ["-", "-"]
        lines.append([_called(key), f"{then:.1f}", *figures])
    then = THEN[AIOHTTP, UVLOOP] / THEN[AIOHTTP, ASYNCIO]
    found = ratios(rows, ("rps",), (AIOHTTP, UVLOOP), (AIOHTTP, ASYNCIO))
    figures = [f"{median(found):.2f}", f"{median(found) / then:.2f}"] if found else ["-", "-"]
    return [*lines, ["uvloop / asyncio", f"{then:.2f}", *figures]]


def why(rows: Sequence[Row]) -> list[str]:
    """Say what differs from the original in order, and what the rows say of the reason."""
    ours = _rates(rows)
    if not all(ours.get(key) for key in THEN):
        return []
    orders = [sorted(THEN, key=lambda key: -rates[key]) for rates in (THEN, ours)]
    then, here = (", ".join(map(_called, order)) for order in orders)
    order = (
        f"is the same as then, from the fastest: {here}"
        if orders[0] == orders[1]
        else (f"was, from the fastest: {then}; here it is: {here}")
    )
    cpu, ms = (
        {s.case: s.median(*path) for s in summarize(rows) if s.strategy == AIOHTTP}
        for path in (_CHECKER, _MS)
    )
    number = next(row["requests"] for row in rows if row["strategy"] == AIOHTTP)
    busy = cpu[ASYNCIO] * number / (ms[ASYNCIO] * 1e3)
    return [
        f"The order {order}. Then the URLs were remote, 31 for the threads and 365 for asyncio: "
        "what a remote site takes no loop can save, and it differs from run to run. Here all URLs "
        "are of one server on the same machine, which is why each way is faster. The checker on "
        f"asyncio used CPU for {busy:.0%} of its time, {cpu[ASYNCIO]:,.0f} us a URL, and on uvloop "
        f"{cpu[UVLOOP]:,.0f} us: more than that difference uvloop cannot save."
    ]


def _called(key: tuple[str, str]) -> str:
    way, loop = key
    return way if loop == NO_LOOP else f"{way} on {loop}"


def _rates(rows: Sequence[Row]) -> dict[tuple[str, str], float]:
    """Return the median rate of each way to check URLs."""
    found = {(s.strategy, s.case): s for s in summarize(rows)}
    return {key: summary.median("rps") for key, summary in found.items() if key in WAYS}


def _gains(rows: Sequence[Row]) -> dict[str, list[float]]:
    """Return by what factor uvloop lowers each server's CPU, repeat by repeat."""
    names = dict.fromkeys(row["strategy"] for row in rows if "server" in row)
    gains = {name: ratios(rows, _SERVER, (name, ASYNCIO), (name, UVLOOP)) for name in names}
    return {name: found for name, found in gains.items() if found}
