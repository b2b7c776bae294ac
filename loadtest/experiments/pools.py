"""Compare worker pools and concurrency on tasks that wait long for another service."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from time import monotonic
from typing import Any, cast
from urllib.parse import urlsplit

from loadtest import claims, table
from loadtest.bench import Bench, Front
from loadtest.experiments import WrongOption
from loadtest.lab import advice
from loadtest.lab.pools import starts
from loadtest.lab.pools.chords import Producer, Work, producer, split, unique
from loadtest.lab.pools.starts import Found
from loadtest.lab.pools.watch import Watch, line, shared_once_mb
from loadtest.lab.pools.worker import Start, records_of, sleeping_server, spawn, unusable
from loadtest.load import Load, take
from loadtest.plot import Plot
from loadtest.report import Report
from loadtest.stack import Measured, Stack
from loadtest.summary import Row, latency, summarize
from loadtest.table import Column
from loadtest.tasks import Task
from loadtest.trials import Trial, alternate, aside

DEFAULTS = {"connections": [1, 2, 4, 8, 16, 32], "requests": 10, "repeats": 1, "task": Task(2.0)}

POOLS = advice.POOLS
#: Seconds that the original's calls slept, about, and how many its chords had.
SLEEP, CHORDS = 200, [7, 3]
#: At 1 they run one task after the other, as the other pools do.
AT_LEAST = {"gevent": 2, "eventlet": 2}
#: A setting is given up after so many times what its sleeps take, and so many seconds.
_BOUND, _GRACE = 3, 20
#: Of all Celery processes together.
_OVER_TIME = {"rss_mb": ("memory", "MB of memory"), "cpu_percent": ("cpu", "CPU, % of a core")}


def run(options: argparse.Namespace, stack: Stack) -> Report:
    """Run two chords of calls with each pool at each concurrency, then what was said of starts.

    A call sleeps for 0.9 to 1.05 times `task`; there are `requests` calls; `connections` are the
    concurrencies. Raises WrongOption where the task does not sleep.
    """
    seconds = options.task.seconds
    if not seconds:
        raise WrongOption("pools: --task: it compares tasks that wait, as sleep:2")
    bench = Bench(stack)
    report = Report("pools", versions=bench.versions())
    chords = split(options.requests)
    report.options = {
        "strategies": list(POOLS),
        "task_seconds": seconds,
        "duration": seconds,
        "chords": chords,
    }
    problems = {pool: why for pool in POOLS if (why := unusable(pool))}
    pools = [pool for pool in POOLS if pool not in problems]
    with (
        sleeping_server(stack, seconds) as server,
        producer(bench.broker.url, bench.redis.url) as send,
    ):
        setting = partial(_Setting, bench, stack, send, server.address, chords, seconds)
        trials = [
            setting(Start(pool, size)).trial
            for size in options.connections
            for pool in pools
            if size >= AT_LEAST.get(pool, 1)
        ]
        alternate(trials, options, report)
    found = aside(
        report,
        "heartbeats, and workers that a script starts: all at once",
        starts.about(chords, seconds),
        lambda: starts.measure(bench, stack, chords, seconds, pools),
    )
    for each in found or ():
        print(f"{each.name}: {each.says}", flush=True)
    report.failures += starts.broken(found or ())
    report.advice = advice.pool(report.rows)
    _show(report, found or (), seconds, problems)
    return report


@dataclass(frozen=True)
class _Setting:
    """A pool with a concurrency; `server` is the sleeping server's URL."""

    bench: Bench
    stack: Stack
    send: Producer
    server: str
    chords: Sequence[int]
    seconds: float
    how: Start

    @property
    def trial(self) -> Trial:
        size = self.how.size
        load = Load(str(size), self._work("").least(size) + 1, self._measure)
        return Trial(self.how.pool, self._start, [load], checked=False)

    def _work(self, name: str) -> Work:
        return Work(name, self.chords, self.seconds)

    @contextmanager
    def _start(self) -> Iterator[Front]:
        work = self._work(unique(f"{self.how.pool}-{self.how.size}"))
        worker = spawn(self.stack, self.bench, self.how, work, self.server)
        try:
            yield Front(self.server, {**self.bench.servers, "worker": worker}, f"/{work.name}")
        finally:
            # SIGTERM would wait until the worker looks at its connection again.
            worker.kill()
            self.send.purge(work)

    def _measure(self, front: Front) -> Row:
        worker, work = cast(Measured, front.servers["worker"]), self._work(front.path[1:])
        size, least = self.how.size, work.least(self.how.size)
        urls = {"broker": self.bench.broker.url, "redis": self.bench.redis.url}
        watch = Watch(worker, {name: urlsplit(url).port or 0 for name, url in urls.items()})

        def run() -> dict[str, Any]:
            begin = monotonic()
            with watch:
                ids = self.send.submit(work)
                self.send.wait(ids, begin + _BOUND * least + _GRACE)
            once = shared_once_mb(worker)
            end = self.send.outcome(work, ids, records_of(self.stack, work), front.url)
            seconds = end.seconds or monotonic() - begin
            return {
                "requests": end.done + len(end.summaries),
                "seconds": seconds,
                "errors": end.errors,
                "wrong_answers": end.wrong,
                "latency_ms": latency(record["total"] for record in end.records),
                "shared_once_mb": once,
                "total_seconds": round(seconds, 3),
                "begun_within_seconds": round(end.begun_within(size), 3),
            }

        row = take(self.bench, front, size, run)
        series = watch.series
        return {
            **row,
            "connections_open": {name: max(each) for name, each in series["connections"].items()},
            "least_seconds": round(least, 3),
            "most": {what: max(series[what]) for what in _OVER_TIME},
            "over_time": series,
        }


def _show(
    report: Report, found: Sequence[Found], seconds: float, problems: Mapping[str, str]
) -> None:
    report.heads = ("pool", "concurrency")
    report.columns = [
        Column("total s", ("total_seconds",), spread=True),
        Column("sleeps alone s", ("least_seconds",)),
        Column("begun within s", ("begun_within_seconds",)),
        Column("tasks", ("requests",), total=True),
        Column("call p50 ms", ("latency_ms", "p50")),
        Column("call max ms", ("latency_ms", "max")),
        Column("most MB", ("most", "rss_mb")),
        Column("shared once MB", ("shared_once_mb",)),
        Column("most CPU %", ("most", "cpu_percent")),
        Column("worker us", ("cpu_us_per_request", "worker")),
        Column("most Redis", ("connections_open", "redis")),
        Column("most AMQP", ("connections_open", "broker")),
        *table.FAULTS,
    ]
    report.charts = [
        ("Total time, s", "shorter is better", ("total_seconds",)),
        ("Most memory of all Celery processes, MB", "shorter is better", ("most", "rss_mb")),
        ("Most result connections", "shorter is better", ("connections_open", "redis")),
    ]
    report.plots = list(_plots(report.rows))
    judged = [*report.rows, *(each.row for each in found if not each.problem)]
    report.tables = {
        **claims.tables("pools", judged, {"total_seconds": SLEEP / seconds}),
        "Heartbeats, and workers that a script starts": [
            starts.HEAD,
            *(each.line for each in found),
        ],
    }
    if report.options["chords"] != CHORDS:
        report.remarks.append(
            f"The original's chords had {CHORDS} calls, these have "
            f"{report.options['chords']}: the total times cannot be compared."
        )
    report.remarks += [
        *claims.reasons("pools", judged),
        f"The original's calls slept for about {SLEEP} s: our total times are multiplied by "
        f"{SLEEP / seconds:g} beside its own.",
        f"{sum(report.options['chords'])} calls of a server that sleeps for 0.9 to 1.05 times "
        f"{seconds:g} s, the same times for every setting, and a summary of each chord; one worker "
        "with prefetch multiplier 1 on two queues. Total: the latest end minus the earliest start. "
        "sleeps alone: what the sleeps take at this concurrency. begun within: from the start of "
        "the first call to that of the last of those that can run at once. most: of the samples, "
        "four a second, all processes of the worker together; memory that they share counts in "
        "each, and once in shared once, which is taken at the end. "
        "Redis, AMQP: the worker's connections.",
        "Of the workers whose heartbeats are looked at, calls sleep, or block, for about "
        f"{starts.LONG:g} s and are acknowledged late: RabbitMQ closes a connection on which "
        f"nothing came for two to three heartbeats of {starts.HEARTBEAT} s, and gives out again "
        "what was not acknowledged.",
        *(f"{pool} is left out, as it does not work here: {why}" for pool, why in problems.items()),
    ]


def _plots(rows: Sequence[Row]) -> Iterator[Plot]:
    summaries = summarize(rows)
    for pool in dict.fromkeys(summary.strategy for summary in summaries):
        for what, (name, unit) in _OVER_TIME.items():
            lines = {
                summary.case: line(summary.rows[0]["over_time"], what)
                for summary in summaries
                if summary.strategy == pool
            }
            title = f"{pool}: {unit}, by concurrency"
            yield Plot(f"{name}-{pool}", title, "seconds", unit, lines, linear=True)
