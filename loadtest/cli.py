"""The command line of the load test.

Exit codes: 0 well; 1 an answer was wrong, missing or not 2xx, or something could not be started;
2 an option is wrong; 3 other programs have disturbed the measurements; 130 interrupted. `compare`
has its own.
"""

from __future__ import annotations

import argparse
import logging
import os
import resource
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from gateway.config.strategies import STRATEGIES
from gateway.errors import GatewayError
from loadtest import compare, machine, wrk
from loadtest.experiments import EXPERIMENTS, WrongOption, find
from loadtest.report import MOST_OTHERS, Report, dump
from loadtest.stack import Stack
from loadtest.tasks import Task

_T = TypeVar("_T")

#: Where pages are written, unless an option names a file.
PAGES = machine.ROOT / "build" / "reports"

_OPEN_FILES = 65_536
_MOST = 50_000  # of anything that is counted
_MOST_REQUESTS = 1_000_000

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
    "prefetch": [1],
}


def main(argv: list[str] | None = None) -> int:
    """Run an experiment and report it, or compare two reports; returns the exit code."""
    argv = sys.argv[1:] if argv is None else argv
    if argv[:1] == [compare.NAME]:
        return compare.main(argv[1:])
    options = parse(argv)
    if options.experiment not in EXPERIMENTS:
        there = ", ".join(EXPERIMENTS)
        print(f"loadtest: no experiment {options.experiment!r}; there is: {there}", file=sys.stderr)
        return 2
    if len(options.tasks or ()) > 1 and options.experiment != "strategies":
        print("loadtest: --task: only strategies takes more than one", file=sys.stderr)
        return 2
    if options.html is None:
        try:
            PAGES.mkdir(parents=True, exist_ok=True)
            options.html = _file(str(PAGES / f"{options.experiment}.html"))
        except (OSError, argparse.ArgumentTypeError) as exc:
            print(f"loadtest: {exc}: name another file with --html", file=sys.stderr)
            return 2
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _interrupt)
    _raise_open_files()
    try:
        with Stack() as stack:
            report = measure(options, stack)
    except WrongOption as exc:
        print(f"loadtest: {exc}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("loadtest: interrupted, everything is stopped", file=sys.stderr)
        return 130
    return publish(report, options)


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    """Parse the command line; None: an experiment has its own default. Exits where it is wrong."""
    return _parser().parse_intermixed_args(argv)


def measure(options: argparse.Namespace, stack: Stack) -> Report:
    """Run the experiment that `options` name, with servers that `stack` starts.

    Where one of them cannot be started, the report says so, and has no figures.
    """
    experiment = find(options.experiment)
    chosen = {n: value for n in _DEFAULTS if (value := getattr(options, n, None)) is not None}
    used = {**_DEFAULTS, **experiment.DEFAULTS, **chosen}
    tasks = options.tasks or [used["task"]]
    given = argparse.Namespace(
        **{**used, "task": tasks[0], "tasks": tasks},
        others=options.others,
        costs=options.costs,
    )
    commit, versions = machine.commit(), machine.versions()
    try:
        wrk.program()  # before anything is started
        report: Report = experiment.run(given, stack)
    except GatewayError as exc:
        report = Report(options.experiment, failures=[str(exc)])
    if (machine.commit(), machine.versions()) != (commit, versions):
        report.failures.append("a file or a commit was changed meanwhile: measure again")
    report.versions = {**versions, **report.versions}
    report.commit, report.machine = commit, machine.machine()
    # Only some have a task, and say so themselves; the checks say how many there were.
    del used["task"], used["checked"]
    for name in {"fair_queues", "fair_prefetch", "prefetch"} - experiment.DEFAULTS.keys():
        del used[name]
    report.options = {**used, **report.options}
    report.most_others = options.others
    report.conclude()
    return report


def publish(report: Report, options: argparse.Namespace) -> int:
    """Print `report` and write the files that `options` name; returns the exit code."""
    if options.json:
        options.json.write_text(dump(report.document()))
    if report.rows:
        report.show()
    else:
        print("\nnothing was measured")
    # On its first run, matplotlib warns that it looks for fonts; stderr is for problems.
    logging.getLogger("matplotlib").setLevel(logging.ERROR)
    # Imported after the measurements, as these may be made in this process.
    from loadtest import render

    render.write(report, options.html, options.plots)
    problems, disturbance = report.problems(), report.disturbance()
    for problem in filter(None, [*problems, disturbance]):
        print(f"loadtest: {problem}", file=sys.stderr)
    if options.html:
        print(f"\nreport: {options.html.resolve()}", flush=True)
    return 1 if problems else 3 if disturbance else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="loadtest/run.sh",
        description="Load the gateway on this machine, and see that every answer is right.",
        epilog="Without an option each experiment has its own default; docs/performance.md tells.",
    )
    option = parser.add_argument
    listed = "; ".join(f"{name}: {summary}" for name, summary in EXPERIMENTS.items())
    option(
        "experiment",
        nargs="?",
        default="strategies",
        help=f"what to compare: {listed}; {compare.NAME} OLD.json NEW.json: two reports of one "
        "experiment",
    )
    option("--strategies", type=_list_of(_strategy), metavar="A,B")
    option("--connections", type=_list_of(_positive), metavar="64,1000")
    option("--threads", type=_positive, metavar="N", help="wrk's")
    option("--duration", type=_positive, metavar="SECONDS", help="of a timed run")
    option("--repeats", type=_positive, metavar="N", help="runs of each, in turn")
    option("--requests", type=_requests, metavar="N", help="of a run that is not timed")
    option("--checked", type=_positive, metavar="N", help="answers compared one to one first")
    option("--task", type=_list_of(_task), dest="tasks", metavar="A,B", help="echo, sleep:SECONDS")
    option("--fair-queues", type=_list_of(_positive), metavar="16", help="fair: numbers of queues")
    option("--fair-prefetch", type=_list_of(_positive), metavar="1", help="fair: limits of each")
    option("--prefetch", type=_list_of(_positive), metavar="1,16", help="consumers: limits")
    option("--costs", type=_report, metavar="FILE", help="capacity: predict from this report")
    option(
        "--others",
        type=_percent,
        default=MOST_OTHERS,
        metavar="PERCENT",
        help="of the cores, that other programs may have before the exit code is 3",
    )
    option("--json", type=_file, metavar="FILE", help="write all figures there")
    page_help = "write the page there and not to build/reports/EXPERIMENT.html"
    option("--html", type=_file, metavar="FILE", help=page_help)
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


def _positive(text: str, most: int = _MOST) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= most:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number from 1 to {most}")
    return int(text)


def _percent(text: str) -> float:
    try:
        percent = float(text)
    except ValueError:
        percent = -1
    if not 0 <= percent <= 100:
        raise argparse.ArgumentTypeError(f"{text!r} is no number from 0 to 100")
    return percent


def _requests(text: str) -> int:
    return _positive(text, _MOST_REQUESTS)


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
    writable = os.access(path if path.exists() else path.parent, os.W_OK)
    if path.is_dir() or not path.parent.is_dir() or not writable:
        raise argparse.ArgumentTypeError(f"{text!r} cannot be written there")
    return path


def _report(text: str) -> Path:
    if not Path(text).is_file():
        raise argparse.ArgumentTypeError(f"{text!r} is no file")
    return Path(text)


def _directory(text: str) -> Path:
    if not Path(text).is_dir() or not os.access(text, os.W_OK):
        raise argparse.ArgumentTypeError(f"{text!r} is no directory that can be written to")
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
