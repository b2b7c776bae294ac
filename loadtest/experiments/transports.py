"""How far is a broker from the floor: messages from one process to others by many transports."""

from __future__ import annotations

import argparse
from tempfile import TemporaryDirectory
from typing import Any

from loadtest import claims, table
from loadtest.bench import Bench, Front
from loadtest.lab import advice, program
from loadtest.lab.transport import WINDOW
from loadtest.lab.transport_cases import CASES, RATE, SERVERS, Case
from loadtest.load import Load, take
from loadtest.report import Report
from loadtest.stack import Stack
from loadtest.summary import Row
from loadtest.table import Column
from loadtest.trials import alternate, running

DEFAULTS = {"requests": 1_000_000, "repeats": 3}

_PROGRAM = 0.4  # seconds in which a program starts, for the estimate
_TIMEOUT, _SLOW = 60, 5  # seconds, and how many times longer than expected one may take


def run(options: argparse.Namespace, stack: Stack) -> Report:
    """Send by each transport in turn; each measurement has processes of its own."""
    bench = Bench(stack)
    report = Report("transports", versions=bench.versions(), heads=("transport", "message"))
    report.options = {"duration": None}
    servers = {case.transport: SERVERS.get(case.module) for case in CASES}
    trials = [
        running(
            transport,
            Front("", {kind: bench.servers[kind]} if kind else {}),
            [
                _load(bench, stack, case, options.requests)
                for case in CASES
                if case.transport == transport
            ],
        )
        for transport, kind in servers.items()
    ]
    alternate(trials, options, report)
    rows = report.rows
    report.advice = advice.transport(rows)
    report.tables = claims.tables("transports", rows)
    report.remarks = [
        *claims.reasons("transports", rows),
        "A receiver counts every message and compares it with what was sent; one that is missing, "
        "comes twice or is another fails the run. Slower transports send fewer: see messages. us: "
        "CPU of a message that was sent, of all receivers together. PUB/SUB: messages that were "
        "sent, each of which comes to all receivers. DEALER/ROUTER: with an answer to each, "
        f"{WINDOW} under way. pipelined: {WINDOW} commands at once. group: pipelined, with "
        f"XREADGROUP and XACK. confirmed: persistent, confirmed, acknowledged, {WINDOW} under way.",
    ]
    report.charts = [("Messages per second", "longer is better", RATE)]
    processes = ("sender", "receivers", "broker", "redis")
    report.columns = [
        Column("messages", ("requests",)),
        Column("messages/s", RATE, spread=True),
        *(Column(f"{name} us", ("cpu_us_per_request", name)) for name in processes),
        *(Column(f"{name} MB", ("rss_mb", name)) for name in processes[:2]),
        *table.FAULTS,
    ]
    return report


def _load(bench: Bench, stack: Stack, case: Case, messages: int) -> Load:
    number = max(1, round(messages * case.share))
    seconds = number / case.rate

    def measure(front: Front) -> Row:
        url = {"broker": bench.broker.url, "redis": bench.redis.url}

        def send() -> dict[str, Any]:
            with TemporaryDirectory(dir=stack.directory, prefix="") as sockets:
                found = program.run(
                    "transports",
                    *(case.module, case.name, f"--number={number}"),
                    *(f"--receivers={case.receivers}", f"--directory={sockets}"),
                    *(f"--url={url[kind]}" for kind in front.servers),
                    *(("--pickles",) if case.pickles else ()),
                    timeout=_TIMEOUT + _SLOW * seconds,
                )
            wrong = found.pop("wrong")
            errors = {kind: found.pop(kind) for kind in ("missing", "repeated")}
            return {**found, "wrong_answers": wrong, "errors": errors, "latency_ms": {}}

        row = take(bench, front, case.receivers, send)
        cpu, memory = row.pop("cpu"), row.pop("memory")
        for who in cpu:
            row["cpu_us_per_request"][who] = round(cpu[who] * 1e6 / number, 3)
            row["rss_mb"][who] = round(memory[who], 1)
        return row

    return Load(case.form, _PROGRAM + seconds, measure)
