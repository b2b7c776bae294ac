"""What the paths that real deliveries take cost beside a plain route, with one strategy for all."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from statistics import median
from threading import Thread

from gateway.config.strategies import properties
from loadtest import table
from loadtest.bench import Bench, Front
from loadtest.envelope import GITHUB, IDENTIFIED, PLAIN, SECRET, Envelope
from loadtest.load import Load, closed
from loadtest.report import Report
from loadtest.stack import Stack
from loadtest.summary import Row
from loadtest.table import Column
from loadtest.targets import Target, differences, figures
from loadtest.trials import Trial, alternate

DEFAULTS = {"strategies": ["redis"], "connections": [64], "duration": 8}

PROCESSES = (1, 2, 4)
JOURNAL = 10_000  # deliveries
TRACED = 0.01  # of all requests
PLAIN_ROUTE, JOURNALLED, ARCHIVED = "plain", "journalled", "archived"
SAMPLED, LOGGED = "traced 1 %", "logged"
#: Path -> where its requests go, and how a body travels. All are routes of one gateway.
ROUTES: Mapping[str, tuple[str, Envelope]] = {
    PLAIN_ROUTE: ("/echo", PLAIN),
    "signed": ("/signed", GITHUB),
    "deduplicated": ("/deduplicated", IDENTIFIED),
    "quorum queue": ("/quorum", PLAIN),
    "stock worker": ("/stock", PLAIN),
}
_QUORUM, _STOCK = "paths-quorum", "paths-stock"
_CONFIG = """\
{first}
idempotency_window = 300

[sources.github]
scheme = "github"
secrets = "{secret}"

[[routes]]
path = "/signed"
source = "github"
idempotency = "none"
task = "appserver.tasks.echo"

[[routes]]
path = "/deduplicated"
idempotency = "header:x-delivery"
idempotency_scope = "route"
task = "appserver.tasks.echo"

[[routes]]
path = "/quorum"
task = "appserver.tasks.echo"
queue = "{quorum}"
queue_type = "quorum"
declare = false

[[routes]]
path = "/stock"
task = "appserver.tasks.echo"
queue = "{stock}"

[[routes]]
path = "/echo"
task = "appserver.tasks.echo"

"""
_CPU = ("cpu_us", "all")
_GATEWAY = ("cpu_us_per_request", "gateway")
#: What a path may cost of the gateway's CPU time beside the plain route, in microseconds.
MORE = {"deduplicated": 80, JOURNALLED: 15}
_ROUNDS = 3


def run(options: argparse.Namespace, stack: Stack) -> Report:
    """Load each path with each strategy; the plain route is measured in each round, too."""
    bench = Bench(stack)
    report = Report("paths", versions=bench.versions())
    (connections,) = options.connections[:1]
    load = partial(closed, bench, connections, options.duration, options.threads)
    with ExitStack() as workers:
        collector = workers.enter_context(_collector())
        trials = [
            trial
            for name in options.strategies
            for trial in _trials(bench, stack, name, load, collector)
        ]
        quorum = {"GATEWAY_QUEUES": _QUORUM}
        workers.enter_context(bench.worker(queues=("celery", _QUORUM), env=quorum))
        for replies in {properties(name).replies for name in options.strategies}:
            workers.enter_context(bench.stock_worker(replies, queues=(_stock(replies),)))
        alternate(trials, options, report)
    others = [case for case in dict.fromkeys(r["case"] for r in report.rows) if case != PLAIN_ROUTE]
    for name in options.strategies:
        for case in others:
            pair = (name, case), (name, PLAIN_ROUTE)
            report.compare(f"req/s, {case} / plain, {name}", ("rps",), *pair)
            report.compare(f"CPU, {case} / plain, {name}", _CPU, *pair)
        for case, most in MORE.items():
            values = _more(report.rows, name, case, _GATEWAY)
            report.judge(
                Target(f"gateway CPU, {case} - plain, {name}", values, " us", at_most=most)
            )
    report.advice = conclude(report, options.strategies)
    report.heads = ("strategy", "path")
    report.columns = [
        table.REQUESTS,
        *table.LATENCIES[:2],
        Column("all us", _CPU, spread=True),
        *table.cpu(report.rows),
        Column("gateway MB", ("rss_mb", "gateway")),
        *table.FAULTS,
    ]
    report.charts = [
        ("Requests per second", "longer is better", ("rps",)),
        ("CPU per request, all processes, µs", "shorter is better", _CPU),
        ("Median latency, ms", "shorter is better", ("latency_ms", "p50")),
    ]
    report.remarks = [
        f"{connections} connections, echo tasks. signed: a GitHub signature of 250 bytes, without "
        "an identity. deduplicated: each delivery has a new identity in a header, which is claimed "
        f"in Redis. journalled: the journal keeps {JOURNAL:,} deliveries. archived: these "
        "are copied into SQLite by a process of its own, whose CPU time is not counted, and the "
        "history is kept in a file. traced 1 %: each request has the ids of a trace, and the spans "
        "of 1 % are exported. logged: each request has a line in the log. quorum queue: one "
        "RabbitMQ node. stock worker: Celery's "
        "own, with its own result backend; its loop is the app server's, as its own stands still "
        "for up to a second again and again. nginx: in front of so many gateway processes. The "
        "worker's CPU is that of all workers; those that have nothing to do wait beside.",
    ]
    return report


def conclude(report: Report, strategies: Sequence[str]) -> str:
    """Say what each path costs beside the plain route, in CPU time of all processes.

    A path costs more, or less, if it did in each round. Rounds are compared only if there are
    three or more.
    """
    sentences = []
    for name in strategies:
        more = {
            case: values
            for case in dict.fromkeys(row["case"] for row in report.rows)
            if case != PLAIN_ROUTE
            and len(values := _more(report.rows, name, case, _CPU)) >= _ROUNDS
        }
        base = figures(report.rows, name, _CPU, PLAIN_ROUTE)
        told = {case: v for case, v in more.items() if min(v) > 0 or max(v) < 0}
        same = [case for case in more if case not in told]
        if not told:
            continue
        parts = (f"{case} {median(values):+,.0f} µs" for case, values in told.items())
        text = (
            f"Beside a plain route with {name}, which takes {median(base):,.0f} µs of CPU a "
            f"request in all processes: {', '.join(parts)}."
        )
        sentences.append(
            f"{text} No difference in each round: {', '.join(same)}." if same else text
        )
    return " ".join(sentences)


def _more(rows: Sequence[Row], name: str, case: str, path: tuple[str, str]) -> list[float]:
    """Return what a request of `case` costs more than one of the plain route, by round."""
    return differences(rows, path, (name, case), (name, PLAIN_ROUTE))


@contextmanager
def _collector() -> Iterator[str]:
    """Take spans, and drop them; yield the URL for it."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def _trials(
    bench: Bench, stack: Stack, name: str, load: partial[Load], collector: str
) -> Iterator[Trial]:
    stock = _stock(properties(name).replies)

    def config(case: str, first: str = "") -> Path:
        file = stack.directory / f"{case.split()[0]}-{name}.toml"
        file.write_text(
            _CONFIG.format(first=first, secret=SECRET.decode(), quorum=_QUORUM, stock=stock)
        )
        return file

    plain = config(PLAIN_ROUTE)
    others = {
        JOURNALLED: config(JOURNALLED, f"journal = {JOURNAL}"),
        SAMPLED: config(SAMPLED, f'trace_sample = {TRACED}\ntrace_endpoint = "{collector}"'),
        LOGGED: config(LOGGED, "log_requests = true"),
    }

    kept = stack.directory / f"archive-{name}.db", stack.directory / f"history-{name}"
    archive = f'archive_url = "sqlite:///{kept[0]}"\nhistory = "{kept[1]}"'

    @contextmanager
    def archived() -> Iterator[Front]:
        kept[0].unlink(missing_ok=True)  # of the round before
        file = config(ARCHIVED, f"journal = {JOURNAL}\n{archive}")
        with bench.archiver(kept[0], file), bench.gateway(name, "--config", str(file)) as front:
            yield front

    @contextmanager
    def behind_nginx(processes: int) -> Iterator[Front]:
        flags = ("--config", str(plain), "--processes", str(processes))
        with (
            bench.gateway(name, *flags) as front,
            bench.nginx(front.address.removeprefix("http://"), front) as through,
        ):
            yield through

    routes = [
        _summed(replace(load(case=case), measure=partial(_at, load(case=case), *where)))
        for case, where in ROUTES.items()
    ]
    yield Trial(name, partial(bench.gateway, name, "--config", str(plain)), routes)
    for case, file in others.items():
        front = partial(bench.gateway, name, "--config", str(file))
        yield Trial(name, front, [_summed(load(case=case))])
    yield Trial(name, archived, [_summed(load(case=ARCHIVED))])
    for processes in PROCESSES:
        each = "1 process" if processes == 1 else f"{processes} processes"
        yield Trial(name, partial(behind_nginx, processes), [_summed(load(case=f"nginx, {each}"))])


def _at(load: Load, path: str, envelope: Envelope, front: Front) -> Row:
    return load.measure(replace(front, path=path, envelope=envelope))


def _summed(load: Load) -> Load:
    """Add to a row the CPU time that a request takes in all processes."""

    def measure(front: Front) -> Row:
        row = load.measure(front)
        return {**row, "cpu_us": {"all": round(sum(row["cpu_us_per_request"].values()), 1)}}

    return replace(load, measure=measure)


def _stock(replies: bool) -> str:
    """Return the queue of the stock worker that replies, or stores."""
    return f"{_STOCK}-{'replies' if replies else 'stores'}"
