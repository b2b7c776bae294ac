"""Run everything on this machine: broker, result store, one worker, the gateway."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
from pathlib import Path

from gateway.settings import load
from gateway.stack import Stack, StackError

_BROKER, _RESULTS = "GATEWAY_BROKER_URL", "GATEWAY_RESULT_BACKEND"
EMBEDDED, RABBITMQ = "embedded", "rabbitmq"


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--broker",
        metavar="URL",
        help=f"{EMBEDDED} (a Redis-protocol server, the default), {RABBITMQ} (a private one, where "
        "it is installed) or the URL of one that runs; default: GATEWAY_BROKER_URL",
    )
    parser.add_argument("--app", default="appserver", help="the worker's Celery app (appserver)")
    parser.add_argument("--port", type=int, default=8000, help="port to listen on (8000)")
    parser.add_argument("--admin-port", type=int, default=8001, help="health, metrics (8001)")
    parser.add_argument("--strategy", help="how results are awaited (redis)")
    parser.add_argument("--config", metavar="FILE", type=Path, help="gateway.toml")


def run(arguments: argparse.Namespace) -> int:
    woken = threading.Event()
    interrupted = threading.Event()

    def interrupt(*_: object) -> None:
        interrupted.set()
        woken.set()

    signal.signal(signal.SIGINT, interrupt)
    signal.signal(signal.SIGTERM, interrupt)
    signal.signal(signal.SIGCHLD, lambda *_: woken.set())
    with Stack(on_line=_print_line) as stack:
        servers = _start(stack, arguments)
        print(_welcome(arguments.port, arguments.admin_port), flush=True)
        while not interrupted.is_set():
            woken.wait()
            woken.clear()
            dead = [server.name for server in servers if not server.alive()]
            if dead and not interrupted.is_set():
                raise StackError(f"{', '.join(dead)} ended; the lines above say why")
        print("\nstopping", flush=True)
    return 0


def _start(stack: Stack, arguments: argparse.Namespace) -> list:
    wanted = arguments.broker or os.environ.get(_BROKER) or EMBEDDED
    results = os.environ.get(_RESULTS, "")
    servers = []
    if wanted == EMBEDDED or not results:
        servers.append(stack.embedded())
        results = results or servers[0].url
    if wanted == EMBEDDED:
        broker = servers[0].url
    elif wanted == RABBITMQ:
        servers.append(stack.rabbitmq())
        broker = servers[-1].url
    else:
        broker = wanted
    flags = {"broker_url": broker, "result_backend": results, "strategy": arguments.strategy}
    config = load(flags, os.environ, arguments.config)
    # The worker's app, and `{ env = }` in the file, may need any of these.
    env = {k: v for k, v in os.environ.items() if k not in (_BROKER, _RESULTS)}
    servers.append(
        stack.worker(
            broker,
            results,
            app=arguments.app,
            pool="prefork",
            concurrency=2,
            queues=sorted({route.queue for route in config.routes}),
            env=env,
        )
    )
    options = ["--broker", broker, "--result-backend", results]
    if arguments.strategy:
        options += ["--strategy", arguments.strategy]
    if arguments.config:
        options += ["--config", str(arguments.config)]
    ports = {"port": arguments.port, "admin_port": arguments.admin_port}
    servers.append(stack.gateway(*options, **ports, env=env))
    return servers


def _print_line(name: str, line: str) -> None:
    sys.stdout.write(f"{name:<9}| {line}\n")
    sys.stdout.flush()


def _welcome(port: int, admin_port: int) -> str:
    return f"""
Ready. A POST is relayed as the task api.core.main, which answers with the body:

    curl --data 'hello' http://127.0.0.1:{port}/

Health and metrics: http://127.0.0.1:{admin_port}/readyz and /metrics. Ctrl-C stops everything.
"""
