"""A serving process without its process: the real server and relay, tasks in memory."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator

import pytest
import uvloop
from kombu.utils.json import loads
from tornado.ioloop import IOLoop

from gateway.celery_message import Message, TaskIds
from gateway.config.settings import Config
from gateway.failpoints import Failpoint
from gateway.http.server import Server
from gateway.metric_table import REQUESTS
from gateway.metrics import Metrics
from gateway.outcome import SUCCESS, Outcome
from gateway.pending_task import PendingTask
from gateway.process.sockets import bind
from gateway.relay.context import Context
from gateway.relay.relay import Relay
from gateway.strategies import find
from gateway.strategies.base import Strategy
from tests.support.http_client import Answer, Connection, ask, request
from tests.support.requests import counted
from tests.support.waiting import eventually

ROUTES = [{"path": "/"}, {"path": "/hooks/{account}"}, {"path": "/xml", "content_type": "text/xml"}]
#: The loops that gateways run on: connections are their transports.
LOOPS = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


def echo(message: Message) -> Outcome:
    return Outcome(SUCCESS, loads(message.body)[0][2])


def arguments(message: Message) -> Outcome:
    """Answer what the task was called with: the query, the headers and the delivery."""
    query, headers, _ = loads(message.body)[0]
    return Outcome(SUCCESS, {"query": query, "headers": headers, "delivery": message.delivery})


class InMemory(Strategy):
    """Runs `task` on each message at once; without one, whoever takes it from `sent` ends it."""

    publisher = None  # there is no broker

    def __init__(self, task: Callable[[Message], Outcome] | None):
        self.task = task
        self.sent: asyncio.Queue[PendingTask] = asyncio.Queue()
        self.freed: asyncio.Queue[PendingTask] = asyncio.Queue()

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    def checks(self) -> dict[str, str]:
        return {}

    def send(self, message: Message, deadline: float) -> PendingTask:
        pending = PendingTask(message, deadline, self.freed.put_nowait)
        self.sent.put_nowait(pending)
        if self.task is not None:
            pending.settle(self.task(message))
        return pending


class Gateway:
    """A serving process without its process."""

    def __init__(self, strategy: Callable[[Config, Metrics, str], Strategy], settings: dict):
        config = Config(**{"port": 0, "routes": ROUTES, **settings})
        self.metrics = Metrics(routes=[route.path for route in config.routes])
        ids = TaskIds()
        self.strategy = strategy(config, self.metrics, ids.prefix)
        self.relay = Relay(Context(config, self.strategy, self.metrics, ids, Failpoint()))
        self.server = Server(config, self.relay, self.metrics)
        (self._listener,) = bind(config)
        self.address = config.uds or self._listener.getsockname()[1]
        self.server.listen([self._listener])

    async def open(self) -> Connection:
        return await Connection.open(self.address)

    async def ask(self, data: bytes) -> Answer:
        """Send a request on a connection of its own."""
        return await ask(self.address, data)

    async def begin(self, connection: Connection, body: bytes = b"x") -> PendingTask:
        """Send a request whose task whoever calls ends."""
        connection.send(request(body))
        return await self.strategy.sent.get()

    async def until_closed(self) -> None:
        """Wait until the gateway knows of no open connection any more."""
        await eventually(lambda: not self.metrics.get("gateway_connections_open"))

    async def close(self) -> None:
        await self.server.drain(0)
        self._listener.close()
        self.metrics.close()

    def counted(self, status: int, **labels: str) -> float:
        """Return how many requests were answered with `status`, of those with these labels."""
        return counted(self.metrics, REQUESTS, http_response_status_code=status, **labels)


Start = Callable[..., Gateway]
#: The marks of tests with the fixture `serve`: each runs on each loop, and no error is logged.
MARKS = [
    pytest.mark.gen_test(timeout=10),
    pytest.mark.usefixtures("nothing_is_told"),
    pytest.mark.parametrize("io_loop", LOOPS, indirect=True),
]


@contextlib.asynccontextmanager
async def connected(strategy: str, settings: dict) -> AsyncIterator[Gateway]:
    """Run a gateway with a real strategy in this process, once it is connected to its servers."""
    gateway = Gateway(find(strategy), {"strategy": strategy, **settings})
    await gateway.relay.start()
    try:
        async with asyncio.timeout(60):
            await eventually(lambda: not any(gateway.relay.checks().values()))
            yield gateway
    finally:
        await gateway.relay.stop()
        await gateway.close()


@contextlib.contextmanager
def running(name: str) -> Iterator[IOLoop]:
    """Make the loop `name` the current one."""
    asyncio.set_event_loop(LOOPS[name]())
    io_loop = IOLoop.current()
    yield io_loop
    io_loop.close()
    asyncio.set_event_loop(None)


@contextlib.contextmanager
def serving(io_loop: IOLoop) -> Iterator[Start]:
    """Give what starts a gateway whose tasks are run by `task`; stop all at the end."""
    with contextlib.ExitStack() as opened:

        def start(task: Callable[[Message], Outcome] | None = echo, **settings) -> Gateway:
            gateway = Gateway(lambda *_: InMemory(task), settings)
            opened.callback(lambda: io_loop.run_sync(gateway.close))
            return gateway

        yield start
