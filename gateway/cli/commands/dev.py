"""Run everything on this machine: broker, result store, one worker, the gateway."""

from __future__ import annotations

import argparse
import logging
import os
import secrets
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

from gateway.cli import add_settings
from gateway.cli.local import first_task
from gateway.cli.local import plan as planned
from gateway.cli.local.plan import APP, BROKER, EMBEDDED, HERE, RABBITMQ, RESULTS, Plan
from gateway.cli.local.welcome import warnings, welcome
from gateway.config.settings import Config
from gateway.errors import ConfigError
from gateway.process.sockets import bind_tcp
from gateway.stack import Server, Stack, StackError, free_port
from gateway.stores import result_store

#: Servers whose output is shown only when they fail.
_SILENT = {EMBEDDED, RABBITMQ, "epmd"}
_PORTS = {"amqp": 5672, "amqps": 5671, "redis": 6379, "rediss": 6379, "sentinel": 26379}
_CONNECT = 2.0  # seconds for connecting to a server that is there already
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
        before, self._told = self._told, self._seen
        return sorted({path for path, _ in before.items() ^ self._seen.items()})

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


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--broker",
        metavar="URL",
        help=f"{EMBEDDED} (a Redis-protocol server), {RABBITMQ} (a private one, where it is "
        "installed) or the URL of one that runs; default: GATEWAY_BROKER_URL, else what the routes "
        "need",
    )
    parser.add_argument("--app", default=APP, help=f"the worker's Celery app ({APP})")
    add_settings(parser, "port", "admin_port", "strategy", "config")
    parser.add_argument(
        "--reload",
        action="store_true",
        help="when gateway.toml or a Python file below this folder changes, start worker or routes "
        "anew; the servers stay",
    )


def run(arguments: argparse.Namespace) -> int:
    # The first task is published from this process; its log lines would only repeat the gateway's.
    for name in ("gateway", "pika"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    woken = threading.Event()
    interrupted = threading.Event()

    def interrupt(*_: object) -> None:
        interrupted.set()
        woken.set()

    def print_line(name: str, line: str) -> None:
        try:
            sys.stdout.write(f"{name:<9}| {line}\n")
            sys.stdout.flush()
        except OSError:  # its reader has gone, for example `head`
            interrupt()

    with Stack(on_line=print_line, silent=_SILENT) as stack:
        running, lines = _start(stack, arguments)
        files = Files(running.plan.path) if arguments.reload else None
        signal.signal(signal.SIGINT, interrupt)
        signal.signal(signal.SIGTERM, interrupt)
        signal.signal(signal.SIGCHLD, lambda *_: woken.set())
        _say(*lines)
        while not interrupted.is_set():
            if dead := running.dead():
                for server in dead:
                    server.kill()  # and wait for the end of its output
                raise StackError("; ".join(f"{it.name} has ended{it.tail()}" for it in dead))
            woken.wait(EVERY if files else None)
            woken.clear()
            if files and (changed := files.changed()):
                for line in running.reload(changed):
                    _say(line)
        _say("\nstopping")
    _say("stopped")
    return 0


def _start(stack: Stack, arguments: argparse.Namespace) -> tuple[Running, list[str]]:
    """Start everything; return it and the lines to print."""
    plan = planned.make(arguments, os.environ, stack.directory)
    _check_ports_are_free(plan.config)
    broker, results, servers = _start_servers(stack, plan)
    ours = {server.url for server in servers}
    config = plan.load(broker, results)
    port = config.port or free_port()
    env = _environment(plan, config, port, ours)
    here = f"{HERE}:{port}"
    if config.public_url not in (None, HERE, here) and planned.PUBLIC not in os.environ:
        remedy = f"set {planned.PUBLIC}={here} to have them lead to this machine"
        _say(f"result URLs begin with {config.public_url}, as the file says; {remedy}")
    own_queue = "" if broker in ours else f"gateway.dev.{secrets.token_hex(4)}"
    _say(f"starting a worker of {arguments.app}, and the gateway")
    options = ["--strategy", arguments.strategy] if arguments.strategy else []
    if plan.path:
        options += ["--config", str(plan.path)]
    # The URLs may contain passwords, so they are passed in the environment.
    begin = partial(stack.gateway, *options, port=port, admin_port=config.admin_port, env=env)
    beside = ThreadPoolExecutor(1)
    starting = beside.submit(begin)
    beside.shutdown(wait=False)  # if the worker fails, that is told at once
    worker = stack.attached_worker(arguments.app, config.queues, env, own_queue)
    described = first_task.run(config, [own_queue] if own_queue else config.queues)
    gateway = starting.result()
    # A URL with a password is not printed.
    exports = {
        name: url
        for name in (BROKER, RESULTS, planned.STATE)
        if (url := env[name]) in ours or (name in os.environ and "@" not in url)
    }
    # What was made up for the routes here. Nobody else's secret is printed.
    exports |= {name: env[name] for name in plan.made_up if name in env}
    if arguments.strategy:
        exports[planned.STRATEGY] = arguments.strategy
    if plan.path:
        exports[planned.CONFIG] = str(plan.path.absolute())
    # On a broker that was running before, other workers may have the missing tasks.
    warnings_ = [] if own_queue else warnings(config, arguments.app, described, plan.path)
    running = Running(stack, plan, arguments.app, config, env, servers, worker, gateway)
    return running, [*warnings_, *welcome(config, plan, arguments.app, gateway, exports)]


def _environment(plan: Plan, config: Config, port: int, ours: set[str]) -> dict[str, str]:
    """Return the environment of the worker and the gateway.

    It has all variables of this process, because the worker's app, and `{ env = }` in the file, may
    need any of them.
    """
    env = {
        **plan.env,
        BROKER: ";".join(config.brokers),
        RESULTS: config.results,
        planned.STATE: config.state,
        # The worker does not read the file.
        "GATEWAY_RESULT_KEY_PREFIX": config.result_key_prefix,
        "GATEWAY_RESULT_EXPIRES": str(config.result_expires),
        **{f"GATEWAY_TLS_{name.upper()}": str(it) for name, it in config.tls if it is not None},
    }
    if config.public_url == HERE:
        env[planned.PUBLIC] = f"{HERE}:{port}"
    journal = "GATEWAY_JOURNAL"
    if journal not in os.environ and config.state not in ours:
        env.pop(journal, None)  # that Redis may have the journal of another deployment
    return env


def _check_ports_are_free(config: Config) -> None:
    """Raise `ConfigError` where another process listens on a port of ours."""
    for flag, port in (("--port", config.port), ("--admin-port", config.admin_port)):
        try:
            bind_tcp("127.0.0.1", port).close()
        except OSError as exc:
            where = f"cannot listen on 127.0.0.1:{port}: {exc.strerror}"
            raise ConfigError([f"{where}; {flag} chooses another"]) from exc


def _start_servers(stack: Stack, plan: Plan) -> tuple[str, str, list[Server]]:
    """Start the servers of a plan; return the URLs of broker and result store, and the servers."""
    servers: list[Server] = []
    broker, results = plan.broker, plan.results
    for what, url, name in (("broker", broker, BROKER), ("result store", results, RESULTS)):
        if url not in ("", EMBEDDED, RABBITMQ):
            own = f"unset {name} to have a private one started"
            shown = result_store.without_password(url)
            if not any(map(_listens, url.split(";"))):
                start = f"start it, or name none ({name}, --broker) to have a private one started"
                raise ConfigError([f"nothing listens at the {what} {shown}: {start}"])
            _say(f"using the {what} {shown}, as it is; {own}")
    if broker == EMBEDDED or not results:
        _say("starting the embedded server")
        # `gateway check` would warn of a server that keeps nothing.
        servers.append(stack.embedded("--appendonly", "yes"))
        results = results or servers[0].url
    if broker == EMBEDDED:
        broker = servers[0].url
    elif broker == RABBITMQ:
        reason = f", as these need an AMQP broker: {plan.why}" if plan.why else ""
        _say(f"starting a private RabbitMQ (up to ten seconds){reason}")
        servers.append(stack.rabbitmq())
        broker = servers[-1].url
    return broker, results, servers


def _listens(url: str) -> bool:
    """Tell whether a server accepts connections at a URL; one without a host is not asked."""
    try:
        parts = urlsplit(url)
        if parts.hostname and parts.scheme in _PORTS:
            address = parts.hostname, parts.port or _PORTS[parts.scheme]
            socket.create_connection(address, _CONNECT).close()
    except OSError:
        return False
    except ValueError:  # which is told where the URL is used
        return True
    return True


def _say(*lines: str) -> None:
    print(*lines, sep="\n", flush=True)
