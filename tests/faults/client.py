"""A sender that offers requests at a fixed rate, whatever becomes of them, and logs each."""

from __future__ import annotations

import asyncio
import json
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass
from math import inf
from pathlib import Path
from time import monotonic
from typing import Any

from tests.support.http_client import Answer, Connection, request

#: Seconds beyond its patience that a sender waits before it calls a request unanswered.
EXTRA = 3.0
#: What becomes of a request that is not answered with a status.
REFUSED, RESET, SILENT = "refused", "reset", "silent"
#: In the place of a target: the oldest delivery that was sent only once is sent once more.
AGAIN = "again"
LATER = 1.5  # seconds after the first one, at least
IDENTITY = "X-Delivery"
#: Requests of one sender that may be under way: more means that nothing is answered any more.
MOST = 2_000


@dataclass(slots=True)
class Sent:
    """One request and what became of it; times in monotonic seconds."""

    id: str
    target: str
    at: float
    answered: float = 0.0  # 0: not yet
    status: int | str = 0
    body: str = ""
    location: str = ""

    @property
    def path(self) -> str:
        return self.target.partition("?")[0]

    @property
    def good(self) -> bool:
        return isinstance(self.status, int) and 200 <= self.status <= 299

    @property
    def wrong(self) -> bool:
        """Was it answered with what another request was to be answered with?"""
        return self.status == 200 and self.body.partition(" ")[0] != self.id


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
    """Sends the requests of one lane; `targets` are taken in turn.

    Each delivery has an identity in a header, by which some routes know it. AGAIN among the targets
    is another try of one for the targets before it, and each has one at the most.
    `most` requests are under way at the same time; `padding` bytes follow the id in each body.
    """

    def __init__(
        self,
        name: str,
        port: int,
        log: Path,
        targets: tuple[str, ...] = ("/echo",),
        rate: float = 100,
        most: int = MOST,
        patience: float = 10,
        padding: int = 0,
    ):
        self.name, self.port, self.targets = name, port, targets
        self.rate, self.most, self.patience, self.padding = rate, most, patience, padding
        self._repeated = targets[: targets.index(AGAIN)] if AGAIN in targets else ()
        self.limit = inf
        self.sent: list[Sent] = []
        self._log = log
        self._idle: list[Connection] = []
        self._under_way: set[asyncio.Task[Sent]] = set()
        self._once: deque[tuple[float, str, str]] = deque()  # when, target, id

    async def offer(self, stopping: asyncio.Event) -> None:
        """Send at the rate until told to stop, or up to the limit; return when all is answered."""
        due = monotonic()
        while not stopping.is_set() and len(self.sent) < self.limit:
            if len(self._under_way) < self.most:
                task = asyncio.create_task(self._next())
                self._under_way.add(task)
                task.add_done_callback(self._under_way.discard)
            # What could not be sent in time is left out: the rate is an upper bound.
            due = max(due + 1 / self.rate, monotonic() - 0.1)
            await asyncio.sleep(due - monotonic())
        if self._under_way:
            await asyncio.wait(self._under_way)

    def _next(self) -> Coroutine[Any, Any, Sent]:
        target, now = self.targets[len(self.sent) % len(self.targets)], monotonic()
        name = f"{self.name}-{len(self.sent)}"
        if target == AGAIN and self._once and self._once[0][0] + LATER <= now:
            _, target, name = self._once.popleft()
        else:
            target = self.targets[0] if target == AGAIN else target
            if target in self._repeated:
                self._once.append((now, target, name))
        return self.send(target, f"{IDENTITY}: {name}", body=name)

    async def burst(self, number: int, target: str = "/echo", *headers: str) -> list[Sent]:
        """Send so many at once, or one by one where the lane bears no more."""
        if self.most == 1:
            return [await self.send(target, *headers) for _ in range(number)]
        return await asyncio.gather(*(self.send(target, *headers) for _ in range(number)))

    async def send(self, target: str, *headers: str, body: str = "") -> Sent:
        """Send one request with further header lines; `body` is its id unless given."""
        one = Sent(body or f"{self.name}-{len(self.sent)}", target, monotonic())
        self.sent.append(one)
        answer = await outcome(self._ask(one, headers), self.patience + EXTRA)
        if isinstance(answer, Answer):
            one.status, one.body = answer.status, answer.body.decode(errors="replace")
            one.location = answer.headers.get("location", "")
        else:
            one.status = answer
        one.answered = monotonic()
        with self._log.open("a") as log:
            log.write(json.dumps(asdict(one) | {"body": None, "lane": self.name}) + "\n")
        return one

    async def _ask(self, one: Sent, headers: tuple[str, ...]) -> Answer:
        connection = await self._connection()
        body = f"{one.id} {'x' * self.padding}" if self.padding else one.id
        try:
            answer = await connection.ask(request(body.encode(), one.target, *headers))
        except BaseException:
            connection.writer.close()
            raise
        if answer.headers.get("connection") == "close":
            connection.writer.close()
        else:
            self._idle.append(connection)
        return answer

    async def _connection(self) -> Connection:
        """Return one that is idle, but none that was closed meanwhile, or a new one."""
        while self._idle:
            connection = self._idle.pop()
            if not (connection.reader.at_eof() or connection.reader.exception()):
                return connection
            connection.writer.close()
        return await Connection.open(self.port)

    async def close(self) -> None:
        while self._idle:
            writer = self._idle.pop().writer
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()


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
