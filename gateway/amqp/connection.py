"""pika's connection on transports of the loop, with faster reading and writing than pika's."""

from __future__ import annotations

import asyncio
import random
import socket
import ssl
from collections.abc import Callable
from functools import partial
from typing import Any

import pika
from pika.adapters.asyncio_connection import AsyncioConnection, _AsyncioIOServicesAdapter
from pika.adapters.utils.connection_workflow import AMQPConnectionWorkflowAborted

from gateway.amqp.frames import Scanner
from gateway.clock import monotonic
from gateway.read_throttling import ReadThrottling


class LoopServices(_AsyncioIOServicesAdapter):
    """pika's I/O services, where the loop's transport reads and writes instead of pika.

    pika reads 4 KB at a time, and adds and removes a watcher for each write. `on_taken` is called
    with the socket when pika's connector has got the connection, or its failure.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, on_taken: Callable[[socket.socket], None]):
        super().__init__(loop)
        self._on_taken = on_taken

    def getaddrinfo(self, host: str, port: int, on_done: Callable[[Any], None], **more: Any) -> Any:
        # pika tries no address after one that takes its connection and says nothing: where a name
        # has several, as a cluster's, each attempt begins with another one.
        def shuffled(found: Any) -> None:
            if isinstance(found, list):  # and not an error
                random.shuffle(found)
            on_done(found)

        return super().getaddrinfo(host, port, shuffled, **more)

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
    """Joins the writes of one turn of the loop, and passes received bytes to a scanner first.

    ``heard`` is when the broker last sent something (monotonic seconds).
    """

    # Attributes of pika's base class.
    _frame_buffer: bytes
    bytes_received: int

    def __init__(
        self, parameters: pika.ConnectionParameters, throttling: ReadThrottling, **callbacks: Any
    ):
        self.writable = True
        self.heard = monotonic()
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
            # uvloop has closed the descriptor, which this socket object does not know. It would
            # close the same number again, which may be another connection's by then.
            sock.detach()
            self._lost()

    def _proto_connection_lost(self, error: BaseException | None) -> None:
        # pika's connector gets the transport some turns of the loop after it was made. It would not
        # notice that the connection was lost before that, and would wait for its timeout.
        lost = partial(super()._proto_connection_lost, error)
        if self._taken:
            lost()
        else:
            self._transport, self._lost = None, lost

    def _on_connection_workflow_done(self, conn_or_exc: Any) -> None:
        # pika 1.4 passes the class instead of an instance where a connection is closed while it
        # opens, and then fails its own assertion.
        aborted = conn_or_exc is AMQPConnectionWorkflowAborted
        super()._on_connection_workflow_done(
            AMQPConnectionWorkflowAborted() if aborted else conn_or_exc
        )

    def scan(self, channel: int, on_confirm: Callable[[int, bool, bool], object]) -> Scanner:
        """Let a scanner read `channel` from now on; pika gets all other frames."""
        self._scanner = Scanner(channel, super()._on_data_available, on_confirm)
        return self._scanner

    def send(self, frames: bytes) -> None:
        """Write complete frames, in order with those that pika writes."""
        self._output_marshaled_frames((frames,))

    def limit_writes(self, size: int) -> None:
        """Be `writable` only while no more than `size` bytes wait for the broker to read them."""
        if self._transport is not None:  # None: the connection is lost already
            self._transport.set_write_buffer_limits(high=size)

    def abort(self, why: str = "it did not close") -> None:
        """Close the socket without AMQP's handshake; `on_closed` is called soon after."""
        if self._transport is not None:  # None: the connection is lost already
            self._terminate_stream(pika.exceptions.AMQPHeartbeatTimeout(why))

    @property
    def silent(self) -> bool:
        """Has nothing come for two intervals of heartbeats? The broker sends two in each."""
        beat = self.params.heartbeat
        return bool(beat) and monotonic() - self.heard > 2 * beat

    def pause_writing(self) -> None:
        """Called by the transport when too many bytes wait to be sent."""
        self.writable = False

    def resume_writing(self) -> None:
        """Called by the transport when the bytes have been sent."""
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
        self.heard = monotonic()
        if self._scanner is None:
            super()._on_data_available(data_in)
            return
        if self._frame_buffer:  # the beginning of a frame that arrived before the scanner was set
            data_in, self._frame_buffer = self._frame_buffer + data_in, b""
        # pika's heartbeat checker reads this number, but pika counts only the frames that it gets.
        received = self.bytes_received + len(data_in)
        self._scanner.feed(data_in)
        self.bytes_received = received
        self._throttling.rest(self._transport)
