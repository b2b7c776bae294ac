"""The command line of the load test.

Exit codes: 0 well; 1 an answer was wrong, missing or not 2xx, or something could not be started;
2 an option is wrong; 130 interrupted.
"""

from __future__ import annotations

import argparse
import json
import resource
import signal
import sys
from collections.abc import Callable
from pathlib import Path

from gateway.errors import GatewayError
from gateway.stack import Stack
from gateway.strategies import STRATEGIES
from loadtest import machine, page
from loadtest.bench import Task
from loadtest.experiments import EXPERIMENTS, find
from loadtest.report import Report

_OPEN_FILES = 65_536
_REPORTED = ("strategies", "connections", "threads", "duration", "repeats")
_MOST = 50_000  # of anything that is counted


def main(argv: list[str] | None = None) -> int:
    """Run an experiment and report it; returns the exit code."""
    options = _parser().parse_intermixed_args(argv)
    if options.experiment not in EXPERIMENTS:
        there = ", ".join(EXPERIMENTS)
        print(f"loadtest: no experiment {options.experiment!r}; there is: {there}", file=sys.stderr)
        return 2
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _interrupt)
    _raise_open_files()
    try:
        # First, as it sees whether wrk is there.
        versions = machine.versions()
        with Stack() as stack:
            report = find(options.experiment)(options, stack)
    except GatewayError as exc:
        print(f"loadtest: {exc}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("loadtest: interrupted, everything is stopped", file=sys.stderr)
        return 130
    report.versions = {**versions, **report.versions}
    report.commit, report.machine = machine.commit(), machine.machine()
    report.options = {
        **{name: getattr(options, name) for name in _REPORTED},
        "task": options.task.name,
        "task_seconds": options.task.seconds,
        "worker_pool": ":".join(map(str, options.task.pool)),
    }
    return _publish(report, options)


def _publish(report: Report, options: argparse.Namespace) -> int:
    print(f"\n{report.table()}" if report.rows else "\nnothing was measured")
    if options.json:
        options.json.write_text(json.dumps(report.document(), indent=1) + "\n")
    if options.html:
        options.html.write_text(page.render(report), encoding="utf-8")
    problems = report.problems()
    for problem in problems:
        print(f"loadtest: {problem}", file=sys.stderr)
    return 1 if problems else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="loadtest/run.sh",
        description="Load the gateway on this machine, and see that every answer is right.",
        epilog="; ".join(f"{name}: {summary}" for name, (_, summary) in EXPERIMENTS.items()),
    )
    option = parser.add_argument
    option("experiment", nargs="?", default="strategies", help="what to compare (strategies)")
    option("--strategies", type=_list_of(_strategy), default=list(STRATEGIES), metavar="A,B")
    option("--connections", type=_list_of(_positive), default=[64, 1000], metavar="64,1000")
    option("--threads", type=_positive, default=4, metavar="N", help="wrk's (4)")
    option("--duration", type=_positive, default=30, metavar="SECONDS", help="of a timed run (30)")
    option("--repeats", type=_positive, default=3, metavar="N", help="timed runs of each (3)")
    option("--task", type=_task, default="echo", help="echo or sleep:SECONDS (echo)")
    option("--json", type=_file, metavar="FILE", help="write all figures there")
    option("--html", type=_file, metavar="FILE", help="write a page with pictures there")
    return parser


def _list_of(item: Callable) -> Callable:
    def parse(text: str) -> list:
        return list(dict.fromkeys(item(part.strip()) for part in text.split(",")))

    return parse


def _strategy(text: str) -> str:
    if text not in STRATEGIES:
        raise argparse.ArgumentTypeError(f"no strategy {text!r}; there are {', '.join(STRATEGIES)}")
    return text


def _positive(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= _MOST:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number from 1 to {_MOST}")
    return int(text)


def _task(text: str) -> Task:
    try:
        return Task.parse(text)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r} is neither echo nor sleep:SECONDS, with at most 10 seconds"
        ) from None


def _file(text: str) -> Path:
    path = Path(text)
    # Now, not after half an hour of measuring.
    if path.is_dir() or not path.parent.is_dir():
        raise argparse.ArgumentTypeError(f"{text!r} cannot be written there")
    return path


def _raise_open_files() -> None:
    """Let wrk and the gateway have a file for each connection, and some."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    # Not a limit without end: the Erlang VM has a table of that size.
    wanted = _OPEN_FILES if hard == resource.RLIM_INFINITY else min(_OPEN_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _interrupt(number: int, frame: object) -> None:
    # The servers are being stopped from here on: a second Ctrl-C must not leave one behind.
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, signal.SIG_IGN)
    raise KeyboardInterrupt
