"""Run everything on this machine: broker, result store, one worker, the gateway."""

from __future__ import annotations

import argparse
import os
import secrets
import signal
import sys
import threading
import time
import tomllib
from contextlib import suppress
from pathlib import Path

from gateway.cli.samples import sample
from gateway.cli.send import curl_line, signed_request
from gateway.config import Config
from gateway.errors import ConfigError
from gateway.settings import load
from gateway.sockets import bind_tcp
from gateway.sources import find
from gateway.sources.base import Draft
from gateway.stack import Server, Stack, StackError, free_port

_BROKER, _RESULTS = "GATEWAY_BROKER_URL", "GATEWAY_RESULT_BACKEND"
EMBEDDED, RABBITMQ = "embedded", "rabbitmq"
_PUBLIC, _JOURNAL = "GATEWAY_PUBLIC_URL", "GATEWAY_JOURNAL"
_HERE = "http://127.0.0.1"
#: Those whose lines are of interest only when they fail.
_SILENT = {EMBEDDED, RABBITMQ, "epmd"}

# What is served without a file. The printed message is good for a day.
_DEMO = """\
[sources.wechat]
scheme = "wechat"
secrets = "demo-token"
tolerance = 86400

[[routes]]
path = "/"

[[routes]]
path = "/wechat"
source = "wechat"
task = "appserver.tasks.reply"
"""


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--broker",
        metavar="URL",
        help=f"{EMBEDDED} (a Redis-protocol server, the default), {RABBITMQ} (a private one, where "
        "it is installed) or the URL of one that runs; default: GATEWAY_BROKER_URL",
    )
    parser.add_argument("--app", default="appserver", help="the worker's Celery app (appserver)")
    parser.add_argument("--port", type=int, help="port to listen on (8000)")
    parser.add_argument("--admin-port", type=int, help="dashboard, health (9464)")
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
        servers, welcome = _start(stack, arguments)
        print(welcome, flush=True)
        while not interrupted.is_set():
            woken.wait()
            woken.clear()
            dead = [server for server in servers if not server.alive()]
            if dead and not interrupted.is_set():
                for server in dead:
                    server.kill()  # and have the last of its output
                raise StackError("; ".join(f"{it.name} has ended{it.tail()}" for it in dead))
        print("\nstopping", flush=True)
    print("stopped")
    return 0


def _start(stack: Stack, arguments: argparse.Namespace) -> tuple[list[Server], str]:
    """Start everything; return the servers and what to tell the user."""
    broker, results, servers = _start_servers(stack, arguments)
    path, demo = _file(stack, arguments)
    # The worker's app, and `{ env = }` in the file, may need any of these.
    made_up = _made_up(path)
    env = {**made_up, **os.environ, _BROKER: broker, _RESULTS: results}
    flags = {name: getattr(arguments, name) for name in ("port", "admin_port", "strategy")}
    config = load({**flags, "broker_url": broker, "result_backend": results}, env, path)
    _see_that_they_are_free(config)
    port = config.port or free_port()
    if made_up.get(_PUBLIC) == config.public_url:
        env[_PUBLIC] = f"{_HERE}:{port}"
    ours = {server.url for server in servers}
    if _JOURNAL in made_up and _JOURNAL not in os.environ and config.state not in ours:
        del env[_JOURNAL]  # somebody else's may be there
    servers.append(
        stack.worker(
            broker,
            results,
            app=arguments.app,
            pool="prefork",
            concurrency=2,
            queues=config.queues,
            env=env,
        )
    )
    options = ["--strategy", arguments.strategy] if arguments.strategy else []
    if path:
        options += ["--config", str(path)]
    # The URLs, which may have passwords, are in its environment.
    gateway = stack.gateway(*options, port=port, admin_port=config.admin_port, env=env)
    servers.append(gateway)
    exports = {name: env[name] for name in (_BROKER, _RESULTS) if env[name] in ours}
    if arguments.config:
        exports["GATEWAY_CONFIG"] = str(arguments.config.absolute())
    return servers, _welcome(config, demo, gateway, exports)


def _see_that_they_are_free(config: Config) -> None:
    """Raise `ConfigError` where another process listens already, which would answer for ours."""
    for flag, port in (("--port", config.port), ("--admin-port", config.admin_port)):
        try:
            bind_tcp("127.0.0.1", port).close()
        except OSError as exc:
            where = f"cannot listen on 127.0.0.1:{port}: {exc.strerror}"
            raise ConfigError([f"{where}; {flag} chooses another"]) from exc


def _start_servers(stack: Stack, arguments: argparse.Namespace) -> tuple[str, str, list[Server]]:
    """Return the URLs of broker and result store, and the servers that were started for them."""
    wanted = arguments.broker or os.environ.get(_BROKER) or EMBEDDED
    results = os.environ.get(_RESULTS, "")
    servers = []
    if wanted == EMBEDDED or not results:
        servers.append(stack.embedded())
        results = results or servers[0].url
    if wanted == EMBEDDED:
        return servers[0].url, results, servers
    if wanted == RABBITMQ:
        servers.append(stack.rabbitmq())
        return servers[-1].url, results, servers
    return wanted, results, servers


def _file(stack: Stack, arguments: argparse.Namespace) -> tuple[Path | None, bool]:
    """Return the configuration's file, and whether it is the demo's, which needs our worker."""
    if path := arguments.config or os.environ.get("GATEWAY_CONFIG"):
        return Path(path), False
    if arguments.app != "appserver":
        return None, False
    path = stack.directory / "gateway.toml"
    path.write_text(_DEMO)
    return path, True


def _made_up(path: Path | None) -> dict[str, str]:
    """Return variables for what result URLs and the journal need, and the file does not have."""
    made_up = {"public_url": _HERE, "secret_key": secrets.token_hex(16), "journal": "1000"}
    # What is wrong with the file is told when it is loaded.
    with suppress(OSError, ValueError):
        for name in tomllib.loads(path.read_text("utf-8")) if path else ():
            made_up.pop(name, None)
    return {f"GATEWAY_{name.upper()}": value for name, value in made_up.items()}


def _print_line(name: str, line: str) -> None:
    if name not in _SILENT:
        sys.stdout.write(f"{name:<9}| {line}\n")
        sys.stdout.flush()


def _welcome(config: Config, demo: bool, gateway: Server, exports: dict[str, str]) -> str:
    lines = ["", "Ready. A POST is relayed as a task, which answers it."]
    if any(route.path == "/" and not route.source for route in config.routes):
        lines += ["The default task answers with the body:", ""]
        lines += [f"    curl --data 'hello' {gateway.url}/"]
    if demo:
        lines += ["", "A message as WeChat sends it, signed, good for a day:", ""]
        lines += [f"    {_message(config, f'{gateway.url}/wechat')}"]
    if exports:
        lines += ["", "For `gateway check`, `gateway deliveries`, and workers of your own:", ""]
        lines += [f"    export {' '.join(f'{name}={url}' for name, url in exports.items())}"]
    lines += ["", f"Dashboard: {gateway.admin_url}/ (and /healthz, /readyz, /metrics)."]
    return "\n".join([*lines, "Ctrl-C stops everything.", ""])


def _message(config: Config, url: str) -> str:
    options = config.sources["wechat"]
    now = time.time()
    _, body = sample(options.scheme, "", str(secrets.randbelow(10**15)), now)
    return curl_line(signed_request(find(options.scheme)(options), Draft(body, url, now)))
