"""The experiments: a file each, a line in this table, one contract.

A module has `run(options, stack) -> Report`; `options` are what `loadtest.cli` parses.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module

#: Name -> where it is, and what it compares in a line.
EXPERIMENTS = {
    "strategies": ("strategies:run", "the gateway's strategies, each in front of the same worker"),
}


def find(name: str) -> Callable:
    """Import the experiment called `name`; raises KeyError where there is none."""
    module, _, attribute = EXPERIMENTS[name][0].partition(":")
    return getattr(import_module(f"loadtest.experiments.{module}"), attribute)
