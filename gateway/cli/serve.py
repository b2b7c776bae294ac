"""Serve HTTP and relay requests as Celery tasks."""

from __future__ import annotations

import argparse
import asyncio
import errno
import importlib.util
import logging
import os
import socket
from pathlib import Path

from gateway import background, log
from gateway.admin import admin_server
from gateway.config.loading import described, load, unknown_variables
from gateway.config.settings import Config
from gateway.config.strategies import STRATEGIES
from gateway.errors import ConfigError
from gateway.process.service_manager import ServiceManager
from gateway.process.sockets import address, bind, bind_tcp, inherited
from gateway.process.status import report
from gateway.process.supervisor import Supervisor
from gateway.strategies import find

logger = logging.getLogger(__name__)


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--strategy", metavar="|".join(STRATEGIES), help="how results are awaited")
    parser.add_argument("--config", metavar="FILE", type=Path, help="gateway.toml")
    parser.add_argument("--host", help="address to listen on (127.0.0.1)")
    parser.add_argument("--port", type=int, help="port to listen on (8000)")
    parser.add_argument("--uds", metavar="PATH", type=Path, help="UNIX socket, instead of a port")
    parser.add_argument("--processes", metavar="N", type=int, help="serving processes (1)")
    parser.add_argument("--broker", metavar="URL", dest="broker_url", help="amqp:// or amqps://")
    parser.add_argument(
        "--result-backend", metavar="URL", help="redis://, rediss:// or sentinel://"
    )
    parser.add_argument(
        "--timeout", metavar="SECONDS", type=float, help="a request's deadline (10)"
    )
    parser.add_argument("--max-in-flight", metavar="N", type=int, help="per process (10000)")
    parser.add_argument("--admin-host", metavar="HOST", help="for dashboard and health (127.0.0.1)")
    parser.add_argument("--admin-port", metavar="PORT", type=int, help="9464; 0: off")
    parser.add_argument("--log-format", choices=("text", "json"), help="text")
    parser.add_argument("--loop", choices=("auto", "asyncio", "uvloop"), help="auto")


def configure(arguments: argparse.Namespace) -> Config:
    """Load the configuration, and check that its packages are installed; raises `ConfigError`."""
    flags = {k: v for k, v in vars(arguments).items() if k in Config.model_fields}
    config = load(flags, os.environ, arguments.config)
    problems = []
    if extra := config.strategy_info.patches:
        # The strategy is not imported, as it would import the library into the unpatched parent.
        if importlib.util.find_spec(extra) is None:
            problems.append(f"strategy: no {extra}: install celery-gateway[{extra}]")
    else:
        find(config.strategy)
    if config.loop == "uvloop" and importlib.util.find_spec("uvloop") is None:
        problems.append("loop: no uvloop: install celery-gateway[fast]")
    if config.trace_sample is not None and not _exporter_is_installed():
        problems.append("trace_sample: no opentelemetry: install celery-gateway[otel]")
    if problems:
        raise ConfigError(problems)
    return config


def _exporter_is_installed() -> bool:
    try:
        return importlib.util.find_spec("opentelemetry.exporter.otlp.proto.http") is not None
    except ModuleNotFoundError:  # of one of its parents
        return False


def run(arguments: argparse.Namespace) -> int:
    config = configure(arguments)
    sockets, admin = _sockets(config)
    listener = log.start(config.log_format)
    logger.info("configuration: %s", described(config, os.environ, arguments.config))
    for name, near in unknown_variables(os.environ, arguments.config).items():
        hint = f"; did you mean {near}?" if near else ""
        logger.warning("%s is not read: there is no such variable%s", name, hint)
    logger.info("listening on %s", ", ".join(map(address, sockets)))
    pages = "dashboard, health and metrics"
    if admin:
        logger.info("%s on http://%s/", pages, ", ".join(map(address, admin)))
    else:
        logger.info("no %s: admin_port is 0", pages)
    for name, source in config.sources.items():
        if source.tolerance == 0:
            logger.warning(
                "source %s: tolerance 0, so a recorded request can be sent again at any time", name
            )
    try:
        asyncio.run(_supervise(config, sockets, admin, arguments))
    finally:
        listener.stop()
    return 0


async def _supervise(
    config: Config,
    sockets: list[socket.socket],
    admin: list[socket.socket],
    arguments: argparse.Namespace,
) -> None:
    manager = ServiceManager.of(os.environ)
    supervisor = Supervisor(config, sockets, lambda: configure(arguments), manager)
    server = admin_server(supervisor, admin)
    reports = None
    if manager.address:
        reports = background.start(report(supervisor, manager), "reports to the service manager")
    await supervisor.run()
    await background.stop(reports)
    server.stop()


def _sockets(config: Config) -> tuple[list[socket.socket], list[socket.socket]]:
    """Use the sockets that a service manager has passed, or bind one; bind the admin port."""
    try:
        sockets = inherited(os.environ) or bind(config)
    except OSError as exc:
        where = config.uds or f"{config.host}:{config.port}"
        busy = exc.errno in (errno.EADDRINUSE, errno.EACCES) and not config.uds
        other = "; --port chooses another" if busy else ""
        raise ConfigError([f"cannot listen on {where}: {exc.strerror}{other}"]) from exc
    if not config.admin_port:
        return sockets, []
    try:
        admin = bind_tcp(config.admin_host, config.admin_port)
        admin.listen()
    except OSError as exc:
        where = f"{config.admin_host}:{config.admin_port}"
        raise ConfigError(
            [f"cannot listen on {where}: {exc.strerror}; --admin-port chooses another, 0 none"]
        ) from exc
    admin.setblocking(False)
    return sockets, [admin]
