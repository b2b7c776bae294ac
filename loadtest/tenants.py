"""Ten tenants of one route: nine send a request a second each, one does what it wants."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from time import monotonic, sleep
from typing import Any

from kombu import Connection as Broker

from gateway.config.pointers import pair_chooser
from gateway.config.task import fair_names
from gateway.delivery import Delivery
from gateway.stack import StackError
from loadtest.bench import Bench
from loadtest.connection import Connection, result

#: What the tenth does.
NOTHING, FLOOD, HANG = "calm", "flood", "hang"
TENTH = "tenant-0"
OTHERS = [f"tenant-{n}" for n in range(1, 10)]

_AT_ONCE = 16  # connections of the tenth
_LEAD = 1.0  # seconds that the tenth is ahead
_HANGING = 4  # deliveries a second whose tasks hang
_LATE = 30.0  # seconds after its deadline until an answer is missing
_PATIENCE = 60.0  # seconds until workers have given up what they hold


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
