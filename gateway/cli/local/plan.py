"""Decide which servers a configuration needs, before any of them is started."""

from __future__ import annotations

import argparse
import secrets
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
CONFIG, PUBLIC, STRATEGY = "GATEWAY_CONFIG", "GATEWAY_PUBLIC_URL", "GATEWAY_STRATEGY"
_LOG = "GATEWAY_LOG_REQUESTS"
EMBEDDED, RABBITMQ = "embedded", "rabbitmq"
HERE = "http://127.0.0.1"
APP = "appserver"
# Placeholder URLs of servers that are not started yet.
_REDIS, _AMQP = "redis://127.0.0.1/0", "amqp://127.0.0.1//"

# The configuration without a file. The printed message can be sent for a day.
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
    """The servers to start, and the configuration.

    ``broker`` is EMBEDDED, RABBITMQ or the URL of a running broker; ``results`` is the URL of a
    running store, or empty for the embedded server. ``why`` is the reason for RABBITMQ where the
    user has not asked for it: the places of the settings that need it. ``config`` has placeholder
    URLs for servers that do not run yet. ``made_up`` names the variables in ``env`` that are not
    the user's, and without which other commands would refuse the same file.
    """

    broker: str
    results: str
    path: Path | None
    demo: bool
    flags: Mapping[str, Any]
    env: dict[str, str]
    config: Config = field(default_factory=Config)
    why: str = ""
    made_up: list[str] = field(default_factory=list)

    def load(self, broker: str, results: str = _REDIS) -> Config:
        """Load the configuration with these URLs in place of the file's; raises `ConfigError`."""
        urls: dict[str, Any] = {"broker_url": broker, "result_backend": results}
        if not self.env.get(STATE):  # the URL in the file may be the one in production
            urls["state_url"] = results
        return load({**self.flags, **urls}, self.env, self.path)


def make(arguments: argparse.Namespace, environ: Mapping[str, str], directory: Path) -> Plan:
    """Decide what to start; without a file, one for the demo is written to `directory`.

    Where the routes need another broker, raises `ConfigError` with the options to add.
    """
    path, demo = _file(arguments, environ, directory)
    asked = arguments.broker or environ.get(BROKER) or ""
    results = environ.get(RESULTS, "")
    flags = {name: getattr(arguments, name) for name in ("port", "admin_port", "strategy")}
    made_up = _made_up(path)
    plan = Plan(asked or EMBEDDED, results, path, demo, flags, {**made_up, **environ})
    plan.made_up = [name for name in made_up if name not in environ and name != _LOG]
    if asked == RABBITMQ or urlsplit(asked).scheme.startswith("amqp"):
        plan.config = plan.load(_AMQP if asked == RABBITMQ else asked)
        return plan
    try:
        plan.config = plan.load(_REDIS if asked in ("", EMBEDDED) else asked)
    except ConfigError as exc:
        plan.config = plan.load(_AMQP)  # raises the problems that have another cause
        if asked or not _rabbitmq_is_installed():
            raise ConfigError([*exc.problems, _remedy()]) from exc
        # The remedies are left out, as an AMQP broker is started.
        places = (problem.rpartition(": ")[0] for problem in exc.problems)
        plan.broker, plan.why = RABBITMQ, ", ".join(places)
    return plan


def _remedy() -> str:
    """Return a sentence with the options for a broker that confirms messages."""
    if _rabbitmq_is_installed():
        return f"type the same command with --broker {RABBITMQ}"
    return (
        "RabbitMQ is not installed here (Debian: apt install rabbitmq-server); once it is, type "
        f"the same command with --broker {RABBITMQ}, or with that of one which runs elsewhere: "
        "--broker amqp://USER:PASSWORD@HOST//"
    )


def _rabbitmq_is_installed() -> bool:
    try:
        find_rabbitmq("rabbitmq-server")
    except ProgramMissing:
        return False
    return True


def _file(
    arguments: argparse.Namespace, environ: Mapping[str, str], directory: Path
) -> tuple[Path | None, bool]:
    """Return the configuration's file, and whether it is the demo's, which needs the app server."""
    if path := arguments.config or environ.get(CONFIG):
        return Path(path), False
    if arguments.app != APP:
        return None, False
    path = directory / "gateway.toml"
    path.write_text(_DEMO)
    return path, True


def _made_up(path: Path | None) -> dict[str, str]:
    """Return variables for the settings that `gateway dev` adds where the file has none."""
    made_up = {
        "public_url": HERE,
        "secret_key": secrets.token_hex(16),
        "journal": "1000",
        "log_requests": "true",
    }
    # Errors in the file are reported when it is loaded.
    with suppress(OSError, ValueError, RecursionError):
        for name in tomllib.loads(path.read_text("utf-8")) if path else ():
            made_up.pop(name, None)
    return {f"GATEWAY_{name.upper()}": value for name, value in made_up.items()}
