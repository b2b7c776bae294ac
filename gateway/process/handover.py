"""Encode a child's configuration as plain data, which the child validates again.

A parent may have been started before the last upgrade, while its children are of the new version.
Defaults are not encoded, so that a version with more or fewer settings can read the data.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from struct import Struct
from typing import Any

from pydantic import SecretStr, ValidationError

from gateway.config.problems import explain
from gateway.config.settings import Config
from gateway.errors import ConfigError

#: The number of bytes of the data, which precedes them.
HEAD = Struct("!I")
#: To be changed when older versions cannot read the data any more.
VERSION = 1


@dataclass(frozen=True, slots=True)
class Start:
    """The configuration, and the descriptors of the listening sockets and of the counters."""

    config: Config
    sockets: list[int]
    metrics: int


def write(start: Start) -> bytes:
    """Return `start` as bytes, secrets included."""
    return json.dumps(
        {
            "version": VERSION,
            "config": start.config.model_dump(exclude_unset=True, by_alias=True),
            "sockets": start.sockets,
            "metrics": start.metrics,
        },
        default=_plain,
    ).encode()


def read(data: bytes) -> Start:
    """Decode what `write` has encoded. Raises `ConfigError` where this version cannot use it."""
    try:
        start = json.loads(data)
        version = start["version"]
    except (ValueError, KeyError, TypeError):
        version = "unknown"
    if version != VERSION:
        raise ConfigError(
            [
                f"the parent sends version {version} of the configuration, and this version "
                f"reads {VERSION}: restart the gateway"
            ]
        )
    try:
        config = Config.model_validate(start["config"])
    except ValidationError as exc:
        problems = [f"{problem} (restart the gateway)" for problem in explain(exc, Config)]
        raise ConfigError(problems) from exc
    return Start(config, start["sockets"], start["metrics"])


def _plain(value: Any) -> str:
    if isinstance(value, SecretStr):
        return value.get_secret_value()
    if isinstance(value, Path):
        return str(value)
    raise TypeError(f"{type(value).__name__} cannot be handed over")
