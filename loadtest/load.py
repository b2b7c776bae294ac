"""One measurement of a running server: load it, and count what its processes have used."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from loadtest import client, machine, openloop, wrk
from loadtest.bench import Bench, Front
from loadtest.report import Report
from loadtest.summary import Row, case_of
from loadtest.table import PROCESSES

#: A client that sends less than this share of what was due has measured something else.
KEPT = 0.99
AROUND = 4  # seconds that a measurement takes beside the load itself


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
) -> Load:
    """Send at a constant `rate` a second, which may be known only when it begins.

    Connections for all that wait for `answered_after` seconds are opened before the measurement.
    """

    def measure(front: Front) -> Row:
        front = front.at(path) if path else front
        a_second = rate() if callable(rate) else rate
        connections = openloop.OPEN + math.ceil(1.1 * a_second * answered_after)
        with openloop.schedule(front.url, a_second, duration, connections) as send:
            schedule: dict[str, Any] = {}

            def run() -> dict[str, Any]:
                found = send(bench.deadline + 5)
                schedule.update(found.pop("schedule"))
                return found

            row = take(bench, front, 0, run)
        return {**row, "connections": schedule["connections"], "schedule": schedule}

    return Load(case, duration + AROUND, measure)


def see_that_schedules_were_kept(report: Report) -> None:
    """Add a failure for each row whose client could not send what was due."""
    for row in report.rows:
        schedule = row.get("schedule")
        if schedule and schedule["sent"] < KEPT * schedule["rate"]:
            report.failures.append(
                f"{row['strategy']}, repeat {row['repeat']}, {case_of(row)}: the client sent "
                f"{schedule['sent']:,} a second where {schedule['rate']:,} were due"
            )


def take(bench: Bench, front: Front, connections: int, run: Callable[[], dict[str, Any]]) -> Row:
    """Call `run`, which returns what `wrk.run` does, and make a row of it.

    `errors` is the sum of `errors_by_kind`; CPU is user and system time; what has no process
    here counts 0; `cores` tells whether something else disturbed it.
    """
    servers = front.servers
    cores, own = machine.Cores(), machine.own_cpu_seconds()
    before = {name: server.cpu_seconds() for name, server in servers.items()}
    found = run()
    cpu = {name: server.cpu_seconds() - before[name] for name, server in servers.items()}
    shares = cores.shares(sum(cpu.values()) + machine.own_cpu_seconds() - own)
    rss = {name: server.rss_bytes() for name, server in servers.items()}
    requests = max(found["requests"], 1)
    with_broker = "broker" in servers
    return {
        "connections": connections,
        "requests": found["requests"],
        "rps": round(found["requests"] / found["seconds"], 1),
        "errors": sum(found["errors"].values()),
        "errors_by_kind": found["errors"],
        "wrong_answers": found["wrong_answers"],
        "latency_ms": found["latency_ms"],
        "cpu_us_per_request": {
            name: round(cpu.get(name, 0) * 1e6 / requests, 1) for name in PROCESSES
        },
        "rss_mb": {name: round(rss.get(name, 0) / 2**20, 1) for name in PROCESSES},
        "cores": shares,
        "connections_open": bench.connections_open() if with_broker else {"broker": 0, "redis": 0},
    }
