"""The servers of the tests: private ones that can be measured, frozen, and made a cluster of."""

from __future__ import annotations

import glob
import os
import secrets
import shutil
import signal
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from typing import Any, ClassVar, ParamSpec, TypeVar, cast
from urllib.parse import urlsplit

import redis

from gateway.stack import ProgramMissing, StackError, free_port
from gateway.stack.programs import find
from loadtest import stack
from loadtest.stack import Measured
from tests.support.clock import Clock
from tests.support.environment import measured
from tests.support.rabbitmqctl import Rabbitmqctl

__all__ = [
    "Clock",
    "ProgramMissing",
    "RabbitMQ",
    "Server",
    "Stack",
    "StackError",
    "free_port",
    "shared",
]

_DUMP = "case whereis(mnesia_sup) of undefined -> dumped; _ -> mnesia:dump_log() end."


class Server(Measured):
    """A server that can be stopped where it is."""

    @property
    def port(self) -> int:
        return cast(int, urlsplit(self.url).port)

    @property
    def admin_port(self) -> int:
        return cast(int, urlsplit(self.admin_url).port)

    @property
    def client(self) -> redis.Redis:
        """A new client of the server, which is a Redis."""
        return redis.Redis.from_url(self.url)

    def freeze(self) -> None:
        """Stop the process and its descendants (SIGSTOP) where they are, until `thaw`."""
        self.signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let a frozen server go on."""
        self.signal(signal.SIGCONT)

    @contextmanager
    def frozen(self) -> Iterator[None]:
        self.freeze()
        try:
            yield
        finally:
            self.thaw()


class RabbitMQ(Server, stack.RabbitMQ):
    """A RabbitMQ node, alone or in a cluster; its stack has the process that `ctl` runs in."""

    rabbitmqctl: Callable[[], Rabbitmqctl]
    tls_url = ""

    def ctl(self, *args: str) -> str:
        try:
            return self.rabbitmqctl().run("-n", self.node, "-q", *args)
        except StackError as exc:
            if self.alive():
                raise
            raise StackError(f"{exc}\n{self.name} has ended{self.tail()}") from exc

    @property
    def node(self) -> str:
        """Its name among Erlang's nodes."""
        return self.env["RABBITMQ_NODENAME"]

    def join(self, other: RabbitMQ) -> None:
        """Make this node one of `other`'s cluster; it forgets what it had."""
        self.ctl("stop_app")
        self.ctl("join_cluster", other.node)
        self.ctl("start_app")

    def wipe(self) -> None:
        """Forget all queues, exchanges, policies and users, but for what a new node has."""
        for user in self.ctl("list_users", "-s").splitlines():
            if (name := user.split("\t")[0]) != "guest":
                self.ctl("delete_user", name)
        self.ctl("delete_vhost", "/")
        self.ctl("add_vhost", "/")
        self.ctl("set_permissions", "guest", ".*", ".*", ".*")

    def recover(self) -> None:
        """Serve again, whatever a test that has failed may have left."""
        if not self.alive():
            self.restart()
        self.thaw()
        self.ctl("start_app")
        self.ctl("set_vm_memory_high_watermark", "0.4")

    @contextmanager
    def alarm(self) -> Iterator[None]:
        """Have no memory left, so that connections which publish are blocked."""
        self.ctl("set_vm_memory_high_watermark", "0")
        try:
            yield
        finally:
            self.ctl("set_vm_memory_high_watermark", "0.4")

    @contextmanager
    def setting(self, name: str, value: int) -> Iterator[None]:
        """Give this value to a setting that RabbitMQ reads for each connection."""
        get = f"{{ok, Value}} = application:get_env(rabbit, {name}), Value."
        change = "application:set_env(rabbit, {0}, {1})."
        before = self.ctl("eval", get).strip()
        self.ctl("eval", change.format(name, value))
        try:
            yield
        finally:
            self.ctl("eval", change.format(name, before))

    def sync(self) -> None:
        """Put the definitions of queues, exchanges and users on disk.

        A node that is killed in its first seconds may have lost what was declared last, and a
        lost queue takes its confirmed messages along. RabbitMQ 3.10, killed right after the
        first declaration: 2 of 18 times; 3 seconds later: 0 of 15; after this: 0 of 36. Where
        there is no Mnesia, Khepri has written each definition before it was confirmed.

        Raises StackError where that did not succeed.
        """
        answer = self.ctl("eval", _DUMP).strip()
        if answer != "dumped":  # rabbitmqctl is content with any value
            raise StackError(f"Mnesia's log is not on disk: {answer}")


class Stack(stack.Stack):
    """Starts such servers."""

    server_class = Server
    rabbitmq_class = RabbitMQ

    #: What was started since the test or the fixture that runs has begun.
    started: ClassVar[list[Server]] = []
    _rabbitmqctl: Rabbitmqctl | None = None
    _starting = threading.Lock()

    def rabbitmq(self, config: str = "", port: int | None = None) -> RabbitMQ:
        """Start a RabbitMQ node; those of one stack can form a cluster."""
        node = cast(RabbitMQ, super().rabbitmq(config, port))

        def rabbitmqctl() -> Rabbitmqctl:
            with self._starting:
                self._rabbitmqctl = self._rabbitmqctl or Rabbitmqctl(self, node.env)
            return self._rabbitmqctl

        node.rabbitmqctl = rabbitmqctl
        return node

    def spawn(
        self,
        name: str,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        **options: Any,
    ) -> Server:
        """Start a process; where the tests' coverage is measured, that of the process is, too."""
        server = super().spawn(name, argv, env={**measured(), **(env or {})}, **options)
        if name not in ("epmd", "rabbitmqctl"):  # one of each is there for all nodes
            self.started.append(server)
        return server

    def postgresql(self) -> Server:
        """Start a PostgreSQL with an empty database; it does not run as root, so nor does this."""
        port, home = free_port(), Path(tempfile.mkdtemp(prefix="gateway-postgresql-"))
        self._exit.callback(shutil.rmtree, home, ignore_errors=True)
        where = sorted(glob.glob("/usr/lib/postgresql/*/bin"))
        first, program = tuple(where[-1:]), "postgres"
        other = []
        if os.geteuid() == 0:
            shutil.chown(home, "postgres", "postgres")
            other = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"]
        find_in = partial(find, package="postgresql", first=first)
        argv = [*other, find_in("initdb"), "-D", str(home / "data"), "-A", "trust", "-U", "gateway"]
        made = subprocess.run([*argv, "-E", "UTF8"], capture_output=True, text=True, cwd="/")
        if made.returncode:
            raise StackError(made.stderr)
        settings = {"listen_addresses": "127.0.0.1", "port": port, "fsync": "off"}
        settings["unix_socket_directories"] = home
        argv = [*other, find_in(program), "-D", str(home / "data")]
        for name, value in settings.items():
            argv += ["-c", f"{name}={value}"]
        ready = "database system is ready to accept connections"
        server = self.spawn("postgresql", argv, cwd="/", ready=ready)
        server.url = f"postgresql://gateway@127.0.0.1:{port}/postgres"
        return server

    def rabbitmq_cluster(self, nodes: int = 3, config: str = "") -> list[RabbitMQ]:
        """Start so many RabbitMQ nodes with a `config`, and make one cluster of them."""
        self._epmd()  # one for all
        with ThreadPoolExecutor(nodes) as threads:
            started = threads.map(lambda _: self.rabbitmq(config), range(nodes))
        first, *others = started
        for node in others:  # in turn, so that each learns of those before it
            node.join(first)
        return [first, *others]

    def clock(self) -> Clock:
        """Make a clock that can be stepped, for who is started with its `env`."""
        return Clock(self.directory / f"clock-{secrets.token_hex(4)}")


P, T = ParamSpec("P"), TypeVar("T")


def shared(start: Callable[P, T]) -> Callable[P, T]:
    """Have `start` start what it is asked for once, and let that outlive the test which asks."""

    @cache
    def start_once(*args: P.args, **options: P.kwargs) -> T:
        before = list(Stack.started)
        found = start(*args, **options)
        Stack.started[:] = before
        return found

    return cast(Callable[P, T], start_once)
