"""Do workers with greenlets keep their connections, and does one run that a script has started?

All these workers wait and use no CPU meanwhile, so they run at the same time.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import wait
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from time import monotonic, sleep

from gateway.stack import StackError
from loadtest.bench import Bench
from loadtest.lab.pools.chords import Producer, Work, producer, unique
from loadtest.lab.pools.worker import (
    COMMAND,
    PATCHED,
    UNPATCHED,
    Start,
    records_of,
    sleeping_server,
    spawn,
)
from loadtest.over_time import beside
from loadtest.stack import Measured, Stack
from loadtest.summary import Row

#: The pools whose tasks run in greenlets.
GREEN = ("gevent", "eventlet")
#: Seconds. RabbitMQ closes a connection on which nothing has come for two to three of them.
HEARTBEAT = 2
#: Seconds that a call sleeps in the runs with a heartbeat: longer than RabbitMQ waits.
LONG = 8.0
CALLS = 3  # of one chord, in these runs
_SIZE = 8
#: How many times as long as one call after the other: what is not done then does not go on.
_BOUND = 1.5
_GRACE = 3.0  # seconds
_STARTING = 12.0  # seconds, of all workers, for the estimate only

#: The runs with heartbeats acknowledge late: what runs while a connection is lost runs again.
BEATS = tuple(
    Start(pool, _SIZE, COMMAND, heartbeat, acks_late=True)
    for pool in GREEN
    for heartbeat in (HEARTBEAT, 0)
)
#: Beside them calls that block, as the tasks of the original may have done.
BLOCKING = tuple(replace(start, blocks=LONG) for start in BEATS[:2])
SCRIPTS = tuple(Start(pool, _SIZE, by) for pool in GREEN for by in (UNPATCHED, PATCHED))


@dataclass(frozen=True)
class Found:
    """How a run ended: `done` of `calls` were recorded, after `seconds`; 0 where not all were.

    `twice` is how often a call was begun again, `missed` how many connections the broker has
    closed for missing heartbeats since the calls were submitted, `lost` how often the worker had
    to connect again. `problem` says why the worker did not start.
    """

    start: Start
    calls: int
    done: int = 0
    twice: int = 0
    missed: int = 0
    lost: int = 0
    seconds: float = 0.0
    problem: str = ""

    @property
    def kept(self) -> bool:
        """Did all tasks run, each once, and over one connection?"""
        return bool(self.seconds) and not self.twice + self.missed + self.lost

    @property
    def name(self) -> str:
        return f"{self.start.pool}, {self.case}"

    @property
    def case(self) -> str:
        beat = "" if self.start.heartbeat is None else f", heartbeat {self.start.heartbeat} s"
        return f"{self.start.by}{beat}{', calls block' if self.start.blocks else ''}"

    @property
    def row(self) -> Row:
        """A row by which claims are judged: 1 where the run is `kept`, or all tasks ended."""
        return {
            "strategy": self.start.pool,
            "case": self.case,
            "repeat": 1,
            "requests": self.calls,
            "errors": 0,
            "wrong_answers": 0,
            "kept": int(self.kept),
            "ended": int(bool(self.seconds)),
        }

    @property
    def says(self) -> str:
        """The row in few words."""
        if self.problem:
            return "did not start"
        done = f"{self.done} of {self.calls} calls"
        done += f" in {self.seconds:.1f} s" if self.seconds else ", then no more"
        return f"{done}, {self.twice} again" if self.twice else done

    @property
    def line(self) -> list[str]:
        """The texts of the columns `HEAD`."""
        after = f"{self.seconds:.1f}" if self.seconds else self.problem or "never"
        figures = (self.twice, self.missed, self.lost)
        return [self.name, f"{self.done} of {self.calls}", *map(str, figures), after]


def broken(found: Sequence[Found]) -> list[str]:
    """Name the runs that had to be in order, as nothing was said against them, and were not.

    Those are the command's without a heartbeat; with one, it has to start at least.
    """
    return [
        f"{run.name}: {run.problem or run.says}"
        for run in found
        if run.start.by == COMMAND and (run.problem or not (run.start.heartbeat or run.kept))
    ]


HEAD = [
    "worker, started by",
    "calls",
    "begun again",
    "closed for missed heartbeats",
    "connected again",
    "all done after, s",
]


@dataclass
class _Run:
    start: Start
    work: Work
    server: str
    worker: Measured | None = None
    problem: str = ""
    ids: Sequence[str] = ()
    lost: int = 0  # before the calls were submitted

    @property
    def bound(self) -> float:
        """Seconds after which what is not done is given up."""
        return _bound(sum(self.work.sleeps) + self.work.calls * self.start.blocks)

    def begin(self, stack: Stack, bench: Bench) -> None:
        """Start the worker, or say why it does not start."""
        try:
            self.worker = spawn(stack, bench, self.start, self.work, self.server)
        except StackError as exc:
            self.problem = str(exc).splitlines()[0]

    def found(self, stack: Stack, send: Producer, closed: Sequence[str]) -> Found:
        """Return how it ended; the broker has `closed` connections with these names."""
        work = self.work
        if not self.worker:
            return Found(self.start, work.calls, problem=self.problem)
        server = f"{self.server}/{work.name}"
        end = send.outcome(work, self.ids, records_of(stack, work), server)
        whole = end.done == work.calls and len(end.summaries) == len(work.chords)
        return Found(
            self.start,
            work.calls,
            end.done,
            end.twice,
            closed.count(work.name),
            _lost(self.worker) - self.lost,
            round(end.seconds, 2) if whole else 0.0,
        )


def about(chords: Sequence[int], seconds: float) -> float:
    """Return about how many seconds `measure` takes, at the most."""
    blocking = max((start.blocks for start in BLOCKING), default=0.0)
    longest = max(CALLS * LONG, CALLS * (seconds + blocking), sum(chords) * seconds)
    return _bound(longest) + LONG + _STARTING


def _bound(sleeps: float) -> float:
    return _BOUND * sleeps + _GRACE


def measure(
    bench: Bench, stack: Stack, chords: Sequence[int], seconds: float, pools: Sequence[str]
) -> list[Found]:
    """Run `BEATS` with long calls, `BLOCKING` with calls that sleep for so many `seconds` before
    they block, and `SCRIPTS` with `chords` of calls of so many seconds.

    Only what is of one of `pools` is run.
    """
    with ExitStack() as exit_:
        short, long = (
            exit_.enter_context(sleeping_server(stack, each)).address for each in (seconds, LONG)
        )
        runs = [
            *(_Run(s, Work(unique("beat"), (CALLS,), LONG), long) for s in BEATS),
            *(_Run(s, Work(unique("block"), (CALLS,), seconds), short) for s in BLOCKING),
            *(_Run(s, Work(unique("script"), chords, seconds), short) for s in SCRIPTS),
        ]
        runs = [run for run in runs if run.start.pool in pools]
        if not runs:
            return []
        send = exit_.enter_context(producer(bench.broker.url, bench.redis.url))
        started = wait([beside(partial(run.begin, stack, bench)) for run in runs])
        for each in started.done:
            each.result()
        for run in runs:
            if run.worker:
                exit_.callback(send.purge, run.work)
                exit_.callback(run.worker.kill)
                run.lost = _lost(run.worker)
                run.ids = send.submit(run.work)
        # A worker that is starting sends no heartbeats yet.
        before = len(missed(bench.broker.output()))
        begin = monotonic()
        for run in sorted(runs, key=lambda run: run.bound):
            send.wait(run.ids, begin + run.bound)
        # What was given out again begins when the first try has ended.
        if any(run.work.seconds == LONG for run in runs):
            sleep(LONG)
        closed = missed(bench.broker.output())[before:]
        return [run.found(stack, send, closed) for run in runs]


def _lost(worker: Measured) -> int:
    return worker.output().count("Connection to broker lost")


def missed(log: str) -> list[str]:
    """Return the name of each connection that RabbitMQ says it has closed for missed heartbeats.

    Its log has a line that names the connection, and below it one that says why.
    """
    found = []
    lines = log.splitlines()
    for closing, why in zip(lines, lines[1:], strict=False):
        if "closing AMQP connection" in closing and "missed heartbeats from client" in why:
            _, _, name = closing.partition(" - ")
            found.append(name.split(",")[0].rstrip("):"))
    return found
