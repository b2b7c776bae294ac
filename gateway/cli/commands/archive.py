"""Copy the journal's deliveries into the database at `archive_url`, as they change."""

from __future__ import annotations

import argparse
import asyncio
import signal
from collections.abc import Coroutine
from contextlib import suppress

from gateway import log
from gateway.cli import add_settings, configuration
from gateway.errors import ConfigError


def options(parser: argparse.ArgumentParser) -> None:
    add_settings(parser, *configuration.OPTIONS, "archive_url", "log_format")
    parser.add_argument("--once", action="store_true", help="end when all is copied")


def run(arguments: argparse.Namespace) -> int:
    config = configuration.configure(arguments)
    if not config.archive:
        url = "postgresql://user:password@host/name, or sqlite:///file.db"
        raise ConfigError([f"archive_url: there is none to copy to: set it to {url}"])
    # SQLAlchemy is of an extra, which `configure` has looked for.
    from gateway.archive.archiver import Archiver

    archiver = Archiver(config)
    if arguments.once:
        print(f"changes that were archived: {asyncio.run(archiver.run_once())}")
        return 0
    listener = log.start(config.log_format)
    try:
        asyncio.run(_until_stopped(archiver.run()))
    finally:
        listener.stop()
    return 0


async def _until_stopped(work: Coroutine[None, None, None]) -> None:
    """Run until SIGTERM, which the first process of a container ignores by default."""
    task = asyncio.create_task(work)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    with suppress(asyncio.CancelledError):
        await task
