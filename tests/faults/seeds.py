"""Random faults: what a seed stands for, and seeds side by side, each in a process of its own.

A seed's lane has servers of its own, so that nobody else has its faults, and a lane that fails does
not affect others.
"""

from __future__ import annotations

import argparse
import json
import logging
import signal
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing import active_children, get_context
from multiprocessing.connection import Connection
from pathlib import Path
from queue import SimpleQueue
from time import monotonic, sleep

from redis import Redis

from gateway.celery_message import RESULT_KEY
from gateway.outcome import SUCCESS
from gateway.stack import loopback
from gateway.stack.server import poll
from tests.faults import trial
from tests.faults.client import KEY, Client, PersistentSender
from tests.faults.faults import schedule
from tests.faults.lane import SENT, SETTLED, Lane
from tests.faults.oracle import RECOVERY, Judge, SeedResult
from tests.faults.report import Report, line, table
from tests.faults.servers import Servers, port_of, together
from tests.faults.trial import Row, Trial
from tests.faults.watchdog import Watchdog
from tests.simulation.records import Injected, Try
from tests.support.stack import RabbitMQ, Server, Stack

log = logging.getLogger("faults")

PROCESSES, POOL = 2, 6  # of each gateway, of each worker
KEPT = 3600  # seconds that results are kept: beyond the run
GIVE_UP = RECOVERY + 15.0  # seconds after the last fault for which senders try again
#: As the documentation asks of the Redis that has the claims.
DURABLE = ("--appendonly", "yes", "--appendfsync", "always")
DEADLINES = PersistentSender.DEADLINES


@dataclass(frozen=True)
class Size:
    """How long a seed lasts (seconds), and how much is sent."""

    seconds: float = 120.0  # of faults
    warm: float = 3.0  # before them
    after: float = RECOVERY + 5.0  # of load after them
    rate: float = 6.0  # deliveries a second: a minute's are worked off within 15 s


SHORT = Size(seconds=15.0, warm=1.0, after=4.0)


class RandomLane(Lane):
    """Two gateways and two workers on one queue, with a broker and a Redis of their own."""

    TEMPLATE = f"""\
result_expires = {KEPT}
secret_key = "of the random faults only"
public_url = "http://127.0.0.1:8000"
""" + "".join(
        f"""
[[routes]]
path = "{path}"
answer = "{path[1:]}"
deadline = {deadline}
idempotency = "header:{KEY}"
task = "faults.run"
{{queue}}"""
        for path, deadline in DEADLINES.items()
    )

    sender: PersistentSender
    client: Client
    injected: list[Injected]

    def start(self, seed: int, size: Size) -> None:
        """Start workers and gateways, and make their sender."""
        self.size, self.faults = size, schedule(seed, size.seconds)
        self.result = SeedResult(
            seed=seed, strategy=self.strategy, seconds=size.seconds,
            schedule=[fault.line for fault in self.faults],
        )  # fmt: skip
        kept = {"GATEWAY_RESULT_EXPIRES": str(KEPT)}
        worker = partial(self.start_worker, concurrency=POOL, env=kept)
        gateway = partial(self.start_gateway, f"--processes={PROCESSES}")
        together(worker, worker, gateway, gateway)
        gateways = {n: s for n, s in self.servers.items() if n.startswith("gateway")}
        ports = {name: port_of(gateway) for name, gateway in gateways.items()}
        watchdog, to = Watchdog(gateways), self.directory / SENT
        self.sender = PersistentSender(seed, ports, to, size.rate, watchdog)

    def suffer(self, trial: Trial) -> None:
        """Send while the seed's faults come and go, and until all is delivered."""
        self.node, self.client = trial.broker, trial.client
        # A queue that the broker forgets with its definitions takes its messages along.
        trial.broker.sync()
        self._say("everything serves; the faults begin")
        trial.client.start([self.sender])
        sleep(self.size.warm)
        self.injected = trial.inject(*self.faults)
        self.sender.until = monotonic() + GIVE_UP
        self._say("all is put right")
        sleep(self.size.after)
        trial.client.stop(2 * GIVE_UP)

    def _say(self, what: str) -> None:
        log.info("seed %d %s: %s", self.result.seed, self.strategy, what)

    def judge(self, _row: Row) -> SeedResult:
        """Say what this lane has shown."""
        self.drain(within=60, pause=2)  # longer than any task
        tries, done = self.sender.tries, self.executions()
        failed = self._failed({one.task for one in [*done, *tries] if one.task})
        read = self.client.run(self._read())
        injected = self.injected
        self.result.judge(Judge(self.strategy, tries, done, injected, DEADLINES, failed, read))
        self.result.problems += [*self.problems, *self._left(), *self.tracebacks()]
        return self.result

    def keep_logs(self, directory: Path, **others: Server) -> None:
        super().keep_logs(directory, **others)
        (directory / "faults.txt").write_text("\n".join(self.result.faults) + "\n")

    async def _read(self) -> dict[str, str]:
        """Return what is found where a 202 had said that the result would be, by delivery."""
        told: dict[str, Try] = {one.delivery: one for one in self.sender.tries if one.location}
        answers = {name: await self.sender.read(one.location) for name, one in told.items()}
        return {name: a.body.decode() for name, a in answers.items() if a.status == 200}

    def _failed(self, tasks: set[str]) -> set[str]:
        """Return those of the task ids whose stored result is a failure."""
        with Redis.from_url(self.results) as redis:
            stored = {task: redis.get(RESULT_KEY + task) for task in tasks}
        known = {task: json.loads(result) for task, result in stored.items() if result is not None}
        return {task for task, result in known.items() if result["status"] != SUCCESS}

    def _left(self) -> Iterator[str]:
        """Say what broker and gateways still hold."""
        queued = self.node.ctl("list_queues", "name", "messages")
        if f"{self.queue}\t0" not in queued.splitlines():
            yield f"messages are left: {queued.split()}"
        if not poll(self.quiet, SETTLED):
            yield "requests are still under way, or connections open"
        wanted = PROCESSES * len(self.gateways)
        if not poll(lambda: self._serving() == wanted, SETTLED):
            yield f"{self._serving()} processes serve, and not {wanted}"

    def _serving(self) -> int:
        """Count the processes that find nothing wrong."""
        return sum(not any({**one, "pid": 0}.values()) for one in self.checks())


@dataclass(frozen=True)
class Job:
    """A seed to be run with a strategy.

    What everybody has logged is kept below `logs` where a promise was broken, or `always`.
    """

    seed: int
    strategy: str
    size: Size
    logs: Path
    always: bool = False


def run(job: Job, broker: RabbitMQ | None = None) -> tuple[SeedResult, dict[str, str]]:
    """Run a seed with a strategy and judge it; return the servers' versions as well.

    A `broker` that is given is used instead of one of its own.
    """

    def suffer(trial: Trial) -> None:
        lane = trial.lane(job.strategy, kind=RandomLane)
        lane.start(job.seed, job.size)
        lane.suffer(trial)

    began = monotonic()
    row = Row(job.seed, "random faults", suffer, deadline=max(DEADLINES.values()))
    with Stack() as stack:
        servers = Servers(stack, *DURABLE, broker=broker)
        together(lambda: servers.broker, lambda: servers.results)
        to = job.logs / f"seed-{job.seed}-{job.strategy}"
        (result,) = trial.run(row, servers, (job.strategy,), logs=to, always=job.always)
    result.notes["seconds"] = round(monotonic() - began, 1)
    return result, servers.versions


# Several of them ----------------------------------------------------------------------------

#: A new interpreter each, that shares neither locks nor loops with this one.
_SPAWN = get_context("spawn")
_STARTING = threading.Lock()


def run_seeds(chosen: argparse.Namespace) -> bool:
    """Run the seeds that were asked for; tell whether all of them hold."""
    report = Report(chosen.json, chosen.resume, "random-faults", SeedResult)
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
    for done, (result, versions) in enumerate(run_all(jobs, chosen.at_once), 1):
        report.add([result], versions)
        minutes = (monotonic() - began) / 60
        log.info("%4.1f min  %d of %d: %s", minutes, done, len(jobs), line(result))
    log.info("\n%s", table(report.results))
    return all(result.holds for result in report.results)


def run_all(jobs: list[Job], at_once: int) -> Iterator[tuple[SeedResult, dict[str, str]]]:
    """Run all, so many at a time; return each one's result and its servers' versions."""
    over, places = threading.Event(), SimpleQueue[int]()
    for place in range(at_once):
        places.put(place)

    def run_one(job: Job) -> tuple[SeedResult, dict[str, str]]:
        place = places.get()
        found = _run_in_process(job, over, place, at_once)
        places.put(place)
        return found

    with ThreadPoolExecutor(at_once) as threads:
        all_ = [threads.submit(run_one, job) for job in jobs]
        try:
            for one in as_completed(all_):
                yield one.result()
        finally:
            # Interrupted: each stops the servers that it has started.
            with _STARTING:
                over.set()
            for process in active_children():
                process.terminate()


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


def _run_in_process(
    job: Job, over: threading.Event, place: int, places: int
) -> tuple[SeedResult, dict[str, str]]:
    """Return what a process of its own has found; one that found nothing could not be run."""
    ours, theirs = _SPAWN.Pipe(duplex=False)
    process = _SPAWN.Process(target=_run, args=(job, theirs, place, places))
    found = None
    with _STARTING, theirs:
        if not over.is_set():
            process.start()
            log.info("seed %d %s: starting", job.seed, job.strategy)
    with ours, suppress(EOFError):
        found = ours.recv()
    if process.pid is not None:
        process.join()
    if found is None:
        problem = f"could not be run: its process ended with {process.exitcode}"
        failed = SeedResult(
            seed=job.seed, strategy=job.strategy, seconds=job.size.seconds, problems=[problem]
        )
        return failed, {}
    return found


def _run(job: Job, pipe: Connection, place: int, places: int) -> None:
    """Run a lane in a process of its own; an exception ends the process, and is shown."""
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
    end_when_told()
    # A server's start lies between finding a port and listening on it.
    loopback.PORTS = loopback.PORTS[place::places]
    with pipe, suppress(KeyboardInterrupt):
        pipe.send(run(job))
