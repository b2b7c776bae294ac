"""Sockets and connections: accepting, handing on to exchanges, draining."""

from __future__ import annotations

import asyncio
import logging
import resource
import socket
from collections.abc import Sequence
from contextlib import suppress
from time import monotonic

from tornado.http1connection import HTTP1ConnectionParameters
from tornado.iostream import StreamClosedError

from gateway.config.settings import Config
from gateway.http.connection import Connection
from gateway.http.exchange import Exchange, Exchanges
from gateway.http.stream import Stream
from gateway.metrics import Metrics
from gateway.relay.relay import Relay

log = logging.getLogger(__name__)

#: Seconds that idle connections stay open while draining: nginx's upstream keepalive_timeout.
IDLE_DRAIN = 5.0
#: Seconds: how late a connection's deadline may be noticed.
SWEEP = 0.5
#: Seconds after which an idle connection gives way where there is no room for a new one: nginx has
#: closed it before, and does not send a POST into a connection that is just being closed.
GIVES_WAY = IDLE_DRAIN + 1.0
#: Descriptors that are kept for all but clients: without one nothing reaches broker or Redis again.
OTHER_FILES = 96
#: Above our own limit, so that the answer is ours.
_PARSER_BODY = 2**62


class Server:
    """Accepts connections on inherited sockets and hands complete requests to the relay."""

    def __init__(self, config: Config, relay: Relay, metrics: Metrics):
        self._config = config
        self._metrics = metrics
        self._exchanges = Exchanges(config, relay, metrics)
        self._sockets: list[socket.socket] = []
        self._streams: dict[Stream, asyncio.Task[None]] = {}
        # When to look at which: a look at all of them would stop thousands for a moment.
        self._looks: dict[int, set[Stream]] = {}
        files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._most = max(1, min(config.max_connections, files - OTHER_FILES))
        # No deadline is set that is nearer than this.
        self._nearest = min(config.idle_timeout, config.body_timeout)
        self._quiet = asyncio.Event()
        self._quiet.set()
        self._draining = self._full = self._told = False
        self._sweeper: asyncio.TimerHandle | None = None
        self._parameters = HTTP1ConnectionParameters(
            max_header_size=config.max_header,
            max_body_size=_PARSER_BODY,
        )

    @property
    def draining(self) -> bool:
        return self._draining

    def listen(self, sockets: Sequence[socket.socket]) -> None:
        """Accept on `sockets`, which are bound, listening and shared with other processes."""
        self._sockets = list(sockets)
        for listener in self._sockets:
            listener.setblocking(False)
            asyncio.get_running_loop().add_reader(listener, self._accept, listener)

    def _accept(self, listener: socket.socket) -> bool:
        """Accept one connection a turn: whoever is busy leaves the others to its siblings."""
        if len(self._streams) >= self._most and not self._draining:
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
            remote = "127.0.0.1"  # the proxy on this machine
        else:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            remote = address[0]
        config, limits = self._config, self._exchanges.relay.limits
        stream = Stream(config.idle_timeout, config.body_timeout, limits, self._lost)
        self._streams[stream] = asyncio.create_task(self._serve(stream, connection, remote))
        self._quiet.clear()
        self._metrics.add("gateway_connections_open")
        self._look(stream, monotonic())
        if self._sweeper is None:
            self._sweeper = asyncio.get_running_loop().call_later(SWEEP, self._sweep)
        return True

    async def _serve(self, stream: Stream, connection: socket.socket, remote: str) -> None:
        """Answer one request of a connection after the other."""
        try:
            loop = asyncio.get_running_loop()
            await loop.connect_accepted_socket(lambda: stream, connection)
            while not stream.closed():
                message = Connection(stream, self._parameters, remote)
                stream.receiver = exchange = Exchange(self._exchanges, stream, message)
                await message.read_response(exchange)
                await stream.flushed()
        except StreamClosedError:
            pass
        finally:
            stream.close()
            stream.receiver = None  # and it knows the stream: a circle
            if not stream.connected:
                connection.close()
                self._lost(stream)

    def _lost(self, stream: Stream) -> None:
        del self._streams[stream]
        self._looks.get(stream.look, set()).discard(stream)
        self._metrics.add("gateway_connections_open", -1)
        if not self._streams:
            self._quiet.set()
        if self._full:
            self._full, self._exchanges.closing = False, self._draining
            for listener in self._sockets:
                self._resume(listener)

    def _wait_for_room(self) -> None:
        """Leave new connections to siblings and to the kernel's queue until one of ours is gone.

        Whoever waits there has sent nothing that was read. Where that queue is full, too, nginx
        cannot connect, and sends even a POST to the next gateway.
        """
        # Those in use give way after their answers, the idle ones when the sweep looks at them.
        self._full = self._exchanges.closing = True
        for listener in self._sockets:
            asyncio.get_running_loop().remove_reader(listener)
        if not self._told:
            log.warning("%d connections are open: new ones wait", len(self._streams))
            self._told = True

    def _look(self, stream: Stream, now: float) -> None:
        """Look at `stream` when its deadline may have passed, which moves meanwhile."""
        stream.look = int(min(stream.deadline, now + self._nearest) / SWEEP) + 1
        self._looks.setdefault(stream.look, set()).add(stream)

    def _sweep(self) -> None:
        now = monotonic()
        for tick in [tick for tick in self._looks if tick * SWEEP <= now]:
            for stream in self._looks.pop(tick):
                if stream.deadline < now:
                    stream.expire()
                if stream in self._streams:
                    self._look(stream, now)
        if self._full:
            self._close_idle(now - GIVES_WAY)
        else:
            self._told = False
        self._sweeper = None
        if self._streams:
            self._sweeper = asyncio.get_running_loop().call_later(SWEEP, self._sweep)

    def _close_idle(self, since: float) -> None:
        """Close the connections that have been idle since that moment (monotonic seconds)."""
        for stream in list(self._streams):
            if not stream.busy and stream.deadline - self._config.idle_timeout < since:
                stream.close()

    def _pause(self, listener: socket.socket, exc: OSError) -> None:
        """Out of descriptors: stop asking for a moment, or the loop would spin."""
        log.error("cannot accept connections: %s", exc)
        loop = asyncio.get_running_loop()
        loop.remove_reader(listener)
        loop.call_later(0.5, self._resume, listener)

    def _resume(self, listener: socket.socket) -> None:
        if not self.draining:
            asyncio.get_running_loop().add_reader(listener, self._accept, listener)

    async def drain(self, grace: float) -> int:
        """Stop accepting, let idle connections finish, then wait `grace` seconds at the most.

        Returns how many requests had no answer by then, or had not taken it.
        """
        self._draining = self._exchanges.closing = True
        loop = asyncio.get_running_loop()
        while self._sockets:
            listener = self._sockets.pop()
            loop.remove_reader(listener)
            # What the kernel has accepted by now is ours to answer, whatever its number.
            for _ in range(self._config.backlog):
                if not self._accept(listener):
                    break
            listener.close()
        end = monotonic() + grace
        await self._until_quiet(min(IDLE_DRAIN, grace))
        while any(stream.busy for stream in self._streams) and monotonic() < end:
            await self._until_quiet(0.05)
        unanswered = sum(stream.busy for stream in self._streams)
        for stream in list(self._streams):
            stream.abort()
        await self._quiet.wait()
        return unanswered

    async def _until_quiet(self, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._quiet.wait()
