"""Receive what Redis publishes: on channels that come and go, and below a prefix.

https://redis.io/docs/latest/develop/pubsub/
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections import Counter
from collections.abc import Awaitable, Callable
from math import inf
from typing import TYPE_CHECKING

import hiredis

from gateway.clock import monotonic
from gateway.errors import StoreError
from gateway.read_throttling import ReadThrottling
from gateway.stores.connection import Connection
from gateway.stores.server import LOST, described

if TYPE_CHECKING:
    from gateway.stores.redis_client import Client

log = logging.getLogger(__name__)

PAUSE = 0.2  # seconds before a connection that was refused is opened again
#: Seconds from one PING to the next, by which something has to come, or the connection is given up.
SILENCE = 5.0

#: A channel that keeps the connection in the subscribed state, in which a PING has a reply.
_ALWAYS = "gateway:nothing"
# The characters with a special meaning in a pattern.
_special = re.compile(r"[*?\[\]\\^]").sub

#: Called with each message, and with None when messages may have been missed.
OnMessage = Callable[[bytes | None], object]


class _Renewed(ConnectionError):
    """A connection is given up though nothing is wrong with it."""


class Subscription(Connection):
    """Subscribes to a channel while it has callbacks; reconnects by itself.

    With a `prefix` it also calls `on_match(channel, message)` for all channels that begin so.
    `opened` is awaited on each new connection, before that counts as usable; it may raise one of
    `gateway.stores.server.LOST`.
    """

    def __init__(
        self,
        connect: Callable[[], Client],
        name: str,
        prefix: str = "",
        on_match: Callable[[bytes, bytes], object] | None = None,
        opened: Callable[[], Awaitable[None]] | None = None,
        throttling: ReadThrottling | None = None,
    ):
        super().__init__(connect, name)
        self._first = ("SUBSCRIBE", _ALWAYS)
        if prefix:
            self._first = ("PSUBSCRIBE", _special(r"\\\g<0>", prefix) + "*")
        self._on_match = on_match
        self._opened = opened
        self._throttling = throttling
        self._callbacks: dict[str, list[OnMessage]] = {}
        # The channels that this connection was asked to subscribe, set when it has subscribed.
        self._subscribed: dict[str, asyncio.Event] = {}
        self._again: dict[str, None] = {}  # those of them that an earlier connection had
        #: How often each was asked for without an answer yet; it may come and go meanwhile.
        self._asked: Counter[str] = Counter()
        self._received = False

    @property
    def channels(self) -> int:
        """How many channels have a callback."""
        return len(self._callbacks)

    def renew(self, before: float) -> None:
        """Give the connection up if it was opened before that time.

        A server that is not to be used any more tells a subscriber nothing.
        """
        if self._transport is not None and self._since < before:
            self._lose(_Renewed("its server may not be the one to use any more"))

    def add(self, channel: str, on_message: OnMessage) -> None:
        """Call `on_message` with each message on `channel`, once that is subscribed.

        Without a connection `on_message(None)` is called after the reconnection.
        """
        self._callbacks.setdefault(channel, []).append(on_message)
        if self._transport is not None and channel not in self._subscribed:
            self._subscribed[channel] = asyncio.Event()
            self._asked[channel] += 1
            self._send("SUBSCRIBE", channel)

    async def ready(self, channel: str) -> None:
        """Wait until `channel` is subscribed; not while there is no connection."""
        if event := self._subscribed.get(channel):
            await event.wait()

    def remove(self, channel: str, on_message: OnMessage) -> None:
        callbacks = self._callbacks[channel]
        callbacks.remove(on_message)
        if callbacks:
            return
        del self._callbacks[channel]
        event = self._subscribed.pop(channel, None)
        if event is not None:
            event.set()  # whoever adds what is removed meanwhile need not wait any more
            self._send("UNSUBSCRIBE", channel)

    # The connection ----------------------------------------------------------------------------

    async def _keep_connected(self) -> None:
        while True:
            usable = inf  # since when (monotonic)
            try:
                async with self._connected(SILENCE):
                    await self._subscribe()
                    if self._opened is not None:
                        await self._opened()
                    self.error, usable = "", monotonic()
                    await self._watch()
            except LOST as exc:
                renewed = isinstance(exc, _Renewed)
                if not self.error:
                    level = logging.INFO if renewed else logging.WARNING
                    why = str(exc) if renewed else described(exc)
                    log.log(level, "%s lost: %s", self._name, why)
                # If a connection was cut and was not silent, reconnect immediately, and go on
                # meanwhile: what is missed is looked for after that, and a server that has ended
                # refuses the connection within milliseconds.
                cut = monotonic() - usable > PAUSE and not isinstance(exc, TimeoutError)
                self.error = "" if cut or renewed else described(exc)
            finally:
                self._wake_waiters()
            if self.error:
                await asyncio.sleep(PAUSE)

    async def _subscribe(self) -> None:
        self._ready = self._loop.create_future()
        self._again = dict.fromkeys(self._callbacks)
        self._subscribed = {channel: asyncio.Event() for channel in self._again}
        self._asked = Counter(self._again.keys())
        self._send(*self._first)
        if self._again:
            self._send("SUBSCRIBE", *self._again)
        async with asyncio.timeout(SILENCE):
            await asyncio.wait((self._ready, self._lost), return_when="FIRST_COMPLETED")
        await self._lost_within(0)

    async def _watch(self) -> None:
        """Run until the connection is lost or silent for too long, and raise that error."""
        while True:
            self._received = False
            self._send("PING")
            await self._lost_within(SILENCE)
            if not self._received:
                raise TimeoutError("the server is silent")

    def _send(self, *words: str) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(hiredis.pack_command(words))  # type: ignore[arg-type] # any number

    def _wake_waiters(self) -> None:
        """Wake those that wait for a subscription; `on_message(None)` follows the reconnection."""
        subscribed, self._subscribed = self._subscribed, {}
        for event in subscribed.values():
            event.set()

    def data_received(self, data: bytes) -> None:
        self._received = True
        super().data_received(data)
        if self._throttling is not None and not self._lost.done():
            self._throttling.rest(self._transport)

    def _receive(self, reply: list[bytes] | bytes | Exception) -> None:
        if isinstance(reply, Exception):
            self._lose(StoreError(str(reply)))
        elif isinstance(reply, bytes):  # a PING's reply without a subscription
            self._lose(StoreError("the server has forgotten the subscription"))
        elif reply[0] == b"pmessage":
            assert self._on_match is not None  # it has asked for a prefix
            self._on_match(reply[2], reply[3])
        elif reply[0] == b"message":
            self._notify(reply[1].decode(), reply[2])
        elif reply[0] in (b"subscribe", b"psubscribe"):
            if not self._ready.done():
                self._ready.set_result(None)
            channel = reply[1].decode()
            self._asked[channel] -= 1
            if self._asked[channel] <= 0:
                del self._asked[channel]
                if event := self._subscribed.get(channel):
                    event.set()
            if channel in self._again:
                del self._again[channel]
                self._notify(channel, None)

    def _notify(self, channel: str, message: bytes | None) -> None:
        for on_message in list(self._callbacks.get(channel, ())):
            on_message(message)
