"""List the waiting strategies."""

from __future__ import annotations

import argparse

from gateway.strategies import STRATEGIES


def options(parser: argparse.ArgumentParser) -> None:
    pass


def run(arguments: argparse.Namespace) -> int:
    for name, (_, summary) in STRATEGIES.items():
        print(f"{name:<11} {summary}")
    return 0
