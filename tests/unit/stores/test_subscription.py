"""What a subscription makes of what its server sends, or does not send."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from types import SimpleNamespace

import hiredis

from gateway.stores import subscription
from gateway.stores.subscription import Subscription
from tests.support.waiting import eventually

#: The reply to a PING of a client that has subscribed.
PONG = hiredis.pack_command(("pong", ""))


class Server:
    """Answers each subscription, and PINGs as `pong`; it is the transport of its connections."""

    pong: bytes | None = PONG

    def __init__(self) -> None:
        self.connections = self.pings = 0

    def connect(self) -> SimpleNamespace:
        async def opened() -> tuple[SimpleNamespace, bool, str]:
            self.connections += 1
            return SimpleNamespace(transport=self), False, "server"

        async def aclose() -> None: ...

        return SimpleNamespace(opened=opened, aclose=aclose)

    def set_protocol(self, protocol: asyncio.Protocol) -> None:
        self.protocol = protocol

    def is_closing(self) -> bool:
        return False

    def abort(self) -> None:
        self._soon(self.protocol.connection_lost, None)

    def write(self, data: bytes) -> None:
        reader = hiredis.Reader()
        reader.feed(data)
        while (command := reader.gets()) is not False:
            if command == [b"PING"]:
                self.pings += 1
                if self.pong is not None:
                    self._soon(self.protocol.data_received, self.pong)
            elif command[0] == b"SUBSCRIBE":
                for channel in command[1:]:
                    self.say("subscribe", channel.decode(), 1)

    def say(self, kind: str, channel: str, about: str | int) -> None:
        self._soon(self.protocol.data_received, hiredis.pack_command((kind, channel, about)))

    def _soon(self, call: Callable[..., object], *arguments: object) -> None:
        asyncio.get_running_loop().call_soon(call, *arguments)


@asynccontextmanager
async def subscribed(server: Server) -> AsyncIterator[Subscription]:
    one = Subscription(server.connect, "test")
    await one.start()
    try:
        async with asyncio.timeout(30):
            await eventually(lambda: not one.error)
            yield one
    finally:
        await one.stop()


async def test_a_server_that_has_forgotten_the_subscription_is_told_again(monkeypatch):
    monkeypatch.setattr(subscription, "SILENCE", 0.1)
    server = Server()
    async with subscribed(server) as one:
        server.pong = b"+PONG\r\n"  # so it answers a client that has none
        await eventually(lambda: server.connections > 1)
        server.pong = PONG
        await eventually(lambda: not one.error)


async def test_each_ping_has_a_reply_before_the_next(monkeypatch):
    monkeypatch.setattr(subscription, "SILENCE", 0.1)
    server = Server()
    async with subscribed(server) as one:
        await eventually(lambda: server.pings == 3)
        assert server.connections == 1
        server.pong, pings = None, server.pings
        await eventually(lambda: "silent" in one.error)
        assert server.pings - pings == 1


async def test_a_message_that_cannot_be_taken_ends_a_connection_and_nothing_else(caplog):
    def fails(message: bytes | None) -> None:
        if message is not None:
            raise KeyError(message)

    server, got = Server(), []
    async with subscribed(server) as one:
        one.add("bad", fails)
        one.add("good", got.append)
        server.say("message", "bad", "x")
        await eventually(lambda: server.connections == 2)
        await eventually(lambda: not one.error)
        server.say("message", "good", "y")
        await eventually(lambda: b"y" in got)
    assert "KeyError" in caplog.text
