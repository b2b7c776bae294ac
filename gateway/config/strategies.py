"""The waiting strategies and their properties, without importing any of them.

A strategy is imported only in the process that runs it, so its properties are read from its text.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Literal

from gateway.plugins import Plugins


@dataclass(frozen=True, slots=True)
class StrategyInfo:
    """The properties of a strategy: its module sets ``INFO``, with literals, to those that differ.

    ``summary`` is the first line of the module's docstring.
    ``stored``: it reads results from the result store. ``subscribes``: it subscribes to each task's
    ``key``, or to a ``prefix`` of all keys. ``replies``: workers reply to it over AMQP.
    ``amqp_only``: it needs an AMQP broker. ``blocks``: it blocks the loop while it waits.
    ``threads``: each request has one of the process's threads while it waits.
    ``publishing`` and ``reading`` are a process's connections to the broker, beside that of the
    asynchronous publisher, and to the result store; with ``threads`` they are those of a thread.
    ``patches`` is what is called in its processes before anything else is imported, as in
    ``"gevent.monkey:patch_all"``; several are separated by spaces. The extra that installs the
    library has the library's name.
    """

    summary: str = ""
    stored: bool = True
    subscribes: Literal["", "key", "prefix"] = ""
    replies: bool = False
    amqp_only: bool = True
    blocks: bool = False
    threads: bool = False
    publishing: int = 0
    reading: int = 2
    patches: str = ""


STRATEGIES = Plugins("strategies", "gateway.strategies.{}_strategy")


@cache
def properties(name: str) -> StrategyInfo:
    """Return the properties of the strategy `name`; raises `PluginError`."""
    plugin = STRATEGIES[name]
    with plugin.named():
        return StrategyInfo(summary=plugin.summary(), **plugin.call("INFO"))
