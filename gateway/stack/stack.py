"""Start servers by name, and stop all of them."""

from __future__ import annotations

import itertools
import os
import secrets
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Self

from gateway.stack import reaper
from gateway.stack.loopback import accepts, answers_ok, free_port
from gateway.stack.programs import find, find_embedded, find_rabbitmq
from gateway.stack.server import Server, StackError

# Variables that are needed to find programs and for the user's language. No variable may configure
# a server without its caller's knowledge.
_INHERITED = ("PATH", "HOME", "LANG", "LC_ALL", "TZ", "TMPDIR", "PYTHONPATH", "LD_LIBRARY_PATH")

#: The task of attached workers that describes their app. Its success shows that a worker works.
DESCRIBE = "gateway.describe"


def rabbitmq_environment(home: Path, port: int, epmd_port: int, config: str) -> dict[str, str]:
    """Return the environment of a node that shares nothing with the machine's own RabbitMQ.

    Its files are below `home`, an empty directory. The Erlang cookie is in the parent directory of
    `home`, so that several nodes can form a cluster. `config` is added to its rabbitmq.conf.
    """
    (home / "rabbitmq.conf").write_text(f"listeners.tcp.1 = 127.0.0.1:{port}\n{config}")
    for nothing in ("advanced.config", "plugins"):
        (home / nothing).write_text("[].\n")
    loopback = "-kernel inet_dist_use_interface {127,0,0,1}"
    # Without this, idle schedulers spin before they sleep, which counts as the broker's CPU time.
    no_spinning = "+sbwt none +sbwtdcpu none +sbwtdio none"
    return {
        "HOME": str(home.parent),
        "ERL_EPMD_PORT": str(epmd_port),
        "ERL_EPMD_ADDRESS": "127.0.0.1",
        "RABBITMQ_NODENAME": f"rabbit{port}@localhost",
        "RABBITMQ_DIST_PORT": str(free_port()),
        "RABBITMQ_MNESIA_BASE": str(home / "data"),
        "RABBITMQ_LOG_BASE": str(home),
        "RABBITMQ_LOGS": "-",
        "RABBITMQ_PID_FILE": str(home / "pid"),
        "RABBITMQ_CONF_ENV_FILE": str(home / "absent"),
        "RABBITMQ_CONFIG_FILE": str(home / "rabbitmq.conf"),
        "RABBITMQ_ADVANCED_CONFIG_FILE": str(home / "advanced.config"),
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(home / "plugins"),
        "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": f"{loopback} {no_spinning}",
        "RABBITMQ_CTL_ERL_ARGS": loopback,
        # With this the VM replaces the start script's process, so that signals reach it.
        "RUNNING_UNDER_SYSTEMD": "true",
    }


class Stack:
    """Starts servers; at exit, stops them in reverse order and removes their directory.

    With `on_line`, each line of output is also passed to `on_line(name, line)`, in a thread for
    each server, except for servers whose names are in `silent`.
    """

    #: The classes of its servers.
    server_class: type[Server] = Server
    rabbitmq_class: type[Server] = Server

    def __init__(
        self, on_line: Callable[[str, str], None] | None = None, silent: Collection[str] = ()
    ):
        self._on_line, self._silent = on_line, silent
        self._names: set[str] = set()
        self._naming = threading.Lock()
        self._epmd_port: int | None = None
        self._exit = ExitStack()

    def __enter__(self) -> Self:
        directory = tempfile.TemporaryDirectory(prefix="gateway-stack-")
        self.directory = Path(self._exit.enter_context(directory))
        # The reaper kills the servers if this process is killed.
        self._reaper = subprocess.Popen(
            [sys.executable, "-I", reaper.__file__, str(self.directory)],
            stdin=subprocess.PIPE,
            start_new_session=True,
        )
        self._exit.callback(self._reaper.communicate)
        return self

    def _tell_reaper(self, change: str) -> None:
        if self._reaper.stdin is not None:
            with suppress(BrokenPipeError):
                os.write(self._reaper.stdin.fileno(), f"{change}\n".encode())

    def __exit__(self, *exc_info: object) -> None:
        self._exit.close()

    def spawn(
        self,
        name: str,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: Path | str | None = None,
        ready: Callable[[], bool] | str | None = None,
        timeout: float = 60,
        server_class: type[Server] | None = None,
    ) -> Server:
        """Start a process and wait until it is ready.

        `ready` is called until it is true; a string is searched in the output. `env` is added to
        the few inherited variables. Raises StackError, with the last 20 lines of its output unless
        they were passed to `on_line`, when the process ends or `timeout` seconds pass.
        """
        on_line = None if name in self._silent else self._on_line
        numbered = (f"{name}-{n}" for n in itertools.count(2))
        with self._naming:  # servers may be started by several threads
            name = next(n for n in itertools.chain([name], numbered) if n not in self._names)
            self._names.add(name)
        inherited = {key: os.environ[key] for key in _INHERITED if key in os.environ}
        server = (server_class or self.server_class)(
            name,
            argv,
            log=self.directory / f"{name}.log",
            env={**inherited, "PYTHONUNBUFFERED": "1", **(env or {})},
            cwd=cwd,
            ready=ready,
            timeout=timeout,
            on_line=on_line,
            on_change=self._tell_reaper,
        )
        self._exit.callback(server.stop)
        try:
            server.wait_ready()
        except StackError:
            server.kill()
            raise
        return server

    def rabbitmq(self, config: str = "", port: int | None = None) -> Server:
        """Start a RabbitMQ node; those of one stack can form a cluster.

        `config` is added to its rabbitmq.conf.
        """
        command, port = find_rabbitmq("rabbitmq-server"), port or free_port()
        server = self.spawn(
            "rabbitmq",
            [command],
            env=rabbitmq_environment(self._home("rabbitmq", port), port, self._epmd(), config),
            ready="Server startup complete",
            timeout=120,
            server_class=self.rabbitmq_class,
        )
        server.url = f"amqp://guest:guest@127.0.0.1:{port}//"
        return server

    def _epmd(self) -> int:
        # A node that finds no port mapper starts one, which would still run after the node ends.
        if self._epmd_port is None:
            port = free_port()
            argv = [find("epmd", "erlang-base"), "-port", str(port), "-address", "127.0.0.1"]
            self.spawn("epmd", argv, ready=lambda: accepts(port))
            self._epmd_port = port
        return self._epmd_port

    def embedded(self, *extra_args: str) -> Server:
        """Start the Redis-protocol server that needs no installation."""
        return self._redis("embedded", find_embedded(), *extra_args)

    def _redis(self, name: str, command: str, *extra_args: str) -> Server:
        port = free_port()
        argv = [command, "--bind", "127.0.0.1", "--port", str(port), "--save", "", *extra_args]
        # A directory of its own: it would load another server's dump, or end if it cannot read it.
        home = tempfile.mkdtemp(prefix=f"{name}-", dir=self.directory)
        server = self.spawn(name, argv, cwd=home, ready="Ready to accept connections")
        server.url = f"redis://127.0.0.1:{port}/0"
        return server

    def attached_worker(
        self, app: str, queues: Sequence[str], env: Mapping[str, str], own_queue: str = ""
    ) -> Server:
        """Start a worker of `app` on the servers in `env`, instead of those in the app's settings.

        It also consumes `own_queue`, if that is not empty; see `gateway.stack.attached`.
        """
        ready = self.directory / f"worker-{secrets.token_hex(4)}.ready"
        argv = [sys.executable, "-m", "gateway.stack.attached", app, ",".join(queues), str(ready)]
        argv += [own_queue] if own_queue else []
        return self.spawn("worker", argv, env=env, ready=ready.exists)

    def gateway(
        self,
        *args: str,
        port: int | None = None,
        admin_port: int | None = None,
        env: Mapping[str, str] | None = None,
        ready: str = "/readyz",
        wrapper: Sequence[str] = (),
    ) -> Server:
        """Start `gateway serve` with `args`.

        It is ready when the admin path `ready` answers 200 and connections are accepted.
        `wrapper` is a command before it, which executes the command that follows.
        """
        port, admin_port = port or free_port(), admin_port or free_port()
        argv = [*wrapper, sys.executable, "-m", "gateway", "serve", "--host", "127.0.0.1"]
        argv += ["--port", str(port), "--admin-port", str(admin_port), *args]

        def serves() -> bool:
            # Of the pages only `/readyz` says whether connections are accepted.
            return answers_ok(admin_port, ready) and (ready == "/readyz" or accepts(port))

        server = self.spawn("gateway", argv, env=env, ready=serves)
        server.url = f"http://127.0.0.1:{port}"
        server.admin_url = f"http://127.0.0.1:{admin_port}"
        return server

    def _home(self, name: str, port: int) -> Path:
        home = self.directory / f"{name}-{port}"
        home.mkdir()
        return home
