"""What the tests of lost workers share: workers and a gateway on a queue, and its dead letters."""

from __future__ import annotations

import json
from pathlib import Path

import pika
import redis

from gateway.stack.server import poll
from tests.faults.oracle import Execution, executions
from tests.faults.tasks import EXECUTED
from tests.integration.deliveries import ROOT, URLS
from tests.support.config import route
from tests.support.requests import fetch
from tests.support.stack import RabbitMQ, Server, Stack

TIMEOUT = 30  # seconds
DEAD = "gateway.dead"


class Servers:
    """Workers and a gateway on a queue of their own, and what became of the messages."""

    def __init__(self, stack: Stack, broker: RabbitMQ, results: str, directory: Path):
        self.stack, self.broker, self.results, self.directory = stack, broker, results, directory
        self.queue = directory.name
        self._dead: list[tuple[pika.BasicProperties, str]] = []
        self.forget()

    def worker(self, pool: str = "prefork", concurrency: int = 1, **options) -> Server:
        return self.stack.worker(
            options.pop("url", self.broker.url),
            options.pop("results", self.results),
            app=options.pop("app", "tests.faults.tasks"),
            pool=pool,
            concurrency=concurrency,
            queues=[self.queue],
            env={"FAULTS_DIRECTORY": str(self.directory)},
            cwd=ROOT,
        )

    def routes(self) -> str:
        accept = route("/accept", queue=self.queue, answer="accept")
        return route("/wait", queue=self.queue) + accept

    def gateway(self, *options: str) -> Server:
        config = self.directory / "gateway.toml"
        config.write_text(f"{URLS}timeout = 25\n{self.routes()}")
        return self.stack.gateway("--config", str(config), *self.urls, *options)

    @property
    def urls(self) -> list[str]:
        """The options that name broker and result store."""
        return ["--broker", self.broker.url, "--result-backend", self.results]

    def executions(self, name: str) -> list[Execution]:
        return [one for one in executions(self.directory / EXECUTED) if one.id == name]

    def messages(self) -> tuple[int, int]:
        """Return how many messages of the queue wait, and how many a worker has."""
        columns = ("name", "messages_ready", "messages_unacknowledged")
        for line in self.broker.ctl("list_queues", "-q", *columns).splitlines():
            name, *numbers = line.split("\t")
            if name == self.queue:
                return int(numbers[0]), int(numbers[1])
        return 0, 0

    def cut(self, worker: Server) -> None:
        """Close all connections; return when the worker is connected again."""
        before = worker.output().count("Connected to amqp")
        self.broker.ctl("close_all_connections", "for the test")
        assert poll(lambda: worker.output().count("Connected to amqp") > before, TIMEOUT)

    def dead_letters(self) -> list[tuple[pika.BasicProperties, str]]:
        """Return this queue's dead letters so far, each with what the task was called with."""
        parameters = pika.URLParameters(self.broker.url.rstrip("/") + "/%2F")
        with pika.BlockingConnection(parameters) as connection:
            channel = connection.channel()
            while (letter := channel.basic_get(DEAD, auto_ack=True))[0]:
                if letter[1].headers["dead_letter"]["routing_key"] == self.queue:
                    self._dead.append((letter[1], json.loads(letter[2])[0][2]))
        return self._dead

    def clear(self) -> None:
        """Take away what a test has left in the queue, once no worker has any of it."""
        assert poll(lambda: self.messages()[1] == 0, TIMEOUT)
        self.broker.ctl("purge_queue", self.queue)
        self.dead_letters()

    def noted(self) -> dict[bytes, set[bytes]]:
        """Return the beginnings that are noted of each task."""
        with redis.Redis.from_url(self.results) as client:
            return {key: client.smembers(key) for key in client.keys("*.begun")}

    def forget(self) -> None:
        """Delete what a worker leaves that is killed right after an acknowledgement."""
        with redis.Redis.from_url(self.results) as client:
            for key in self.noted():
                client.delete(key)


def ask(
    gateway: Server, target: str, body: str | None = None, admin: bool = False
) -> tuple[int, str, str]:
    """Return an answer's status, body and the path of its Location."""
    url = gateway.admin_url if admin else gateway.url
    method = "GET" if body is None else "POST"
    answer = fetch(url + target, method=method, body=body and body.encode())
    location = answer.headers.get("location", "").removeprefix("https://hooks.example.com")
    return answer.status, answer.body.decode(), location


def accept(gateway: Server, target: str, name: str) -> str:
    status, _, location = ask(gateway, f"/accept?{target}", name)
    assert status == 202
    return location


def result(gateway: Server, location: str) -> tuple[int, str]:
    assert poll(lambda: ask(gateway, location)[0] != 202, TIMEOUT)
    return ask(gateway, location)[:2]
