"""What `gateway dev` has started, and what of it is started anew when files change."""

from __future__ import annotations

import os
import secrets
import signal
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from gateway.cli.local import first_task
from gateway.cli.local.plan import Plan
from gateway.cli.local.welcome import warnings
from gateway.config.settings import Config
from gateway.errors import ConfigError
from gateway.stack import Server, Stack, StackError

EVERY = 0.5  # seconds between two looks at the files
_PATIENCE = 30.0  # seconds for the tasks that the old worker has begun


@dataclass
class Running:
    """The servers; `servers` are the others beside worker and gateway."""

    stack: Stack
    plan: Plan
    app: str
    config: Config
    env: dict[str, str]
    servers: list[Server]
    worker: Server
    gateway: Server

    def dead(self) -> list[Server]:
        """Return the servers that have ended."""
        return [it for it in (*self.servers, self.worker, self.gateway) if not it.alive()]

    def reload(self, changed: list[Path]) -> Iterator[str]:
        """Start anew what depends on files that have `changed`; yield lines for the user.

        What is wrong with them is told, and then the old worker or the old routes stay.
        """
        yield f"\n{', '.join(map(str, changed))} changed"
        config, code = self.config, changed != [self.plan.path]
        if self.plan.path in changed:
            try:
                config = self.plan.load(config.brokers[0], config.results)
            except ConfigError as exc:
                yield from (f"not reloaded: {problem}" for problem in exc.problems)
        if code or config.queues != self.config.queues:
            try:
                described = self._restart_worker(config)
            except StackError as exc:
                yield f"not reloaded: {exc}; the old worker goes on"
                return
            yield from warnings(config, self.app, described, self.plan.path)
            yield "a new worker has taken over"
        if config is not self.config:
            self.config = config
            os.kill(self.gateway.pid, signal.SIGHUP)  # only the parent, which replaces its children
            yield "the gateway reads its routes again"

    def _restart_worker(self, config: Config) -> first_task.Described:
        """Stop the worker when another one has run a task; raises `StackError` where none does."""
        queue = f"gateway.dev.{secrets.token_hex(4)}"  # which the old one does not consume
        new = self.stack.attached_worker(self.app, config.queues, self.env, queue)
        try:
            described = first_task.run(config, [queue])
        except StackError:
            new.kill()
            raise
        self.worker, old = new, self.worker
        old.stop(_PATIENCE)
        return described


class Files:
    """The Python files below the working directory, and the `config` file, if there is one."""

    def __init__(self, config: Path | None):
        self._config = config
        self._told = self._seen = self._look()

    def changed(self) -> list[Path]:
        """Return what has changed since it was told; nothing while files are still written."""
        before, self._seen = self._seen, self._look()
        if before != self._seen:
            return []
        told, self._told = self._told, self._seen
        return sorted({path for path, _ in told.items() ^ self._seen.items()})

    def _look(self) -> dict[Path, int]:
        times = {}
        for path in self._paths():
            with suppress(OSError):  # it was removed meanwhile
                times[path] = path.stat().st_mtime_ns
        return times

    def _paths(self) -> Iterator[Path]:
        if self._config is not None:
            yield self._config
        for folder, inner, names in os.walk("."):
            inner[:] = [
                name
                for name in inner
                if not name.startswith((".", "__pycache__", "node_modules"))
                and not Path(folder, name, "pyvenv.cfg").exists()
            ]
            yield from (Path(folder, name) for name in names if name.endswith(".py"))
