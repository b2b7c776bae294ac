"""Connections between parties: byte streams that are late, cut anywhere, held back, or reset.

Each `End` is a transport of asyncio. What one end writes is taken by its system as far as the
window allows, travels for a while, and waits in the other end's system until that process reads.
A system goes on while its process is frozen, and closes what a dead process had.
"""

from __future__ import annotations

import asyncio
import errno
import socket
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import ceil, inf
from typing import Any

from tests.simulation.loop import DEAD, RUNNING, Handle, Loop, Party
from tests.simulation.wire import Peer, Server

#: Bytes that travel in one direction, or wait to be read; the most that is read at once.
WINDOW, MOST_READ = 256 * 1024, 256 * 1024
HIGH_WATER = 64 * 1024  # bytes: asyncio's own limit
#: Seconds: the moments at which bytes arrive are multiples of it, so that some arrive together.
GRID = 0.00025

_FIN, _RST = "fin", "rst"

Address = tuple[str, int]


@dataclass
class Conditions:
    """How connections between two parties are: seconds of latency, and what else happens."""

    least: float = 0.0001
    most: float = 0.001
    cut: float = 0.02  # the share of writes that arrive in two parts
    partial: float = 0.02  # the share of reads that get only a part
    rate: float = inf  # bytes a second
    held: bool = False  # nothing arrives
    refused: bool = False  # no new connection is made


class Network:
    """All listeners and connections; `observe` is told each arrival: time, from, to, bytes."""

    def __init__(self, loop: Loop, observe: Callable[[float, str, str, bytes], None]):
        self.loop = loop
        self.random = loop.random
        self.observe = observe
        self.listeners: dict[Address, Listener] = {}
        #: By the names of two parties, the client first; the default has the key of empty names.
        self._conditions: dict[tuple[str, str], Conditions] = {}
        self.default = Conditions()
        self.ends: dict[End, None] = {}  # of clients
        #: Those that have ended while nothing arrived.
        self.dying: dict[tuple[str, str], list[End]] = {}

    def between(self, client: str, server: str) -> Conditions:
        return self._conditions.get((client, server), self.default)

    def change(self, client: str, server: str, conditions: Conditions) -> None:
        """Set the conditions of two parties' connections, those that exist included."""
        self._conditions[client, server] = conditions
        # Also those of a process that has died: what it has sent last is still on its way.
        for end in [*self._ends(client, server), *self.dying.pop((client, server), ())]:
            for one in (end, end.peer):
                one.conditions = conditions
                one.go_on()

    def restore(self, client: str, server: str) -> None:
        self.change(client, server, self.default)
        del self._conditions[client, server]

    def reset(self, client: str, server: str) -> None:
        """Reset the connections of two parties, as a middlebox that has forgotten them."""
        for end in self._ends(client, server):
            for one in (end, end.peer):
                one.arrived(_RST)

    def forget(self, client: str, server: str) -> None:
        """Reset the connections of two parties for the client; the server hears nothing."""
        for end in self.swallow(client, server):
            end.arrived(_RST)

    def swallow(self, client: str, server: str, share: float = 1.0) -> list[End]:
        """Let nothing arrive any more on a share of two parties' connections, and return these."""
        ends = [end for end in self._ends(client, server) if self.random.random() < share]
        for end in ends:
            end.conditions = end.peer.conditions = Conditions(held=True)
            end.go_on()
            end.peer.go_on()
        return ends

    def _ends(self, client: str, server: str) -> list[End]:
        return [
            end
            for end in self.ends
            if end.party.name == client and end.peer.party.name == server and not end.gone
        ]

    async def connect(self, party: Party, address: Address) -> End:
        """Open a connection of `party`; raises OSError."""
        loop = self.loop
        future: asyncio.Future[End] = loop.create_future()
        self._try(party, address, future)
        try:
            return await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled() and future.exception() is None:
                future.result().process_ended()
            raise

    def _try(self, party: Party, address: Address, future: asyncio.Future[End]) -> None:
        listener = self.listeners.get(address)
        server = listener.party.name if listener is not None else address[0]
        conditions = self.between(party.name, server)
        wait = self.random.uniform(conditions.least, conditions.most) * 2
        kernel = self.loop.kernel
        if conditions.held:  # the first packet is sent again
            again = self.loop.time() + 1.0
            if not future.done():
                self.loop.at_in(kernel, again, self._try, party, address, future)
            return
        self.loop.at_in(kernel, self.loop.time() + wait, self._connected, party, address, future)

    def _connected(self, party: Party, address: Address, future: asyncio.Future[End]) -> None:
        if future.done() or party.state == DEAD:
            return
        listener = self.listeners.get(address)
        # They may have changed while the packets were on their way.
        conditions = self.between(party.name, listener.party.name if listener else address[0])
        if listener is None or conditions.refused or not listener.listens:
            refused = ConnectionRefusedError(errno.ECONNREFUSED, f"refused by {address[0]}")
            self.loop.soon_in(party, _reject, future, refused)
            return
        ours, theirs = End(self, party, conditions), End(self, listener.party, conditions)
        ours.peer, theirs.peer = theirs, ours
        self.ends[ours] = None
        party.ends[ours] = None
        listener.party.ends[theirs] = None
        listener.take(theirs)
        self.loop.soon_in(party, self._made, future, ours)

    def _made(self, future: asyncio.Future[End], end: End) -> None:
        if future.done():  # nobody waits any more
            end.process_ended()
        else:
            future.set_result(end)

    def serve(self, party: Party, address: Address, server: Server) -> Listener:
        """Let a model serve the connections to `address`."""
        listener = Listener(self, party, address)
        listener.on_connection = lambda end: self._accept(server, end)
        listener.listens = True
        return listener

    def _accept(self, server: Server, end: End) -> None:
        protocol = _ModelProtocol()
        end.attach(protocol)
        protocol.peer = server.accept(end)


class _ModelProtocol(asyncio.Protocol):
    """Passes what an end gets to a model's peer."""

    peer: Peer

    def data_received(self, data: bytes) -> None:
        self.peer.received(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self.peer.lost()


class Listener:
    """A listening socket; several processes may accept on it, as children share their parent's."""

    family = socket.AF_INET

    def __init__(self, network: Network, party: Party, address: Address):
        self.network, self.party, self.address = network, party, address
        self.backlog: deque[End] = deque()
        self.readers: dict[Party, Callable[[], object]] = {}
        self.on_connection: Callable[[End], None] | None = None
        self.listens = False
        self._descriptors = 1  # the parent's
        network.listeners[address] = self

    def take(self, end: End) -> None:
        if self.on_connection is not None:
            self.network.loop.soon_in(self.party, self.on_connection, end)
            return
        self.backlog.append(end)
        self._wake()

    def _wake(self) -> None:
        readers = [party for party in self.readers if party.state != DEAD]
        self.network.random.shuffle(readers)
        for party in readers:
            self.network.loop.soon_in(party, self._readable, party)

    def _readable(self, party: Party) -> None:
        callback = self.readers.get(party)
        if callback is not None and self.backlog:
            callback()
            if self.backlog and party in self.readers:
                self.network.loop.soon_in(party, self._readable, party)

    def accept(self) -> tuple[Socket, Address]:
        if not self.backlog:
            raise BlockingIOError
        end, party = self.backlog.popleft(), self.network.loop.current
        del end.party.ends[end]
        end.party = party
        party.ends[end] = None
        return Socket(end), ("127.0.0.1", 1)

    def for_child(self) -> ChildListener:
        self._descriptors += 1
        return ChildListener(self)

    def close(self) -> None:
        """Close one descriptor; with the last one, what nobody has accepted is reset."""
        self._descriptors -= 1
        if self._descriptors:
            return
        if self.network.listeners.get(self.address) is self:
            del self.network.listeners[self.address]
        while self.backlog:
            self.backlog.popleft().process_ended()


class ChildListener:
    """A child's descriptor of its parent's listening socket."""

    family = socket.AF_INET

    def __init__(self, listener: Listener):
        self.listener = listener
        self._closed = False

    def setblocking(self, flag: bool) -> None: ...

    def getsockopt(self, _level: int, _option: int) -> bool:
        """Return the only option that is asked for: whether it listens."""
        return self.listener.listens

    def listen(self, _backlog: int) -> None:
        self.listener.listens = True

    def accept(self) -> tuple[Socket, Address]:
        return self.listener.accept()

    def close(self) -> None:
        """Close this descriptor, also where the process has been killed."""
        if not self._closed:
            self._closed = True
            self.listener.close()


class Socket:
    """Stands for a connected or a new socket."""

    family = socket.AF_INET

    def __init__(self, end: End | None = None):
        self.end = end

    def setsockopt(self, *_: object) -> None: ...
    def setblocking(self, flag: bool) -> None: ...

    def close(self) -> None:
        if self.end is not None and not self.end.attached:
            self.end.process_ended()

    def detach(self) -> None: ...


def pair(network: Network, one: Party, other: Party) -> tuple[Socket, Socket]:
    """Return two connected sockets of two parties."""
    first, second = End(network, one, Conditions()), End(network, other, Conditions())
    first.peer, second.peer = second, first
    one.ends[first] = other.ends[second] = None
    return Socket(first), Socket(second)


class End(asyncio.Transport):
    """One end of a connection, as asyncio's selector loop would show it."""

    peer: End

    def __init__(self, network: Network, party: Party, conditions: Conditions):
        super().__init__()
        self.network, self.loop, self.party = network, network.loop, party
        self.conditions = conditions
        self.protocol: Any = None
        self.attached = False
        self.reading = False
        self.gone = False  # the system has closed it
        self._closing = self._lost = False
        self._eof_written = self._eof_wanted = False
        self._end: str | None = None  # what follows the bytes in the inbox
        self._inbox: deque[bytes] = deque()
        self._inbox_size = 0
        self._read_soon = False
        self._out = bytearray()  # what our system has not taken
        #: What travels to the peer, and when it arrives.
        self._wire: deque[tuple[float, bytes | str]] = deque()
        self._wire_size = 0
        self._last = 0.0
        self._timer: Handle | None = None
        self._high = HIGH_WATER
        self._paused_writing = False

    # For servers' models ----------------------------------------------------------------------

    def attach(self, protocol: Any) -> None:
        """Begin to read for `protocol`, which is told of the connection before."""
        self.attached, self.protocol, self.reading = True, protocol, True
        protocol.connection_made(self)
        self._wake()

    # asyncio's methods ---------------------------------------------------------------------

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default

    def is_closing(self) -> bool:
        return self._closing

    def get_protocol(self) -> Any:
        return self.protocol

    def set_protocol(self, protocol: Any) -> None:
        self.protocol = protocol

    def is_reading(self) -> bool:
        return self.reading and not self._closing

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        if not self._closing and not self.reading:
            self.reading = True
            self._wake()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = HIGH_WATER if high is None else high

    def get_write_buffer_size(self) -> int:
        return len(self._out)

    def can_write_eof(self) -> bool:
        return True

    def write(self, data: bytes) -> None:
        if self._eof_wanted:
            raise RuntimeError("Cannot call write() after write_eof()")
        if not data or self._closing or self.gone or self.party.state == DEAD:
            return
        if self._end is _RST:
            self._fatal(BrokenPipeError(errno.EPIPE, "Broken pipe"))
            return
        if self._out:
            self._out += data
        else:
            room = WINDOW - self._wire_size - self.peer._inbox_size
            if room >= len(data):
                self._send(bytes(data))
                return
            self._send(bytes(data[: max(room, 0)]))
            self._out += data[max(room, 0) :]
        if len(self._out) > self._high and not self._paused_writing:
            self._paused_writing = True
            self.protocol.pause_writing()

    def writelines(self, list_of_data: Iterable[Any]) -> None:
        self.write(b"".join(list_of_data))

    def write_eof(self) -> None:
        if self._closing or self._eof_wanted:
            return
        self._eof_wanted = True
        if not self._out:
            self._write_eof()

    def close(self) -> None:
        if self._closing:
            return
        self._closing, self.reading = True, False
        if not self._out:
            self.loop.soon_in(self.party, self._connection_lost, None)

    def abort(self) -> None:
        self._force(None)

    # What the process notices -----------------------------------------------------------------

    def _fatal(self, exc: OSError) -> None:
        self._force(exc)

    def _force(self, exc: Exception | None) -> None:
        if self._lost or self.gone:
            return
        self._out.clear()
        self._closing, self._lost, self.reading = True, True, False
        self.loop.soon_in(self.party, self._connection_lost, exc)

    def _connection_lost(self, exc: Exception | None) -> None:
        if self.gone:
            return
        self._lost = True
        self.process_ended()
        if self.protocol is not None:
            self.protocol.connection_lost(exc)

    def _wake(self) -> None:
        """Let the process read, if there is something and it wants to."""
        if (self._inbox or self._end is not None) and not self._read_soon and self.reading:
            self._read_soon = True
            self.loop.soon_in(self.party, self._read)

    def _read(self) -> None:
        self._read_soon = False
        if not self.reading or self.gone:
            return
        inbox = self._inbox
        if inbox:
            data = inbox.popleft()
            if inbox:
                data += b"".join(inbox)
                inbox.clear()
            most, share = MOST_READ, self.conditions.partial
            if share and (random := self.loop.random).random() < share:
                most = random.randint(1, len(data))
            if len(data) > most:
                inbox.append(data[most:])
                data = data[:most]
            self._inbox_size -= len(data)
            self.protocol.data_received(data)
            if self.peer._out:
                self.peer.go_on()
        elif self._end is _RST:
            self._fatal(ConnectionResetError(errno.ECONNRESET, "Connection reset by peer"))
            return
        elif self._end is _FIN:
            self._end = None
            if self.protocol.eof_received():
                return  # it goes on to write, as long as the peer takes that
            self.close()
            return
        if inbox or self._end is not None:
            self._wake()

    # What the systems do ----------------------------------------------------------------------

    def process_ended(self) -> None:
        """Close the socket: what is unread is reset, and the rest is delivered."""
        if self.gone:
            return
        self.gone = True
        self.party.ends.pop(self, None)
        if self in self.network.ends and self.conditions.held:
            names = self.party.name, self.peer.party.name
            self.network.dying.setdefault(names, []).append(self)
        self.network.ends.pop(self, None)
        self._out.clear()
        if self._inbox:
            self._post(_RST)
        elif not self._eof_written:
            self._post(_FIN)

    def _write_eof(self) -> None:
        self._eof_written = True
        self._post(_FIN)

    def _send(self, data: bytes) -> None:
        share = self.conditions.cut
        if share and len(data) > 1 and (random := self.network.random).random() < share:
            at = random.randrange(1, len(data))
            self._post(data[:at])
            self._post(data[at:])
        elif data:
            self._post(data)

    def _post(self, item: bytes | str) -> None:
        conditions, loop = self.conditions, self.loop
        now, least = loop._now, conditions.least
        delay = least + (conditions.most - least) * loop.random.random()
        if type(item) is bytes:
            self._wire_size += len(item)
            if conditions.rate != inf:
                delay += len(item) / conditions.rate
                now = max(now, self._last)
        at = ceil((now + delay) / GRID) * GRID
        if at < self._last:
            at = self._last
        self._last = at
        self._wire.append((at, item))
        if self._timer is None and not conditions.held:
            self._timer = loop.at_in(loop.kernel, at, self._arrive)

    def go_on(self) -> None:
        """Let travel what was held back, if it is no longer; take what waits for the window."""
        if self.conditions.held:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            return
        if self._out and not self.gone:
            room = WINDOW - self._wire_size - self.peer._inbox_size
            if room > 0:
                data = bytes(self._out[:room])
                del self._out[:room]
                self._send(data)
                self.loop.soon_in(self.party, self._taken)
        if self._timer is None and self._wire:
            at = max(self._wire[0][0], self.loop.time() + self.conditions.least)
            self._timer = self.loop.at_in(self.loop.kernel, at, self._arrive)

    def _taken(self) -> None:
        """Tell the process that its system has taken bytes."""
        if self.gone or self._lost:
            return
        if self._paused_writing and len(self._out) <= self._high // 4:
            self._paused_writing = False
            self.protocol.resume_writing()
        if not self._out:
            if self._closing:
                self._connection_lost(None)
            elif self._eof_wanted and not self._eof_written:
                self._write_eof()

    def _arrive(self) -> None:
        self._timer = None
        loop, wire = self.loop, self._wire
        now = loop._now
        while wire and wire[0][0] <= now:
            _, item = wire.popleft()
            if type(item) is bytes:
                self._wire_size -= len(item)
            self.peer.arrived(item)
        if wire:
            self._timer = loop.at_in(loop.kernel, wire[0][0], self._arrive)
        elif self._out:
            self.go_on()

    def arrived(self, item: bytes | str) -> None:
        """Take what has travelled here."""
        if self.gone:
            if item is not _FIN and item is not _RST:
                self._post(_RST)
            return
        loop, party = self.loop, self.party
        if type(item) is bytes:
            self.network.observe(loop._now, self.peer.party.name, party.name, item)
            self._inbox.append(item)
            self._inbox_size += len(item)
        elif self._end is not _RST:
            self._end = item  # type: ignore[assignment]
        if self.reading and not self._read_soon:
            self._read_soon = True
            if party.state == RUNNING:  # without another turn
                before, loop.current = loop.current, party
                try:
                    self._read()
                finally:
                    loop.current = before
            else:
                loop.soon_in(party, self._read)


class NetworkLoop(Loop):
    """The loop with the services that need a network."""

    network: Network

    def add_reader(self, fd: Any, callback: Any, *args: Any) -> None:
        listener = fd.listener
        listener.readers[self.current] = lambda: callback(*args)
        if listener.backlog:
            self.soon_in(self.current, listener._readable, self.current)

    def remove_reader(self, fd: Any) -> bool:
        return fd.listener.readers.pop(self.current, None) is not None

    async def getaddrinfo(self, host: Any, port: Any, **_: Any) -> Any:  # type: ignore[override]
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (host, port))]

    async def create_connection(  # type: ignore[override]
        self,
        protocol_factory: Any,
        host: Any = None,
        port: Any = None,
        *,
        sock: Any = None,
        **_: Any,
    ) -> Any:
        end = (
            sock.end if sock is not None else await self.network.connect(self.current, (host, port))
        )
        return await self._attach(end, protocol_factory())

    async def connect_accepted_socket(self, protocol_factory: Any, sock: Any, **_: Any) -> Any:
        return await self._attach(sock.end, protocol_factory())

    async def _attach(self, end: End, protocol: Any) -> Any:
        made = self.create_future()
        end.attached, end.protocol = True, protocol
        self.call_soon(protocol.connection_made, end)
        self.call_soon(end.resume_reading)
        self.call_soon(_resolve, made, None)
        try:
            await made
        except BaseException:
            end.close()
            raise
        return end, protocol


def _resolve(future: asyncio.Future[Any], value: Any) -> None:
    if not future.done():
        future.set_result(value)


def _reject(future: asyncio.Future[Any], exc: BaseException) -> None:
    if not future.done():
        future.set_exception(exc)
