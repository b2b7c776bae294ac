"""The parent process: its sockets, its log, its children and its admin port."""

from __future__ import annotations

import argparse
import asyncio
import errno
import logging
import os
import socket

from gateway import background, log
from gateway.cli.configuration import configure
from gateway.config.loading import described, unknown_variables
from gateway.config.settings import Config
from gateway.errors import ConfigError
from gateway.process.health import report
from gateway.process.service_manager import ServiceManager
from gateway.process.sockets import address, bind, bind_tcp, inherited
from gateway.process.supervisor import Supervisor

logger = logging.getLogger(__name__)
#: How the file of a history begins: the header of zlib.
_HISTORY = b"\x78\x01"


def serve(arguments: argparse.Namespace) -> int:
    config = _configured(arguments)
    sockets, admin = _sockets(config)
    listener = log.start(config.log_format)
    logger.info("configuration: %s", described(config, os.environ, arguments.config))
    for name, near in unknown_variables(os.environ, arguments.config).items():
        hint = f"; did you mean {near}?" if near else ""
        logger.warning("%s is not read: there is no such variable%s", name, hint)
    logger.info("bound to %s", ", ".join(map(address, sockets)))
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


def _configured(arguments: argparse.Namespace) -> Config:
    """Load the configuration; raises `ConfigError` also where the history cannot be kept."""
    config, problem = configure(arguments), ""
    if path := config.history:
        try:
            if path.exists() and not path.is_file():  # to read a pipe would take for ever
                problem = "it is no file"
            elif path.exists():
                with path.open("rb") as file:
                    other = file.read(2) not in (b"", _HISTORY)
                problem = "it is no history, and would be written over" if other else ""
            if not os.access(path.parent, os.W_OK):
                problem = "its folder is missing, or this account may not write there"
        except OSError as exc:
            problem = exc.strerror or str(exc)
        if problem:
            raise ConfigError([f"history: {path}: {problem}; name another file"])
    return config


async def _supervise(
    config: Config,
    sockets: list[socket.socket],
    admin: list[socket.socket],
    arguments: argparse.Namespace,
) -> None:
    manager = ServiceManager.of(os.environ)
    supervisor = Supervisor(config, sockets, lambda: _configured(arguments), manager)
    await supervisor.start()
    # The children load their code while this process loads that of the admin port.
    from gateway.admin import admin_server
    from gateway.history.gateways import Gateways
    from gateway.history.history import History

    history = History(supervisor.grown, lambda: supervisor.config.paths)
    if config.history:
        history.load(config.history)
    counting = background.start(
        history.run(lambda: supervisor.config.history), "history", needed=False
    )
    where = address(sockets[0])
    name = f"{socket.gethostname()}:{where.rpartition(':')[2]}"
    gateways = Gateways(supervisor, history, name, where)
    telling = background.start(gateways.run(), "gateways", needed=False)
    server = admin_server(supervisor, history, gateways, admin)
    reports = None
    if manager.address:
        reports = background.start(report(supervisor, manager), "reports to the service manager")
    await supervisor.run()
    for task in (reports, telling, counting):
        await background.stop(task)
    history.saving(supervisor.config.history)()
    server.stop()


def _sockets(config: Config) -> tuple[list[socket.socket], list[socket.socket]]:
    """Use the sockets that a service manager has passed, or bind one; bind the admin port."""
    try:
        sockets = inherited(os.environ) or bind(config)
    except OSError as exc:
        where = config.uds or f"{config.host}:{config.port}"
        remedy = "the folder of --uds has to exist, and no other file may have its path"
        raise _unbound(exc, where, remedy if config.uds else _other(exc, "")) from exc
    if not config.admin_port:
        return sockets, []
    try:
        admin = bind_tcp(config.admin_host, config.admin_port)
        admin.listen()
    except OSError as exc:
        where = f"{config.admin_host}:{config.admin_port}"
        raise _unbound(exc, where, f"{_other(exc, 'admin-')}; --admin-port 0: none") from exc
    admin.setblocking(False)
    return sockets, [admin]


def _unbound(exc: OSError, where: object, remedy: str) -> ConfigError:
    return ConfigError([f"cannot listen on {where}: {exc.strerror}; {remedy}"])


def _other(exc: OSError, prefix: str) -> str:
    if exc.errno in (errno.EADDRINUSE, errno.EACCES):
        return f"--{prefix}port chooses another"
    return f"--{prefix}host has to be an address of this machine"
