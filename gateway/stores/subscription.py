"""One connection to Redis that hears channels which come and go."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

import redis.asyncio
from redis.exceptions import RedisError

from gateway import background

log = logging.getLogger(__name__)

PAUSE = 0.2  # seconds before a lost connection is tried again
SILENCE = 5.0  # seconds without a word, a PING's answer included, end the connection

#: What a connection that is lost, or just being lost, raises: uvloop's transports have a
#: RuntimeError for a write to one that is closed.
LOST = (RedisError, OSError, RuntimeError)

_ALWAYS = "gateway:nothing"

#: Called with each message, and with None when some may have been missed.
Hear = Callable[[bytes | None], object]


class Subscription:
    """Subscribes to a channel while somebody hears it; comes back by itself.

    Commands are sent as they are: what redis-py remembers of subscriptions it forgets only
    where it reads the messages as well.
    """

    def __init__(self, connect: Callable[[], redis.asyncio.Redis], name: str):
        self._connect = connect
        self._name = name
        self._pubsub: redis.asyncio.client.PubSub | None = None
        self._hearers: dict[str, list[Hear]] = {}
        # The channels that this connection was asked for, and whether it hears them.
        self._subscribed: dict[str, asyncio.Event] = {}
        self._task: asyncio.Task[None] | None = None
        self._last = "not connected yet"

    @property
    def error(self) -> str:
        """What is wrong, in words; empty while it hears."""
        return "" if self._pubsub is not None else self._last

    async def start(self) -> None:
        self._task = background.start(self._keep(), self._name)

    async def stop(self) -> None:
        await background.stop(self._task)

    async def add(self, channel: str, hear: Hear) -> None:
        """Have `hear` called with what is published on `channel`; returns once it is heard.

        While the connection is away it returns at once: `hear(None)` follows its return.
        """
        self._hearers.setdefault(channel, []).append(hear)
        if self._pubsub is None:
            return
        if channel not in self._subscribed:
            self._subscribed[channel] = asyncio.Event()
            await self._ask(self._pubsub, "SUBSCRIBE", channel)
        if event := self._subscribed.get(channel):
            await event.wait()

    async def remove(self, channel: str, hear: Hear) -> None:
        hearers = self._hearers[channel]
        hearers.remove(hear)
        if hearers:
            return
        del self._hearers[channel]
        if self._subscribed.pop(channel, None) is not None and self._pubsub is not None:
            await self._ask(self._pubsub, "UNSUBSCRIBE", channel)

    async def _ask(self, pubsub: redis.asyncio.client.PubSub, *command: str) -> None:
        # Not by the pubsub, which would connect a lost connection anew: nobody would read that.
        connection = pubsub.connection
        if connection is None or not connection.is_connected:
            return
        try:
            await connection.send_command(*command, check_health=False)
        except LOST as exc:
            # Whoever reads the connection notices, too, and restores it.
            log.debug("cannot %s: %s", command[0], exc)

    async def _keep(self) -> None:
        while True:
            client = self._connect()
            pubsub = client.pubsub()
            try:
                await self._hear(pubsub)
            except LOST as exc:
                self._last = f"{type(exc).__name__}: {exc}"
                if self._pubsub is not None:
                    log.warning("%s lost: %s", self._name, exc)
            finally:
                self._pubsub = None
                self._release()
                await asyncio.gather(pubsub.aclose(), client.aclose(), return_exceptions=True)
            await asyncio.sleep(PAUSE)

    def _release(self) -> None:
        """Let those go who wait to be subscribed: they are told when it is done."""
        subscribed, self._subscribed = self._subscribed, {}
        for event in subscribed.values():
            event.set()

    async def _hear(self, pubsub: redis.asyncio.client.PubSub) -> None:
        # The first keeps the connection in subscribed state, where PING has another answer.
        async with asyncio.timeout(SILENCE):
            await pubsub.execute_command("SUBSCRIBE", _ALWAYS)
            await pubsub.parse_response()
        self._pubsub = pubsub
        again = set(self._hearers)
        self._subscribed = {channel: asyncio.Event() for channel in again}
        if again:
            await pubsub.execute_command("SUBSCRIBE", *again)
        asked = False
        while True:
            try:
                async with asyncio.timeout(SILENCE):
                    while True:
                        kind, *rest = await pubsub.parse_response()
                        asked = False
                        self._take(kind, rest, again)
            except TimeoutError:
                if asked:
                    raise
                asked = True
                await pubsub.ping()

    def _take(self, kind: bytes, rest: list[bytes], again: set[str]) -> None:
        if kind == b"message":
            self._tell(rest[0].decode(), rest[1])
        elif kind == b"subscribe":
            channel = rest[0].decode()
            if event := self._subscribed.get(channel):
                event.set()
            if channel in again:
                again.discard(channel)
                self._tell(channel, None)

    def _tell(self, channel: str, message: bytes | None) -> None:
        for hear in list(self._hearers.get(channel, ())):
            hear(message)
