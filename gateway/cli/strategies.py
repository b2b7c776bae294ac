"""List the waiting strategies."""

from __future__ import annotations

import argparse

from gateway.config.strategies import STRATEGIES


def options(parser: argparse.ArgumentParser) -> None:
    pass


def run(arguments: argparse.Namespace) -> int:
    for name, info in STRATEGIES.items():
        print(f"{name:<11} {info.summary}")
    return 0
