"""Does one tenant hold up the others? A flood, or tasks that hang, on fair queues and on one.

Ten tenants have one route: nine send a request a second each, one does what it wants.
"""

from __future__ import annotations

import argparse
import asyncio
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import count
from time import monotonic, sleep
from typing import Any

from kombu import Connection as Broker

from gateway.config.pointers import pair_chooser
from gateway.config.task import fair_names
from gateway.delivery import Delivery
from gateway.stack import StackError
from loadtest import table
from loadtest.bench import Bench, Front
from loadtest.client import Connection, result
from loadtest.load import AROUND, Load, take
from loadtest.report import Report
from loadtest.stack import Stack
from loadtest.summary import Row
from loadtest.table import Column
from loadtest.targets import Target, figures
from loadtest.tasks import Task
from loadtest.trials import Trial, alternate

DEFAULTS = {
    "strategies": ["pika", "redis"],
    "requests": 20_000,
    "duration": 20,
    "repeats": 1,
    "checked": 200,
    "task": Task(0.1),
    "fair_queues": [16],
    "fair_prefetch": [1],
}

#: What the tenth does.
NOTHING, FLOOD, HANG = "calm", "flood", "hang"
TENTH = "tenant-0"
OTHERS = [f"tenant-{n}" for n in range(1, 10)]

_AT_ONCE = 16  # connections of the tenth
_LEAD = 1.0  # seconds that the tenth is ahead
_HANGING = 4  # deliveries a second whose tasks hang
_LATE = 30.0  # seconds after its deadline until an answer is missing
_PATIENCE = 60.0  # seconds until workers have given up what they hold


#: Processes of the worker.
POOL = 8
#: Seconds after which a request is a 504.
DEADLINE = 10.0
#: Seconds after which the worker ends a task that hangs, by an exception. A hard limit kills the
#: process, for which the worker's loop stops; that would be measured instead.
TIME_LIMIT = 3
#: What a request may take, measured by the 99th percentile where nobody disturbs, and takes
#: without noticing anything.
UNNOTICED = 1.1

_ROUTES = """\
[[routes]]
path = "/{queue}"
task = "appserver.tasks.sleep"
queue = "{queue}"
{fair}

[[routes]]
path = "/{queue}/taken"
task = "appserver.tasks.sleep"
queue = "{queue}"
answer = "accept"
ignore_result = true
{fair}

[[routes]]
path = "/{queue}/hanging"
task = "appserver.tasks.sleep"
queue = "{queue}"
answer = "accept"
ignore_result = true
soft_time_limit = {limit}
{fair}

"""


def run(options: argparse.Namespace, stack: Stack) -> Report:
    """Let nine tenants send one request a second each, while a tenth does what it wants."""
    config = _routes("plain", "")
    for number in options.fair_queues:
        config += _routes(f"fair-{number}", f'fair_by = "header:x-tenant"\nfair_queues = {number}')
    bench = Bench(stack, deadline=DEADLINE, config=config)
    report = Report("fair", versions=bench.versions())
    report.options = {
        "worker_pool": f"prefork:{POOL}",
        "task_seconds": options.task.seconds,
        "time_limit": TIME_LIMIT,
    }

    @contextmanager
    def start(strategy: str, number: int, prefetch: int) -> Iterator[Front]:
        fair = {"GATEWAY_FAIR_QUEUES": f"fair-{number}:{number}"}
        fair["GATEWAY_FAIR_PREFETCH"] = str(prefetch)
        queues = ["celery", "plain", f"fair-{number}"]
        try:
            with (
                bench.worker("prefork", POOL, queues=queues, env=fair),
                bench.gateway(strategy) as front,
            ):
                yield front
        finally:
            # What the worker held comes back when it ends.
            purge(bench, "plain", 0)
            purge(bench, f"fair-{number}", number)

    settings = [(n, k) for n in options.fair_queues for k in options.fair_prefetch]
    trials = [
        Trial(
            strategy,
            partial(start, strategy, number, prefetch),
            [
                *_loads(bench, options, f"fair-{number}", _fair(number, prefetch), number),
                # Once is enough.
                *(_loads(bench, options, "plain", "off") if not n else ()),
            ],
        )
        for strategy in options.strategies
        for n, (number, prefetch) in enumerate(settings)
    ]
    alternate(trials, options, report)
    for strategy in options.strategies:
        for number, prefetch in settings:
            _judge(report, strategy, _fair(number, prefetch))
        _compare(report, strategy, "off")
    report.columns = [
        Column("answered", ("requests",), total=True),
        Column("504s", ("unanswered",), total=True),
        *table.LATENCIES,
        Column("unnoticed %", ("unnoticed_percent",)),
        Column("taken of the tenth", ("beside", "taken")),
        Column("left of it", ("beside", "left")),
        *table.FAULTS,
    ]
    report.charts = [
        ("99th percentile of nine tenants, ms", "shorter is better", ("latency_ms", "p99")),
    ]
    report.remarks = [
        f"Nine tenants send a request a second each, whose task sleeps {options.task.seconds:g} s, "
        f"in a prefork pool of {POOL}; a 504 counts as {DEADLINE:g} s. A tenth has "
        f"{options.requests:,} deliveries taken as fast as it can (flood), or sends four a second "
        f"whose tasks hang until their time limit of {TIME_LIMIT} s (hang). N: fair queues, k: "
        "prefetch of each. unnoticed: the share of the nine's requests that took at most "
        f"{UNNOTICED:g} times the 99th percentile of the calm run with the same settings.",
        *(sharing(number) for number in options.fair_queues),
    ]
    return report


def _fair(number: int, prefetch: int) -> str:
    return f"N={number} k={prefetch}"


def _routes(queue: str, fair: str) -> str:
    return _ROUTES.format(queue=queue, fair=fair, limit=TIME_LIMIT)


def _loads(
    bench: Bench, options: argparse.Namespace, queue: str, name: str, number: int = 0
) -> list[Load]:
    """Return the measurements of one setting; the calm one is first, as others refer to it."""
    calm: list[float] = []

    def measure(kind: str, front: Front) -> Row:
        beside = Beside(kind, options.requests)
        seconds = options.task.seconds
        target = f"{front.address}/{queue}", f"?seconds={seconds:g}"
        wait_until_idle(bench, fair_names(queue, number))
        run = partial(send, *target, options.duration, DEADLINE, beside)
        row = take(bench, front, len(OTHERS), run)
        if kind == NOTHING:
            calm[:] = [row["latency_ms"]["p99"]]
        unnoticed = [ms <= UNNOTICED * calm[0] for ms in row.pop("each_ms")]
        row["unnoticed_percent"] = round(100 * sum(unnoticed) / len(unnoticed), 2)
        row["beside"]["left"] = purge(bench, queue, number)
        return row

    return [
        Load(f"{name}, {kind}", options.duration + AROUND + rest, partial(measure, kind))
        for kind, rest in ((NOTHING, 0), (FLOOD, 4), (HANG, 2 * TIME_LIMIT))
    ]


def _judge(report: Report, strategy: str, name: str) -> None:
    _compare(report, strategy, name, at_most=2)
    hang = figures(report.rows, strategy, ("unnoticed_percent",), f"{name}, {HANG}")
    report.judge(Target(f"unnoticed with a hang, {name}, {strategy}", hang, " %", at_least=95))


def _compare(report: Report, strategy: str, name: str, at_most: float | None = None) -> None:
    pair = (strategy, f"{name}, {FLOOD}"), (strategy, f"{name}, {NOTHING}")
    what = f"p99 with a flood / without, {name}, {strategy}"
    report.compare(what, ("latency_ms", "p99"), *pair, at_most=at_most)


@dataclass
class Beside:
    """What the tenth does: a flood of so many deliveries, or deliveries whose tasks hang."""

    kind: str
    number: int
    taken: int = 0
    refused: int = 0

    async def run(self, url: str, query: str) -> None:
        if self.kind == NOTHING:
            return
        connections = [await Connection.open(self._target(url, query)) for _ in range(_AT_ONCE)]
        numbers = count()
        try:
            await asyncio.gather(*(self._send(each, numbers) for each in connections))
        finally:
            for each in connections:
                each.close()

    def _target(self, url: str, query: str) -> str:
        return f"{url}/taken{query}" if self.kind == FLOOD else f"{url}/hanging?seconds=3600"

    async def _send(self, connection: Connection, numbers: count[int]) -> None:
        for number in numbers:
            if self.kind == FLOOD and number >= self.number:
                return
            status, _ = await connection.ask(b"%d" % number, _from(TENTH))
            self.taken += status == 202
            self.refused += status != 202
            if self.kind == HANG:
                await asyncio.sleep(_AT_ONCE / _HANGING)


def send(url: str, query: str, seconds: float, deadline: float, beside: Beside) -> dict[str, Any]:
    """Have the nine POST to `url` for `seconds`, and the tenth do what it does meanwhile.

    Returns what `wrk.run` does, about the nine, and `each_ms`: the latency of each request,
    counted from when it was due; `unanswered`: how many got a 504, which is no error here;
    `beside`: what was taken of the tenth. What was not, whatever the answer, is an error.
    """
    return asyncio.run(_run(url, query, seconds, deadline, beside))


async def _run(
    url: str, query: str, seconds: float, deadline: float, beside: Beside
) -> dict[str, Any]:
    number = round(seconds * len(OTHERS))
    connections = [await Connection.open(url + query) for _ in range(number)]
    aside = asyncio.create_task(beside.run(url, query))
    errors: Counter[str] = Counter()
    each: list[float] = []
    wrong = unanswered = answered = 0
    begin = monotonic() + _LEAD

    async def one(n: int) -> None:
        nonlocal wrong, unanswered, answered
        due, body = begin + n / len(OTHERS), b'{"n":%d}' % n
        await asyncio.sleep(due - monotonic())
        try:
            async with asyncio.timeout(deadline + _LATE):
                status, answer = await connections[n].ask(body, _from(OTHERS[n % len(OTHERS)]))
        except TimeoutError:
            errors["missing"] += 1
            return
        each.append(monotonic() - due)
        if not status:
            errors["read"] += 1
            return
        answered += 1
        unanswered += status == 504
        if status == 200:
            wrong += answer != body
        elif status != 504:
            errors["status"] += 1

    try:
        await asyncio.gather(*map(one, range(number)))
    finally:
        aside.cancel()
        (ended,) = await asyncio.gather(aside, return_exceptions=True)
        for connection in connections:
            connection.close()
    if isinstance(ended, Exception):
        raise StackError(f"the tenth tenant: {ended}") from ended
    errors["not taken of the tenth"] = beside.refused
    return {
        **result(answered, max(monotonic() - begin, seconds), each, wrong, **errors),
        "each_ms": [second * 1e3 for second in each],
        "unanswered": unanswered,
        "beside": {"taken": beside.taken},
    }


def _from(tenant: str) -> bytes:
    return f"X-Tenant: {tenant}\r\n".encode()


def purge(bench: Bench, queue: str, number: int) -> int:
    """Remove what the tenth has left, and return how many messages that were."""
    with Broker(bench.broker.url) as link:
        channel = link.channel()
        return sum(channel.queue_purge(name) for name in fair_names(queue, number))


def wait_until_idle(bench: Bench, queues: Sequence[str]) -> None:
    """Wait until none of `queues` has a message, nor a worker one of theirs.

    Raises StackError where that takes more than a minute.
    """
    end = monotonic() + _PATIENCE
    while True:
        listed = bench.broker.ctl("list_queues", "name", "messages", "--no-table-headers")
        numbers = dict(line.rsplit(None, 1) for line in listed.splitlines())
        held = [name for name in queues if int(numbers.get(name, 0))]
        if not held:
            return
        if monotonic() > end:
            raise StackError(f"messages of {', '.join(held)} have not been run")
        sleep(0.5)


def sharing(number: int) -> str:
    """Say how many of the nine share their queues with the tenth, of `number` fair queues."""
    choose = pair_chooser("header:x-tenant", fair_names(f"fair-{number}", number))
    pairs = {
        tenant: set(choose(Delivery("", "", {}, {}, "", {"x-tenant": tenant}, b"", "", 0.0)))
        for tenant in (TENTH, *OTHERS)
    }
    shared = Counter(len(pairs[TENTH] & pairs[tenant]) for tenant in OTHERS)
    return (
        f"Of {number} fair queues, {shared[1]} of the nine share one with the tenth, and "
        f"{shared[2]} both."
    )
