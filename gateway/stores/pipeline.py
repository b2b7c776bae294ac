"""Send the commands of many requests to one Redis, without waiting in between."""

from __future__ import annotations

import asyncio
import logging
from asyncio import Future
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from functools import cache
from hashlib import sha1
from math import inf
from typing import TYPE_CHECKING, Any, NamedTuple

import hiredis

from gateway.background import happens
from gateway.clock import monotonic
from gateway.config.settings import Config
from gateway.errors import StoreError, Unanswered
from gateway.metrics import Metrics
from gateway.stores import result_store
from gateway.stores.connection import Connection, InvalidReply
from gateway.stores.result_store import Ask
from gateway.stores.server import CONNECT_TIMEOUT, HELLO, LOST, described, elsewhere, unusable

if TYPE_CHECKING:
    from gateway.stores.redis_client import Client

log = logging.getLogger(__name__)

#: Seconds that a command may wait for its reply, the connection included.
PATIENCE = 1.0
#: The same, of a command that somebody waits for at a terminal or a page.
ASKING = 3.0
#: Seconds between two checks of the server, and between two attempts to connect without a command.
PING = 1.0
#: Seconds before a connection that was refused is opened again.
REFUSED = 0.2
_ENDED = "its server is not used any more"

#: An argument of a command.
Arg = bytes | str | int


class Command(NamedTuple):
    """A command that waits for its reply."""

    reply: Future[Any]
    #: When its patience ends (monotonic).
    end: float
    words: tuple[Arg, ...]


@cache
def _digest(script: str) -> str:
    return sha1(script.encode(), usedforsecurity=False).hexdigest()


class Pipeline(Connection):
    """Sends commands in the order in which they were given; those of one turn of the loop together.

    Where a command has no reply after `patience` seconds, the connection is aborted, so all
    commands that were sent on it fail. The same happens where the server says that it is not, or no
    longer, the one to use: see `gateway.stores.server`. `probe` is the command that finds that out.
    `redirect` is called with a command and its error, and returns whether it has sent the command
    to another server. `primary`: only a cluster's node that takes writes is used.
    """

    def __init__(
        self,
        connect: Callable[[], Client],
        name: str,
        *,
        probe: tuple[Arg, ...] = (HELLO,),
        patience: float = PATIENCE,
        redirect: Callable[[Command, str], bool] = lambda command, error: False,
        primary: bool = True,
    ):
        super().__init__(connect, name)
        self._probe = probe
        self._patience = patience
        self._redirect = redirect
        self._primary = primary
        #: Called each time the server answers again.
        self.on_connected: list[Callable[[], object]] = []
        #: Called with a time of `gateway.clock.monotonic`: connections of before that time may lead
        #: to a server that is not to be used any more, as they live on.
        self.on_left: list[Callable[[float], object]] = []
        #: Since when the server answers, and may be used (monotonic); inf: it does not.
        self.well_since = inf
        self._waiting: list[Command] = []
        self._sent: deque[Command] = deque()
        self._flushes = False  # in this turn
        self._copied: Future[Any] | None = None  # a WAIT that is not sent yet
        self._scripts: set[Arg] = set()  # that were sent on this connection
        self._by_digest = True  # unless the user may not
        self._some = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._asking: Future[None] | None = None  # the Sentinels

    async def stop(self) -> None:
        """Stop when all commands are executed, or after `PATIENCE`: the others fail."""
        if self._task is not None:
            await happens(self._idle, PATIENCE)
        await super().stop()
        self._fail(self._waiting, _ENDED)

    @property
    def pending(self) -> int:
        """How many commands wait for their reply, or to be sent."""
        return len(self._sent) + len(self._waiting)

    def run(self, *command: Arg) -> Future[Any]:
        """Send `command`; return a future of the reply, in the form that Redis gives it.

        The script of an EVAL is sent once on each connection, and from then on its digest; where
        Redis does not know it, the command is sent again, after those given since.
        The future fails with `StoreError`, of which `Unanswered` is one.
        """
        reply = self._loop.create_future()
        self._queue(Command(reply, monotonic() + self._patience, command))
        return reply

    def send(self, command: Command, *, asking: bool = False) -> None:
        """Send a command that another server has refused; `asking`: before its slot has moved."""
        if asking:
            # A server without the script would forget what was asked before.
            self._scripts.discard(command.words[1])
            asked = self.run("ASKING")
            asked.add_done_callback(lambda reply: reply.cancelled() or reply.exception())
        self._queue(command)

    def copied(self, replicas: int, patience: float) -> Future[Any]:
        """Return a future of how many replicas have what was written by commands with a reply.

        It ends when so many have it, or after `patience` seconds; it fails as `run` does. Those who
        ask in one turn of the loop share a WAIT, behind which the connection's commands wait.
        """
        if self._copied is None:
            self._copied = self.run("WAIT", replicas, int(patience * 1000))
        return self._copied

    def _queue(self, command: Command) -> None:
        if self._task is not None and self._task.done():  # of a node that has left its cluster
            self._fail([command], _ENDED)
            return
        self._waiting.append(command)
        self._idle.clear()
        if self._transport is None:
            self._some.set()
        elif not self._flushes:
            self._flushes = True
            self._loop.call_soon(self._flush)

    async def _keep_connected(self) -> None:
        while True:
            try:
                async with self._connected(PATIENCE) as client:
                    self._scripts.clear()
                    self._flush()
                    for leave in self.on_left:
                        leave(self._since)
                    await self._watch(client)
            except LOST as exc:
                if self._since == inf:
                    self._fail(self._waiting, described(exc))
                    self._waiting = []
                    self._miss(described(exc))
            finally:
                if self._asking is not None:
                    self._asking.cancel()
                self._settle()
            # A connection that has lasted is opened again immediately. One that was refused is not
            # opened again for each command.
            if self._since == inf:
                await asyncio.sleep(REFUSED)
            if monotonic() - self._since < PING:
                await happens(self._some, PING)

    def _miss(self, error: str) -> None:
        if error != self.error and self._name:
            text = "%s: Redis cannot be used: %s; `gateway check` says what to do"
            log.warning(text, self._name, error)
        self.error, self.well_since = error, inf

    async def _watch(self, client: Client) -> None:
        """Check the server until the connection is lost, and raise that error."""
        probe = 0.0  # when the next one is sent
        while True:
            now = monotonic()
            if probe <= now:
                probe = now + PING
                # A node of a cluster may not have the key of another command.
                asked = (HELLO,) if self.clustered else self._probe
                self.run(*asked).add_done_callback(self._probed)
                asks = self._asking is not None and not self._asking.done()
                if client.watched and not asks:
                    self._asking = asyncio.create_task(self._leave_replaced(client))
            end = self._sent[0].end if self._sent else inf
            if end <= now:
                self._lose(TimeoutError())
            await self._lost_within(max(min(end, probe) - now, 0.001))

    async def _leave_replaced(self, client: Client) -> None:
        since = self._since
        if await client.replaced() and self._since == since:
            self._leave("the Sentinels have another master by now")

    def _probed(self, reply: Future[Any]) -> None:
        if reply.cancelled():
            return
        error, exc = "", reply.exception()
        if exc is None:
            hello = reply.result()
            if isinstance(hello, list):
                error = unusable(hello, bool(self.clustered), self._primary)
            if error:
                self._leave(error)
                return
        # An older Redis, a proxy or an account may not know the command.
        elif not str(exc).startswith(("NOPERM", "ERR unknown command")):
            error = str(exc)
        if error:
            self._miss(error)
        elif self.error:
            if self._name:
                log.info("%s: connected to Redis", self._name)
            self.error, self.well_since = "", monotonic()
            for call in self.on_connected:
                call()

    def _leave(self, error: str) -> None:
        """Leave a server that is not to be used; the next connection may lead to another one."""
        if not self._lost.done():
            self._miss(error)
            self._lose(ConnectionError(error))
            for leave in self.on_left:
                leave(monotonic())

    def _flush(self) -> None:
        self._flushes = False
        if self._transport is None or self._transport.is_closing():
            return
        now, packed, self._copied = monotonic(), [], None
        for command in self._waiting:
            # A future that is done already was cancelled: its command need not be sent.
            if not command.reply.done():
                if now < command.end:
                    packed.append(self._pack(command.words))
                    self._sent.append(command)
                else:
                    command.reply.set_exception(Unanswered("no answer in time"))
        self._waiting.clear()
        if packed:
            self._transport.write(b"".join(packed))
        self._settle()

    def _pack(self, words: tuple[Arg, ...]) -> bytes:
        if words[0] == "EVAL":
            script = words[1]
            if script in self._scripts and self._by_digest:
                words = "EVALSHA", _digest(script), *words[2:]
            else:
                self._scripts.add(script)
        try:
            return hiredis.pack_command(words)  # type: ignore[arg-type] # any number
        except UnicodeEncodeError:
            return hiredis.pack_command(_encoded(words))  # type: ignore[arg-type]

    def _receive(self, reply: Any) -> None:
        if not self._sent:
            raise InvalidReply("it is the reply to no command")
        command = self._sent.popleft()
        if command.reply.done():
            pass
        elif not isinstance(reply, Exception):
            command.reply.set_result(reply)
        elif command.words[0] == "EVAL" and self._needs_script(str(reply), command):
            self._queue(command)
        # Without the line of a script that it was.
        elif self._redirect(command, error := str(reply).partition(" script:")[0]):
            pass
        elif elsewhere(error):
            self._leave(error)
            command.reply.set_exception(Unanswered(error))
        else:
            command.reply.set_exception(StoreError(_explained(error, command.words)))

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._settle()

    def _needs_script(self, error: str, command: Command) -> bool:
        """Tell whether the command is to be sent again with its script."""
        if error.startswith("NOSCRIPT"):  # forgotten, or never taken
            self._scripts.discard(command.words[1])
            return True
        refused = self._by_digest and error.startswith("NOPERM") and "evalsha" in error.lower()
        if refused:
            self._by_digest = False
        return refused

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._fail(self._sent, described(self._lost.result()))
        self._sent.clear()

    def _fail(self, commands: list[Command] | deque[Command], reason: str) -> None:
        for command in commands:
            if not command.reply.done():
                command.reply.set_exception(Unanswered(reason))

    def _settle(self) -> None:
        """See whether commands wait: for a connection, or for replies."""
        if self._waiting:
            self._some.set()
        else:
            self._some.clear()
            if not self._sent:
                self._idle.set()


def _explained(error: str, words: tuple[Arg, ...]) -> str:
    """Return an error with what to do, where a key has a value that is not of the gateway's."""
    if not error.startswith("WRONGTYPE ") and " -WRONGTYPE " not in error:
        return error
    keys = words[3 : 3 + int(words[2])] if words[0] == "EVAL" else words[1:2]
    names = ", ".join(str(key)[:200] for key in keys)
    return (
        f"WRONGTYPE: a key has a value that is not the gateway's: look at the TYPE of {names}, and "
        "remove the wrong one (DEL), or set another state_prefix"
    )


def _encoded(words: tuple[Arg, ...]) -> tuple[Arg, ...]:
    """Return a command with a question mark for what UTF-8 cannot express.

    An error would end the connection for the commands of all others.
    """
    return tuple(each.encode(errors="replace") if isinstance(each, str) else each for each in words)


def results_of(config: Config, metrics: Metrics) -> Pipeline:
    """Return a pipeline to the result store, whose connections are counted."""
    made = Pipeline(lambda: result_store.connect(config), "result store", patience=CONNECT_TIMEOUT)
    made.on_connected.append(lambda: metrics.connected("results"))
    return made


@asynccontextmanager
async def asking(config: Config) -> AsyncIterator[Ask]:
    """Yield what sends a command to the result store: see `result_store.remedied`."""
    store = Pipeline(lambda: result_store.connect(config), "", patience=ASKING)
    await store.start()
    try:
        with suppress(StoreError):  # the command's own error tells it
            await store.run("PING")
        yield result_store.remedied(config, config.results, store.run)
    finally:
        await store.stop()
