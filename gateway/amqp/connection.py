"""pika's connection on the loop's own transports, with a way around pika for the hot path."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from functools import partial
from typing import Any

import pika
from pika.adapters.asyncio_connection import AsyncioConnection, _AsyncioIOServicesAdapter
from pika.adapters.utils.connection_workflow import AMQPConnectionWorkflowAborted

from gateway.amqp.scanner import Scanner
from gateway.read_throttling import ReadThrottling


class LoopServices(_AsyncioIOServicesAdapter):
    """pika's services, where the loop and not pika moves the bytes.

    pika reads 4 KB at a time, and arms and disarms a watcher for each write. `on_taken` is called
    with the socket once pika's connector has what was connected, or knows that nothing was.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, on_taken: Callable[[socket.socket], None]):
        super().__init__(loop)
        self._on_taken = on_taken

    def create_streaming_connection(
        self,
        protocol_factory: Callable[[], Any],
        sock: socket.socket,
        on_done: Callable[[Any], None],
        ssl_context: ssl.SSLContext | None = None,
        server_hostname: str | None = None,
    ) -> Any:
        made = self._loop.create_connection(
            protocol_factory, sock=sock, ssl=ssl_context, server_hostname=server_hostname
        )

        def taken(result: Any) -> None:
            on_done(result)
            self._on_taken(sock)

        return self._schedule_and_wrap_in_io_ref(made, taken)


class TurnConnection(AsyncioConnection):
    """Sends what one turn of the loop has written at once, and lets a scanner read first."""

    # pika's own.
    _frame_buffer: bytes
    bytes_received: int

    def __init__(
        self,
        parameters: pika.ConnectionParameters,
        throttling: ReadThrottling,
        **callbacks: Any,
    ):
        self.writable = True
        self._turn: list[bytes] = []
        self._throttling = throttling
        self._scanner: Scanner | None = None
        self._loop = asyncio.get_running_loop()
        self._taken = False
        self._lost: Callable[[], None] | None = None
        services = LoopServices(self._loop, self._on_taken)
        super().__init__(parameters, custom_ioloop=services, **callbacks)

    def _on_taken(self, sock: socket.socket) -> None:
        self._taken = True
        if self._lost is not None:
            # uvloop has closed the descriptor, and not told an object that it was given later: that
            # one would close it once more, when it may be somebody else's.
            sock.detach()
            self._lost()

    def _proto_connection_lost(self, error: BaseException | None) -> None:
        # pika's connector is told some turns after the transport is made. It would hear nothing of
        # a connection that was lost before, and fail when its time is up.
        lost = partial(super()._proto_connection_lost, error)
        if self._taken:
            lost()
        else:
            self._transport, self._lost = None, lost

    def _on_connection_workflow_done(self, conn_or_exc: Any) -> None:
        # pika 1.4 hands over the class itself where an opening connection is closed, and fails
        # an assertion over it.
        aborted = conn_or_exc is AMQPConnectionWorkflowAborted
        super()._on_connection_workflow_done(
            AMQPConnectionWorkflowAborted() if aborted else conn_or_exc
        )

    def scan(self, channel: int, on_confirm: Callable[[int, bool, bool], object]) -> Scanner:
        """Have a scanner read `channel` from now on; pika gets what that leaves."""
        self._scanner = Scanner(channel, super()._on_data_available, on_confirm)
        return self._scanner

    def send(self, frames: bytes) -> None:
        """Write complete frames, in their order with those of pika."""
        self._output_marshaled_frames((frames,))

    def limit_writes(self, size: int) -> None:
        """Be `writable` only while no more than `size` bytes wait for the broker to read them."""
        if self._transport is not None:  # else it is lost already
            self._transport.set_write_buffer_limits(high=size)

    def pause_writing(self) -> None:
        """Called by the transport: the broker does not read, though it may soon."""
        self.writable = False

    def resume_writing(self) -> None:
        """Called by the transport."""
        self.writable = True

    def _adapter_emit_data(self, data: bytes) -> None:
        self._turn.append(data)
        if self._throttling.few:
            self._flush()
        elif len(self._turn) == 1:
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        data = b"".join(self._turn)
        self._turn.clear()
        if data and self._transport is not None:
            self._transport.write(data)

    def _on_data_available(self, data_in: bytes) -> None:
        if self._scanner is None:
            super()._on_data_available(data_in)
            return
        if self._frame_buffer:  # a frame's beginning, from before there was a scanner
            data_in, self._frame_buffer = self._frame_buffer + data_in, b""
        # The heartbeat's checker looks at this number; pika counts no more than it is handed.
        received = self.bytes_received + len(data_in)
        self._scanner.feed(data_in)
        self.bytes_received = received
        self._throttling.rest(self._transport)
