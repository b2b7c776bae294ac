"""Which nodes of a cluster are used, by what its nodes say."""

from __future__ import annotations

from gateway.config.settings import Config
from gateway.stores.state_store import SLOTS, StateStore


class Node:
    """Says of its cluster whether it is well, and which port has all slots; 0: none has any."""

    error = host = ""
    stopped = False

    def __init__(self, state: str, port: int):
        self._state, self._port = state, port

    async def run(self, *command: str) -> object:
        if command == ("CLUSTER", "INFO"):
            return f"cluster_state:{self._state}".encode()
        return [[0, SLOTS - 1, [b"node", self._port, b"id"]]] if self._port else []

    def open(self) -> None: ...

    async def stop(self) -> None:
        self.stopped = True


def store(first: Node, *others: Node) -> StateStore:
    made = StateStore(Config(state_url="redis://first"), "")
    made._first = first
    made._pipeline = lambda address: Node("ok", 0)
    made._nodes = {("node", port): node for port, node in enumerate(others, 1)}
    return made


async def test_what_a_forgotten_node_says_changes_nothing():
    ours = Node("ok", 1)
    one = store(Node("fail", 0), ours)

    await one._learn()
    await one._ending.stop()

    assert one._nodes == {("node", 1): ours}
    assert set(one._slots) == {ours} and not ours.stopped and not one._problem


async def test_where_no_node_is_well_the_last_view_counts():
    ours = Node("fail", 2)
    one = store(Node("fail", 0), ours)

    await one._learn()
    await one._ending.stop()

    assert set(one._nodes) == {("node", 2)} and ours.stopped
    assert "the cluster is down" in one._problem
