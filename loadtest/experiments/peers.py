"""Compare the gateway with what else stands between HTTP and Celery, and with no HTTP at all."""

from __future__ import annotations

import argparse
from functools import partial

from loadtest.amqp import in_flight
from loadtest.bench import Bench, Peer
from loadtest.envelope import FLOWER
from loadtest.load import closed
from loadtest.report import Report
from loadtest.stack import Stack
from loadtest.targets import Bounds
from loadtest.trials import Trial, alternate, running

DEFAULTS = {"strategies": ["pika", "redis"], "duration": 8}

_UVICORN = "uvicorn loadtest.servers.{}:app --no-access-log --log-level=warning"
_GRANIAN = "granian loadtest.servers.web:app --interface=asgi --loop=uvloop --no-log"
PEERS = (
    Peer(
        "flower",
        "celery -A loadtest.servers.stock flower --address=127.0.0.1 --enable_events=False",
        "/api/task/apply/appserver.tasks.echo",
        FLOWER,
    ),
    Peer("fastapi", _UVICORN.format("web")),
    Peer("granian", _GRANIAN),
    Peer(
        "taskiq",
        _UVICORN.format("with_taskiq"),
        worker="taskiq worker loadtest.servers.with_taskiq:broker --workers=1 --max-prefetch=100",
        ready="Listening started",
    ),
    Peer(
        "faststream",
        _UVICORN.format("with_faststream"),
        worker="loadtest.servers.with_faststream",
        ready="ready",
    ),
)
#: Of the gateway's rate, over theirs.
BOUNDS: dict[str, Bounds] = {
    "flower": {"at_least": 6, "aim": 8},
    "fastapi": {"at_least": 8, "aim": 10},
    "granian": {},
    "taskiq": {"at_least": 2},
    "faststream": {"at_least": 2},
    "amqp": {"at_least": 0.9, "aim": 1},
}


def run(options: argparse.Namespace, stack: Stack) -> Report:
    """Load all in turn; the worker, its broker and its Redis are the same."""
    bench = Bench(stack)
    report = Report("peers", versions=bench.versions())
    loads = [closed(bench, n, options.duration, options.threads) for n in options.connections]
    with bench.worker() as worker:
        floor = [
            in_flight(bench, n, options.duration, f"{n:,} connections") for n in options.connections
        ]
        trials = [
            *(Trial(name, partial(bench.gateway, name), loads) for name in options.strategies),
            *(Trial(peer.name, partial(bench.other, peer), loads) for peer in PEERS),
            running("amqp", worker, floor),
        ]
        alternate(trials, options, report)
    for case in (load.case for load in loads):
        best = _best(report, options.strategies, case)
        for peer, bounds in BOUNDS.items():
            title = f"req/s, {best} / {peer}, {case}"
            report.compare(title, ("rps",), (best, case), (peer, case), **bounds)
    report.remarks = [
        "flower: /api/task/apply with its events off, publishes persistent and unconfirmed. "
        "fastapi: apply_async and get() in the thread pool, uvicorn on uvloop, persistent and "
        "unconfirmed; granian: the same in its server. taskiq and faststream: FastAPI as before, "
        "their own workers, persistent with results in Redis, looked for every 5 ms; transient "
        "with direct reply-to; both confirmed. amqp: a client without HTTP, exclusive reply "
        "queue: the floor. Its messages and the gateway's are mandatory and confirmed, transient.",
    ]
    return report


def _best(report: Report, strategies: list[str], case: str) -> str:
    """Return the strategy with the highest rate."""
    rates = {s.strategy: s.median("rps") for s in report.summaries() if s.case == case}
    return max(strategies, key=lambda name: rates.get(name, 0))
