"""Kill gateway, archiver, Redis and database while deliveries are archived: is any lost?

``python -m tests.archive_kills`` writes `--rate` deliveries a second to the journal as gateways do,
sends others to a gateway (`--posts`), whose tasks a worker runs, and kills one server after the
other, `--kills` times in all. Then everything is left alone until the archive has all. Each of
these has to be in the archive, once:

- what the journal's Redis has confirmed (``confirmed``);
- what the gateway has answered with a 202 (``accepted``), whose tasks have to have run.

What is missing is listed with the seconds from its confirm, or its 202, to the next end of Redis,
and a 202 also with the server that was away when it was given.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import sys
import time
import uuid
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import sqlalchemy as sa

from gateway.archive.database import Database
from gateway.archive.tables import DELIVERIES
from gateway.config.settings import Config
from gateway.errors import GatewayError
from gateway.journal.store import JournalStore, Row, Size
from gateway.stack.server import poll
from tests.faults.tasks import EXECUTED
from tests.page_speed import _row, made
from tests.support.http_client import Connection, request
from tests.support.requests import metric
from tests.support.stack import Server, Stack

_BATCH = 0.1  # seconds of which deliveries are written together
_ROOT = Path(__file__).parents[1]
_SOME = 10_000  # deliveries that are made, of which others are copies
#: Deliveries that the journal keeps.
JOURNAL = 400_000
ROUTE = '[[routes]]\npath = "/a"\ntask = "faults.run"\nanswer = "accept"\n'


@dataclass
class Seen:
    """What was confirmed, accepted and done, by the monotonic clock."""

    confirmed: dict[str, float] = field(default_factory=dict)
    #: The delivery's id, and when it was accepted, by its order.
    accepted: dict[str, tuple[str, float]] = field(default_factory=dict)
    refused: int = 0
    #: From when until when each server was away, and when it had ended for certain.
    away: dict[str, list[tuple[float, float]]] = field(default_factory=dict)
    ended: dict[str, list[float]] = field(default_factory=dict)
    #: How many waited to be archived, and since when the first one (seconds), while all is there.
    waiting: list[tuple[float, int, float]] = field(default_factory=list)

    @property
    def kills(self) -> int:
        return sum(map(len, self.away.values()))

    def before_kill(self, name: str, at: float) -> float | None:
        """Return how many seconds after `at` a server has ended next; None: never."""
        kills = self.ended.get(name, [])
        place = bisect_left(kills, at)
        return round(kills[place] - at, 1) if place < len(kills) else None

    def was_away(self, at: float) -> str:
        """Return which servers were away at a time, or within a second before."""
        found = (n for n, some in self.away.items() if any(b <= at <= e + 1 for b, e in some))
        return " and ".join(found) or "none"


class Trial:
    """Servers, and what is done to them."""

    def __init__(self, chosen: argparse.Namespace, stack: Stack):
        self.chosen, self.seen, self._of = chosen, Seen(), random.Random(9)
        directory = stack.directory
        on_disk = ("--appendonly", "yes", "--appendfsync", chosen.fsync)
        self.redis, broker = stack.redis(*on_disk), stack.rabbitmq()
        servers: dict[str, Server] = {"redis": self.redis}
        url = f"sqlite:///{directory}/archive.db"
        if chosen.database == "postgresql":
            servers["postgresql"] = stack.postgresql()
            url = servers["postgresql"].url
        settings = {"journal": JOURNAL, "journal_bytes": 1 << 34, "state_url": self.redis.url}
        settings |= {"archive_url": url, "strategy": "pika", "result_backend": self.redis.url}
        settings |= {"broker_url": broker.url, "public_url": "http://127.0.0.1"}
        settings["secret_key"] = "of this trial only"
        self.config = Config(**settings)
        file = directory / "gateway.toml"
        lines = [f"{name} = {json.dumps(value)}\n" for name, value in settings.items()]
        file.write_text("".join([*lines, ROUTE]))
        noted = directory / "executed"
        noted.mkdir()
        self.noted = noted / EXECUTED
        env = {"FAULTS_DIRECTORY": str(noted), "PYTHONPATH": str(_ROOT)}
        self.worker = stack.worker(
            broker.url, self.redis.url, "tests.faults.tasks", env=env, cwd=_ROOT
        )
        argv = [sys.executable, "-m", "gateway", "archive", "--config", str(file)]
        self.archiver = servers["archiver"] = stack.spawn("archiver", argv, env=env, cwd=_ROOT)
        self.gateway = servers["gateway"] = stack.gateway("--config", str(file), env=env)
        self.victims = {name: servers[name] for name in chosen.victims if name in servers}

    async def work(self) -> None:
        """Do everything at once for `--seconds`, and wait until the archive has all."""
        stop = asyncio.Event()
        doing = [asyncio.create_task(each(stop)) for each in (self._write, self._post, self._watch)]
        try:
            await asyncio.gather(*map(self._kill, self.victims))
        finally:
            stop.set()
            await asyncio.gather(*doing)

    async def _write(self, stop: asyncio.Event) -> None:
        """Write deliveries to the journal, at once where it has been away."""
        due, number = time.monotonic(), int(self.chosen.rate * _BATCH)
        some = [_row(made(self._of, time.time())) for _ in range(_SOME)]
        while not stop.is_set():
            with suppress(GatewayError):
                async with JournalStore.opened(self.config) as store:
                    while not stop.is_set():
                        rows = [_another(row) for row in self._of.sample(some, number)]
                        await store.write(rows)
                        self.seen.confirmed.update((row[0], time.monotonic()) for row in rows)
                        due = max(due + _BATCH, time.monotonic() - 30)
                        await asyncio.sleep(max(due - time.monotonic(), 0))
            await asyncio.sleep(_BATCH)

    async def _post(self, stop: asyncio.Event) -> None:
        """Send deliveries to the gateway one after the other."""
        port, number, due = int(self.gateway.url.rpartition(":")[2]), 0, time.monotonic()
        while not stop.is_set():
            with suppress(OSError, EOFError, TimeoutError):
                async with asyncio.timeout(20), await Connection.open(port) as connection:
                    for _ in range(int(10 * self.chosen.posts)):
                        number += 1
                        order = f"order-{number}"
                        answer = await connection.ask(request(order.encode(), "/a"))
                        if answer.status == 202:
                            own = answer.headers["x-delivery-id"]
                            self.seen.accepted[order] = (own, time.monotonic())
                        else:
                            self.seen.refused += 1
                        due = max(due + 1 / self.chosen.posts, time.monotonic())
                        await asyncio.sleep(max(due - time.monotonic(), 0))
            await asyncio.sleep(0.05)

    async def _watch(self, stop: asyncio.Event) -> None:
        while not stop.is_set():
            with suppress(GatewayError):
                async with JournalStore.opened(self.config) as store:
                    size = await store.trim(1)
                self.seen.waiting.append((time.monotonic(), size.waiting, size.lag))
                seen = self.seen
                sys.stderr.write(
                    f"{len(seen.confirmed):,} written, {len(seen.accepted):,} accepted, "
                    f"{size.waiting:,} wait, the first one for {size.lag:.1f} s; "
                    f"{seen.kills} kills, {size.missed} missed, load {os.getloadavg()[0]:.1f}\n"
                )
            with suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), 5)

    async def _kill(self, name: str) -> None:
        """Kill a server at random times, again and again, and start it again soon after."""
        number = self.chosen.kills // len(self.victims)
        pause, server = self.chosen.seconds / number, self.victims[name]
        away = self.seen.away.setdefault(name, [])
        begin = time.monotonic()
        for i in range(number):
            at = begin + pause * (i + self._of.uniform(0.2, 0.8))
            await asyncio.sleep(max(at - time.monotonic(), 0))
            killed = time.monotonic()
            away.append((killed, killed + 60))
            await asyncio.to_thread(server.kill)
            self.seen.ended.setdefault(name, []).append(time.monotonic())
            await asyncio.sleep(self._of.uniform(0, 2))
            await asyncio.to_thread(server.restart)
            away[-1] = killed, time.monotonic()
        await asyncio.sleep(max(begin + self.chosen.seconds - time.monotonic(), 0))

    def missing(self, archived: set[str]) -> Iterator[tuple[str, Any]]:
        """Yield what should be in the archive and is not."""
        seen = self.seen
        lost = [at for delivery_id, at in seen.confirmed.items() if delivery_id not in archived]
        yield "confirmed, not archived", len(lost)
        yield (
            "seconds to the next end of Redis",
            Counter(seen.before_kill("redis", at) for at in lost),
        )
        gone = [at for delivery_id, at in seen.accepted.values() if delivery_id not in archived]
        yield "accepted, not archived", len(gone)
        yield "away when accepted", Counter(map(seen.was_away, gone))
        yield (
            "seconds to the next end of Redis, none away",
            Counter(seen.before_kill("redis", at) for at in gone if seen.was_away(at) == "none"),
        )

    def result(self) -> dict[str, Any]:
        """Return what has become of everything."""
        seen, config = self.seen, self.config
        lost = metric(self.gateway, "gateway_journal_lost_total")
        began = time.monotonic()
        poll(lambda: _size(config).waiting == 0, self.chosen.patience)
        caught_up = time.monotonic() - began
        poll(lambda: _size(config).open + _size(config).waiting == 0, self.chosen.patience)
        database = Database(config)
        number, size = database.size()
        columns = DELIVERIES.c
        with database.reading() as connection:
            rows = connection.execute(sa.select(columns.id, columns.state)).all()
        ids, states = Counter(row.id for row in rows), {row.id: row.state for row in rows}
        ran = Counter(json.loads(line)["id"] for line in self.noted.read_text().splitlines())
        in_journal = asyncio.run(_in_journal(config))
        away = self.seen.away.get("archiver", []) + self.seen.away.get("postgresql", [])
        waiting = [each for each in seen.waiting if not any(b <= each[0] <= e for b, e in away)]
        return {
            "kills": {name: len(some) for name, some in seen.away.items()},
            "confirmed": len(seen.confirmed),
            "accepted": len(seen.accepted),
            "not accepted": seen.refused,
            "archived": number,
            "twice": sum(n - 1 for n in ids.values()),
            "in the journal, not archived": len(in_journal - ids.keys()),
            **dict(self.missing(set(ids))),
            "accepted, task has not run": len(seen.accepted.keys() - ran.keys()),
            "accepted, as archived": Counter(
                states.get(each) for each, _ in seen.accepted.values()
            ),
            "tasks that ran twice": sum(n > 1 for n in ran.values()),
            "gateway_journal_lost_total": lost,
            "bytes each": round(size / max(number, 1)),
            "waiting, median and most": _median_and_most([each[1] for each in waiting]),
            "lag, median and most": _median_and_most([each[2] for each in waiting]),
            "seconds to catch up": round(caught_up, 1),
        }


def _another(row: Row) -> Row:
    """Return a delivery that differs by its ids only: to make one takes too much of the time."""
    old, new, task = row[0], str(uuid.uuid4()), row[3]
    about, call = row[9].replace(old, new), row[11].replace((task or old).encode(), new.encode())
    return (new, *row[1:3], task and new, *row[4:9], about, row[10], call)


def _median_and_most(values: list[Any]) -> list[float]:
    return [round(median(values), 1), round(max(values), 1)] if values else []


def _size(config: Config) -> Size:
    async def ask() -> Size:
        async with JournalStore.opened(config) as store:
            return await store.trim(1)

    return asyncio.run(ask())


async def _in_journal(config: Config) -> set[str]:
    async with JournalStore.opened(config) as store, aclosing(store.entries(False)) as entries:
        return {entry.id async for entry in entries}


def run(argv: Sequence[str]) -> dict[str, Any]:
    """Do it all; return what has become of everything."""
    parser = argparse.ArgumentParser(prog="python -m tests.archive_kills", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--database", choices=["postgresql", "sqlite"], default="postgresql")
    parser.add_argument("--fsync", choices=["always", "everysec"], default="always")
    parser.add_argument("--rate", type=int, default=1_000, help="deliveries a second")
    parser.add_argument("--posts", type=int, default=20, help="requests a second to the gateway")
    parser.add_argument("--seconds", type=float, default=1_000)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--patience", type=float, default=300, help="seconds to catch up")
    victims = "gateway,archiver,redis,postgresql"
    parser.add_argument("--victims", type=lambda text: text.split(","), default=victims.split(","))
    with Stack() as stack:
        trial = Trial(parser.parse_args(argv), stack)
        began = time.monotonic()
        asyncio.run(trial.work())
        seconds = round(time.monotonic() - began)
        return {"seconds": seconds, **trial.result()}


if __name__ == "__main__":
    json.dump(run(sys.argv[1:]), sys.stdout, indent=1)
