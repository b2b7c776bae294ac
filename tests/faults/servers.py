"""The servers that a row breaks: the broker, the result store."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar
from urllib.parse import urlsplit

import amqp

from gateway.stack import RabbitMQ, Server, Stack

T = TypeVar("T")


class Servers:
    """The broker and the result store, kept from row to row until a row spoils them."""

    def __init__(self, stack: Stack):
        self.stack = stack
        self._broker: RabbitMQ | None = None
        self._results: Server | None = None

    @property
    def broker(self) -> RabbitMQ:
        if self._broker is None:
            self._broker = self.stack.rabbitmq()
        return self._broker

    @property
    def results(self) -> Server:
        if self._results is None:
            self._results = self.stack.redis()
        return self._results

    def discard(self) -> None:
        """Forget both: the next row gets new ones."""
        for server in (self._broker, self._results):
            if server is not None:
                server.kill()
        self._broker = self._results = None


@contextmanager
def channel(broker: Server) -> Iterator[amqp.Channel]:
    """Open a channel to `broker` for what a row does itself."""
    with amqp.Connection(f"127.0.0.1:{port_of(broker)}") as connection:
        yield connection.channel()


def together(*works: Callable[[], T]) -> list[T]:
    """Do several things at the same time; raises what the first that failed has raised."""
    with ThreadPoolExecutor(len(works)) as threads:
        return [work.result() for work in [threads.submit(work) for work in works]]


def port_of(server: Server) -> int:
    """Return the port of a server's URL."""
    return urlsplit(server.url).port
