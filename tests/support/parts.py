"""Parts of a gateway that run on the loop of a test."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from gateway.background import Service
from gateway.config.settings import Config
from gateway.journal.store import JournalStore
from gateway.stores import result_store
from gateway.stores.pipeline import Pipeline
from gateway.stores.state_store import StateStore


def pipeline_to(url: str) -> Pipeline:
    """Return a pipeline to a Redis, not started yet."""
    config = Config(result_backend=url)
    return Pipeline(lambda: result_store.connect(config), "test")


class ProcessStore(JournalStore, Service):
    """The journal's store as a process has it: its connection is open from `start` to `stop`."""

    def __init__(self, config: Config):
        redis = StateStore(config, "journal")
        super().__init__(config, lambda *command: redis.run(*command))
        self.uses = (redis,)


@asynccontextmanager
async def started(*parts: Any) -> AsyncIterator[Any]:
    """Start parts one after the other; yield the first one, and stop the last one first."""
    async with AsyncExitStack() as stack:
        for part in parts:
            await part.start()
            stack.push_async_callback(part.stop)
        yield parts[0]
