"""Which servers a configuration needs, decided before any of them is started."""

from __future__ import annotations

import argparse
import secrets
import shlex
import tomllib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from gateway.config.loading import load
from gateway.config.settings import Config
from gateway.errors import ConfigError
from gateway.stack import ProgramMissing
from gateway.stack.programs import find_rabbitmq

BROKER, RESULTS, STATE = "GATEWAY_BROKER_URL", "GATEWAY_RESULT_BACKEND", "GATEWAY_STATE_URL"
CONFIG, PUBLIC = "GATEWAY_CONFIG", "GATEWAY_PUBLIC_URL"
EMBEDDED, RABBITMQ = "embedded", "rabbitmq"
HERE = "http://127.0.0.1"
APP = "appserver"
# What stands for servers that are not started yet.
_REDIS, _AMQP = "redis://127.0.0.1/0", "amqp://127.0.0.1//"

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


@dataclass(slots=True)
class Plan:
    """What to start.

    ``broker`` is EMBEDDED, RABBITMQ or the URL of one that runs; ``results`` such a URL, or empty:
    the embedded server. ``why`` says what made it RABBITMQ, where nobody has asked for it. The
    ``config`` has URLs that stand for those of servers which do not run yet.
    """

    broker: str
    results: str
    path: Path | None
    demo: bool
    flags: Mapping[str, Any]
    env: dict[str, str]
    config: Config = field(default_factory=Config)
    why: str = ""

    def load(self, broker: str, results: str = _REDIS) -> Config:
        """Load the configuration with these URLs in place of the file's; raises `ConfigError`."""
        urls: dict[str, Any] = {"broker_url": broker, "result_backend": results}
        if not self.env.get(STATE):  # the file's is production's
            urls["state_url"] = results
        return load({**self.flags, **urls}, self.env, self.path)


def make(arguments: argparse.Namespace, environ: Mapping[str, str], directory: Path) -> Plan:
    """Decide what to start; a file that is made up is written to `directory`.

    Raises `ConfigError` with what to type instead, where the routes need another broker.
    """
    path, demo = _file(arguments, environ, directory)
    asked = arguments.broker or environ.get(BROKER) or ""
    results = environ.get(RESULTS, "")
    flags = {name: getattr(arguments, name) for name in ("port", "admin_port", "strategy")}
    plan = Plan(asked or EMBEDDED, results, path, demo, flags, {**_made_up(path), **environ})
    if asked == RABBITMQ or urlsplit(asked).scheme.startswith("amqp"):
        plan.config = plan.load(_AMQP if asked == RABBITMQ else asked)
        return plan
    try:
        plan.config = plan.load(_REDIS if asked in ("", EMBEDDED) else asked)
    except ConfigError as exc:
        plan.config = plan.load(_AMQP)  # raises what else is wrong with it
        if asked or not _rabbitmq_is_installed():
            raise ConfigError([*exc.problems, _remedy(arguments)]) from exc
        plan.broker, plan.why = RABBITMQ, "; ".join(exc.problems)
    return plan


def _remedy(arguments: argparse.Namespace) -> str:
    """Say what to type for a broker that confirms."""
    given = _words(arguments)
    words = shlex.join([*given, "--broker", RABBITMQ])
    text = f'type: gateway dev {words}   (or: make run ARGS="{words}")'
    if _rabbitmq_is_installed():
        return text
    other = shlex.join([*given, "--broker", "amqp://USER:PASSWORD@HOST//"])
    return (
        "RabbitMQ is not installed here (Debian: apt install rabbitmq-server); once it is, "
        f"{text}. With one that runs elsewhere: gateway dev {other}"
    )


def _words(arguments: argparse.Namespace) -> list[str]:
    words = []
    for name, usual in (
        ("app", APP), ("config", None), ("strategy", None), ("port", None), ("admin_port", None)
    ):  # fmt: skip
        value = getattr(arguments, name)
        if value != usual:
            words += [f"--{name.replace('_', '-')}", str(value)]
    return words


def _rabbitmq_is_installed() -> bool:
    try:
        find_rabbitmq("rabbitmq-server")
    except ProgramMissing:
        return False
    return True


def _file(
    arguments: argparse.Namespace, environ: Mapping[str, str], directory: Path
) -> tuple[Path | None, bool]:
    """Return the configuration's file, and whether it is the demo's, which needs our worker."""
    if path := arguments.config or environ.get(CONFIG):
        return Path(path), False
    if arguments.app != APP:
        return None, False
    path = directory / "gateway.toml"
    path.write_text(_DEMO)
    return path, True


def _made_up(path: Path | None) -> dict[str, str]:
    """Return variables for what only `gateway dev` sets by itself, and the file does not have."""
    made_up = {
        "public_url": HERE,
        "secret_key": secrets.token_hex(16),
        "journal": "1000",
        "log_requests": "true",
    }
    # What is wrong with the file is told when it is loaded.
    with suppress(OSError, ValueError):
        for name in tomllib.loads(path.read_text("utf-8")) if path else ():
            made_up.pop(name, None)
    return {f"GATEWAY_{name.upper()}": value for name, value in made_up.items()}
