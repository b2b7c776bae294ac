"""A server for checkers: the URL ``/N`` answers after a random time with a random status.

    python -m loadtest.lab.sites --port N --number 1000

Both are random with a fixed seed, so that a checker's counts are known before.
"""

from __future__ import annotations

import argparse
import asyncio
from collections import Counter
from dataclasses import dataclass
from http import HTTPStatus
from random import Random
from typing import cast

#: Seconds.
LEAST, MOST = 0.005, 0.05

_SEED = 20
_STATUSES = (HTTPStatus.OK, HTTPStatus.NOT_FOUND, HTTPStatus.SERVICE_UNAVAILABLE)
_WEIGHTS = (90, 7, 3)


@dataclass(frozen=True)
class Site:
    """`delay` in seconds."""

    delay: float
    status: HTTPStatus


def sites(number: int) -> list[Site]:
    """Return the first `number` sites, the same ones each time."""
    random = Random(_SEED)
    return [
        Site(random.uniform(LEAST, MOST), random.choices(_STATUSES, _WEIGHTS)[0])
        for _ in range(number)
    ]


def statuses(number: int) -> dict[str, int]:
    """Return how many sites have each status."""
    return dict(Counter(str(int(site.status)) for site in sites(number)))


class Connection(asyncio.Protocol):
    """Answers one GET, and leaves closing to the client."""

    def __init__(self, known: list[Site]):
        self._known = known
        self._head = b""
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._head += data
        if self._head.endswith(b"\r\n\r\n"):
            path = self._head.split(maxsplit=2)[1]
            site = self._known[int(path.removeprefix(b"/"))]
            asyncio.get_running_loop().call_later(site.delay, self._answer, site.status)

    def _answer(self, status: HTTPStatus) -> None:
        if self._transport is not None:
            head = f"HTTP/1.1 {status.value} {status.phrase}\r\nContent-Length: 0\r\n\r\n"
            self._transport.write(head.encode())

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None


async def serve(port: int, number: int) -> None:
    known = sites(number)
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Connection(known), "127.0.0.1", port, backlog=1_024)
    await server.serve_forever()


def main() -> None:
    parser = argparse.ArgumentParser(prog="sites", description=__doc__.partition("\n")[0])
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--number", type=int, default=1_000)
    asyncio.run(serve(**vars(parser.parse_args())))


if __name__ == "__main__":
    main()
