"""A gateway with all that it needs, requests, and a Prometheus that watches it."""

from __future__ import annotations

import asyncio
import sys
import tempfile
import threading
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Self
from urllib.parse import urlsplit

from gateway.stack.server import poll
from tests.alerts.prometheus import Prometheus
from tests.support.http_client import Connection, request
from tests.support.stack import RabbitMQ, Server, Stack

RATE = 10  # requests a second
PATIENCE = 5.0  # seconds for an answer
QUEUE = "alerts"
#: Tasks that nobody waits for any more are dropped, so that a fault is over when it ends.
CONFIG = f"""\
timeout = 1.0
journal = 1000
secret_key = "of these tests only"
public_url = "http://127.0.0.1:8000"

[[routes]]
path = "/echo"
task = "faults.run"
queue = "{QUEUE}"
expires = 1

[[routes]]
path = "/accept"
task = "faults.run"
queue = "{QUEUE}"
answer = "accept"

[[routes]]
path = "/late"
task = "faults.run"
queue = "{QUEUE}"
answer = "accept"
late = {{ url = "http://127.0.0.1:9/", hosts = ["127.0.0.1:9"], tries = 1 }}

[[routes]]
path = "/choosy"
task = "faults.run"
queue = "{QUEUE}"
when = {{"header:x-never" = "sent"}}
"""
#: A route whose deliveries are taken once, so that there are claims.
SIGNED = f"""
[[routes]]
path = "/signed"
source = "signed"
task = "faults.run"
queue = "{QUEUE}"

[sources.signed]
scheme = "standard"
secrets = ["whsec_{"ZmF1bHRz" * 4}"]
"""
#: Whom nobody can tell anything.
NOTIFY = """
[notify]
kind = "slack"
url = "http://127.0.0.1:9/"
"""


class Site:
    """Its servers run until its context ends; `broker` is used again by the next site."""

    def __init__(self, stack: Stack, broker: RabbitMQ, more: str, factor: float):
        self._end = ExitStack()
        self.broker = broker
        directory = Path(tempfile.mkdtemp(dir=stack.directory))
        self.config = config = directory / "gateway.toml"
        archive = f'archive_url = "sqlite:///{directory}/archive.db"\n'
        config.write_text(archive + CONFIG + more)
        self.results = self._own(stack.redis())
        self.state = self._own(stack.redis("--maxmemory-policy", "noeviction"))
        self.worker = self._own(
            stack.worker(
                broker.url,
                self.results.url,
                app="tests.faults.tasks",
                pool="prefork",
                concurrency=4,
                queues=[QUEUE],
                env={"FAULTS_DIRECTORY": str(directory)},
            )
        )
        self.gateway = self._own(
            stack.gateway(
                "--config", str(config), "--broker", broker.url,
                "--result-backend", self.results.url, env={"GATEWAY_STATE_URL": self.state.url},
            )
        )  # fmt: skip
        self.archiver = self._own(
            stack.spawn(
                "archiver",
                [sys.executable, "-m", "gateway", "archive", "--config", str(config)],
                env={"GATEWAY_BROKER_URL": broker.url, "GATEWAY_STATE_URL": self.state.url},
            )
        )
        self.prometheus = Prometheus(stack, self.gateway, directory / "prometheus", factor)
        self._own(self.prometheus.server)
        self.traffic = Traffic(urlsplit(self.gateway.url).port)

    def _own(self, server: Server) -> Server:
        self._end.callback(server.kill)
        return server

    def __enter__(self) -> Self:
        self._end.enter_context(self.traffic)
        self.scraped()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._end.close()

    def scraped(self) -> None:
        """Wait until Prometheus has seen the gateway as it is now."""
        now = time.time()
        assert poll(lambda: self.prometheus.scraped_since(now), 60), "nothing is scraped"


class Traffic:
    """Posts to `path`, `RATE` times a second, in a thread of its own; answers do not matter."""

    def __init__(self, port: int):
        self.path = "/echo"
        self._port = port
        self._ended = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()))

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._ended.set()
        self._thread.join()

    async def _run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            while not self._ended.is_set():
                tasks.create_task(self._post())
                await asyncio.sleep(1 / RATE)

    async def _post(self) -> None:
        # While it is away, connections are refused, or end without an answer.
        with suppress(OSError, asyncio.IncompleteReadError):
            async with asyncio.timeout(PATIENCE), await Connection.open(self._port) as connection:
                await connection.ask(request(b"hello", self.path))
