"""Senders that offer deliveries at a fixed rate, whatever becomes of them, and log each try."""

from __future__ import annotations

import asyncio
import json
import random
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict
from datetime import datetime
from itertools import count
from math import inf
from pathlib import Path
from time import monotonic
from typing import Any

from tests.faults.watchdog import Watchdog
from tests.simulation.records import GONE, REFUSED, RESET, SILENT, Try
from tests.support.http_client import Answer, Connection, request

#: Seconds beyond its patience that a sender waits before it calls a request unanswered.
EXTRA = 3.0
#: In the place of a target: the oldest delivery that was sent only once is sent once more.
AGAIN = "again"
LATER = 1.5  # seconds after the first one, at least
#: Each delivery and each try says which one it is.
KEY, TRY = "X-Delivery", "X-Try"
#: Requests of one sender that may be under way: more means that nothing is answered any more.
MOST = 2_000


async def outcome(asking: Awaitable[Answer], patience: float) -> Answer | str:
    """Return an answer; or what became of a request that has none after `patience` seconds."""
    try:
        async with asyncio.timeout(patience):
            return await asking
    except ConnectionRefusedError:
        return REFUSED
    except TimeoutError:
        return SILENT
    except (OSError, EOFError):
        return RESET


class Sender:
    """Sends deliveries to a gateway in `ports`; `targets` are taken in turn.

    Each delivery has an identity in a header, by which some routes know it. AGAIN among the targets
    is another try of one for the targets before it, and each has one at the most.
    `most` requests are under way at the same time; `padding` bytes follow the id in each body.
    """

    keeps = True  # does a connection serve further requests?

    def __init__(
        self,
        name: str,
        ports: Mapping[str, int],
        log: Path,
        targets: tuple[str, ...] = ("/echo",),
        rate: float = 100,
        most: int = MOST,
        patience: float = 10,
        padding: int = 0,
    ):
        self.name, self.ports, self.targets = name, dict(ports), targets
        self.rate, self.most, self.patience, self.padding = rate, most, patience, padding
        self._repeated = targets[: targets.index(AGAIN)] if AGAIN in targets else ()
        self.limit = inf
        self.tries: list[Try] = []
        self._log = log
        self._idle: list[Connection] = []
        self._once: deque[tuple[float, str, str]] = deque()  # when, target, id

    async def offer(self, stopping: asyncio.Event) -> None:
        """Send at the rate until told to stop, or up to the limit; return when all is answered."""
        due, under_way = monotonic(), set()
        async with asyncio.TaskGroup() as group:
            while not stopping.is_set() and len(self.tries) < self.limit:
                if len(under_way) < self.most:
                    under_way.add(task := group.create_task(self._next()))
                    task.add_done_callback(under_way.discard)
                # What could not be sent in time is left out: the rate is an upper bound.
                due = max(due + 1 / self.rate, monotonic() - 0.1)
                await asyncio.sleep(due - monotonic())

    def _next(self) -> Coroutine[Any, Any, object]:
        """Return what sends the next delivery."""
        target, now = self.targets[len(self.tries) % len(self.targets)], monotonic()
        if target == AGAIN and self._once and self._once[0][0] + LATER <= now:
            _, target, name = self._once.popleft()
            return self.send(target, body=name, number=2)
        name = f"{self.name}-{len(self.tries)}"
        target = self.targets[0] if target == AGAIN else target
        if target in self._repeated:
            self._once.append((now, target, name))
        return self.send(target, body=name)

    async def burst(self, number: int, target: str) -> list[Try]:
        """Send so many at once, or one by one where the lane bears no more."""
        if self.most == 1:
            return [await self.send(target) for _ in range(number)]
        return await asyncio.gather(*(self.send(target) for _ in range(number)))

    async def send(self, target: str, *headers: str, body: str = "", number: int = 1) -> Try:
        """Send one request with further header lines; `body` is the delivery's id unless given."""
        route, _, query = target.partition("?")
        name = body or f"{self.name}-{len(self.tries)}"
        one = Try(name, number, route, next(iter(self.ports)), monotonic(), query=query)
        return await self._try(one, self.patience + EXTRA, *headers)

    async def _try(self, one: Try, patience: float, *headers: str) -> Try:
        """Send a try, and note in it and in the log what becomes of it."""
        self.tries.append(one)
        target = f"{one.route}?{one.query}" if one.query else one.route
        body = f"{one.delivery} {'x' * self.padding}" if self.padding else one.delivery
        lines = (f"{KEY}: {one.delivery}", f"{TRY}: {one.id}", *headers)
        answer = await outcome(
            self._ask(one.gateway, request(body.encode(), target, *lines)), patience
        )
        if isinstance(answer, Answer):
            _note(one, answer)
        else:
            one.status = answer
        one.answered = monotonic()
        self._ended(one, patience)
        with self._log.open("a") as log:
            # With the time of day, by which logs are compared.
            time = datetime.now().isoformat(timespec="milliseconds")
            line = {"answered at": time} | asdict(one) | {"body": one.body[:200]}
            log.write(json.dumps(line) + "\n")
        return one

    def _ended(self, one: Try, patience: float) -> None:
        """Add what else is known of a try when it has ended."""

    async def _ask(self, gateway: str, message: bytes) -> Answer:
        connection = await self._connection(gateway)
        try:
            answer = await connection.ask(message)
        except BaseException:
            connection.writer.close()
            raise
        if not self.keeps or answer.headers.get("connection") == "close":
            connection.writer.close()
        else:
            self._idle.append(connection)
        return answer

    async def _connection(self, gateway: str) -> Connection:
        """Return one that is idle, but none that was closed meanwhile, or a new one."""
        while self._idle:
            connection = self._idle.pop()
            if not (connection.reader.at_eof() or connection.reader.exception()):
                return connection
            connection.writer.close()
        return await Connection.open(self.ports[gateway])

    async def close(self) -> None:
        while self._idle:
            writer = self._idle.pop().writer
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()


def _note(one: Try, answer: Answer) -> None:
    """Note what a try was answered."""
    one.status, one.location = answer.status, answer.headers.get("location", "")
    one.body = answer.body.decode(errors="replace")
    if answer.status == 202:
        one.task = json.loads(answer.body)["task_id"]
    elif answer.headers.get("content-type") == "application/problem+json":
        one.type, one.detail = answer.type, answer.problem["detail"]
        one.task = answer.problem.get("task_id", "")


class PersistentSender(Sender):
    """Sends each delivery to any gateway until it is taken; what it does is drawn from `seed`.

    It gives up at `until` (monotonic seconds).
    """

    keeps = False  # one that was idle may just be being closed
    #: The routes by path, and the seconds that a request on each has.
    DEADLINES = {"/wait": 5.0, "/accept": 5.0, "/wait-then-accept": 2.0}
    IMPATIENT, HANGS_UP = 0.1, 1.0  # the share that hangs up, and after how many seconds
    ONCE_MORE, WITHIN = 0.25, 3.0  # the share that tries once more after a 2xx, within seconds
    PAUSE = (0.5, 3.0)  # seconds between tries: the first, the longest

    def __init__(
        self, seed: int, ports: Mapping[str, int], log: Path, rate: float, watchdog: Watchdog
    ):
        super().__init__("d", ports, log, rate=rate)
        self.until = inf
        self.offered = 0
        self._seed, self._watchdog = seed, watchdog

    async def offer(self, stopping: asyncio.Event) -> None:
        watching = asyncio.create_task(self._watchdog.run())
        try:
            await super().offer(stopping)
        finally:
            watching.cancel()

    def _next(self) -> Coroutine[Any, Any, object]:
        self.offered += 1
        return self._deliver(self.offered - 1)

    async def _deliver(self, number: int) -> None:
        """Try until it is taken, and perhaps once more."""
        rng = random.Random(f"{self._seed} {number}")
        route = rng.choice(list(self.DEADLINES))
        # Most are short, or what gathers in an outage would be worked off too late; up to 1 s.
        query = f"seconds={rng.random() ** 4:.2f}&word=1"
        hangs_up = rng.random() < self.IMPATIENT
        patience = self.HANGS_UP if hangs_up else self.DEADLINES[route] + EXTRA
        later = rng.uniform(0, self.WITHIN) if rng.random() < self.ONCE_MORE else None
        pause, longest = self.PAUSE

        def again(n: int) -> Coroutine[Any, Any, Try]:
            gateway = rng.choice(list(self.ports))
            one = Try(f"d{number}", n, route, gateway, monotonic(), query=query)
            return self._try(one, patience)

        for n in count(1):
            one = await again(n)
            if one.good or monotonic() > self.until:
                break
            await asyncio.sleep(pause * rng.uniform(0.5, 1.0))
            pause = min(2 * pause, longest)
        if one.good and later is not None:
            await asyncio.sleep(later)
            await again(n + 1)

    def _ended(self, one: Try, patience: float) -> None:
        if one.status == SILENT and patience == self.HANGS_UP:
            one.status = GONE
        self._watchdog.look(one.gateway)
        one.delay = round(self._watchdog.delay(one.gateway, one.at, one.answered), 3)

    async def read(self, location: str) -> Answer:
        """Ask the first gateway for the result that is at `location`."""
        path = "/results/" + location.rpartition("/results/")[2]
        async with asyncio.timeout(max(self.DEADLINES.values()) + EXTRA):
            return await self._ask(next(iter(self.ports)), request(b"", path, method="GET"))


class Client:
    """Runs senders in a thread of its own, beside whoever breaks things."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._stopping = asyncio.Event()
        self._offers: list[Any] = []

    def start(self, senders: Iterable[Sender]) -> None:
        """Have `senders` offer their requests until `stop`."""
        self._stopping = asyncio.Event()
        for sender in senders:
            offer = sender.offer(self._stopping)
            self._offers.append(asyncio.run_coroutine_threadsafe(offer, self._loop))

    def stop(self, timeout: float) -> None:
        """Have nobody offer any more; wait until everything that was sent is answered."""
        self._loop.call_soon_threadsafe(self._stopping.set)
        while self._offers:
            self._offers.pop().result(timeout)

    def run(self, work: Coroutine[Any, Any, Any], timeout: float = 60) -> Any:
        """Run a coroutine on the senders' loop and return its result."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(timeout)

    def start_soon(self, work: Coroutine[Any, Any, Any]) -> Callable[[], Any]:
        """Begin a coroutine; return what waits for its result, for a minute at the most."""
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        return lambda: future.result(60)

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5)
        self._loop.close()
