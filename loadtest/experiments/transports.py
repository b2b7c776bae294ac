"""How far is a broker from the floor: messages from one process to others by many transports."""

from __future__ import annotations

import argparse
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from loadtest import table
from loadtest.bench import Bench, Front
from loadtest.lab import claims, program
from loadtest.lab.claims import Claim
from loadtest.lab.transport import WINDOW
from loadtest.load import Load, take
from loadtest.report import Report
from loadtest.stack import Stack
from loadtest.summary import Row, summarize
from loadtest.table import Column
from loadtest.targets import ratios
from loadtest.trials import Trial, alternate

DEFAULTS = {"requests": 1_000_000, "repeats": 3}

BYTES, PICKLES = "bytes", "pickles"
_SEVERAL = 5  # receivers
_PROGRAM = 0.4  # seconds in which a program starts, for the estimate
_TIMEOUT, _SLOW = 60, 5  # seconds, and how many times longer than expected one may take


@dataclass(frozen=True)
class Case:
    """A transport, by what it is called here and by `loadtest.lab.transports`.

    A `share` of all messages is sent; `rate` is what to expect a second, for the estimate of time.
    """

    transport: str
    module: str
    name: str
    pickles: bool = False
    receivers: int = 1
    share: float = 1.0
    rate: int = 500_000

    @property
    def form(self) -> str:
        form = PICKLES if self.pickles else BYTES
        return form if self.receivers == 1 else f"{form}, {self.receivers} receivers"


QUEUE = "multiprocessing.Queue"
PIPE = "multiprocessing.Pipe"
PUSH = "ZeroMQ PUSH/PULL, ipc"
PUSH_TCP = "ZeroMQ PUSH/PULL, tcp"
EACH = "UNIX socket, a write each"
BUFFERED = "UNIX socket, buffered"
LIST, PIPELINED_LIST = "Redis list", "Redis list, pipelined"
TRANSIENT, CONFIRMED = "RabbitMQ, transient", "RabbitMQ, confirmed"
_REDIS, _RABBITMQ = "redis_transports", "rabbitmq_transports"
#: Module -> what a bench calls its server.
_SERVERS = {_REDIS: "redis", _RABBITMQ: "broker"}


def _zeromq(label: str, name: str, share: float, several: float, rate: int) -> list[Case]:
    return [
        Case(f"{label}, {address}", "zeromq", f"{name}-{address}", pickles, receivers, part, rate)
        for address in ("ipc", "tcp")
        for receivers, part in ((1, share), (_SEVERAL, several))
        for pickles in (True, False)
    ]


CASES: list[Case] = [
    Case(QUEUE, "local", "queue", True, rate=100_000),
    Case(QUEUE, "local", "queue", True, _SEVERAL, 0.1, 60_000),
    Case("multiprocessing.SimpleQueue", "local", "simple-queue", True, 1, 0.5, 120_000),
    Case("multiprocessing.SimpleQueue", "local", "simple-queue", True, _SEVERAL, 0.1, 60_000),
    Case(PIPE, "local", "pipe", True, share=0.5, rate=150_000),
    Case(PIPE, "local", "pipe", share=0.5, rate=250_000),
    *_zeromq("ZeroMQ PUSH/PULL", "push", 1, 0.2, 500_000),
    *_zeromq("ZeroMQ PUB/SUB", "pub", 1, 0.1, 400_000),
    *_zeromq("ZeroMQ DEALER/ROUTER", "dealer", 0.05, 0.05, 60_000),
    Case(EACH, "local", "socket", share=0.5, rate=300_000),
    Case(BUFFERED, "local", "buffered-socket"),
    Case("UNIX socket, fixed size", "local", "fixed-size-socket", rate=1_000_000),
    Case(PIPELINED_LIST, _REDIS, "pipelined-list", share=0.1, rate=40_000),
    Case("Redis stream, pipelined", _REDIS, "pipelined-stream", share=0.1, rate=40_000),
    Case("Redis stream, group", _REDIS, "group", share=0.1, rate=40_000),
    Case(LIST, _REDIS, "list", share=0.02, rate=6_000),
    Case("Redis stream", _REDIS, "stream", share=0.02, rate=6_000),
    Case(TRANSIENT, _RABBITMQ, "transient", share=0.1, rate=15_000),
    Case(CONFIRMED, _RABBITMQ, "confirmed", share=0.02, rate=5_000),
]

#: What was measured then, messages a second.
THEN = {(QUEUE, PICKLES): 79_781, (PUSH, BYTES): 1_699_180}
#: Two factors that differ by less than this one are about the same.
_ABOUT = 2.0
#: So many times slower is far.
_FAR = 10

_RATE = ("rps",)


def run(options: argparse.Namespace, stack: Stack) -> Report:
    """Send by each transport in turn; each measurement has processes of its own."""
    bench = Bench(stack)
    report = Report("transports", versions=bench.versions(), heads=("transport", "message"))
    report.options = {"duration": None}
    transports = dict.fromkeys(case.transport for case in CASES)
    trials = [
        Trial(
            transport,
            partial(_start, bench, transport),
            [
                _load(bench, stack, case, options.requests)
                for case in CASES
                if case.transport == transport
            ],
            checked=False,
            starts=0,
        )
        for transport in transports
    ]
    alternate(trials, options, report)
    rows = report.rows
    report.advice = advice(rows)
    report.tables = {
        "The original's figures beside ours": beside(rows),
        "What was said, and what is found here": claims.lines(judge(rows)),
    }
    report.remarks = [
        *why(rows),
        "A receiver counts every message and compares it with what was sent; one that is missing, "
        "comes twice or is another fails the run. Slower transports send fewer: see messages. us: "
        "CPU of a message that was sent, of all receivers together. PUB/SUB: messages that were "
        "sent, each of which comes to all receivers. DEALER/ROUTER: with an answer to each, "
        f"{WINDOW} under way. pipelined: {WINDOW} commands at once. group: pipelined, with "
        f"XREADGROUP and XACK. confirmed: persistent, confirmed, acknowledged, {WINDOW} under way.",
    ]
    report.charts = [("Messages per second", "longer is better", _RATE)]
    processes = ("sender", "receivers", "broker", "redis")
    report.columns = [
        Column("messages", ("requests",)),
        Column("messages/s", _RATE, spread=True),
        *(Column(f"{name} us", ("cpu_us_per_request", name)) for name in processes),
        *(Column(f"{name} MB", ("rss_mb", name)) for name in processes[:2]),
        *table.FAULTS,
    ]
    return report


@contextmanager
def _start(bench: Bench, transport: str) -> Iterator[Front]:
    """Start nothing: the server of `transport` runs, if it has one."""
    kinds = {case.transport: _SERVERS.get(case.module) for case in CASES}
    kind = kinds[transport]
    yield Front("", {kind: bench.servers[kind]} if kind else {})


def _load(bench: Bench, stack: Stack, case: Case, messages: int) -> Load:
    number = max(1, round(messages * case.share))
    seconds = number / case.rate

    def measure(front: Front) -> Row:
        url = {"broker": bench.broker.url, "redis": bench.redis.url}
        found: dict[str, Any] = {}

        def send() -> dict[str, Any]:
            with TemporaryDirectory(dir=stack.directory, prefix="") as sockets:
                found.update(
                    program.run(
                        "transports",
                        *(case.module, case.name, f"--number={number}"),
                        *(f"--receivers={case.receivers}", f"--directory={sockets}"),
                        *(f"--url={url[kind]}" for kind in front.servers),
                        *(("--pickles",) if case.pickles else ()),
                        timeout=_TIMEOUT + _SLOW * seconds,
                    )
                )
            return {
                "requests": found["requests"],
                "seconds": found["seconds"],
                "wrong_answers": found["wrong"],
                "errors": {kind: found[kind] for kind in ("missing", "repeated")},
                "latency_ms": {},
            }

        row = take(bench, front, case.receivers, send)
        for who, cpu in found["cpu"].items():
            row["cpu_us_per_request"][who] = round(cpu * 1e6 / number, 3)
            row["rss_mb"][who] = round(found["memory"][who], 1)
        return row

    return Load(case.form, _PROGRAM + seconds, measure)


def judge(rows: Sequence[Row]) -> list[Claim]:
    """Decide what was said of transports by `rows`."""
    ours = _rates(rows)
    queue, zeromq, pickled = (
        ours.get(each) for each in ((QUEUE, PICKLES), (PUSH, BYTES), (PUSH, PICKLES))
    )
    factors = ratios(rows, _RATE, (PUSH, BYTES), (QUEUE, PICKLES))
    faster = Claim("ZeroMQ over ipc is faster than multiprocessing.Queue", None)
    times = Claim(f"It is {_then():.0f} times as fast (half to twice that)", None)
    pickling = Claim("The difference is that the queue pickles and ZeroMQ sends bytes", None)
    if queue and zeromq:
        factor = median(factors)
        shown = f"{PUSH}, {BYTES}: {zeromq:,.0f}/s; {QUEUE}: {queue:,.0f}/s"
        faster = replace(faster, holds=min(factors) > 1, shown=shown)
        about = _then() / _ABOUT <= factor <= _then() * _ABOUT
        shown = f"{factor:.1f} times ({min(factors):.1f}-{max(factors):.1f})"
        times = replace(times, holds=about, shown=shown)
        if pickled:
            # As factors multiply: more than half of the way is more than the root.
            by_pickles = zeromq / pickled
            pickling = replace(
                pickling,
                holds=by_pickles**2 >= zeromq / queue,
                shown=f"{PUSH}, {PICKLES}: {pickled:,.0f}/s, which is {by_pickles:.1f} of the "
                f"{zeromq / queue:.1f} times; the other {zeromq / queue / by_pickles:.1f} are the "
                "queue's own",
            )
    return [faster, times, pickling, _far(ours)]


def _far(ours: Mapping[tuple[str, str], float]) -> Claim:
    text = f"A broker is far from the floor: at least {_FAR} times slower"
    (floor, best), (broker, rate) = _fastest(ours, _LOCAL), _fastest(ours, _BROKERS)
    if not (best and rate):
        return Claim(text, None)
    shown = f"{floor}: {best:,.0f}/s; {broker}: {rate:,.0f}/s, {best / rate:.1f} times slower"
    return Claim(text, best >= _FAR * rate, shown)


def advice(rows: Sequence[Row]) -> str:
    """Say what to do, in a sentence; empty where what decides it was not measured."""
    ours = _rates(rows)
    floor, best = _fastest(ours, _LOCAL)
    queue, durable = ours.get((QUEUE, PICKLES)), ours.get((CONFIRMED, BYTES))
    if not (best and queue and durable):
        return ""
    return (
        f"Between processes of one machine, send bytes and many messages at once: {floor} moves "
        f"{best:,.0f} messages a second, {best / queue:.0f} times as many as {QUEUE}; pay for a "
        f"broker only where a message has to outlive the processes: RabbitMQ, persistent and "
        f"confirmed, moves {durable:,.0f}, {best / durable:,.0f} times fewer."
    )


def beside(rows: Sequence[Row]) -> list[list[str]]:
    """Lay out the original's figures beside ours."""
    ours = _rates(rows)
    lines = [["messages per second", "then", "here", "here / then"]]
    for (transport, form), then in THEN.items():
        here = ours.get((transport, form))
        figures = [f"{here:,.0f}", f"{here / then:.2f}"] if here else ["-", "-"]
        lines.append([f"{transport}, {form}", f"{then:,}", *figures])
    factors = ratios(rows, _RATE, (PUSH, BYTES), (QUEUE, PICKLES))
    here = median(factors) if factors else None
    figures = [f"{here:.1f} times", f"{here / _then():.2f}"] if here else ["-", "-"]
    return [*lines, ["ZeroMQ / queue", f"{_then():.1f} times", *figures]]


def why(rows: Sequence[Row]) -> list[str]:
    """Say what differs from the original in order and size, and what of it the rows explain."""
    ours = _rates(rows)
    needed = [*THEN, (BUFFERED, BYTES), (EACH, BYTES), (PIPE, BYTES), (PIPE, PICKLES)]
    if not all(ours.get(each) for each in needed):
        return []
    queue, zeromq, buffered, each, plain, pickled = (ours[key] for key in needed)
    order = "the same" if zeromq > queue else "the other way round"
    return [
        f"The order is {order} as then; the distance is {zeromq / queue:.1f} times here and "
        f"{_then():.1f} then, on another machine with older versions of Python and ZeroMQ. Why "
        "there is a distance: a write for each message makes a UNIX socket "
        f"{buffered / each:.1f} times slower than writes of 64 KiB, and ZeroMQ's own thread joins "
        f"messages, too; pickles make a pipe {plain / pickled:.1f} times slower. The queue has all "
        "of that for each message: a pickle, a lock, a thread that takes turns with the sender's, "
        "a write and two reads."
    ]


def _then() -> float:
    return THEN[PUSH, BYTES] / THEN[QUEUE, PICKLES]


def _rates(rows: Sequence[Row]) -> dict[tuple[str, str], float]:
    """Return the median rate of each transport and form."""
    return {(s.strategy, s.case): s.median(*_RATE) for s in summarize(rows)}


_BROKERS = {case.transport for case in CASES if case.module in _SERVERS}
_LOCAL = {case.transport for case in CASES} - _BROKERS


def _fastest(
    ours: Mapping[tuple[str, str], float], transports: Collection[str]
) -> tuple[str, float]:
    """Return the fastest of `transports` with one receiver, and its rate; none: an empty name."""
    found = [
        (rate, name)
        for (name, form), rate in ours.items()
        if name in transports and form in (BYTES, PICKLES)
    ]
    rate, name = max(found, default=(0.0, ""))
    return name, rate
