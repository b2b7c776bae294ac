"""The waiting strategies: the file of each is NAME_strategy.py, their contract is in `base`."""

from __future__ import annotations

from gateway.config.strategies import STRATEGIES
from gateway.strategies.base import Strategy


def find(name: str) -> type[Strategy]:
    """Import the strategy called `name`.

    Raises ImportError where its extra is not installed, and `PluginError` where another package
    brings it and it cannot be imported.
    """
    return STRATEGIES[name].load_class(Strategy)
