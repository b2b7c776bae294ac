"""A client that sends at a constant rate, whatever the answers do.

A latency counts from the moment when its request was due: a server that stands still for a
second makes every request late that was due in it, also those that could not be sent. wrk waits
for an answer before it sends again, and sees one slow request where a thousand would have been.
"""

from __future__ import annotations

import asyncio
import gc
import secrets
import select
import selectors
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from time import monotonic
from typing import Any

from loadtest.connection import Connection, Tally
from loadtest.envelope import PLAIN, Envelope
from loadtest.machine import own_cpu_seconds
from loadtest.summary import latency

Mark = tuple[float, Callable[[], None]]

_SIZE = 250  # bytes of a body
OPEN = 32  # connections that are open before the first request, at least
_MOST = 10_000
#: Where bodies have identities: of every 50 requests, the one at such a place is a later try of
#: that which came so many before, and is under way still, or has its answer.
_EVERY, _TRIES = 50, {10: 1, 30: 999}
_LEAD = 0.05  # seconds before the first request is due


@contextmanager
def schedule(
    url: str,
    rate: float,
    seconds: float,
    connections: int = OPEN,
    marks: Sequence[Mark] = (),
    envelope: Envelope = PLAIN,
) -> Iterator[Callable[[float], dict[str, Any]]]:
    """Open so many connections; give what POSTs `rate` distinct bodies a second to `url`.

    It does so for `seconds`, then waits for the rest for as long as it is told: what is not
    answered by then is missing. It returns what `wrk.run` does, and `schedule`: the
    `rate` that was asked for, what was `sent` a second, `late_ms` (how long after it was due each
    request was sent), the most `connections` open, and `client_cpu_us` per request.

    Whoever measures the server does so from then on, and has nothing of connections in it, or
    between `marks`: what to call so many seconds after the first request was due.

    Where the `envelope` identifies bodies, one of 25 is a later try of another.
    """
    with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(_Precise())) as runner:
        sender = _Sender(url, rate, seconds, marks, envelope)
        runner.run(sender.open(connections))
        gc.collect()
        gc.disable()
        try:
            yield lambda timeout: runner.run(sender.run(timeout))
        finally:
            gc.enable()
            runner.run(sender.close())


class _Precise(selectors.EpollSelector):
    """Waits for less than a millisecond where it has to, which epoll_wait(2) cannot."""

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None or timeout > 0:
            select.select([self], [], [], timeout)
        return super().select(0)


class _Sender:
    def __init__(
        self, url: str, rate: float, seconds: float, marks: Sequence[Mark], envelope: Envelope
    ):
        self._url = url
        self._envelope = envelope
        self._marks = marks
        self._rate = rate
        self._seconds = seconds
        self._total = max(1, round(rate * seconds))
        run = secrets.token_hex(4)
        self._body = f'{{"run":"{run}","padding":"{"x" * (_SIZE - 50)}","n":%010d}}'.encode()
        self._tally = Tally(envelope)
        self._late: list[float] = []
        self._all: list[Connection] = []
        # Used in turn, or the server would close those that are idle for long.
        self._idle: deque[Connection] = deque()
        self._due: deque[tuple[float, bytes]] = deque()  # what waits for a connection
        self._open = 0
        self._connecting: set[asyncio.Task[None]] = set()
        self._next = 0
        self._begin = self._last = 0.0
        self._done = asyncio.Event()

    async def open(self, connections: int) -> None:
        for _ in range(min(connections, _MOST)):
            self._connect()
        await asyncio.gather(*self._connecting)

    async def close(self) -> None:
        for task in self._connecting:
            task.cancel()
        for connection in self._all:
            connection.close()

    async def run(self, timeout: float) -> dict[str, Any]:
        cpu = own_cpu_seconds()
        self._begin = self._last = monotonic() + _LEAD
        for after, reached in self._marks:
            asyncio.get_running_loop().call_at(self._begin + after, reached)
        self._tick()
        try:
            async with asyncio.timeout(_LEAD + self._seconds + timeout):
                await self._done.wait()
        except TimeoutError:
            pass  # what has no answer is missing
        if self._marks:  # the answers may have come before the last one
            await asyncio.sleep(self._begin + self._marks[-1][0] - monotonic() + _LEAD)
        took = monotonic() - self._begin
        cpu = own_cpu_seconds() - cpu
        self._tally.sent = self._total
        found = self._tally.figures(max(took, self._seconds))
        late = latency(self._late)
        # Of a whole number of requests; the rate is none.
        share = len(self._late) / self._total
        longer = max(1.0, (self._last - self._begin) / self._seconds)
        found["schedule"] = {
            "rate": round(self._rate, 1),
            "sent": round(self._rate * share / longer, 1),
            "late_ms": late,
            "connections": self._open,
            "client_cpu_us": round(cpu * 1e6 / self._total, 1),
        }
        return found

    def _tick(self) -> None:
        """Send all that is due."""
        now = monotonic()
        while self._next < self._total:
            due = self._begin + self._next / self._rate
            if due > now:
                asyncio.get_running_loop().call_at(due, self._tick)
                return
            body = self._body % self._number(self._next)
            self._next += 1
            if self._idle:
                self._send(self._idle.popleft(), due, body)
            else:
                self._due.append((due, body))
                if self._open < _MOST:
                    self._connect()

    def _number(self, n: int) -> int:
        """Return the number in the body of request `n`: its own, or that of which it is a try."""
        tried = n - _TRIES.get(n % _EVERY, 0)
        return tried if self._envelope.identified and tried >= 0 else n

    def _send(self, connection: Connection, due: float, body: bytes) -> None:
        self._last = monotonic()
        self._late.append(self._last - due)

        def answered(status: int, answer: bytes) -> None:
            self._tally.count(due, body, status, answer)
            if connection.closed:
                self._open -= 1
                if self._due:
                    self._connect()
            else:
                self._take(connection)
            if len(self._tally.seconds) == self._total:
                self._done.set()

        envelope = self._envelope
        connection.post(envelope.wrap(body), answered, envelope.head(body))

    def _take(self, connection: Connection) -> None:
        if self._due:
            self._send(connection, *self._due.popleft())
        else:
            self._idle.append(connection)

    def _connect(self) -> None:
        self._open += 1
        task = asyncio.get_running_loop().create_task(self._connected())
        self._connecting.add(task)
        task.add_done_callback(self._connecting.discard)

    async def _connected(self) -> None:
        try:
            connection = await Connection.open(self._url)
        except OSError:
            self._open -= 1
            self._tally.errors["connect"] += 1
        else:
            self._all.append(connection)
            self._take(connection)
