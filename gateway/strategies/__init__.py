"""The waiting strategies: one file for each, one contract (`base`), one table in `config`."""

from __future__ import annotations

from importlib import import_module

from gateway.config.strategies import STRATEGIES
from gateway.strategies.base import Strategy


def find(name: str) -> type[Strategy]:
    """Import the strategy called `name`; raises ImportError where its extra is not installed."""
    module, _, attribute = STRATEGIES[name].where.partition(":")
    found: type[Strategy] = getattr(import_module(f"gateway.strategies.{module}"), attribute)
    return found
