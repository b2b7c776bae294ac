"""Many requests that wait at once, and what they cost while they wait."""

from __future__ import annotations

import asyncio
from time import monotonic
from typing import Any

from gateway.errors import GatewayError
from loadtest.bench import Front
from loadtest.connection import Connection, Tally

ARRIVAL = 60.0  # seconds until all have to be waiting
#: Seconds of waiting that are measured, at least and at the most.
WINDOW = (0.5, 4.0)

_CONNECTING = 100  # connections that are opened at once
_BODY = 250  # bytes


class NotHeld(GatewayError):
    """Not all requests waited at the same time."""


def hold(front: Front, number: int, seconds: float, timeout: float) -> dict[str, Any]:
    """Have `number` requests wait in `front` at once, each for about `seconds`.

    Returns what `wrk.run` does, and `waiting`: `memory_kb_per_request`, resident, over what the
    server had before the first connection; `cpu_percent` of a core while nothing came or went,
    for so many `seconds`. Whoever answers has to announce in its output that it holds them all.
    Raises `NotHeld`.
    """
    return asyncio.run(_hold(front, number, seconds, timeout))


async def _hold(front: Front, number: int, seconds: float, timeout: float) -> dict[str, Any]:
    server = front.servers["gateway"]
    idle, announced = server.rss_bytes(), front.output().count(f"holding {number}\n")
    crowd = _Crowd(front, number)
    try:
        await crowd.connect()
        begin = monotonic()
        crowd.send()
        while front.output().count(f"holding {number}\n") == announced:
            if monotonic() > begin + ARRIVAL or crowd.tally.answered:
                raise NotHeld(
                    f"{number} requests were not held at once: {crowd.tally.answered} answers, "
                    f"{crowd.tally.errors.total()} errors after {monotonic() - begin:.1f} s"
                )
            await asyncio.sleep(0.1)
        waiting = await _measure(front, number, begin + seconds, idle)
        if crowd.tally.answered:
            raise NotHeld("answers came while waiting was measured")
        async with asyncio.timeout(seconds + timeout):
            await crowd.answered.wait()
    except TimeoutError:
        pass  # what has no answer is missing
    finally:
        crowd.close()
    return {**crowd.tally.figures(monotonic() - begin), "waiting": waiting}


async def _measure(front: Front, number: int, end: float, idle: int) -> dict[str, float]:
    server = front.servers["gateway"]
    least, most = WINDOW
    await asyncio.sleep(least)  # the last to come are still being stored
    window = min(most, end - monotonic() - least)
    if window < least:
        raise NotHeld(f"{number} requests took too long to arrive: let them wait longer")
    cpu, begin = server.cpu_seconds(), monotonic()
    await asyncio.sleep(window)
    cpu, window = server.cpu_seconds() - cpu, monotonic() - begin
    return {
        "memory_kb_per_request": round((server.rss_bytes() - idle) / 1024 / number, 2),
        "cpu_percent": round(cpu / window * 100, 2),
        "seconds": round(window, 2),
    }


class _Crowd:
    """A connection for each request."""

    def __init__(self, front: Front, number: int):
        self._front = front
        self._number = number
        self._connections: list[Connection] = []
        self.tally = Tally(front.envelope)
        self.answered = asyncio.Event()

    async def connect(self) -> None:
        """Open all connections; raises `NotHeld`."""
        try:
            for at in range(0, self._number, _CONNECTING):
                some = range(at, min(at + _CONNECTING, self._number))
                opening = (Connection.open(self._front.url) for _ in some)
                self._connections += await asyncio.gather(*opening)
        except OSError as exc:
            raise NotHeld(f"{len(self._connections)} connections were opened: {exc}") from exc

    def send(self) -> None:
        for n, connection in enumerate(self._connections):
            self._post(connection, f'{{"n":{n:010},"padding":"{"x" * (_BODY - 30)}"}}'.encode())
        self.tally.sent = self._number

    def _post(self, connection: Connection, body: bytes) -> None:
        since = monotonic()

        def answered(status: int, answer: bytes) -> None:
            self.tally.count(since, body, status, answer)
            if len(self.tally.seconds) == self._number:
                self.answered.set()

        envelope = self._front.envelope
        connection.post(envelope.wrap(body), answered, envelope.head(body))

    def close(self) -> None:
        for connection in self._connections:
            connection.close()
