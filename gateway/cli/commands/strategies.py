"""List the waiting strategies."""

from __future__ import annotations

import argparse

from gateway.config.strategies import STRATEGIES, properties


def options(parser: argparse.ArgumentParser) -> None:
    pass


def run(arguments: argparse.Namespace) -> int:
    for name in STRATEGIES:
        print(f"{name:<11} {properties(name).summary}")
    return 0
