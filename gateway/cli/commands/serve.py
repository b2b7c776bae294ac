"""Serve HTTP and relay requests as Celery tasks."""

from __future__ import annotations

import argparse
from pathlib import Path

from gateway.config.strategies import STRATEGIES


def options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--strategy", metavar="|".join(STRATEGIES), help="how results are awaited")
    add("--config", metavar="FILE", type=Path, help="gateway.toml")
    add("--host", help="address to listen on (127.0.0.1)")
    add("--port", type=int, help="port to listen on (8000)")
    add("--uds", metavar="PATH", type=Path, help="UNIX socket, instead of a port")
    add("--processes", metavar="N", type=int, help="serving processes (1)")
    add("--broker", metavar="URL", dest="broker_url", help="amqp:// or amqps://")
    add("--result-backend", metavar="URL", help="redis://, rediss:// or sentinel://")
    add("--timeout", metavar="SECONDS", type=float, help="a request's deadline (10)")
    add("--max-in-flight", metavar="N", type=int, help="per process (10000)")
    add("--admin-host", metavar="HOST", help="for the pages and health (127.0.0.1)")
    add("--admin-port", metavar="PORT", type=int, help="9464; 0: off")
    add("--log-format", choices=("text", "json"), help="text")
    add("--loop", choices=("auto", "asyncio", "uvloop"), help="auto")


def run(arguments: argparse.Namespace) -> int:
    # What serves is not loaded to show the options.
    from gateway.cli.serving import serve

    return serve(arguments)
