"""The servers that a row breaks: the broker, the result store."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import urlsplit

import amqp
from redis import Redis

from tests.support.stack import RabbitMQ, Server, Stack

if TYPE_CHECKING:
    from tests.faults.lane import Lane

T = TypeVar("T")


class Servers:
    """The broker and the result store, kept from row to row until a row spoils them.

    `versions` names those that have been started, `redis_options` go on redis-server's command
    line. A `broker` that is given is others' as well: it is started again instead of replaced.
    """

    def __init__(self, stack: Stack, *redis_options: str, broker: RabbitMQ | None = None):
        self.stack = stack
        self.versions: dict[str, str] = {}
        self._redis_options = redis_options
        self._given = broker
        self._broker: RabbitMQ | None = None
        self._results: Server | None = None
        self._lanes: dict[str, list[Lane]] = {}

    @property
    def broker(self) -> RabbitMQ:
        if self._broker is None:
            self._broker = self._given or self.stack.rabbitmq()
            self.versions["rabbitmq"] = _rabbitmq_version(self._broker)
        return self._broker

    @property
    def results(self) -> Server:
        if self._results is None:
            self._results = self.stack.redis(*self._redis_options)
            self.versions |= _redis_version(self._results)
        return self._results

    @property
    def running(self) -> dict[str, Server]:
        """Return those that were started, by the names that faults know them by."""
        both = {"broker": self._broker, "redis": self._results}
        return {name: server for name, server in both.items() if server is not None}

    def keep(self, asked: str, lanes: list[Lane]) -> None:
        """Keep what runs in `lanes` for the next row that has `asked` for the same."""
        self._lanes[asked] = lanes

    def take(self, asked: str) -> list[Lane]:
        """Return lanes that were kept, as new; none where there are none."""
        return [lane.anew() for lane in self._lanes.pop(asked, [])]

    def discard(self) -> None:
        """Forget all of them: the next row gets new ones."""
        with ExitStack() as ending:  # all of them, whatever becomes of one
            if self._given is not None:
                ending.callback(self._given.restart)
            elif self._broker is not None:
                ending.callback(self._broker.kill)
            self._broker = None
            self.close()

    def close(self) -> None:
        """Stop all but the broker."""
        with ExitStack() as ending:
            if self._results is not None:
                ending.callback(self._results.kill)
            for lane in [lane for lanes in self._lanes.values() for lane in lanes]:
                ending.callback(lane.stop)
        self._results, self._lanes = None, {}


def _rabbitmq_version(broker: Server) -> str:
    with amqp.Connection(f"127.0.0.1:{port_of(broker)}") as connection:
        return connection.server_properties["version"]


def _redis_version(results: Server) -> dict[str, str]:
    with Redis.from_url(results.url) as redis:
        info = redis.info("server")
    # Valkey also says which Redis it stands for.
    name = "valkey" if "valkey_version" in info else "redis"
    return {name: info[f"{name}_version"]}


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
