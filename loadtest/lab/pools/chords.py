"""The work that worker pools are compared by: chords of calls, and whether each ran once."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from heapq import heapreplace
from pathlib import Path
from secrets import token_hex
from time import monotonic, sleep
from typing import Any
from urllib.request import urlopen

from amqp.exceptions import AMQPError
from celery import Celery, chord
from celery.states import EXCEPTION_STATES, READY_STATES, SUCCESS
from kombu.exceptions import OperationalError
from redis import RedisError

from gateway.stack import StackError
from loadtest.lab.pools.sleeping_server import sleep_of

_TABLE = "CREATE TABLE records (id, sleep, total, start, end)"
_PAUSE = 0.02  # seconds between two questions whether a task has ended


@dataclass(frozen=True)
class Work:
    """Chords of so many calls each, every one with a summary.

    `name` is unique: queues, files and the server's counts are called by it. A call sleeps for
    about `seconds`; calls are numbered from 0 on, over all chords.
    """

    name: str
    chords: Sequence[int]
    seconds: float

    @property
    def calls(self) -> int:
        return sum(self.chords)

    @property
    def queues(self) -> tuple[str, str]:
        return f"{self.name}-calls", f"{self.name}-summaries"

    @property
    def sleeps(self) -> list[float]:
        return [sleep_of(number, self.seconds) for number in range(self.calls)]

    def least(self, size: int) -> float:
        """Return the seconds that it takes where `size` calls sleep at once, and nothing else."""
        free: list[float] = [0.0] * size
        for seconds in self.sleeps:
            heapreplace(free, free[0] + seconds)
        return max(free)


@dataclass(frozen=True)
class Outcome:
    """What is known of a work at its end.

    `records` are those in SQLite, `summaries` the chords' results, of which `failed` have failed;
    `asked` is how often the server was asked for each number.
    """

    work: Work
    records: Sequence[dict[str, float]]
    summaries: Sequence[dict[str, Any]]
    failed: int
    asked: dict[str, int]

    @property
    def seconds(self) -> float:
        """The latest end minus the earliest start, over all chords; 0 without a summary."""
        if not self.summaries:
            return 0.0
        end: float = max(summary["end"] for summary in self.summaries)
        start: float = min(summary["start"] for summary in self.summaries)
        return end - start

    @property
    def done(self) -> int:
        """How many different calls have been recorded."""
        return len({record["id"] for record in self.records})

    @property
    def twice(self) -> int:
        """How often a call was begun again."""
        return sum(times - 1 for times in self.asked.values())

    @property
    def errors(self) -> dict[str, int]:
        """How many calls and summaries failed, are missing, or ran again."""
        lacking = self.work.calls - self.done + len(self.work.chords) - len(self.summaries)
        return {"failed": self.failed, "missing": lacking - self.failed, "ran_twice": self.twice}

    def begun_within(self, size: int) -> float:
        """Return the seconds between the first starts of as many calls as `size` lets run at once;
        0 where none has ended."""
        starts = sorted(record["start"] for record in self.records)[:size]
        return starts[-1] - starts[0] if starts else 0.0

    @property
    def wrong(self) -> int:
        """How many records and summaries are not what their sleeps say."""
        sleeps = self.work.sleeps
        wrong = sum(record["sleep"] != sleeps[int(record["id"])] for record in self.records)
        numbers = iter(range(self.work.calls))
        expected = [[next(numbers) for _ in range(calls)] for calls in self.work.chords]
        wrong += sum(summary["ids"] not in expected for summary in self.summaries)
        return wrong


def unique(name: str) -> str:
    """Return `name` with something after it that no other run has."""
    return f"{name}-{token_hex(4)}"


def split(calls: int) -> list[int]:
    """Return how many calls each of the two chords has: 7 and 3 of 10."""
    first = max(1, calls * 7 // 10)
    return [size for size in (first, calls - first) if size]


class Producer:
    """Submits chords by the Celery app `app`, and waits for their summaries.

    Raises StackError where the broker or Redis does not answer.
    """

    def __init__(self, app: Celery):
        self._app = app

    def submit(self, work: Work) -> list[str]:
        """Submit all chords of `work`; returns the task ids of their summaries."""
        calls, summaries = work.queues
        numbers = iter(range(work.calls))
        call, summarise = map(self._app.signature, ("lab.call", "lab.summarise"))
        with _translated():
            return [
                chord(
                    [call.clone(args=(next(numbers),)).set(queue=calls) for _ in range(size)],
                    app=self._app,
                )(summarise.clone().set(queue=summaries)).id
                for size in work.chords
            ]

    def wait(self, ids: Sequence[str], until: float) -> None:
        """Return when all these tasks have ended, or at `until`, of the monotonic clock."""
        while monotonic() < until:
            if all(meta["status"] in READY_STATES for meta in self._ask(ids)):
                return
            sleep(_PAUSE)

    def outcome(self, work: Work, ids: Sequence[str], records: Path, server: str) -> Outcome:
        """Collect what is known of `work`; `server` is its URL of the sleeping server."""
        metas = self._ask(ids)
        with closing(sqlite3.connect(records)) as connection:
            connection.row_factory = sqlite3.Row
            found = [dict(row) for row in connection.execute("SELECT * FROM records")]
        with urlopen(server) as answer:
            asked = json.load(answer)
        return Outcome(
            work,
            found,
            [meta["result"] for meta in metas if meta["status"] == SUCCESS],
            sum(meta["status"] in EXCEPTION_STATES for meta in metas),
            asked,
        )

    def _ask(self, ids: Sequence[str]) -> list[dict[str, Any]]:
        with _translated():
            return [self._app.backend.get_task_meta(task_id) for task_id in ids]

    def purge(self, work: Work) -> None:
        """Delete the queues of `work`, with what is left in them."""
        with _translated(), self._app.connection_for_write() as link:
            for queue in work.queues:
                link.default_channel.queue_delete(queue)


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except (OperationalError, AMQPError, OSError) as exc:
        raise StackError(f"RabbitMQ: {exc}") from exc
    except RedisError as exc:
        raise StackError(f"Redis: {exc}") from exc


@contextmanager
def producer(broker: str, results: str) -> Iterator[Producer]:
    """Open a `Producer`, whose connections are closed at the end."""
    with Celery("producer", broker=broker, backend=results, set_as_current=False) as app:
        # kombu has one pool for all connections with the same options, and we close ours.
        name = f"producer-{token_hex(4)}"
        app.conf.broker_transport_options = {"client_properties": {"connection_name": name}}
        # `wait` asks. Results that were subscribed to would connect again when they are collected.
        app.backend.result_consumer.consume_from = lambda task_id: None
        try:
            yield Producer(app)
        finally:
            app.pool.force_close_all()
            app.backend.client.connection_pool.disconnect()


def make_records(file: Path) -> None:
    """Make the SQLite file that the calls write into."""
    with closing(sqlite3.connect(file)) as connection, connection:
        connection.execute(_TABLE)
