"""Subscribe to changing channels of Redis on one connection."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

import redis.asyncio

from gateway import background
from gateway.stores.result_store import LOST

log = logging.getLogger(__name__)

PAUSE = 0.2  # seconds before a lost connection is opened again
#: Seconds without any message before a PING is sent, and then until the connection is given up.
SILENCE = 5.0

_ALWAYS = "gateway:nothing"

#: Called with each message, and with None when messages may have been missed.
OnMessage = Callable[[bytes | None], object]


class Subscription:
    """Subscribes to a channel while it has callbacks; reconnects by itself.

    Commands are sent directly: redis-py's own list of subscriptions is correct only if redis-py
    reads the messages as well.
    """

    def __init__(self, connect: Callable[[], redis.asyncio.Redis], name: str):
        self._connect = connect
        self._name = name
        self._pubsub: redis.asyncio.client.PubSub | None = None
        self._callbacks: dict[str, list[OnMessage]] = {}
        # The channels that this connection was asked to subscribe, set when it has subscribed.
        self._subscribed: dict[str, asyncio.Event] = {}
        self._task: asyncio.Task[None] | None = None
        self._lasts: asyncio.Timeout | None = None
        self._last = "not connected yet"

    @property
    def error(self) -> str:
        """What is wrong with the connection, in words; empty while it is subscribed."""
        return "" if self._pubsub is not None else self._last

    @property
    def channels(self) -> int:
        """How many channels have a callback."""
        return len(self._callbacks)

    async def start(self) -> None:
        self._task = background.start(self._keep_connected(), self._name)

    async def stop(self) -> None:
        await background.stop(self._task)

    def renew(self) -> None:
        """Give the connection up, as its server has become one that is not to be used."""
        if self._pubsub is not None and self._lasts is not None and not self._lasts.expired():
            self._lasts.reschedule(0)

    async def add(self, channel: str, on_message: OnMessage) -> None:
        """Call `on_message` with each message on `channel`; returns once that is subscribed.

        Without a connection it returns immediately: `on_message(None)` is called after the
        reconnection.
        """
        self._callbacks.setdefault(channel, []).append(on_message)
        if self._pubsub is None:
            return
        if channel not in self._subscribed:
            self._subscribed[channel] = asyncio.Event()
            await self._ask(self._pubsub, "SUBSCRIBE", channel)
        if event := self._subscribed.get(channel):
            await event.wait()

    async def remove(self, channel: str, on_message: OnMessage) -> None:
        callbacks = self._callbacks[channel]
        callbacks.remove(on_message)
        if callbacks:
            return
        del self._callbacks[channel]
        event = self._subscribed.pop(channel, None)
        if event is None:
            return
        event.set()  # whoever adds what is removed meanwhile need not wait any more
        if self._pubsub is not None:
            await self._ask(self._pubsub, "UNSUBSCRIBE", channel)

    async def _ask(self, pubsub: redis.asyncio.client.PubSub, *command: str) -> None:
        # Not through the pubsub: it would reopen a lost connection, which no task would read.
        connection = pubsub.connection
        if connection is None or not connection.is_connected:
            return
        try:
            await connection.send_command(*command, check_health=False)
        except LOST as exc:
            # `_read_messages` notices the lost connection, too, and it is restored.
            log.debug("cannot %s: %s", command[0], exc)

    async def _keep_connected(self) -> None:
        while True:
            client = self._connect()
            pubsub = client.pubsub()
            try:
                async with asyncio.timeout(None) as self._lasts:
                    await self._read_messages(pubsub)
            except LOST as exc:
                self._last = f"{type(exc).__name__}: {str(exc) or 'no answer in time'}"
                if self._pubsub is not None:
                    log.warning("%s lost: %s", self._name, self._last)
            finally:
                self._pubsub = None
                self._wake_waiters()
                await asyncio.gather(pubsub.aclose(), client.aclose(), return_exceptions=True)
            await asyncio.sleep(PAUSE)

    def _wake_waiters(self) -> None:
        """Wake those that wait for a subscription; `on_message(None)` follows the reconnection."""
        subscribed, self._subscribed = self._subscribed, {}
        for event in subscribed.values():
            event.set()

    async def _read_messages(self, pubsub: redis.asyncio.client.PubSub) -> None:
        # This channel keeps the connection in the subscribed state, in which the reply to a PING is
        # a message.
        async with asyncio.timeout(SILENCE):
            await pubsub.execute_command("SUBSCRIBE", _ALWAYS)
            await pubsub.parse_response()
        self._pubsub = pubsub
        again = dict.fromkeys(self._callbacks)
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
                        self._dispatch(kind, rest, again)
            except TimeoutError:
                if asked:
                    raise
                asked = True
                await pubsub.ping()

    def _dispatch(self, kind: bytes, rest: list[bytes], again: dict[str, None]) -> None:
        if kind == b"message":
            self._notify(rest[0].decode(), rest[1])
        elif kind == b"subscribe":
            channel = rest[0].decode()
            if event := self._subscribed.get(channel):
                event.set()
            if channel in again:
                again.pop(channel)
                self._notify(channel, None)

    def _notify(self, channel: str, message: bytes | None) -> None:
        for on_message in list(self._callbacks.get(channel, ())):
            on_message(message)
