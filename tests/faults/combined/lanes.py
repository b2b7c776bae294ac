"""Several lanes side by side, each in a process of its own."""

from __future__ import annotations

import argparse
import logging
import signal
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from time import monotonic

from gateway.stack import loopback
from tests.faults.combined import lane
from tests.faults.combined.lane import Size
from tests.faults.combined.oracle import Result
from tests.faults.combined.report import line, seed_and_strategy, table
from tests.faults.report import Report

log = logging.getLogger("faults")

#: A new interpreter each, that shares neither locks nor loops with this one.
_SPAWN = get_context("spawn")


@dataclass(frozen=True)
class Job:
    """A seed to be run with a strategy; see `lane.run`."""

    seed: int
    strategy: str
    size: Size
    logs: Path
    always: bool


@dataclass
class _Running:
    job: Job
    process: BaseProcess
    place: int


def run_seeds(chosen: argparse.Namespace) -> bool:
    """Run the seeds that were asked for; tell whether all of them hold."""
    report = Report(chosen.json, chosen.resume, "random-faults", kind=Result, key=seed_and_strategy)
    # A shorter run of a seed does not stand for a longer one.
    report.results = [one for one in report.results if one.seconds == chosen.seconds]
    size, logs = Size(seconds=chosen.seconds), chosen.json.with_suffix("")
    jobs = [
        Job(seed, strategy, size, logs, chosen.logs)
        for seed in chosen.seeds
        for strategy in chosen.strategies
        if not (chosen.resume and report.has(seed, strategy))
    ]
    began = monotonic()
    for done, (result, versions) in enumerate(run(jobs, chosen.at_once), 1):
        report.add([result], versions)
        minutes = (monotonic() - began) / 60
        log.info("%4.1f min  %d of %d: %s", minutes, done, len(jobs), line(result))
    log.info("\n%s", table(report.results))
    return all(result.holds for result in report.results)


def run(jobs: list[Job], at_once: int) -> Iterator[tuple[Result, dict[str, str]]]:
    """Run all, so many at a time; return each one's result and its servers' versions."""
    waiting, places = list(reversed(jobs)), list(range(at_once))
    running: dict[Connection, _Running] = {}
    try:
        while waiting or running:
            while waiting and places:
                pipe, one = _start(waiting.pop(), places.pop(), at_once)
                running[pipe] = one
            for pipe in wait(list(running)):
                one = running.pop(pipe)
                yield _receive(pipe, one)
                places.append(one.place)
    finally:
        # Interrupted: each stops the servers that it has started.
        for one in running.values():
            one.process.terminate()
        for one in running.values():
            one.process.join()


def end_when_told() -> None:
    """Have the first SIGINT or SIGTERM raise KeyboardInterrupt; more do not disturb the end.

    Who is started in the background of a shell script would ignore SIGINT.
    """

    def interrupt(*_: object) -> None:
        for each in (signal.SIGINT, signal.SIGTERM):
            signal.signal(each, signal.SIG_IGN)
        raise KeyboardInterrupt

    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, interrupt)


def _start(job: Job, place: int, places: int) -> tuple[Connection, _Running]:
    ours, theirs = _SPAWN.Pipe(duplex=False)
    process = _SPAWN.Process(target=_run, args=(job, theirs, place, places))
    process.start()
    theirs.close()
    log.info("seed %d %s: starting", job.seed, job.strategy)
    return ours, _Running(job, process, place)


def _receive(pipe: Connection, one: _Running) -> tuple[Result, dict[str, str]]:
    """Return what a lane's process has found; one that found nothing could not be run."""
    found = None
    with pipe, suppress(EOFError):
        found = pipe.recv()
    one.process.join()
    if found is None:
        job = one.job
        problem = f"could not be run: its process ended with {one.process.exitcode}"
        return Result(job.seed, job.strategy, job.size.seconds, problems=[problem]), {}
    return found


def _run(job: Job, pipe: Connection, place: int, places: int) -> None:
    """Run a lane in a process of its own; an exception ends the process, and is shown."""
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
    end_when_told()
    # A server's start lies between finding a port and listening on it.
    loopback.PORTS = loopback.PORTS[place::places]
    with pipe, suppress(KeyboardInterrupt):
        pipe.send(lane.run(job.seed, job.strategy, job.size, job.logs, job.always))
