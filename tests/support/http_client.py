"""A client that sends the bytes it is given and reads answers one by one."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass
class Answer:
    """What a server has answered; ``headers`` have names in lower case."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def problem(self) -> dict[str, Any]:
        """The body of an error; asserts that it is complete problem details (RFC 9457)."""
        assert self.headers["content-type"] == "application/problem+json"
        problem = json.loads(self.body)
        assert problem["type"].startswith("urn:celery-gateway:")
        assert problem["status"] == self.status
        assert problem["title"] and problem["detail"] and problem["delivery_id"]
        return problem

    @property
    def type(self) -> str:
        """The stable name of an error."""
        return self.problem["type"].removeprefix("urn:celery-gateway:")


class Connection:
    """One connection to a port of this machine, or to a UNIX socket."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter):
        self.reader, self.writer = reader, writer

    @classmethod
    async def open(cls, address: int | Path) -> Connection:
        if isinstance(address, int):
            return cls(*await asyncio.open_connection("127.0.0.1", address))
        return cls(*await asyncio.open_unix_connection(address))

    async def __aenter__(self) -> Connection:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        self.writer.close()

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    async def answer(self, head: bool = False) -> Answer:
        """Read one answer; those to HEAD (`head`) have no body."""
        start, *lines = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin1").split("\r\n")
        version, status, _ = start.split(" ", 2)
        assert version == "HTTP/1.1"
        pairs = [line.split(": ", 1) for line in lines if line]
        headers = {name.lower(): value for name, value in pairs}
        assert len(headers) == len(pairs)
        length = 0 if head else int(headers.get("content-length", 0))
        return Answer(int(status), headers, await self.reader.readexactly(length))

    async def ask(self, data: bytes) -> Answer:
        self.send(data)
        return await self.answer()

    async def at_end(self) -> bool:
        """Wait until the server closes; tell whether it did so without another byte."""
        return await self.reader.read() == b""


@asynccontextmanager
async def connections(address: int | Path, number: int) -> AsyncIterator[list[Connection]]:
    """Open so many connections, and close them at the end."""
    async with AsyncExitStack() as opened:
        yield [
            await opened.enter_async_context(await Connection.open(address)) for _ in range(number)
        ]


async def ask(address: int | Path, data: bytes) -> Answer:
    """Send a request on a connection of its own."""
    async with await Connection.open(address) as connection:
        return await connection.ask(data)


def request(
    body: bytes = b"", target: str = "/", *lines: str, method: str = "POST", host: str = "gateway"
) -> bytes:
    """Write a request with a Content-Length and further header `lines`."""
    head = [f"{method} {target} HTTP/1.1", f"Host: {host}", f"Content-Length: {len(body)}", *lines]
    return "\r\n".join([*head, "", ""]).encode("latin1") + body
