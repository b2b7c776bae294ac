"""The result store, as all in a process use it that wait for results beside the strategy."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

from gateway.background import Service
from gateway.config.settings import Config
from gateway.stores import result_store
from gateway.stores.pipeline import Pipeline
from gateway.stores.subscription import Subscription


class Results(Service):
    """Has a connection for `commands`, and where something `listens` a `subscription`.

    The channel of a result has the name of its key: the `prefix` and the task's id.
    """

    def __init__(self, config: Config, listens: bool = True):
        self.prefix = result_store.key_prefix(config)
        self.commands = Pipeline(lambda: result_store.connect(config), "results")
        self.subscription = Subscription(lambda: result_store.connect(config), "awaited results")
        self.commands.on_left.append(self.subscription.renew)
        self.uses = (self.commands, self.subscription) if listens else (self.commands,)

    def stored(self, task_ids: Sequence[str]) -> AsyncIterator[tuple[str, bytes | int]]:
        """Yield those of the tasks that have a result, as `result_store.stored` does."""
        return result_store.stored(self.commands.run, self.prefix, task_ids)
