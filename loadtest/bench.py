"""The servers of a load test, one gateway at a time in front of them, and one measurement."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import redis

from gateway.stack import Server, Stack, StackError
from loadtest import client, wrk

PROCESSES = ("gateway", "worker", "broker", "redis", "nginx")
CHECKED = 2_000  # requests that are compared one to one
AT_ONCE = 200

_ROUTE = """\
[[routes]]
path = "/"
task = "{task}"
deadline = {deadline}
"""


@dataclass(frozen=True)
class Task:
    """What the worker does with each request; it answers with the body after `seconds`."""

    name: str
    seconds: float = 0.0

    @classmethod
    def parse(cls, text: str) -> Task:
        """Read ``echo`` or ``sleep:SECONDS``; raises ValueError."""
        if text == "echo":
            return cls("appserver.tasks.echo")
        kind, _, seconds = text.partition(":")
        if kind != "sleep" or not 0 < float(seconds) <= 10:
            raise ValueError(text)
        return cls("appserver.tasks.sleep", float(seconds))

    @property
    def path(self) -> str:
        return f"/?seconds={self.seconds:g}" if self.seconds else "/"

    @property
    def pool(self) -> tuple[str, int]:
        """The worker's pool and its size: one task at a time, or as many as may sleep at once."""
        return ("threads", 128) if self.seconds else ("solo", 1)

    def deadline(self, connections: int) -> float:
        """Return a deadline in seconds that even a strategy that works one by one can keep."""
        return 30 + 2 * connections * self.seconds


class Bench:
    """A private RabbitMQ, Redis and Celery worker; gateways are started in front of them."""

    def __init__(self, stack: Stack, task: Task, connections: int):
        self._stack = stack
        self._task = task
        self._deadline = task.deadline(max(connections, AT_ONCE))
        self._broker = stack.rabbitmq()
        self._redis = stack.redis()
        pool, size = task.pool
        self._worker = stack.worker(self._broker.url, self._redis.url, pool=pool, concurrency=size)
        self._config = stack.directory / "gateway.toml"
        self._config.write_text(_ROUTE.format(task=task.name, deadline=self._deadline))

    def versions(self) -> dict[str, str]:
        """Return the versions of the servers."""
        with self._ask_redis() as connection:
            server = connection.info("server")
        return {
            "RabbitMQ": self._broker.ctl("version").strip(),
            "Redis": server["redis_version"],
        }

    @contextmanager
    def gateway(self, strategy: str) -> Iterator[Server]:
        """Run a gateway, and no other one: idle ones would have connections and a heartbeat."""
        with self._ask_redis() as connection:
            connection.flushall()  # results of the last one, or memory would grow from run to run
        gateway = self._stack.gateway(
            *("--config", str(self._config), "--strategy", strategy),
            *("--broker", self._broker.url, "--result-backend", self._redis.url),
            *("--timeout", str(self._deadline)),
        )
        try:
            yield gateway
        finally:
            gateway.stop()

    def check(self, gateway: Server) -> dict[str, int]:
        """Compare `CHECKED` requests one to one, which warms up everything as well."""
        # Twice what a strategy needs that has one task run at a time.
        timeout = 60 + 2 * CHECKED * self._task.seconds
        return client.check(gateway.url + self._task.path, CHECKED, AT_ONCE, timeout)

    def measure(
        self, gateway: Server, connections: int, threads: int, duration: int
    ) -> dict[str, Any]:
        """Load `gateway` for `duration` seconds and return a row's figures.

        `errors` is the sum of `errors_by_kind`; CPU is user and system time; what has no process
        here counts 0. Raises `WrkError`, and `StackError` where a server refuses to be asked.
        """
        servers = {
            "gateway": gateway,
            "worker": self._worker,
            "broker": self._broker,
            "redis": self._redis,
        }
        before = {name: server.cpu_seconds() for name, server in servers.items()}
        url = gateway.url + self._task.path
        found = wrk.run(url, connections, threads, duration, self._deadline + 5)
        after = {name: server.cpu_seconds() for name, server in servers.items()}
        rss = {name: server.rss_bytes() for name, server in servers.items()}
        row = {
            "connections": connections,
            "requests": found["requests"],
            "rps": round(found["requests"] / found["seconds"], 1),
            "errors": sum(found["errors"].values()),
            "errors_by_kind": found["errors"],
            "wrong_answers": found["wrong_answers"],
            "latency_ms": found["latency_ms"],
            "cpu_us_per_request": {
                name: round((after[name] - before[name]) * 1e6 / max(found["requests"], 1), 1)
                if name in servers
                else 0.0
                for name in PROCESSES
            },
            "rss_mb": {name: round(rss.get(name, 0) / 2**20, 1) for name in PROCESSES},
            "connections_open": self._connections_open(),
        }
        # The worker's queue holds what was in flight; behind it, this one finds it empty.
        last = client.check(url, 1, 1, math.ceil(self._deadline) + 5)
        row["errors_by_kind"]["missing"] += last["missing"]
        row["errors_by_kind"]["status"] += last["not_2xx"]
        row["wrong_answers"] += last["wrong_answers"]
        row["errors"] += last["missing"] + last["not_2xx"]
        return row

    def _connections_open(self) -> dict[str, int]:
        """Count what the broker and Redis have open, the worker's connections included."""
        listed = self._broker.ctl("list_connections", "pid", "--no-table-headers")
        with self._ask_redis() as connection:
            clients = connection.info("clients")["connected_clients"]
        return {"broker": len(listed.splitlines()), "redis": clients - 1}  # our own

    @contextmanager
    def _ask_redis(self) -> Iterator[redis.Redis]:
        try:
            with redis.Redis.from_url(self._redis.url) as connection:
                yield connection
        except redis.RedisError as exc:
            raise StackError(f"Redis: {exc}") from exc
