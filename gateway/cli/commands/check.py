"""Check configuration, servers, workers and tasks: one line each, with the remedy."""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
from collections.abc import Iterator
from dataclasses import asdict

from gateway.cli import add_settings, checks, configuration
from gateway.cli.checks import queues, settings
from gateway.cli.checks.finding import FAIL, Finding, ok, skipped
from gateway.config.loading import described
from gateway.errors import ConfigError


def options(parser: argparse.ArgumentParser) -> None:
    add_settings(parser, *configuration.OPTIONS)
    parser.add_argument(
        "--notify", dest="tell", action="store_true", help="send a test as [notify] says"
    )
    parser.add_argument(
        queues.DELETE,
        metavar="NAME",
        help="only delete this queue: if no route names it, it is empty, and nothing consumes it",
    )
    parser.add_argument("--json", action="store_true", help="one object: ok, and a list of checks")


def run(arguments: argparse.Namespace) -> int:
    # The findings have the errors that pika would log.
    logging.getLogger("pika").setLevel(logging.CRITICAL)
    found = list(_found(arguments))
    well = all(finding.status != FAIL for finding in found)
    if arguments.json:
        print(json.dumps({"ok": well, "checks": [asdict(finding) for finding in found]}, indent=2))
    else:
        print(*found, sep="\n")
    return 0 if well else 1


def _found(arguments: argparse.Namespace) -> Iterator[Finding]:
    try:
        config = configuration.configure(arguments)
    except ConfigError as exc:
        yield from settings.problems(exc.problems)
        yield from settings.variables(os.environ, arguments.config)
        yield skipped("broker, results, state, workers and tasks", "not checked without settings")
        return
    if arguments.delete_queue:
        yield asyncio.run(queues.delete(config, arguments.delete_queue))
        return
    yield ok("config", described(config, os.environ, arguments.config))
    yield from settings.variables(os.environ, arguments.config)
    yield from settings.sources(config)
    yield from settings.bodies(config)
    yield from settings.drains(config)
    yield from settings.events(config)
    yield from asyncio.run(checks.run(config, arguments.tell))
