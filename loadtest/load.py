"""One measurement of a running server: load it, and count what its processes have used."""

from __future__ import annotations

import math
from collections.abc import Callable
from concurrent.futures import wait
from dataclasses import dataclass
from functools import partial
from threading import Event
from typing import Any, TypeVar

from loadtest import client, machine, openloop, wrk
from loadtest.bench import Bench, Front
from loadtest.over_time import beside
from loadtest.report import Report
from loadtest.summary import Row, case_of
from loadtest.table import PROCESSES

#: A client that sends less than this share of what was due has measured something else.
KEPT = 0.99
#: What `wrk.run` returns.
_FOUND = ("requests", "seconds", "wrong_answers", "errors", "latency_ms")
AROUND = 4  # seconds that a measurement takes beside the load itself

_T = TypeVar("_T")


@dataclass(frozen=True)
class Load:
    """`measure` returns a row without its strategy and repeat; it takes about `seconds`.

    Raises what a broken server or load generator raises, a `GatewayError`.
    """

    case: str
    seconds: float
    measure: Callable[[Front], Row]


def closed(
    bench: Bench,
    connections: int,
    duration: int,
    threads: int,
    path: str | None = None,
    case: str = "",
) -> Load:
    """Have wrk keep `connections` busy for `duration` seconds."""
    case = case or f"{connections:,} connections"

    def measure(front: Front) -> Row:
        front = front.at(path) if path else front
        timeout = bench.deadline + 5
        row = take(
            bench,
            front,
            connections,
            lambda: wrk.run(front.url, connections, threads, duration, timeout, front.envelope),
        )
        # The worker's queue holds what was in flight; behind it, this one finds it empty.
        last = client.check(front.url, 1, 1, math.ceil(timeout), front.envelope)
        row["errors_by_kind"]["missing"] += last["missing"]
        row["errors_by_kind"]["status"] += last["not_2xx"]
        row["wrong_answers"] += last["wrong_answers"]
        row["errors"] += last["missing"] + last["not_2xx"]
        return row

    return Load(case, duration + AROUND, measure)


def constant(
    bench: Bench,
    rate: float | Callable[[], float],
    duration: float,
    case: str,
    path: str | None = None,
    answered_after: float = 0.0,
    connections: int = openloop.OPEN,
) -> Load:
    """Send at a constant `rate` a second, which may be known only when it begins.

    Where answers come `answered_after` seconds later, CPU counts from the first of them on and
    until the last request: meanwhile as many come as go. So many `connections` are open then.
    """

    def measure(front: Front) -> Row:
        front = front.at(path) if path else front
        a_second = rate() if callable(rate) else rate
        total = answered_after + duration
        with openloop.schedule(
            front.url, a_second, total, connections, front.envelope
        ) as generator:
            usage = Usage(front, generator.cpu_seconds)
            send = partial(generator.send, bench.deadline + 5)
            if answered_after:
                found = send(((answered_after, usage.begin), (total, usage.end)))
            else:
                found = usage.of(send)
        requests = a_second * duration if answered_after else found["requests"]
        row = _row(bench, front, found, usage, requests)
        return {**row, "connections": found["schedule"]["connections"]}

    return Load(case, answered_after + duration + AROUND, measure)


def watched(load: Load, front: Front, watch: Callable[[Event], _T]) -> tuple[Row, _T]:
    """Return the row of `load`, and what `watch` returns.

    It runs meanwhile, in a thread of its own; the event tells it that the load has ended.
    """
    ended = Event()
    found = beside(partial(watch, ended))
    try:
        row = load.measure(front)
    finally:
        ended.set()
        wait([found])
    return row, found.result()


def see_that_schedules_were_kept(report: Report) -> None:
    """Add a failure for each row whose client could not send what was due."""
    for row in report.rows:
        for what, schedule in (
            ("the client", row.get("schedule")),
            ("the flood's client", row.get("flood", {}).get("schedule")),
        ):
            if schedule and schedule["sent"] < KEPT * schedule["rate"]:
                report.failures.append(
                    f"{row['strategy']}, repeat {row['repeat']}, {case_of(row)}: {what} sent "
                    f"{schedule['sent']:,} a second where {schedule['rate']:,} were due"
                )


class Usage:
    """The CPU that what answers at `front`, this process and its children that have ended use
    between `begin` and `end`; `beside` returns that of a child that may not have."""

    def __init__(self, front: Front, beside: Callable[[], float] = float):
        self._servers, self._beside = front.servers, beside
        #: User and system time, seconds.
        self.cpu: dict[str, float] = {}
        #: What else the cores did; see `machine.Cores`.
        self.shares: dict[str, float] = {}

    def begin(self) -> None:
        self._cores, self._own = machine.Cores(), machine.own_cpu_seconds() + self._beside()
        self._before = self._seconds()

    def end(self) -> None:
        self.cpu = {name: now - self._before[name] for name, now in self._seconds().items()}
        own = machine.own_cpu_seconds() + self._beside() - self._own
        self.shares = self._cores.shares(sum(self.cpu.values()) + own)

    def of(self, run: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """Return what `run` returns."""
        self.begin()
        found = run()
        self.end()
        return found

    def _seconds(self) -> dict[str, float]:
        return {name: server.cpu_seconds() for name, server in self._servers.items()}


def take(bench: Bench, front: Front, connections: int, run: Callable[[], dict[str, Any]]) -> Row:
    """Call `run`, which returns what `wrk.run` does, and make a row of it."""
    usage = Usage(front)
    found = usage.of(run)
    return {**_row(bench, front, found, usage, found["requests"]), "connections": connections}


def _row(bench: Bench, front: Front, found: dict[str, Any], usage: Usage, requests: float) -> Row:
    """Return a row: CPU for each of so many `requests`, the rest of what was `found`.

    `errors` is the sum of `errors_by_kind`; CPU is user and system time; what has no process
    here counts 0; `cores` tells whether something else disturbed it. What was `found` beside is in
    the row as it is.
    """
    rss = {name: server.rss_bytes() for name, server in front.servers.items()}
    with_broker = "broker" in front.servers
    return {
        "requests": found["requests"],
        "rps": round(found["requests"] / found["seconds"], 1),
        "errors": sum(found["errors"].values()),
        "errors_by_kind": found["errors"],
        "wrong_answers": found["wrong_answers"],
        "latency_ms": found["latency_ms"],
        "cpu_us_per_request": {
            name: round(usage.cpu.get(name, 0) * 1e6 / max(requests, 1), 1) for name in PROCESSES
        },
        "rss_mb": {name: round(rss.get(name, 0) / 2**20, 1) for name in PROCESSES},
        "cores": usage.shares,
        "connections_open": bench.connections_open() if with_broker else {"broker": 0, "redis": 0},
        **{name: value for name, value in found.items() if name not in _FOUND},
    }
