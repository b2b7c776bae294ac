"""The servers of a load test: private ones, whose processes can be measured."""

from __future__ import annotations

import os
import re
import secrets
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Protocol, Self, cast
from urllib.parse import urlsplit
from urllib.request import urlopen

import psutil

from gateway import stack
from gateway.stack import free_port
from gateway.stack.loopback import accepts
from gateway.stack.programs import find, find_rabbitmq
from gateway.stack.server import lives, poll

NGINX_CONF = Path(__file__).parents[1] / "deploy" / "nginx.conf"
_CTL_TIMEOUT = 60  # seconds for one rabbitmqctl


def nginx_config(
    home: Path, port: int, upstreams: Sequence[int | str], directives: Mapping[str, str]
) -> str:
    """Return deploy/nginx.conf with its ports replaced and all its files below `home`.

    `upstreams` are ports, or addresses in nginx's own words; `directives` are new values for
    directives in that file.
    """
    text = NGINX_CONF.read_text()
    # All upstream servers get the parameters of the first one in the file.
    server = re.compile(r"^ *server 127\.0\.0\.1:\d+([^;]*);\n", re.MULTILINE)
    found = server.search(text)
    parameters = found[1] if found else ""
    addresses = (f"127.0.0.1:{each}" if isinstance(each, int) else each for each in upstreams)
    lines = "".join(f"        server {address}{parameters};\n" for address in addresses)
    once = iter([lines])
    text = server.sub(lambda _: next(once, ""), text)
    text = re.sub(r"\blisten \d+", f"listen 127.0.0.1:{port}", text)
    for name, value in directives.items():
        text = re.sub(rf"^( *{name}) [^;]*;", rf"\1 {value};", text, flags=re.MULTILINE)
    # Workers of another account could not access the private directory, and only root may set the
    # account.
    user = "user root;" if os.geteuid() == 0 else ""
    text = re.sub(r"^user .*;", user, text, flags=re.MULTILINE)
    for directory in ("/var/log/nginx", "/run"):
        text = text.replace(f"{directory}/", f"{home}/")
    # The compiled-in default directories belong to the machine's own nginx.
    temporary = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    paths = "".join(f"    {name}_temp_path {home}/{name};\n" for name in temporary)
    return text.replace("http {\n", f"http {{\n{paths}", 1)


def descriptors(pid: int) -> int:
    """Count a process' open file descriptors; none where it has ended."""
    with suppress(psutil.NoSuchProcess):
        return int(psutil.Process(pid).num_fds())
    return 0


class Measurable(Protocol):
    """A server, or several that are measured as one."""

    def cpu_seconds(self) -> float:
        """Add up user and system time, in seconds."""

    def rss_bytes(self) -> int:
        """Add up the resident memory."""

    def descriptors(self) -> int:
        """Count the open file descriptors."""

    def output(self) -> str:
        """Return all that has been written."""


class Measured(stack.Server):
    """A server that can be restarted, and tells what it and its descendants have used.

    As a context manager it is stopped at the end.
    """

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.stop()

    def restart(self) -> None:
        """Stop it if it runs, start it again with the same command, and wait until it is ready.

        Its ports and data stay the same.
        """
        self.stop()
        self._start()
        self.wait_ready()

    def pids(self) -> list[int]:
        """Return the ids of the process and its descendants that are running."""
        return [process.pid for process in self.family() if lives(process)]

    def cpu_seconds(self) -> float:
        """Add up user and system time, in seconds.

        What has ended counts through the parent that waited for it.
        """
        total = 0.0
        for process in self.family():
            with suppress(psutil.NoSuchProcess):
                used = process.cpu_times()
                total += used.user + used.system + used.children_user + used.children_system
        return total

    def rss_bytes(self) -> int:
        """Add up the resident memory; shared pages count in each process."""
        total = 0
        for process in self.family():
            with suppress(psutil.NoSuchProcess):
                total += process.memory_info().rss
        return total

    def descriptors(self) -> int:
        """Count the open file descriptors."""
        return sum(map(descriptors, self.pids()))

    def metric(self, name: str) -> float:
        """Return a gateway's metric by its admin port, added up over all labels."""
        with urlopen(f"{self.admin_url}/metrics", timeout=10) as answer:
            lines = answer.read().decode().splitlines()
        found = [line for line in lines if re.match(rf"{name}[ {{]", line)]
        return sum(float(line.rpartition(" ")[2]) for line in found)

    def connections(self) -> int:
        """Count the TCP connections that others have opened to the port of its URL."""
        port = urlsplit(self.url).port
        total = 0
        for process in self.family():
            with suppress(psutil.NoSuchProcess):
                total += sum(
                    one.status == psutil.CONN_ESTABLISHED and one.laddr.port == port
                    for one in process.net_connections("tcp")
                )
        return total


class RabbitMQ(Measured):
    """A RabbitMQ node that can be measured."""

    def ctl(self, *args: str) -> str:
        """Run rabbitmqctl against this node and return its output.

        Raises stack.StackError with its message when it fails, or does not end within 60 s.
        """
        argv = [find_rabbitmq("rabbitmqctl"), "-q", *args]
        command = f"rabbitmqctl {' '.join(args)}"
        try:
            done = subprocess.run(
                argv, env=self.env, capture_output=True, text=True, timeout=_CTL_TIMEOUT
            )
        except subprocess.TimeoutExpired as exc:
            raise stack.StackError(f"{command}: no answer in {_CTL_TIMEOUT} s") from exc
        if done.returncode:
            raise stack.StackError(f"{command}: {(done.stderr or done.stdout).strip()}")
        return done.stdout


class Stack(stack.Stack):
    """Starts servers that can be measured."""

    server_class: type[stack.Server] = Measured
    rabbitmq_class: type[stack.Server] = RabbitMQ

    def rabbitmq(self, config: str = "", port: int | None = None) -> RabbitMQ:
        """Start a RabbitMQ node, as what it is."""
        return cast(RabbitMQ, super().rabbitmq(config, port))

    def redis(self, *extra_args: str) -> stack.Server:
        """Start a redis-server that keeps nothing on disk, with `extra_args` in its command."""
        return self._redis("redis", find("redis-server", "redis-server"), *extra_args)

    def worker(
        self,
        broker: str,
        results: str | None = None,
        app: str = "appserver",
        pool: str = "solo",
        concurrency: int = 1,
        queues: Sequence[str] = ("celery",),
        env: Mapping[str, str] | None = None,
        cwd: Path | str | None = None,
    ) -> stack.Server:
        """Start a Celery worker."""
        node = f"worker-{secrets.token_hex(4)}@localhost"
        argv = [sys.executable, "-m", "celery", "-A", app, "worker", "-n", node, "-l", "INFO"]
        argv += ["-P", pool, "-c", str(concurrency), "-Q", ",".join(queues)]
        # Events between workers, which are of no use to a single one.
        argv += ["--without-gossip", "--without-mingle", "--without-heartbeat"]
        urls = {"GATEWAY_BROKER_URL": broker}
        if results is not None:
            urls["GATEWAY_RESULT_BACKEND"] = results
        env = {**urls, **(env or {})}
        return self.spawn("worker", argv, env=env, cwd=cwd, ready=f"{node} ready.")

    def nginx(self, upstreams: Sequence[int | str], **directives: str) -> stack.Server:
        """Start nginx with deploy/nginx.conf in front of these gateways; see `nginx_config`."""
        command, port = find("nginx", "nginx"), free_port()
        home = self._home("nginx", port)
        config = home / "nginx.conf"
        config.write_text(nginx_config(home, port, upstreams, directives))
        argv = [command, "-p", str(home), "-e", "stderr", "-c", str(config), "-g", "daemon off;"]
        server = self.spawn("nginx", argv, ready=lambda: accepts(port))
        server.url = f"http://127.0.0.1:{port}"
        return server

    def workers(
        self,
        number: int,
        env: Mapping[str, str],
        *options: str,
        app: str = "appserver",
        cwd: Path | str | None = None,
    ) -> stack.Server:
        """Start so many solo workers under one supervisor; `options` are those of each."""
        name = f"worker-{secrets.token_hex(4)}-"
        argv = [sys.executable, "-m", "appserver", "--workers", str(number), "--name", name, app]
        argv += ["-l", "INFO", "--without-gossip", "--without-mingle", "--without-heartbeat"]
        server = self.spawn("workers", [*argv, *options], env=env, cwd=cwd)
        if not poll(lambda: server.output().count(" ready.") == number, 60):
            raise stack.StackError(f"{server.name} are not ready{server.tail()}")
        return server


def measured(server: stack.Server) -> Measured:
    """Return `server`, which a `Stack` has started, as what it is."""
    return cast(Measured, server)
