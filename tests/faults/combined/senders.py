"""Senders with one delivery each, who try again under the same key until it is taken."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from itertools import count
from math import inf
from pathlib import Path
from time import monotonic

from tests.faults.client import EXTRA, SILENT, outcome
from tests.faults.combined.watchdog import Watchdog
from tests.support.http_client import Answer, Connection, request

#: The routes by path, and the seconds that a request on each has.
DEADLINES = {"/wait": 5.0, "/accept": 5.0, "/wait-then-accept": 2.0}
#: Each delivery and each try says which one it is.
KEY, TRY = "X-Delivery", "X-Try"
#: What became of a try whose sender did not wait for the answer.
GONE = "gone"
IMPATIENT, HANGS_UP = 0.1, 1.0  # the share of senders that hang up, and after how many seconds
AGAIN, LATER = 0.25, 3.0  # the share of those that try once more after a 2xx, within seconds
PAUSE = (0.5, 3.0)  # seconds between tries: the first, the longest


@dataclass(slots=True)
class Try:
    """One request and what became of it; times in monotonic seconds.

    `type` and `detail` are a problem's, `delay` is how long the machine held it up.
    """

    delivery: str
    number: int
    route: str
    gateway: str
    at: float
    answered: float = 0.0  # 0: not yet
    status: int | str = 0
    type: str = ""
    detail: str = ""
    task: str = ""
    body: str = ""
    location: str = ""
    delay: float = 0.0

    @property
    def id(self) -> str:
        return f"{self.delivery}.{self.number}"

    @property
    def good(self) -> bool:
        return isinstance(self.status, int) and 200 <= self.status <= 299

    @property
    def seconds(self) -> float:
        return self.answered - self.at


class Senders:
    """Offers deliveries at a rate to gateways by name; what each sender does is drawn from `seed`.

    They give up at `until` (monotonic seconds).
    """

    def __init__(
        self, seed: int, ports: Mapping[str, int], log: Path, rate: float, watchdog: Watchdog
    ):
        self.tries: list[Try] = []
        self.until = inf
        self.sent = 0
        self._seed, self._ports, self._log, self._rate = seed, dict(ports), log, rate
        self._watchdog = watchdog

    async def offer(self, stopping: asyncio.Event) -> None:
        """Have one sender after the other begin until told to stop; return when all have ended."""
        watching = asyncio.create_task(self._watchdog.run())
        due = monotonic()
        try:
            async with asyncio.TaskGroup() as senders:
                while not stopping.is_set():
                    senders.create_task(self._deliver(self.sent))
                    self.sent += 1
                    due = max(due + 1 / self._rate, monotonic() - 0.1)
                    await asyncio.sleep(due - monotonic())
        finally:
            watching.cancel()

    async def _deliver(self, number: int) -> None:
        """Try until it is taken, and perhaps once more."""
        rng = random.Random(f"{self._seed} {number}")
        route = rng.choice(list(DEADLINES))
        # Most are short, or what gathers in an outage would be worked off too late; up to 1 s.
        target = f"{route}?seconds={rng.random() ** 4:.2f}"
        patience = HANGS_UP if rng.random() < IMPATIENT else DEADLINES[route] + EXTRA
        later = rng.uniform(0, LATER) if rng.random() < AGAIN else None
        pause, longest = PAUSE
        for n in count(1):
            one = Try(f"d{number}", n, route, rng.choice(list(self._ports)), monotonic())
            await self._try(one, target, patience)
            if one.good or monotonic() > self.until:
                break
            await asyncio.sleep(pause * rng.uniform(0.5, 1.0))
            pause = min(2 * pause, longest)
        if one.good and later is not None:
            await asyncio.sleep(later)
            gateway = rng.choice(list(self._ports))
            await self._try(Try(one.delivery, n + 1, route, gateway, monotonic()), target, patience)

    async def _try(self, one: Try, target: str, patience: float) -> None:
        self.tries.append(one)
        lines = (f"{KEY}: {one.delivery}", f"{TRY}: {one.id}")
        message = request(one.delivery.encode(), target, *lines)
        answer = await outcome(self._ask(one.gateway, message), patience)
        if isinstance(answer, Answer):
            _note(one, answer)
        else:
            one.status = GONE if answer == SILENT and patience == HANGS_UP else answer
        one.answered = monotonic()
        self._watchdog.look(one.gateway)
        one.delay = round(self._watchdog.delay(one.gateway, one.at, one.answered), 3)
        with self._log.open("a") as log:
            # With the time of day, by which logs are compared.
            time = datetime.now().isoformat(timespec="milliseconds")
            log.write(json.dumps({"answered at": time} | asdict(one)) + "\n")

    async def _ask(self, gateway: str, message: bytes) -> Answer:
        """Each is on a connection of its own: one that was idle may just be being closed."""
        async with await Connection.open(self._ports[gateway]) as connection:
            return await connection.ask(message)

    async def read(self, location: str) -> Answer:
        """Ask the first gateway for the result that is at `location`."""
        path = "/results/" + location.rpartition("/results/")[2]
        async with asyncio.timeout(max(DEADLINES.values()) + EXTRA):
            return await self._ask(next(iter(self._ports)), request(b"", path, method="GET"))


def _note(one: Try, answer: Answer) -> None:
    """Note what a try was answered."""
    one.status, one.location = answer.status, answer.headers.get("location", "")
    if answer.status == 200:
        one.body = answer.body.decode(errors="replace")
    elif answer.status == 202:
        one.task = json.loads(answer.body)["task_id"]
    elif answer.headers.get("content-type") == "application/problem+json":
        one.type, one.detail = answer.type, answer.problem["detail"]
        one.task = answer.problem.get("task_id", "")
