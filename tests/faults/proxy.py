"""A TCP proxy that stalls, resets, slows down and leads elsewhere what passes through it."""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from contextlib import suppress
from time import monotonic

from tests.support.stack import free_port

_CHUNK = 16 * 1024
_QUEUED = 8  # chunks on their way in one direction: what a link's buffers hold
_RESET = struct.pack("ii", 1, 0)


class Link:
    """One direction of the link, which all connections share."""

    def __init__(self) -> None:
        self.bytes_per_second = 0.0  # 0: no limit
        self.delay = 0.0  # seconds
        self._free = 0.0

    def arrival(self, size: int) -> float:
        """Return when so many bytes that are sent now arrive, after all that were sent before."""
        now = monotonic()
        if self.bytes_per_second:
            self._free = max(self._free, now) + size / self.bytes_per_second
            now = self._free
        return now + self.delay


class Proxy:
    """Stands on a port of its own in front of `target`, another port of this machine."""

    def __init__(self, target: int, port: int | None = None):
        self.port, self._target = port or free_port(), target
        self._links = (Link(), Link())
        self._writers: set[asyncio.StreamWriter] = set()
        self._loop = asyncio.new_event_loop()
        # The last one is that of connections to come.
        self._flows = [asyncio.Event()]
        self._flows[-1].set()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._listening = socket.create_server(("127.0.0.1", self.port))
        self._listening.setblocking(False)
        asyncio.run_coroutine_threadsafe(self._listen(), self._loop)

    def stall(self) -> None:
        """Let nothing pass, in either direction, and tell nobody."""
        self._loop.call_soon_threadsafe(self._flows[-1].clear)

    def resume(self) -> None:
        self._loop.call_soon_threadsafe(self._flows[-1].set)

    def silence(self) -> None:
        """Let nothing pass on the connections that live; those to come are not touched."""
        self._loop.call_soon_threadsafe(self._silence)

    def _silence(self) -> None:
        self._flows[-1].clear()
        self._flows.append(asyncio.Event())
        self._flows[-1].set()

    def lead(self, target: int) -> None:
        """Lead new connections to another port; those that live go on."""
        self._target = target

    def slow(self, bits_per_second: float, delay: float) -> None:
        """Limit both directions, and have everything arrive `delay` seconds later."""
        for link in self._links:
            link.bytes_per_second, link.delay = bits_per_second / 8, delay

    def reset(self) -> None:
        """End every connection with a reset on both sides."""
        self._loop.call_soon_threadsafe(self._reset)

    def _reset(self) -> None:
        for writer in self._writers:
            connection = writer.get_extra_info("socket")
            if connection.fileno() >= 0:  # else its other direction has still something to carry
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            writer.transport.abort()

    # Not asyncio's server: closed while it accepts, it leaves the connection open.
    async def _listen(self) -> None:
        carried: set[asyncio.Task[None]] = set()
        with suppress(OSError):  # `_end` shuts the socket down
            while True:
                accepted, _ = await self._loop.sock_accept(self._listening)
                carried.add(one := asyncio.create_task(self._accept(accepted)))
                one.add_done_callback(carried.discard)
        self._listening.close()

    async def _accept(self, accepted: socket.socket) -> None:
        reader, writer = await asyncio.open_connection(sock=accepted)
        try:
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._target)
        except OSError:
            writer.transport.abort()
            await _closed(writer)
            return
        self._writers |= {writer, far_writer}
        try:
            await asyncio.gather(
                self._carry(reader, far_writer, self._links[0]),
                self._carry(far_reader, writer, self._links[1]),
            )
        finally:
            await _closed(writer)
            await _closed(far_writer)
            self._writers -= {writer, far_writer}

    async def _carry(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, link: Link
    ) -> None:
        queue: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(_QUEUED)
        delivering = asyncio.create_task(self._deliver(queue, writer, self._flows[-1]))
        with suppress(OSError):
            while data := await reader.read(_CHUNK):
                await queue.put((link.arrival(len(data)), data))
        await queue.put((0, b""))
        await delivering

    async def _deliver(
        self,
        queue: asyncio.Queue[tuple[float, bytes]],
        writer: asyncio.StreamWriter,
        flowing: asyncio.Event,
    ) -> None:
        broken = False
        while True:
            arrival, data = await queue.get()
            if not data:
                break
            await asyncio.sleep(arrival - monotonic())
            await flowing.wait()
            if not broken:
                writer.write(data)
                try:
                    await writer.drain()
                except OSError:
                    broken = True  # what is still on its way is lost, but has to be fetched
        writer.close()

    def close(self) -> None:
        """End every connection with a reset, and all that was started."""
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5)
        self._loop.close()

    async def _end(self) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        for flowing in self._flows:
            flowing.set()
        end = monotonic() + 5
        while (left := asyncio.all_tasks() - {asyncio.current_task()}) and monotonic() < end:
            self._reset()
            await asyncio.wait(left, timeout=0.1)


async def _closed(writer: asyncio.StreamWriter) -> None:
    """Wait until a connection that is closing has ended."""
    with suppress(OSError):
        await writer.wait_closed()
