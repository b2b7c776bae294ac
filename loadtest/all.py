"""Run one experiment after the other.

``python -m loadtest.all`` runs each in a short form, in ten minutes: it shows that everything can
be measured on this machine, and roughly what comes out. ``python -m loadtest.all --reports`` runs
those whose reports are committed, in full, and writes docs/reports and the documents again; after
it names of experiments may follow, of which alone that is done.

Exit codes: 0 well; 1 an experiment failed, or was disturbed by other programs where its report
would be committed, and the others were run all the same; 2 an option is wrong; 130 interrupted, and
what went well before is kept.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from time import monotonic

from loadtest import figures, machine
from loadtest.experiments import EXPERIMENTS
from loadtest.progress import Progress

#: Where everything is written first; `make clean` removes it.
DIRECTORY = machine.ROOT / "build" / "loadtest"
COMMAND = [sys.executable, "-P", "-m", "loadtest"]

_BRIEF = "--repeats 1 --checked 20 --threads 2"
_ONE = f"{_BRIEF} --strategies pika"
#: Experiment -> seconds that its short form takes on two cores, and the options of that.
SHORT = {
    "strategies": (
        22,
        f"{_BRIEF} --strategies pika,redis,threadpool --connections 64 --duration 1",
    ),
    "cost": (36, f"{_ONE} --duration 1 --requests 500"),
    "peers": (24, f"{_ONE} --connections 64 --duration 1"),
    "slow": (20, f"{_ONE} --duration 1"),
    "waiting": (28, f"{_ONE} --connections 1000 --task sleep:2"),
    "alone": (18, f"{_ONE} --requests 300"),
    "openloop": (26, f"{_ONE} --duration 1"),
    "growth": (32, f"{_ONE} --duration 1"),
    "soak": (24, f"{_ONE} --duration 1"),
    "capacity": (44, f"{_ONE} --duration 1"),
    "fair": (42, f"{_ONE} --requests 500 --duration 1"),
    "separate": (20, f"{_ONE} --task sleep:0.5 --duration 1"),
    "paths": (46, f"{_BRIEF} --strategies redis --duration 1"),
    "worker-pools": (48, f"{_ONE} --duration 1"),
    "replies": (34, f"{_ONE} --connections 64 --duration 1"),
    "fronts": (26, f"{_ONE} --connections 64 --duration 1"),
    "pools": (55, "--connections 4 --requests 3 --task sleep:0.1"),
    "consumers": (20, "--connections 2 --prefetch 16 --requests 1000 --repeats 1"),
    "transports": (15, "--repeats 1 --requests 2000"),
    "loops": (20, f"{_ONE} --connections 64 --duration 1 --requests 20"),
}
#: Experiment whose report is committed, or may be -> minutes that it takes, and its options.
FULL = {
    "strategies": (32, ""),
    "cost": (23, ""),
    "peers": (17, ""),
    "slow": (5, ""),
    "waiting": (11, ""),
    "alone": (3, "--repeats 9"),
    "growth": (13, ""),
    "openloop": (8, ""),
    "soak": (31, "--strategies pika --duration 1800"),
    "capacity": (10, ""),
    "fair": (6, ""),
    "separate": (14, ""),
    "paths": (9, ""),
    "worker-pools": (15, ""),
    "replies": (6, ""),
    "fronts": (5, ""),
    "pools": (6, ""),
    "consumers": (7, ""),
    "transports": (5, ""),
    "loops": (5, ""),
}
#: An experiment hangs that takes so many times as long as it should, and so many seconds.
PATIENCE, START = 3, 60.0
#: The exit code of an experiment that other programs have disturbed.
DISTURBED = 3


@dataclass(frozen=True)
class Run:
    """An experiment with its options, and the seconds that it is expected to take."""

    name: str
    seconds: float
    options: str

    def file(self, suffix: str) -> Path:
        return DIRECTORY / f"{self.name}.{suffix}"

    def last_line(self) -> str:
        """Return the last line of the output, without the program's name."""
        return "".join(self.file("log").read_text().splitlines()[-1:]).removeprefix("loadtest: ")

    def files(self) -> list[Path]:
        """Return the report, its page and its plots, as far as they are there."""
        named = [path for suffix in ("json", "html") if (path := self.file(suffix)).exists()]
        return [*named, *DIRECTORY.glob(f"{self.name}-*.svg")]


def main(argv: Sequence[str] | None = None) -> int:
    """Run what the command line asks for; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m loadtest.all", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--reports", nargs="*", choices=list(FULL), metavar="NAME")
    chosen = parser.parse_args(argv).reports
    if chosen is None:
        runs = [Run(name, *SHORT[name]) for name in EXPERIMENTS]
    else:
        full = {name: FULL[name] for name in chosen or FULL}
        runs = [Run(name, 60 * minutes, options) for name, (minutes, options) in full.items()]
    commit = machine.commit() if chosen is not None else ""
    if commit.endswith("-dirty"):
        print("loadtest: a report names its commit: commit what is changed here", file=sys.stderr)
        return 1
    signal.signal(signal.SIGTERM, signal.getsignal(signal.SIGINT))
    well: list[Run] = []
    interrupted = False
    try:
        run_all(runs, well, commit)
    except KeyboardInterrupt:
        print("loadtest: interrupted, everything is stopped", file=sys.stderr)
        interrupted = True
    if chosen is not None:
        # New reports replace the committed ones, and their figures those in the documents.
        for run in well:
            shutil.copy(run.file("json"), figures.REPORTS)
        figures.main()
    return 130 if interrupted else int(len(well) < len(runs))


def run_all(runs: Sequence[Run], well: list[Run], commit: str) -> None:
    """Run all, with a line for each; append those that go well to `well`; see `_verdict`."""
    DIRECTORY.mkdir(parents=True, exist_ok=True)
    expected = sum(run.seconds for run in runs)
    print(f"{len(runs)} experiments, about {timedelta(seconds=expected)}; output: {DIRECTORY}")
    with Progress(expected) as progress:
        for run in runs:
            progress.step(f"{run.name}: {EXPERIMENTS[run.name]}", run.seconds)
            begin = monotonic()
            succeeded, said = _verdict(run, commit)
            if succeeded:
                well.append(run)
            progress.note(f"{said} ({monotonic() - begin:.0f} s)")
    print(f"{len(well)} well, {len(runs) - len(well)} failed")


def _verdict(run: Run, commit: str) -> tuple[bool, str]:
    """Run an experiment, with its output in a file; return whether it went well, and what it
    says. Where its report is to be committed, it has to be of `commit` and undisturbed."""
    code = _run(run)
    if code is None:
        return False, f"FAILED: it hung, and was stopped; see {run.file('log')}"
    if not run.file("json").exists():
        return False, f"FAILED: {run.last_line() or f'exit code {code}'}; see {run.file('log')}"
    report = json.loads(run.file("json").read_text())
    problems = report["problems"]
    if code not in (0, DISTURBED) and not problems:
        problems = [f"exit code {code}: {run.last_line()}"]
    if commit and report["commit"] != commit:
        problems = [*problems, f"it was measured on {report['commit']}, and not on {commit}"]
    if commit and report["disturbance"]:
        problems = [*problems, report["disturbance"]]
    if problems:
        more = f", and {len(problems) - 1} more" if len(problems) > 1 else ""
        return False, f"FAILED: {problems[0]}{more}; see {run.file('log')}"
    judged = [target["reached"] for target in report["targets"] if target["reached"] is not None]
    bounds = f", {sum(judged)} of {len(judged)} bounds reached" if judged else ""
    noise = "; other programs have disturbed it" if report["disturbance"] else ""
    return True, f"ok: {len(report['rows'])} measurements{bounds}{noise}"


def _run(run: Run) -> int | None:
    """Return the exit code of an experiment; None where it took far too long."""
    for old in run.files():
        old.unlink()
    argv = [*COMMAND, run.name, *run.options.split(), "--json", str(run.file("json"))]
    argv += ["--html", str(run.file("html")), "--plots", str(DIRECTORY)]
    env = {**os.environ, **machine.python_path()}
    with run.file("log").open("w") as log:
        process = subprocess.Popen(argv, env=env, stdout=log, stderr=subprocess.STDOUT)
    try:
        return process.wait(START + PATIENCE * run.seconds)
    except subprocess.TimeoutExpired:
        return None
    finally:
        # Not killed: it stops the servers that it has started.
        process.terminate()
        process.wait()


if __name__ == "__main__":
    raise SystemExit(main())
