"""What the tests of deliveries share: a worker that counts, gateways, a client that hangs up."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import redis

from gateway.claims.claim import DIGEST, Record, read
from gateway.cli import main
from tests.faults.oracle import Execution, executions
from tests.faults.tasks import EXECUTED
from tests.support.config import route
from tests.support.http_client import Answer, Connection, request
from tests.support.requests import is_ready
from tests.support.stack import RabbitMQ, Server, Stack
from tests.support.waiting import eventually, until

ROOT = Path(__file__).parents[2]
#: What a route with answers by URL needs.
URLS = """
secret_key = "of these tests only"
public_url = "https://hooks.example.com"
"""


def keyed(path: str, task: str | None = "faults.run", **settings: Any) -> str:
    """Write a route whose deliveries are known by a header."""
    return route(path, task, idempotency="header:Idempotency-Key", **settings)


#: One whose task notes each execution.
KEYED = keyed("/keyed")


class Servers:
    """A broker and a result store, a worker on them that notes each execution, gateways."""

    def __init__(
        self,
        stack: Stack,
        broker: RabbitMQ,
        results: Server,
        queues: Sequence[str] = ("celery",),
        concurrency: int = 4,
        app: str = "tests.integration.tasks",
        pool: str = "",
        **env: str,
    ):
        self._app, self._pool = app, pool
        self.stack, self.broker, self.results = stack, broker, results
        self.directory = stack.directory / f"deliveries-{time.monotonic_ns()}"
        self.directory.mkdir()
        self.config = Path()  # of the newest gateway
        self._started: list[Server] = []
        self.worker = self.start_worker(queues, concurrency, **env)

    @property
    def urls(self) -> list[str]:
        """The options that name broker and result store."""
        return ["--broker", self.broker.url, "--result-backend", self.results.url]

    def deliveries(
        self, capsys: pytest.CaptureFixture[str], command: str, *args: str
    ) -> tuple[int, str, str]:
        """Run a command of `gateway deliveries`; return exit code, standard output and error."""
        code = main(["deliveries", command, *self.urls, *args])
        return code, *capsys.readouterr()

    def start_worker(
        self, queues: Sequence[str], concurrency: int = 4, pool: str = "", **env: str
    ) -> Server:
        worker = self.stack.worker(
            self.broker.url,
            self.results.url,
            app=self._app,
            pool=pool or self._pool or ("prefork" if concurrency > 1 else "solo"),
            concurrency=concurrency,
            queues=queues,
            env={"FAULTS_DIRECTORY": str(self.directory), **env},
            cwd=ROOT,
        )
        self._started.append(worker)
        return worker

    def gateway(self, strategy: str, config: str, *args: str, **options: Any) -> Server:
        self.config = path = self.directory / f"{time.monotonic_ns()}.toml"
        path.write_text(config)
        gateway = self.stack.gateway(
            f"--strategy={strategy}", *self.urls, "--config", str(path), *args, **options
        )
        self._started.append(gateway)
        return gateway

    def gateways(self, strategy: str, config: str, *processes: int) -> list[Server]:
        """Start several that are alike at once, of so many `processes` each."""

        def start(number: int) -> Server:
            return self.gateway(strategy, config, f"--processes={number}")

        with ThreadPoolExecutor(len(processes)) as threads:
            return list(threads.map(start, processes))

    def each(self, wanted: Mapping[str, tuple[str, str]]) -> dict[str, Server]:
        """Start gateways at once, each by its name with a strategy and a configuration."""
        with ThreadPoolExecutor(len(wanted)) as threads:
            started = threads.map(lambda one: self.gateway(*one), wanted.values())
            return dict(zip(wanted, started, strict=True))

    def nginx(self, *gateways: Server) -> Server:
        nginx = self.stack.nginx([gateway.port for gateway in gateways])
        self._started.append(nginx)
        return nginx

    def release(self, name: str) -> None:
        """Let the tasks go on that wait ``until`` this name."""
        (self.directory / name).touch()

    def executions(self, some: str) -> list[Execution]:
        """Return the executions for deliveries whose body begins with `some`."""
        return [one for one in executions(self.directory / EXECUTED) if one.id.startswith(some)]

    def until_ready(self) -> None:
        """Wait until all gateways that run are ready."""
        for server in self._started:
            if server.admin_url and server.alive():
                until(lambda server=server: is_ready(server))

    def stop(self) -> None:
        with ThreadPoolExecutor() as threads:
            list(threads.map(lambda server: server.stop(), self._started))
        self._started.clear()

    def kill_and_start(self) -> None:
        """Kill all, the servers at last, and start them again in the opposite order."""
        every = [*self._started[::-1], self.results, self.broker]
        for server in every:
            server.kill()
        for server in reversed(every):
            server.restart()


async def send(
    server: Server,
    target: str,
    body: str,
    *headers: str,
    patience: float = 60,
    method: str = "POST",
) -> Answer | None:
    """Send a request on a new connection; None: hung up after `patience` seconds."""
    async with await Connection.open(server.port) as connection:
        try:
            async with asyncio.timeout(patience):
                return await connection.ask(request(body.encode(), target, *headers, method=method))
        except TimeoutError:
            return None


async def deliver(
    server: Server,
    key: str,
    seconds: float = 0,
    until: str = "",
    path: str = "/keyed",
    **options: Any,
) -> Answer | None:
    """Send a delivery known as `key` to the route `KEYED`, or to another one like it.

    Its task takes `seconds`, and waits for `Servers.release` of what `until` names.
    """
    target = f"{path}?seconds={seconds}" + (f"&until={until}" if until else "")
    return await send(server, target, key, f"Idempotency-Key: {key}", **options)


async def insist(server: Server, target: str, body: str, status: int) -> Answer:
    """Send a delivery until it is taken, as a sender does."""
    while True:
        with suppress(OSError, asyncio.IncompleteReadError):
            answer = await send(server, target, body)
            if answer is not None and answer.status == status:
                return answer
        await asyncio.sleep(0.05)


async def leave(servers: Servers, gateway: Server, key: str, **options: Any) -> None:
    """Send a delivery known as `key`, and hang up when the broker has confirmed its message."""
    sender = asyncio.create_task(deliver(gateway, key, **options))
    await eventually(lambda: state_of(servers.results, key) == "confirmed")
    sender.cancel()
    await asyncio.wait([sender])


def run(work: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(work)


async def gather(*work: Coroutine[Any, Any, Any]) -> list[Any]:
    return await asyncio.gather(*work)


def answered(server: Server, target: str, *bodies: str) -> list[int]:
    """Send deliveries with these bodies at once; return the statuses of their answers."""
    return [each.status for each in run(gather(*(send(server, target, body) for body in bodies)))]


def claim(server: Server, body: str) -> Record | None:
    """Return the claim on the delivery with `body` in a Redis; None: there is none."""
    digest = hashlib.blake2b(body.encode(), digest_size=DIGEST).digest()
    with redis.Redis.from_url(server.url) as client:
        keys = client.keys("gateway:*:c:*")
        values = client.mget(keys) if keys else []
    some = [read(value) for value in values if value is not None]
    return next((one for one in some if one.digest == digest), None)


def state_of(server: Server, body: str) -> str:
    """Return the state of the claim on the delivery with `body`; empty: there is none."""
    found = claim(server, body)
    return found.state if found else ""


async def until_free(server: Server, body: str) -> None:
    """Wait until no task holds the delivery: a failure is written after it was answered."""
    await eventually(lambda: state_of(server, body) not in ("publishing", "confirmed"))


def expired(server: Server, body: str) -> bool:
    """Tell whether the claim's lease, or the time that its result is kept, is over."""
    with redis.Redis.from_url(server.url) as client:
        return claim(server, body).until < (client.time()[0] - 1) * 1000


def channels(server: Server) -> list[bytes]:
    """Return the channels that somebody listens to for the sake of a single delivery."""
    with redis.Redis.from_url(server.url) as client:
        some = client.pubsub_channels("gateway:*:claimed:*")
        return some + client.pubsub_channels("celery-task-meta-*")


def cut_connections(broker: RabbitMQ, name: str) -> None:
    """Close the connections that call themselves `name`."""
    for line in broker.ctl("list_connections", "pid", "client_properties").splitlines():
        pid, _, properties = line.partition("\t")
        if f'"connection_name","{name}"' in properties:
            broker.ctl("close_connection", pid, "test")
