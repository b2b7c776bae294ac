"""The command line of the load test.

Exit codes: 0 well; 1 an answer was wrong, missing or not 2xx, or something could not be started;
2 an option is wrong; 130 interrupted.
"""

from __future__ import annotations

import argparse
import json
import logging
import resource
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from gateway.config.strategies import STRATEGIES
from gateway.errors import GatewayError
from loadtest import machine, wrk
from loadtest.experiments import EXPERIMENTS, find
from loadtest.report import Report
from loadtest.stack import Stack
from loadtest.tasks import Task

_T = TypeVar("_T")

_OPEN_FILES = 65_536
_MOST = 50_000  # of anything that is counted

#: What an experiment may have other defaults of.
_DEFAULTS = {
    "strategies": list(STRATEGIES),
    "connections": [64, 1000],
    "threads": 4,
    "duration": 10,
    "repeats": 5,
    "requests": 10_000,
    "checked": 2_000,
    "task": Task(),
    "fair_queues": [16],
    "fair_prefetch": [1],
}


def main(argv: list[str] | None = None) -> int:
    """Run an experiment and report it; returns the exit code."""
    options = parse(argv)
    if options.experiment not in EXPERIMENTS:
        there = ", ".join(EXPERIMENTS)
        print(f"loadtest: no experiment {options.experiment!r}; there is: {there}", file=sys.stderr)
        return 2
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _interrupt)
    _raise_open_files()
    try:
        wrk.program()  # before anything is started
        with Stack() as stack:
            report = measure(options, stack)
    except GatewayError as exc:
        print(f"loadtest: {exc}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("loadtest: interrupted, everything is stopped", file=sys.stderr)
        return 130
    return publish(report, options)


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    """Parse the command line; None: an experiment has its own default. Exits where it is wrong."""
    return _parser().parse_intermixed_args(argv)


def measure(options: argparse.Namespace, stack: Stack) -> Report:
    """Run the experiment that `options` name, with servers that `stack` starts."""
    experiment = find(options.experiment)
    chosen = {name: value for name in _DEFAULTS if (value := getattr(options, name)) is not None}
    used = {**_DEFAULTS, **experiment.DEFAULTS, **chosen}
    report: Report = experiment.run(argparse.Namespace(**used), stack)
    report.versions = {**machine.versions(), **report.versions}
    report.commit, report.machine = machine.commit(), machine.machine()
    # Only some have a task, and say so themselves; the checks say how many there were.
    del used["task"], used["checked"]
    if options.experiment != "fair":
        del used["fair_queues"], used["fair_prefetch"]
    report.options = {**used, **report.options}
    return report


def publish(report: Report, options: argparse.Namespace) -> int:
    """Print `report` and write the files that `options` name; returns the exit code."""
    if report.rows:
        report.show()
    else:
        print("\nnothing was measured")
    if options.json:
        options.json.write_text(json.dumps(report.document(), indent=1) + "\n")
    if options.html or options.plots:
        _draw(report, options)
    problems = report.problems()
    for problem in problems:
        print(f"loadtest: {problem}", file=sys.stderr)
    return 1 if problems else 0


def _draw(report: Report, options: argparse.Namespace) -> None:
    # On its first run, matplotlib warns that it looks for fonts; stderr is for problems.
    logging.getLogger("matplotlib").setLevel(logging.ERROR)
    # Imported after the measurements, as these may be made in this process.
    from loadtest import page, picture

    drawn = [picture.lines(plot) for plot in report.plots]
    if options.html:
        options.html.write_text(page.render(report, drawn), encoding="utf-8")
    if options.plots:
        for plot, lines in zip(report.plots, drawn, strict=True):
            file = options.plots / f"{report.experiment}-{plot.name}.svg"
            file.write_text(lines, encoding="utf-8")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="loadtest/run.sh",
        description="Load the gateway on this machine, and see that every answer is right.",
        epilog="Without an option each experiment has its own default; docs/performance.md tells.",
    )
    option = parser.add_argument
    listed = "; ".join(f"{name}: {summary}" for name, summary in EXPERIMENTS.items())
    option("experiment", nargs="?", default="strategies", help=f"what to compare: {listed}")
    option("--strategies", type=_list_of(_strategy), metavar="A,B")
    option("--connections", type=_list_of(_positive), metavar="64,1000")
    option("--threads", type=_positive, metavar="N", help="wrk's")
    option("--duration", type=_positive, metavar="SECONDS", help="of a timed run")
    option("--repeats", type=_positive, metavar="N", help="runs of each, in turn")
    option("--requests", type=_positive, metavar="N", help="of a run that is not timed")
    option("--checked", type=_positive, metavar="N", help="answers compared one to one first")
    option("--task", type=_task, help="echo or sleep:SECONDS")
    option("--fair-queues", type=_list_of(_positive), metavar="16", help="fair: numbers of queues")
    option("--fair-prefetch", type=_list_of(_positive), metavar="1", help="fair: limits of each")
    option("--json", type=_file, metavar="FILE", help="write all figures there")
    option("--html", type=_file, metavar="FILE", help="write a page with pictures there")
    option("--plots", type=_directory, metavar="DIRECTORY", help="write plots as SVG there")
    return parser


def _list_of(item: Callable[[str], _T]) -> Callable[[str], list[_T]]:
    def parse(text: str) -> list[_T]:
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


def _directory(text: str) -> Path:
    if not Path(text).is_dir():
        raise argparse.ArgumentTypeError(f"{text!r} is no directory")
    return Path(text)


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
