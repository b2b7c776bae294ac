"""The HTTP server: accept connections, serve their requests, check deadlines, drain."""

from __future__ import annotations

import asyncio
import logging
import math
import resource
import socket
from collections.abc import Sequence

from tornado.http1connection import HTTP1ConnectionParameters
from tornado.iostream import StreamClosedError

from gateway.background import happens
from gateway.clock import monotonic
from gateway.config.settings import Config
from gateway.errors import cut_off
from gateway.http.connection import Connection
from gateway.http.received_request import ReceivedRequest, Shared
from gateway.http.stream import Stream
from gateway.metrics import Metrics
from gateway.relay.relay import Relay

log = logging.getLogger(__name__)

#: Seconds that idle connections stay open while draining: nginx's upstream keepalive_timeout.
IDLE_DRAIN = 5.0
#: Seconds between checks of deadlines: a passed deadline is noticed at most this late.
SWEEP = 0.5
#: Seconds after which an idle connection is closed when there is no room for a new one. nginx
#: closes it earlier, so it cannot send a POST on a connection that is just being closed.
CLOSE_IDLE_AFTER = IDLE_DRAIN + 1.0
#: Descriptors that are reserved for everything but clients: reconnecting to the broker or to Redis
#: needs one.
OTHER_FILES = 96
#: Tornado's limit of a body in bytes; far above `max_body`, so that our own check answers.
_PARSER_BODY = 2**62


class Server:
    """Accepts connections on inherited sockets and hands complete requests to the relay."""

    def __init__(self, config: Config, relay: Relay, metrics: Metrics):
        self._config = config
        self._metrics = metrics
        self._shared = Shared(config, relay, metrics)
        self._sockets: list[socket.socket] = []
        self._streams: dict[Stream, asyncio.Task[None]] = {}
        # The streams by the tick of their next check: a check of thousands in one turn of the loop
        # would delay all requests.
        self._checks: dict[int, dict[Stream, None]] = {}
        files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._most = max(1, min(config.max_connections, files - OTHER_FILES))
        # Seconds; no deadline is set nearer than this.
        self._nearest = min(config.idle_timeout, config.body_timeout)
        self._quiet = asyncio.Event()
        self._quiet.set()
        self._warned_full = False
        self._sweeper: asyncio.TimerHandle | None = None
        self._on_lost = self._lost  # one method for all connections, as each would keep its own
        self._parameters = HTTP1ConnectionParameters(
            max_header_size=config.max_header, max_body_size=_PARSER_BODY
        )

    @property
    def listening(self) -> bool:
        """Has it begun to accept connections?"""
        return self._shared.draining or bool(self._sockets)

    @property
    def draining(self) -> bool:
        """Has it stopped accepting connections?"""
        return self._shared.draining

    @property
    def connections(self) -> int:
        """How many connections are open."""
        return len(self._streams)

    def listen(self, sockets: Sequence[socket.socket]) -> None:
        """Accept on `sockets`, which are bound and shared with other processes.

        Raises OSError where another program has begun to listen on the same address.
        """
        for listener in sockets:
            if not listener.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                listener.listen(self._config.backlog)
        self._sockets = list(sockets)
        for listener in self._sockets:
            listener.setblocking(False)
            asyncio.get_running_loop().add_reader(listener, self._accept, listener)

    def _accept(self, listener: socket.socket) -> bool:
        """Accept one connection; tell whether there was one.

        Only one is accepted in each turn of the loop, so that a busy process leaves the others to
        its siblings.
        """
        if len(self._streams) >= self._most and not self._shared.draining:
            self._wait_for_room()
            return False
        try:
            connection, address = listener.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return False
        except OSError as exc:
            self._pause(listener, exc)
            return False
        if connection.family == socket.AF_UNIX:
            remote = "127.0.0.1"  # the proxy on this host
        else:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            remote = address[0]
        config, limits = self._config, self._shared.relay.limits
        stream = Stream(config.idle_timeout, config.body_timeout, limits, self._on_lost)
        serving = self._serve(stream, connection, remote)
        self._streams[stream] = asyncio.create_task(serving, name="connection")
        self._quiet.clear()
        self._metrics.add("gateway_connections_open")
        self._schedule_check(stream, monotonic())
        if self._sweeper is None:
            self._sweeper = asyncio.get_running_loop().call_later(SWEEP, self._sweep)
        return True

    async def _serve(self, stream: Stream, connection: socket.socket, remote: str) -> None:
        """Serve the requests of a connection, one after the other."""
        try:
            loop = asyncio.get_running_loop()
            await loop.connect_accepted_socket(lambda: stream, connection)
            while not stream.closed():
                message = Connection(stream, self._parameters, remote)
                stream.receiver = received = ReceivedRequest(self._shared, stream, message)
                try:
                    await message.read_response(received)
                finally:
                    received.ended()
                await stream.flushed()
        except StreamClosedError as closed:
            cut_off(closed)  # Tornado's frames refer to the read that failed with it
        finally:
            stream.close()
            stream.receiver = None  # it refers to the stream: end the reference cycle
            if not stream.connected:
                connection.close()
                self._lost(stream)

    def _lost(self, stream: Stream) -> None:
        del self._streams[stream]
        self._checks.get(stream.check_tick, {}).pop(stream, None)
        self._metrics.add("gateway_connections_open", -1)
        if not self._streams:
            self._quiet.set()
        if self._shared.full:
            self._shared.full = False
            for listener in self._sockets:
                self._resume(listener)

    def _wait_for_room(self) -> None:
        """Stop accepting until a connection has ended.

        New connections go to the siblings or wait in the kernel's queue, where nothing of them was
        read. When that queue is full as well, nginx cannot connect, and can send even a POST to the
        next gateway.
        """
        # Connections in use are closed after their answers, idle ones by the next sweep.
        self._shared.full = True
        for listener in self._sockets:
            asyncio.get_running_loop().remove_reader(listener)
        if not self._warned_full:
            log.warning(
                "%d connections are open, which is the limit: new ones wait", len(self._streams)
            )
            self._warned_full = True

    def _schedule_check(self, stream: Stream, now: float) -> None:
        """Schedule the next check of the stream's deadline, which may be moved before that."""
        stream.check_tick = int(min(stream.deadline, now + self._nearest) / SWEEP) + 1
        self._checks.setdefault(stream.check_tick, {})[stream] = None

    def _sweep(self) -> None:
        now = monotonic()
        for tick in [tick for tick in self._checks if tick * SWEEP <= now]:
            for stream in self._checks.pop(tick):
                if stream.deadline < now:
                    stream.expire()
                if stream in self._streams:
                    self._schedule_check(stream, now)
        if self._shared.full:
            self._close_idle(now - CLOSE_IDLE_AFTER)
        else:
            self._warned_full = False
        self._sweeper = None
        if self._streams:
            self._sweeper = asyncio.get_running_loop().call_later(SWEEP, self._sweep)

    def _close_idle(self, since: float) -> None:
        """Close the connections that have been idle since `since` (monotonic seconds)."""
        for stream in list(self._streams):
            if not stream.busy and stream.deadline - self._config.idle_timeout < since:
                stream.close()

    def _pause(self, listener: socket.socket, exc: OSError) -> None:
        """Stop accepting for half a second, as the process is out of descriptors.

        The socket stays readable meanwhile, so the loop would spin.
        """
        log.error("cannot accept connections: %s", exc)
        loop = asyncio.get_running_loop()
        loop.remove_reader(listener)
        loop.call_later(0.5, self._resume, listener)

    def _resume(self, listener: socket.socket) -> None:
        if not self._shared.draining:
            asyncio.get_running_loop().add_reader(listener, self._accept, listener)

    async def drain(self, grace: float) -> int:
        """Stop accepting, and wait at most `grace` seconds until connections have ended.

        Returns the number of requests that had no answer by then, or whose client had not read it.
        """
        self._shared.draining = True
        loop = asyncio.get_running_loop()
        while self._sockets:
            listener = self._sockets.pop()
            loop.remove_reader(listener)
            # The kernel has accepted these connections already, so they have to be answered, even
            # beyond the limit of connections.
            for _ in range(self._config.backlog):
                if not self._accept(listener):
                    break
            listener.close()
        end = monotonic() + grace
        await happens(self._quiet, min(IDLE_DRAIN, grace))
        # What came on one of these from now on might have less time than its deadline.
        self._close_idle(math.inf)
        while any(stream.busy for stream in self._streams) and monotonic() < end:
            await happens(self._quiet, 0.05)
        unanswered = sum(stream.busy for stream in self._streams)
        for stream in list(self._streams):
            stream.abort()
        await self._quiet.wait()
        return unanswered
