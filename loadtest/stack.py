"""The servers of a load test: private ones, whose processes can be measured."""

from __future__ import annotations

import secrets
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Protocol, cast
from urllib.parse import urlsplit

import psutil

from gateway import stack
from gateway.stack.server import poll


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
    """A server that tells what it and its descendants have used."""

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


class MeasuredRabbitMQ(Measured, stack.RabbitMQ):
    """A RabbitMQ node."""


class Stack(stack.Stack):
    """Starts servers that can be measured."""

    server_class: type[stack.Server] = Measured
    rabbitmq_class: type[stack.RabbitMQ] = MeasuredRabbitMQ

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
