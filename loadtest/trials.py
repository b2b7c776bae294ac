"""Measure several servers in turn, again and again."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TypeVar
from urllib.error import URLError

from amqp.exceptions import AMQPError
from kombu.exceptions import OperationalError
from pika.exceptions import AMQPError as PikaError
from redis import RedisError

from gateway.errors import GatewayError
from loadtest import client
from loadtest.bench import Front
from loadtest.load import Load
from loadtest.progress import Progress
from loadtest.report import Report, counted
from loadtest.summary import Row

AT_ONCE = 200

#: What a server raises that cannot be started, or that is gone in the middle of a measurement.
FAILURES = (
    GatewayError, ConnectionError, TimeoutError, URLError, AMQPError, OperationalError, PikaError,
    RedisError,
)  # fmt: skip

_T = TypeVar("_T")
_START = 8  # seconds to start a server and to check it, for the estimate only


@dataclass(frozen=True)
class Trial:
    """A server that is started alone, and its measurements.

    Where `checked`, answers are compared one to one first, which warms up everything as well;
    `seconds_each` is what one of them takes where one is answered at a time. `starts` is what
    starting takes, in seconds; 0: there is nothing to start.
    """

    strategy: str
    start: Callable[[], AbstractContextManager[Front]]
    loads: Sequence[Load]
    checked: bool = True
    seconds_each: float = 0.0
    starts: float = _START


def running(strategy: str, front: Front, loads: Sequence[Load]) -> Trial:
    """Return the trial of what runs already: it is neither started nor checked."""
    return Trial(strategy, lambda: nullcontext(front), loads, checked=False, starts=0)


def alternate(trials: Sequence[Trial], options: argparse.Namespace, report: Report) -> set[str]:
    """Fill `report` by all `trials`, `repeats` times; `checked` answers are compared each time.

    The order is A B C A B C, so that what changes on the machine meanwhile hits all of them.
    Returns the strategies of which something went wrong beside single answers.
    """
    a_round = sum(trial.starts + sum(load.seconds for load in trial.loads) for trial in trials)
    faulty: set[str] = set()
    with Progress(options.repeats * a_round) as progress:
        for repeat in range(1, options.repeats + 1):
            for trial in trials:
                try:
                    if not _run(trial, repeat, options, report, progress):
                        faulty.add(trial.strategy)
                except FAILURES as exc:
                    # The others' numbers are worth having.
                    faulty.add(trial.strategy)
                    # Ours say what was wrong and where, in a line.
                    kind = "" if isinstance(exc, GatewayError) else f"{type(exc).__name__}: "
                    why = f"{kind}{exc}".removesuffix(": ")
                    report.failures.append(f"{trial.strategy}, repeat {repeat}: {why}")
                    progress.note(f"FAILED: {why}")
    return faulty


def aside(report: Report, what: str, seconds: float, measure: Callable[[], _T]) -> _T | None:
    """Return what `measure` returns, which takes about so many seconds.

    None, and a failure in the report, where it fails: what else was measured is worth having.
    """
    with Progress(seconds) as progress:
        progress.step(what, seconds)
        try:
            return measure()
        except (*FAILURES, OSError) as exc:
            report.failures.append(f"{what}: {exc}")
            progress.note(f"FAILED: {exc}")
            return None


def _run(
    trial: Trial, repeat: int, options: argparse.Namespace, report: Report, progress: Progress
) -> bool:
    """Start one server, check its answers one to one, then load it.

    Returns whether the check went well.
    """
    which = f"{trial.strategy}, repeat {repeat} of {options.repeats}"
    problem = ""
    if trial.starts:
        progress.step(f"{which}: starting", trial.starts)
    with trial.start() as front:
        if trial.checked:
            # Twice what a strategy needs that has one task run at a time.
            timeout = 60 + 2 * options.checked * trial.seconds_each
            counts = client.check(front.url, options.checked, AT_ONCE, timeout, front.envelope)
            report.checks.append({"strategy": trial.strategy, "repeat": repeat, **counts})
            if problem := counted(counts):
                progress.note(f"FAILED: {problem}")
        for load in trial.loads:
            progress.step(f"{which}: {load.case}", load.seconds)
            found = load.measure(front)
            row = {"strategy": trial.strategy, "repeat": repeat, "case": load.case, **found}
            report.rows.append(row)
            progress.note(_in_short(row))
    return not problem


def _in_short(row: Row) -> str:
    latency = "".join(
        f", {name} {row['latency_ms'].get(name, 0):,.1f} ms" for name in ("p50", "p99")
    )
    cpu = "".join(
        f", {name} {value:,.0f} us" for name, value in row["cpu_us_per_request"].items() if value
    )
    return (
        f"{row['rps']:,.0f} req/s{latency if row['latency_ms'] else ''}{cpu}, "
        f"others {row['cores']['others_percent']:.0f} %, "
        f"{row['errors']} errors, {row['wrong_answers']} wrong answers"
    )
