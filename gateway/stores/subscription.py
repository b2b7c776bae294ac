"""Receive what Redis publishes: on channels that come and go, and below a prefix.

redis-py opens the connection, with its addresses, TLS, Sentinel and passwords. The transport is
then taken from it, because its client needs a coroutine for each message, which costs more time.
https://redis.io/docs/latest/develop/pubsub/
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections import Counter
from collections.abc import Awaitable, Callable
from math import inf

import hiredis
import redis.asyncio
from redis.exceptions import ConnectionError, InvalidResponse, ResponseError

from gateway import background
from gateway.clock import monotonic
from gateway.read_throttling import ReadThrottling
from gateway.stores.result_store import LOST

log = logging.getLogger(__name__)

PAUSE = 0.2  # seconds before a connection that was refused is opened again
#: Seconds without any message before a PING is sent, and then until the connection is given up.
SILENCE = 5.0

#: A channel that keeps the connection in the subscribed state, in which a PING has a reply.
_ALWAYS = "gateway:nothing"
# The characters with a special meaning in a pattern.
_special = re.compile(r"[*?\[\]\\^]").sub

#: Called with each message, and with None when messages may have been missed.
OnMessage = Callable[[bytes | None], object]


class _Renewed(ConnectionError):
    """A connection is given up though nothing is wrong with it."""


class Subscription(asyncio.Protocol):
    """Subscribes to a channel while it has callbacks; reconnects by itself.

    With a `prefix` it also calls `on_match(channel, message)` for all channels that begin so.
    `opened` is awaited on each new connection, before that counts as usable; it may raise one of
    `gateway.stores.result_store.LOST`.
    """

    def __init__(
        self,
        connect: Callable[[], redis.asyncio.Redis],
        name: str,
        prefix: str = "",
        on_match: Callable[[bytes, bytes], object] | None = None,
        opened: Callable[[], Awaitable[None]] | None = None,
        throttling: ReadThrottling | None = None,
    ):
        self._connect = connect
        self._name = name
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
        self._transport: asyncio.Transport | None = None
        self._since = 0.0  # when it was opened
        self._task: asyncio.Task[None] | None = None
        self._received = False
        #: What is wrong with the connection, in words; empty while messages come, or soon again.
        self.error = "not subscribed yet"

    @property
    def channels(self) -> int:
        """How many channels have a callback."""
        return len(self._callbacks)

    async def start(self) -> None:
        self._task = background.start(self._keep_connected(), self._name)

    async def stop(self) -> None:
        await background.stop(self._task)

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
            client, since = self._connect(), inf
            try:
                async with asyncio.timeout(SILENCE):
                    await self._open(client)
                if self._opened is not None:
                    await self._opened()
                self.error, since = "", monotonic()
                await self._watch()
            except LOST as exc:
                problem = f"{type(exc).__name__}: {str(exc) or 'no answer in time'}"
                renewed = isinstance(exc, _Renewed)
                if not self.error:
                    level = logging.INFO if renewed else logging.WARNING
                    log.log(level, "%s lost: %s", self._name, problem)
                # If a connection was cut and was not silent, reconnect immediately, and go on
                # meanwhile: what is missed is looked for after that, and a server that has ended
                # refuses the connection within milliseconds.
                cut = monotonic() - since > PAUSE and not isinstance(exc, TimeoutError)
                self.error = "" if cut or renewed else problem
            finally:
                if self._transport is not None:
                    self._transport.abort()  # `close` would wait for a frozen server
                self._transport = None
                self._wake_waiters()
                await client.aclose()
            if self.error:
                await asyncio.sleep(PAUSE)

    async def _open(self, client: redis.asyncio.Redis) -> None:
        connection = await client.connection_pool.get_connection()
        self._reader = hiredis.Reader(protocolError=InvalidResponse)
        loop = asyncio.get_running_loop()
        self._ready, self._lost = loop.create_future(), loop.create_future()
        # redis-py has no public name for it.
        transport = connection._writer.transport
        self._before = transport.get_protocol()
        transport.set_protocol(self)
        if transport.is_closing():
            raise ConnectionError("the connection is lost already")
        self._transport, self._since = transport, monotonic()
        self._again = dict.fromkeys(self._callbacks)
        self._subscribed = {channel: asyncio.Event() for channel in self._again}
        self._asked = Counter(self._again.keys())
        self._send(*self._first)
        if self._again:
            self._send("SUBSCRIBE", *self._again)
        await asyncio.wait((self._ready, self._lost), return_when="FIRST_COMPLETED")
        self._check()

    async def _watch(self) -> None:
        """Run until the connection is lost or silent for too long, and raise that error."""
        asked = False
        while True:
            self._received = False
            await asyncio.wait((self._lost,), timeout=SILENCE)
            self._check()
            if self._received:
                asked = False
            elif asked:
                raise TimeoutError("the server is silent")
            else:
                asked = True
                self._send("PING")

    def _check(self) -> None:
        if self._lost.done():
            raise self._lost.result()

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
        self._reader.feed(data)
        try:
            while (reply := self._reader.gets()) is not False:
                self._dispatch(reply)
        except InvalidResponse as exc:
            self._lose(exc)
        if self._throttling is not None:
            self._throttling.rest(self._transport)

    def _dispatch(self, reply: list[bytes] | Exception) -> None:
        if isinstance(reply, Exception):
            self._lose(ResponseError(str(reply)))
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

    def connection_lost(self, exc: Exception | None) -> None:
        # redis-py's own protocol has to be told, too: its `close` waits for this.
        self._before.connection_lost(exc)
        self._lose(exc or ConnectionError("the server closed the connection"))

    def _lose(self, exc: Exception) -> None:
        if not self._lost.done():
            self._lost.set_result(exc)
