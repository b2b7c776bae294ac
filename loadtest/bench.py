"""The servers of a load test, and whatever stands in front of them, one at a time."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import redis
from amqp.exceptions import AMQPError
from kombu import Connection

from gateway.stack import StackError, free_port
from gateway.stack.loopback import accepts
from loadtest.envelope import GITHUB, PLAIN, SECRET, Envelope
from loadtest.machine import python_path
from loadtest.servers import busy
from loadtest.stack import Measurable, Measured, Stack, measured

_ROUTE = """\
[[routes]]
path = "/{name}"
task = "appserver.tasks.{name}"
deadline = {deadline}

"""
#: A source and a route for signed deliveries, which have an identity; settings come before it.
SIGNED = f"""
[sources.github]
scheme = "github"
secrets = "{SECRET.decode()}"

[[routes]]
path = "/signed"
source = "github"
task = "appserver.tasks.echo"

"""


@dataclass(frozen=True)
class Front:
    """Where requests go: a server's address and a path, and how a body travels.

    `servers` are the processes that take part in answering, by their kind (`table.PROCESSES`).
    """

    address: str
    servers: dict[str, Measurable] = field(default_factory=dict)
    path: str = "/echo"
    envelope: Envelope = PLAIN

    @property
    def url(self) -> str:
        return self.address + self.path

    def at(self, path: str) -> Front:
        return replace(self, path=path)

    def signed(self) -> Front:
        """Return it as it is for deliveries that are signed, by the route `SIGNED`."""
        return replace(self, path="/signed", envelope=GITHUB)

    def output(self) -> str:
        """Return what the HTTP server and the workers have written."""
        return "".join(self.servers[n].output() for n in ("gateway", "worker") if n in self.servers)


@dataclass(frozen=True)
class Peer:
    """Another product: ``python -m`` and its `command`, the path, how a body travels.

    `worker` runs its tasks, in the same way, and has started when it writes `ready`; without one,
    the Celery worker that everybody has runs them.
    """

    name: str
    command: str
    path: str = "/"
    envelope: Envelope = PLAIN
    worker: str = ""
    ready: str = ""


class Bench:
    """A private RabbitMQ and Redis, and workers and HTTP servers beside them.

    `deadline` is that of a gateway's requests and `result_expires` the life of a stored result,
    both in seconds; `config` is what the gateway's file says beside. All that a context manager
    has started is stopped again at its end: what is idle would have connections and heartbeats.
    """

    def __init__(
        self, stack: Stack, deadline: float = 30.0, result_expires: int = 300, config: str = ""
    ):
        print("starting RabbitMQ and Redis", flush=True)
        self._stack = stack
        self.deadline = deadline
        self.broker = stack.rabbitmq()
        self.redis = stack.redis()
        self.servers: dict[str, Measurable] = {
            "broker": measured(self.broker),
            "redis": measured(self.redis),
        }
        self._config = stack.directory / "gateway.toml"
        routes = (_ROUTE.format(name=name, deadline=deadline) for name in ("echo", "sleep"))
        self._config.write_text(config + "".join(routes))
        self._env = {
            "GATEWAY_BROKER_URL": self.broker.url,
            "GATEWAY_RESULT_BACKEND": self.redis.url,
            "GATEWAY_RESULT_EXPIRES": str(result_expires),
        }

    def versions(self) -> dict[str, str | None]:
        """Return the versions of the servers."""
        with self.ask_redis() as connection:
            server = connection.info("server")
        try:
            with Connection(self.broker.url) as link:
                link.connect()
                broker = link.connection.server_properties
        except (AMQPError, OSError) as exc:
            raise StackError(f"RabbitMQ: {exc}") from exc
        return {"RabbitMQ": broker["version"], "Redis": server["redis_version"]}

    @contextmanager
    def worker(
        self,
        pool: str = "solo",
        size: int = 1,
        count: int = 1,
        queues: Sequence[str] = ("celery",),
        env: Mapping[str, str] | None = None,
        app: str = "",
        results: str = "",
    ) -> Iterator[Front]:
        """Run `count` Celery workers, each with `size` processes, threads or greenlets.

        They run the app server and have its result backend, unless another `app` and other
        `results` are named. Gives what is measured where nothing stands in front of them.
        """
        env = {**self._env, **(env or {})}
        options = {"app": app} if app else {}
        if app:
            env |= python_path()
        with ExitStack() as running:
            for _ in range(count):
                worker = self._stack.worker(
                    self.broker.url,
                    results or self.redis.url,
                    pool=pool,
                    concurrency=size,
                    queues=queues,
                    env={**env, "GATEWAY_RESULT_BACKEND": results or self.redis.url},
                    **options,
                )
                running.enter_context(self._beside(measured(worker)))
            yield Front("", dict(self.servers))

    def stock_worker(
        self, replies: bool, pool: str = "solo", size: int = 1, queues: Sequence[str] = ("celery",)
    ) -> AbstractContextManager[Front]:
        """Run Celery's own worker; it replies over AMQP, or stores its results in Redis."""
        results = "rpc://" if replies else ""
        return self.worker(pool, size, queues=queues, app="loadtest.servers.plain", results=results)

    def supervised_workers(self, count: int) -> AbstractContextManager[None]:
        """Run `count` workers of the pool `solo` under one supervisor."""
        return self._beside(measured(self._stack.workers(count, self._env)))

    def stand_in(self, seconds: float, announce: int = 0) -> AbstractContextManager[None]:
        """Run a stand-in for workers that answers every task after `seconds`."""
        options = ["--seconds", str(seconds), "--announce", str(announce)]
        worker = self._python("stand-in", "loadtest.servers.worker", *options, ready="ready")
        return self._beside(worker)

    @contextmanager
    def _beside(self, worker: Measured) -> Iterator[None]:
        before = self.servers
        others = before.get("worker")
        group = _Group([*(others.servers if isinstance(others, _Group) else ()), worker])
        self.servers = {**before, "worker": group}
        try:
            yield
        finally:
            self.servers = before
            worker.stop()

    @contextmanager
    def gateway(self, strategy: str, *options: str, path: str = "/echo") -> Iterator[Front]:
        """Run a gateway; `options` are those of its command line."""
        self._forget_results()
        gateway = measured(
            self._stack.gateway(
                *("--config", str(self._config), "--strategy", strategy),
                *("--timeout", str(self.deadline)),
                *options,
                env=self._env,
            )
        )
        with gateway:
            yield Front(gateway.url, {"gateway": gateway, **self.servers}, path)

    @contextmanager
    def archiver(self, file: Path, config: Path) -> Iterator[None]:
        """Copy the journal of `config` into the SQLite database `file`, which is made."""
        argv = [sys.executable, "-m", "gateway", "archive", "--config", str(config)]
        with measured(self._stack.spawn("archiver", argv, env=self._env, ready=file.exists)):
            yield

    @contextmanager
    def alone(self, seconds: float, *options: str) -> Iterator[Front]:
        """Run Tornado alone: it answers after `seconds` itself."""
        port = free_port()
        options = ("--port", str(port), "--seconds", str(seconds), *options)
        with self._python("tornado", "loadtest.servers.alone", *options, ready=port) as server:
            yield Front(f"http://127.0.0.1:{port}", {"gateway": server})

    @contextmanager
    def busy(self, rate: float, us: float) -> Iterator[Front]:
        """Run a process that uses `us` microseconds of CPU time `rate` times a second."""
        options = (f"--rate={rate}", f"--us={us}")
        with self._python("busy", "loadtest.servers.busy", *options, ready=busy.READY) as server:
            yield Front("", {"gateway": server, **self.servers})

    @contextmanager
    def other(self, peer: Peer) -> Iterator[Front]:
        """Run another product between HTTP and Celery, or in place of both."""
        self._forget_results()
        port = free_port()
        module, *options = peer.command.split()
        with ExitStack() as stack:
            servers = dict(self.servers)
            if peer.worker:
                worker, *its = peer.worker.split()
                tasks = self._python("worker", worker, *its, ready=peer.ready)
                servers["worker"] = stack.enter_context(tasks)
            server = self._python(peer.name, module, *options, f"--port={port}", ready=port)
            stack.enter_context(server)
            address = f"http://127.0.0.1:{port}"
            yield Front(address, {"gateway": server, **servers}, peer.path, peer.envelope)

    @contextmanager
    def nginx(self, upstream: str, front: Front) -> Iterator[Front]:
        """Run nginx with the project's configuration before `front`, which it finds at
        `upstream`, in nginx's own words."""
        with measured(self._stack.nginx([upstream])) as server:
            servers = {**front.servers, "nginx": server}
            yield replace(front, address=server.url, servers=servers)

    def _python(self, name: str, module: str, *options: str, ready: str | int) -> Measured:
        server = self._stack.spawn(
            name,
            [sys.executable, "-m", module, *options],
            env={**self._env, **python_path(), "FLOWER_UNAUTHENTICATED_API": "true"},
            ready=ready if isinstance(ready, str) else lambda: accepts(ready),
        )
        return measured(server)

    def connections_open(self) -> dict[str, int]:
        """Count what the broker and Redis have open, the worker's connections included."""
        with self.ask_redis() as connection:
            clients = connection.info("clients")["connected_clients"]
        # The kernel knows it for nothing; rabbitmqctl takes half a second of CPU.
        return {"broker": measured(self.broker).connections(), "redis": clients - 1}  # our own

    def holdings(self, front: Front) -> dict[str, float]:
        """Return what `front`, the worker, the broker and Redis hold: megabytes, and numbers."""
        gateway, worker = front.servers["gateway"], front.servers["worker"]
        held = {
            "memory": round(gateway.rss_bytes() / 2**20, 1),
            "worker_memory": round(worker.rss_bytes() / 2**20, 1),
            "descriptors": gateway.descriptors(),
        }
        # Last, as each takes a second of CPU, in which requests pile up.
        listed = self.broker.ctl("list_queues", "messages", "--no-table-headers").split()
        channels = self.broker.ctl("list_channels", "pid", "--no-table-headers").splitlines()
        with self.ask_redis() as connection:
            keys, memory = connection.dbsize(), connection.info("memory")["used_memory"]
        return {
            **held,
            "keys": keys,
            "redis_memory": round(memory / 2**20, 2),
            "channels": len(channels),
            "queues": len(listed),
            "messages": sum(map(int, listed)),
        }

    def _forget_results(self) -> None:
        # Those of the last one, or Redis would grow from run to run.
        with self.ask_redis() as connection:
            connection.flushall()

    @contextmanager
    def ask_redis(self) -> Iterator[redis.Redis]:
        """Connect to Redis; raises StackError where it does not answer."""
        try:
            with redis.Redis.from_url(self.redis.url) as connection:
                yield connection
        except redis.RedisError as exc:
            raise StackError(f"Redis: {exc}") from exc


class _Group:
    """Several servers of a kind, measured as one."""

    def __init__(self, servers: list[Measured]):
        self.servers = servers

    def cpu_seconds(self) -> float:
        return sum(server.cpu_seconds() for server in self.servers)

    def rss_bytes(self) -> int:
        return sum(server.rss_bytes() for server in self.servers)

    def descriptors(self) -> int:
        return sum(server.descriptors() for server in self.servers)

    def output(self) -> str:
        return "".join(server.output() for server in self.servers)
