"""Commands for which no connection is opened any more."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

from gateway.errors import Unanswered
from gateway.stores import pipeline
from gateway.stores.pipeline import Pipeline


def away() -> SimpleNamespace:
    """Return a client of a server that takes no connection, and does not refuse it."""

    async def closed() -> None: ...

    return SimpleNamespace(opened=asyncio.Event().wait, aclose=closed)


async def test_commands_for_a_node_that_leaves_its_cluster_fail_as_any_other(monkeypatch):
    # Given a node to which a connection is opened for as long as an end waits for its commands,
    node = Pipeline(away, "")
    await node.start()
    await asyncio.sleep(0)
    waiting = node.run("PING")
    monkeypatch.setattr(pipeline, "PATIENCE", 0.01)

    await node.stop()

    later = node.run("PING")
    for reply in (waiting, later):
        with pytest.raises(Unanswered, match="not used any more"):
            await asyncio.wait_for(reply, 1)
