"""The configuration that a command uses, and whether its packages are installed."""

from __future__ import annotations

import argparse
import importlib.util
import os

from gateway.config.loading import load
from gateway.config.settings import Config
from gateway.errors import ConfigError

#: What serving processes need, and the command itself does not load.
_SERVING = ("hiredis", "pika", "prometheus_client", "tornado")


#: The settings that most commands have as options.
OPTIONS = ("config", "strategy", "broker", "result_backend")


def configure(arguments: argparse.Namespace) -> Config:
    """Load the configuration, and check that its packages are installed.

    Raises `ConfigError`, and ModuleNotFoundError where a package that every gateway needs is
    missing.
    """
    for name in _SERVING:
        if not _is_installed(name):
            raise ModuleNotFoundError(f"no module {name}", name=name)
    flags = {k: v for k, v in vars(arguments).items() if k in Config.model_fields}
    config = load(flags, os.environ, arguments.config)
    # No strategy is imported: the parent needs none, and gevent must not come into it unpatched.
    library = config.strategy_info.patches.partition(".")[0]
    exporter = "opentelemetry.exporter.otlp.proto.http"
    problems = [
        f"{setting}: no {module.partition('.')[0]}: pip install 'CHECKOUT-OR-WHEEL[{extra}]'"
        for setting, needed, module, extra in (
            ("strategy", library, library, library),
            ("loop", config.loop == "uvloop", "uvloop", "fast"),
            ("trace_sample", config.trace_sample is not None, exporter, "otel"),
            ("archive_url", config.archive, "sqlalchemy", "archive"),
            ("archive_url", config.archive.startswith("postgresql"), "psycopg", "archive"),
        )
        if needed and not _is_installed(module)
    ]
    if problems:
        raise ConfigError(problems)
    return config


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # of one of its parents
        return False
