"""The result store, as all in a process use it that wait for results beside the strategy."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

from gateway.background import Service
from gateway.config.settings import Config
from gateway.stores import result_store
from gateway.stores.pipeline import Pipeline
from gateway.stores.subscription import Subscription

#: Results that are read together: more could be more than arrives in time, or than there is room
#: for, as each of them may be large.
_AT_ONCE = 20


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

    async def stored(self, task_ids: Sequence[str]) -> AsyncIterator[tuple[str, bytes]]:
        """Yield those of the tasks that have a result, with it; fails as `Pipeline.run` does."""
        for begin in range(0, len(task_ids), _AT_ONCE):
            some = task_ids[begin : begin + _AT_ONCE]
            found = await self.commands.run("MGET", *(self.prefix + each for each in some))
            for task_id, payload in zip(some, found, strict=True):
                if payload is not None:
                    yield task_id, payload
