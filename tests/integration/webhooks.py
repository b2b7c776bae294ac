"""What the tests of sources share: requests over a connection, configurations, a worker."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from urllib.parse import urlencode

from tests.support.http_client import Answer, Connection, request
from tests.support.stack import Server

#: The app server with more tasks.
TASKS = "tests.integration.tasks"


@dataclass(frozen=True)
class Call:
    """A sender's request; ``query`` is what it adds to the URL of the route `path`."""

    path: str
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    query: Mapping[str, str] = field(default_factory=dict)
    method: str = "POST"

    @property
    def target(self) -> str:
        return f"{self.path}?{urlencode(self.query)}" if self.query else self.path

    def encode(self) -> bytes:
        lines = [f"{name}: {value}" for name, value in self.headers.items()]
        return request(self.body, self.target, *lines, method=self.method)


def ask_all(server: Server, calls: Iterable[Call]) -> list[Answer]:
    """Send `calls` one after the other, over connections that are kept alive."""

    async def ask() -> list[Answer]:
        answers = []
        remaining = iter(calls)
        while some := [call for _, call in zip(range(500), remaining, strict=False)]:
            async with await Connection.open(server.port) as connection:
                answers += [await connection.ask(call.encode()) for call in some]
        return answers

    return asyncio.run(ask())


def ask(server: Server, call: Call) -> Answer:
    (answer,) = ask_all(server, [call])
    return answer
