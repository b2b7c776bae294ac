"""Print the path and the task of each route."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from gateway.config.loading import load


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--config", metavar="FILE", type=Path, help="gateway.toml")


def run(arguments: argparse.Namespace) -> int:
    for route in load({}, os.environ, arguments.config).routes:
        print(f"{route.path:<24} {route.task}")
    return 0
