"""Give the worker tasks without any gateway: to be replied, to be stored, to be ignored."""

from __future__ import annotations

from time import monotonic
from typing import Any

from celery import Celery
from kombu import pools

from gateway.stack.server import poll
from loadtest.amqp import Requester
from loadtest.bench import Bench, Front
from loadtest.client import result
from loadtest.load import Load, take
from loadtest.summary import Row

#: Name -> what is said of the result in the task's message.
WAYS = {"reply": {}, "store": {"reply": False}, "ignore_result": {"ignore_result": True}}
WARM_UP = 2_000  # tasks

_LATE = 5.0  # seconds
_AT_ONCE = 500  # messages in a write
_KEY = "celery-task-meta-"  # what Celery puts before a task's id


def tasks(bench: Bench, way: str, number: int, pool: str) -> Load:
    """Have the worker, which has that `pool`, run `number` tasks that wait for it in its queue."""

    def measure(front: Front) -> Row:
        with Requester(bench.broker.url) as requester:
            requester.round_trips(64, requests=min(number, WARM_UP))
            before = ran(bench)
            row = take(bench, front, 1, lambda: _run(bench, requester, way, number))
            # With the one that is behind the last of those that do not answer.
            expected = number + (way != "reply")
            not_run = abs(expected - (ran(bench) - before))
        row["errors_by_kind"]["missing"] += not_run
        row["errors"] += not_run
        return row

    return Load(case(number, pool), 8 + number / 1_500, measure)


def case(number: int, pool: str) -> str:
    """Return the name of this load."""
    return f"{number:,} tasks, {pool}"


def _run(bench: Bench, requester: Requester, way: str, number: int) -> dict[str, Any]:
    """Publish and wait; returns what `wrk.run` does, but for latencies."""
    begin = monotonic()
    template = requester.template(**WAYS[way])
    missing: set[int] = set()
    last: set[int] = set()
    for at in range(0, number, _AT_ONCE):
        missing.update(requester.publish(template, min(_AT_ONCE, number - at)))
    if way == "reply":
        wrong = _replies(requester, missing)
    else:
        # A queue is first in, first out.
        last = set(requester.publish(requester.template(), 1))
        wrong = _replies(requester, last)
    seconds = monotonic() - begin
    if way == "store":
        wrong += _stored(bench, requester, missing)
    elif way == "ignore_result":
        wrong += _nothing_stored(bench, requester)
        missing = set()
    return result(number - len(missing), seconds, wrong=wrong, missing=len(missing | last))


def _replies(requester: Requester, missing: set[int]) -> int:
    """Take replies until none is `missing` or the broker falls silent; count the wrong ones."""
    wrong = 0
    while missing:
        try:
            replies = requester.receive()
        except TimeoutError:
            break
        for reply in replies:
            number = requester.number(reply)
            wrong += number not in missing or not requester.answers(number, reply)
            missing.discard(number)
    return wrong


def _stored(bench: Bench, requester: Requester, missing: set[int]) -> int:
    """Take from `missing` what is in Redis; count what is wrong there."""
    numbers, wrong = sorted(missing), 0
    keys = [f"{_KEY}{requester.prefix}{number:010}" for number in numbers]
    with bench.ask_redis() as connection:
        # Of several processes, one may still run a task when another has run the last one.
        poll(lambda: connection.exists(*keys) == len(keys), _LATE)
        for number, result in zip(numbers, connection.mget(keys), strict=True):
            if result is not None:
                missing.discard(number)
                wrong += not requester.answers(number, result)
        connection.flushall()
    return wrong


def _nothing_stored(bench: Bench, requester: Requester) -> int:
    # Of these tasks: those of a gateway that has ended may be stored late.
    with bench.ask_redis() as connection:
        return sum(1 for _ in connection.scan_iter(f"{_KEY}{requester.prefix}*", 1_000))


def ran(bench: Bench) -> int:
    """Ask the worker how many tasks it has run."""
    app = Celery(broker=bench.broker.url)
    pools.reset()  # a connection that was left there may be closed
    try:
        inspected = app.control.inspect(timeout=10, limit=1).stats() or {}
    finally:
        pools.reset()
    return sum(sum(stats["total"].values()) for stats in inspected.values())
