"""A serving process without its process: the real server and relay, tasks in memory."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator

import uvloop
from kombu.utils.json import loads
from tornado.ioloop import IOLoop

from gateway.celery_message import Message, TaskIds
from gateway.config.settings import Config
from gateway.http.server import Server
from gateway.metric_table import REQUESTS
from gateway.metrics import Metrics
from gateway.outcome import SUCCESS, Outcome
from gateway.pending_task import PendingTask
from gateway.process.sockets import bind
from gateway.relay.relay import Relay
from gateway.strategies.base import Strategy
from tests.support.http_client import Connection
from tests.support.requests import counted

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
        self.relay = Relay(config, self.strategy, self.metrics, ids)
        self.server = Server(config, self.relay, self.metrics)
        (self._listener,) = bind(config)
        self.address = config.uds or self._listener.getsockname()[1]
        self.server.listen([self._listener])

    async def open(self) -> Connection:
        return await Connection.open(self.address)

    async def close(self) -> None:
        await self.server.drain(0)
        self._listener.close()
        self.metrics.close()

    def counted(self, status: int) -> float:
        """Return how many requests that no route has taken were answered with `status`."""
        return counted(self.metrics, REQUESTS, http_route="", http_response_status_code=status)


Start = Callable[..., Gateway]


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
