"""The configuration that a command uses, and whether the packages that it needs are installed."""

from __future__ import annotations

import argparse
import importlib.util
import os

from gateway.config.loading import load
from gateway.config.settings import Config
from gateway.errors import ConfigError

#: What serving processes need, and the command itself does not load.
_SERVING = ("hiredis", "pika", "prometheus_client", "tornado")


def configure(arguments: argparse.Namespace) -> Config:
    """Load the configuration, and check that its packages are installed.

    Raises `ConfigError`, and ModuleNotFoundError where a package that every gateway needs is
    missing.
    """
    for name in _SERVING:
        if importlib.util.find_spec(name) is None:
            raise ModuleNotFoundError(f"no module {name}", name=name)
    flags = {k: v for k, v in vars(arguments).items() if k in Config.model_fields}
    config = load(flags, os.environ, arguments.config)
    problems = []
    # No strategy is imported: the parent needs none, and gevent must not come into it unpatched.
    extra = config.strategy_info.patches.partition(".")[0]
    if extra and importlib.util.find_spec(extra) is None:
        problems.append(f"strategy: no {extra}: pip install 'CHECKOUT-OR-WHEEL[{extra}]'")
    if config.loop == "uvloop" and importlib.util.find_spec("uvloop") is None:
        problems.append("loop: no uvloop: pip install 'CHECKOUT-OR-WHEEL[fast]'")
    if config.trace_sample is not None and not _exporter_is_installed():
        problems.append("trace_sample: no opentelemetry: pip install 'CHECKOUT-OR-WHEEL[otel]'")
    postgresql = config.archive.startswith("postgresql")
    for needed in ("alembic", *(["psycopg"] if postgresql else [])) if config.archive else ():
        if importlib.util.find_spec(needed) is None:
            extra = "CHECKOUT-OR-WHEEL[archive]"
            problems.append(f"archive_url: no {needed}: pip install '{extra}'")
    if problems:
        raise ConfigError(problems)
    return config


def _exporter_is_installed() -> bool:
    try:
        return importlib.util.find_spec("opentelemetry.exporter.otlp.proto.http") is not None
    except ModuleNotFoundError:  # of one of its parents
        return False
