"""Servers that play the part of senders which take late answers, with their limits and errors."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

#: What a server does instead of answering.
HANG, CUT = "hang", "cut"


@dataclass
class Seen:
    """A request that a server has got."""

    method: str
    target: str
    headers: dict[str, str]
    body: Any


@dataclass
class SenderServer:
    """Answers requests by `answer`, unless `faults` has something for the next one.

    A fault is an answer, `HANG` or `CUT`; with `CUT` and `HANG` the request is taken nevertheless
    if `takes` says so. ``taken`` are the messages that a user would see.
    """

    answer: Callable[[SenderServer, Seen], tuple[int, dict[str, str], str]]
    faults: list[Any] = field(default_factory=list)
    takes: bool = True
    seen: list[Seen] = field(default_factory=list)
    taken: list[Any] = field(default_factory=list)
    tokens: list[str] = field(default_factory=list)
    uses: dict[str, int] = field(default_factory=dict)
    port: int = 0

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def url(self) -> str:
        return f"http://{self.host}"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
            method, target, _ = head[0].split(" ")
            headers = dict(line.lower().split(": ", 1) for line in head[1:] if ": " in line)
            text = await reader.readexactly(int(headers.get("content-length", 0)))
            try:
                body = json.loads(text) if text else None
            except ValueError:
                body = text.decode()
            seen = Seen(method, target, headers, body)
            self.seen.append(seen)
            fault = self.faults.pop(0) if self.faults else None
            if fault in (HANG, CUT):
                if self.takes:
                    self.answer(self, seen)
                if fault == HANG:
                    await reader.read()
                return
            status, more, said = fault or self.answer(self, seen)
            data = said.encode()
            lines = [f"HTTP/1.1 {status} X", f"Content-Length: {len(data)}", "Connection: close"]
            lines += [f"{name}: {value}" for name, value in more.items()]
            writer.write("\r\n".join([*lines, "", ""]).encode() + data)
            await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # the gateway was killed
        finally:
            writer.close()


@asynccontextmanager
async def serving(server: SenderServer) -> AsyncIterator[SenderServer]:
    listening = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    server.port = listening.sockets[0].getsockname()[1]
    try:
        yield server
    finally:
        listening.close()


def _limited(server: SenderServer, seen: Seen, address: str, most: int) -> bool:
    """Take a message for `address`, unless it has got `most`."""
    server.uses[address] = server.uses.get(address, 0) + 1
    if server.uses[address] > most:
        return False
    server.taken.append(seen.body)
    return True


def slack(server: SenderServer, seen: Seen) -> tuple[int, dict[str, str], str]:
    taken = _limited(server, seen, seen.target, 5)
    return (200, {}, "ok") if taken else (404, {}, "used_url")


def discord(server: SenderServer, seen: Seen) -> tuple[int, dict[str, str], str]:
    assert seen.method == "PATCH" and seen.target.endswith("/messages/@original")
    server.taken.append(seen.body)
    return 200, {"Content-Type": "application/json"}, json.dumps({"id": "1", **seen.body})


def dingtalk(server: SenderServer, seen: Seen) -> tuple[int, dict[str, str], str]:
    server.taken.append(seen.body)
    return 200, {}, '{"errcode":0,"errmsg":"ok"}'


def feishu(server: SenderServer, seen: Seen) -> tuple[int, dict[str, str], str]:
    if seen.target.endswith("/tenant_access_token/internal"):
        server.tokens.append(f"t-{len(server.tokens)}")
        found = {"code": 0, "tenant_access_token": server.tokens[-1], "expire": 7200}
        return 200, {}, json.dumps(found)
    if seen.headers.get("authorization") != f"Bearer {server.tokens[-1]}".lower():
        return 400, {}, '{"code":99991663,"msg":"Invalid access token"}'
    if not _limited(server, seen, seen.body["token"], 2):
        return 200, {}, '{"code":300090,"msg":"the token was used twice"}'
    return 200, {}, '{"code":0}'


def wechat(server: SenderServer, seen: Seen) -> tuple[int, dict[str, str], str]:
    if seen.target == "/cgi-bin/stable_token":
        assert (seen.body["appid"], seen.body["secret"]) == ("wx1", "app secret")
        server.tokens.append(f"token {len(server.tokens)}")
        return 200, {}, json.dumps({"access_token": server.tokens[-1], "expires_in": 7200})
    if not server.tokens or not seen.target.endswith("=" + server.tokens[-1].replace(" ", "%20")):
        return 200, {}, '{"errcode":40001,"errmsg":"invalid credential"}'
    if not _limited(server, seen, seen.body["touser"], 5):
        return 200, {}, '{"errcode":45047,"errmsg":"out of response count limit"}'
    return 200, {}, '{"errcode":0,"errmsg":"ok"}'


def free_address() -> str:
    """Return a host and port where nobody listens."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{one.getsockname()[1]}"
