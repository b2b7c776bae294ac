"""Receive results as Redis publishes them, by one pattern subscription, read in batches.

redis-py opens the connection, with its addresses, TLS, Sentinel and passwords. The transport is
then taken from it, because its client needs a coroutine for each message, which costs more time.
https://redis.io/docs/latest/develop/pubsub/
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable

import hiredis
import redis.asyncio
from redis.exceptions import ConnectionError, InvalidResponse, ResponseError

from gateway.read_throttling import ReadThrottling

# The characters with a special meaning in a pattern.
_special = re.compile(r"[*?\[\]\\^]").sub

#: Seconds without any message before a PING is sent, and then until the subscription ends.
SILENCE = 5.0


class ResultChannel(asyncio.Protocol):
    """Calls `on_message(channel, message)` for the channels that begin with `prefix`.

    It is used with ``async with``. Failures raise one of `gateway.stores.result_store.LOST`.
    """

    def __init__(
        self,
        client: redis.asyncio.Redis,
        prefix: str,
        on_message: Callable[[bytes, bytes], object],
        throttling: ReadThrottling,
    ):
        self._client = client
        self._pattern = _special(r"\\\g<0>", prefix) + "*"
        self._on_message = on_message
        self._throttling = throttling
        self._reader = hiredis.Reader(protocolError=InvalidResponse)
        self._received = False
        loop = asyncio.get_running_loop()
        self._subscribed = loop.create_future()
        self._lost = loop.create_future()

    async def __aenter__(self) -> ResultChannel:
        try:
            async with asyncio.timeout(SILENCE):
                connection = await self._client.connection_pool.get_connection()
                # redis-py has no public name for it.
                self._transport = connection._writer.transport
                self._before = self._transport.get_protocol()
                self._transport.set_protocol(self)
                self._write(b"PSUBSCRIBE", self._pattern.encode())
                await asyncio.wait((self._subscribed, self._lost), return_when="FIRST_COMPLETED")
                self._check()
        except BaseException:
            await self._client.aclose()
            raise
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        self._transport.abort()  # `close` would wait for a frozen server
        await self._client.aclose()

    async def watch(self) -> None:
        """Run until the connection is lost or silent for too long, and raise that error."""
        while True:
            self._received = False
            await asyncio.wait((self._lost,), timeout=SILENCE)
            self._check()
            if not self._received:
                self._write(b"PING")
                await asyncio.wait((self._lost,), timeout=SILENCE)
                self._check()
                if not self._received:
                    raise TimeoutError("the result store is silent")

    def _check(self) -> None:
        if self._lost.done():
            raise self._lost.result()

    def _write(self, *words: bytes) -> None:
        self._transport.write(hiredis.pack_command(words))  # type: ignore[arg-type] # any number

    def data_received(self, data: bytes) -> None:
        self._received = True
        self._reader.feed(data)
        while (reply := self._reader.gets()) is not False:
            if type(reply) is list and reply[0] == b"pmessage":
                self._on_message(reply[2], reply[3])
            elif isinstance(reply, Exception):
                self.lose(ResponseError(str(reply)))
            elif not self._subscribed.done():
                self._subscribed.set_result(None)
        self._throttling.rest(self._transport)

    def connection_lost(self, exc: Exception | None) -> None:
        # redis-py's own protocol has to be told, too: its `close` waits for this.
        self._before.connection_lost(exc)
        self.lose(exc or ConnectionError("the result store closed the connection"))

    def lose(self, exc: Exception) -> None:
        """End the subscription with `exc`."""
        if not self._lost.done():
            self._lost.set_result(exc)
