"""Serve HTTP and relay requests as Celery tasks."""

from __future__ import annotations

import argparse
from pathlib import Path

from gateway.config.strategies import STRATEGIES


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
    parser.add_argument("--admin-host", metavar="HOST", help="for the pages and health (127.0.0.1)")
    parser.add_argument("--admin-port", metavar="PORT", type=int, help="9464; 0: off")
    parser.add_argument("--log-format", choices=("text", "json"), help="text")
    parser.add_argument("--loop", choices=("auto", "asyncio", "uvloop"), help="auto")


def run(arguments: argparse.Namespace) -> int:
    # What serves is not loaded to show the options.
    from gateway.cli.serving import serve

    return serve(arguments)
