"""The Redis of claims and journal: one server, or the nodes of a Redis Cluster.

The server says itself which of the two it is. In a cluster each command goes to the node that has
the slot of its key; all keys of one command have the same slot, by a tag in braces.
https://redis.io/docs/latest/operate/oss_and_stack/reference/cluster-spec/
"""

from __future__ import annotations

import asyncio
from asyncio import Future
from binascii import crc_hqx
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, Self

from gateway import background
from gateway.background import Tasks, happens
from gateway.config.settings import Config
from gateway.errors import StoreError
from gateway.stores import result_store
from gateway.stores.pipeline import ASKING, PATIENCE, PING, Arg, Command, Pipeline
from gateway.stores.server import HELLO, Address

if TYPE_CHECKING:
    from gateway.stores.redis_client import Client

SLOTS = 16_384
_KEYS = 500  # keys that are looked at between two replies of Redis
_AGAIN = 0.05  # seconds until a command is sent again, or the nodes are asked again, at the soonest


def slot(key: Arg) -> int:
    """Return the slot of a key: that of its first tag, if it has one which is not empty."""
    data = key if isinstance(key, bytes) else str(key).encode()
    begin = data.find(b"{") + 1
    if begin and (end := data.find(b"}", begin)) > begin:
        data = data[begin:end]
    return crc_hqx(data, 0) % SLOTS


class StateStore:
    """Has the interface of `Pipeline`, which it uses: one, or one for each node with slots.

    A command that comes to a node without its slot (any more, or yet) is sent on. The nodes are
    learned anew each second, and when one sends a command on, so the store follows a fail-over and
    a resharding. A node that is away refuses only its share.
    """

    def __init__(
        self,
        config: Config,
        name: str,
        *,
        probe: tuple[Arg, ...] = (HELLO,),
        patience: float = PATIENCE,
    ):
        self._config = config
        self._name = name
        self._patience = patience
        self._first = self._pipeline(None, probe)
        self.on_connected, self.on_left = self._first.on_connected, self._first.on_left
        self.on_left.append(self._opened)
        #: As `Pipeline.run`. It is the pipeline's own while there is no cluster.
        self.run: Callable[..., Future[Any]] = self._first.run
        self._nodes: dict[Address, Pipeline] = {}
        self._slots: list[Pipeline | None] = []
        self._problem = ""  # of the cluster as a whole
        self._changed = asyncio.Event()
        self._ending = Tasks()
        self._following: asyncio.Task[None] | None = None

    def _pipeline(self, node: Address | None, probe: tuple[Arg, ...] = (HELLO,)) -> Pipeline:
        host, port = node or ("", 0)
        return Pipeline(
            lambda: result_store.connect(self._config, self._config.state, node=node, state=True),
            f"{self._name} {host}:{port}" if node and self._name else self._name,
            probe=probe,
            patience=self._patience,
            redirect=self._redirect,
            primary=node is not None,
        )

    @classmethod
    @asynccontextmanager
    async def opened(cls, config: Config) -> AsyncIterator[Self]:
        """Connect for one command, with more patience, and without a log."""
        store = cls(config, "", patience=ASKING)
        await store.start()
        try:
            with suppress(StoreError):  # the command's own error tells it
                await store.known()
            yield store
        finally:
            await store.stop()

    async def start(self) -> None:
        await self._first.start()

    async def stop(self) -> None:
        await background.stop(self._following)
        stopping = (each.stop() for each in (self._first, *self._nodes.values()))
        await asyncio.gather(*stopping, self._ending.stop(None))

    async def known(self) -> None:
        """Wait until it is known whether there is a cluster, and its nodes; fails as `run` does."""
        await self._first.run("PING")
        if self._first.clustered:
            await self._learn()

    @property
    def clustered(self) -> bool | None:
        """Is it a cluster? None: that is not known before the first connection."""
        return self._first.clustered

    @property
    def nodes(self) -> dict[Address | None, Pipeline]:
        """The servers that have keys; one that is no node of a cluster has the address None."""
        if self._following is None:
            return {None: self._first}
        return dict(self._nodes.items())

    @property
    def pending(self) -> int:
        """How many commands wait for their reply, or to be sent."""
        return sum(each.pending for each in (self._first, *self._nodes.values()))

    @property
    def error(self) -> str:
        """What is wrong with it as a whole, in words; empty while at least a part answers."""
        if self._following is None:
            return self._first.error
        errors = [node.error for node in self._nodes.values()]
        return self._problem or ("" if not errors or not all(errors) else errors[0])

    @property
    def partly(self) -> str:
        """Which part of a cluster is away, in words; empty: none, or all."""
        if self._following is None or self.error:
            return ""
        shares = Counter(self._slots)
        lost = [
            f"{host}:{port} with {shares[node]} of {SLOTS} slots ({node.error})"
            for (host, port), node in self._nodes.items()
            if node.error
        ]
        none = [f"no node has {shares[None]} of {SLOTS} slots"] if shares[None] else []
        return "; ".join(lost + none)

    @property
    def available(self) -> float:
        """The share of all keys whose server answers, from 0 to 1."""
        if self.error:
            return 0.0
        if self._following is None or not self._slots:
            return 1.0
        return sum(node is not None and not node.error for node in self._slots) / SLOTS

    def connect(self) -> Client:
        """Make a client for a subscription: any node has what is published on any other."""
        living = (address for address, node in self._nodes.items() if not node.error)
        node = next(living, None) if self._first.error else None
        return result_store.connect(self._config, self._config.state, node=node, state=True)

    def well_since(self, key: Arg) -> float:
        """As `Pipeline.well_since`, of the node that has `key`."""
        return self._of(key).well_since

    def copied(self, replicas: int, patience: float, key: Arg) -> Future[Any]:
        """As `Pipeline.copied`, of the node that has `key`."""
        return self._of(key).copied(replicas, patience)

    async def keys(self, begin: str) -> AsyncIterator[bytes]:
        """Yield the keys that begin so, of all nodes."""
        literal = "".join(f"\\{each}" if each in "*?[]^\\" else each for each in begin)
        for node in self.nodes.values():
            cursor = b""
            while cursor != b"0":
                match = ("MATCH", f"{literal}*", "COUNT", _KEYS)
                cursor, keys = await node.run("SCAN", cursor or b"0", *match)
                for key in keys:
                    yield key

    def _of(self, key: Arg) -> Pipeline:
        return (self._slots and self._slots[slot(key)]) or self._first

    def _routed(self, *command: Arg) -> Future[Any]:
        place = 3 if command[0] == "EVAL" else 1
        return (self._of(command[place]) if len(command) > place else self._first).run(*command)

    def _opened(self, _before: float) -> None:
        """See what the new connection has led to: the URL's name may lead elsewhere by now."""
        if self._first.clustered and self._following is None:
            self.run = self._routed
            self._following = background.start(self._follow(), f"nodes of {self._name}")
        elif not self._first.clustered and self._following is not None:
            self._following.cancel()
            self.run, self._following = self._first.run, None
            self._adopt([], "")

    async def _follow(self) -> None:
        while True:
            with suppress(StoreError):
                await self._learn()
            await asyncio.sleep(_AGAIN)
            await happens(self._changed, PING)
            self._changed.clear()

    async def _learn(self) -> None:
        """Ask one node after the other for all of them, until one says that the cluster is well.

        What others say, as one that the cluster has forgotten, counts only where none is well.
        """
        problem, host, ranges = "", "", None
        for asked in (self._first, *self._nodes.values()):
            if asked.error and asked is not self._first:
                continue
            try:
                state, ranges = await asyncio.gather(
                    asked.run("CLUSTER", "INFO"), asked.run("CLUSTER", "SLOTS")
                )
            except StoreError as exc:
                problem = problem or str(exc)
                continue
            host, problem = asked.host, "the cluster is down (cluster_state:fail)"
            if b"cluster_state:ok" in state:
                problem = ""
                break
        if ranges is not None:
            self._adopt(ranges, host)
        self._problem = problem

    def _adopt(self, ranges: Sequence[Any], asked: str) -> None:
        """Use the nodes with slots that the host which was `asked` tells (CLUSTER SLOTS)."""
        slots: list[Pipeline | None] = [None] * SLOTS
        nodes: dict[Address, Pipeline] = {}
        for first, last, (host, port, *_), *_ in ranges:
            # Without a name or address of its own it is where it was asked.
            address = (host or b"").decode() or asked, port
            nodes[address] = node = self._node(address)
            slots[first : last + 1] = [node] * (last + 1 - first)
        gone = [node for address, node in self._nodes.items() if address not in nodes]
        self._nodes, self._slots = nodes, slots
        for node in gone:
            self._ending.run(node.stop())

    def _node(self, address: Address) -> Pipeline:
        if address not in self._nodes:
            self._nodes[address] = node = self._pipeline(address)
            node.open()
        return self._nodes[address]

    def _redirect(self, command: Command, error: str) -> bool:
        """Send a command on that this node has refused; False: the error is another one."""
        word, *about = error.split()
        if word in ("MOVED", "ASK"):
            host, _, port = about[1].rpartition(":")
            node = self._node((host or self._first.host, int(port)))
            if word == "MOVED":
                self._changed.set()
                if self._slots:
                    self._slots[int(about[0])] = node
            node.send(command, asking=word == "ASK")
        elif word == "TRYAGAIN":  # only some of its keys have come to the slot's new node
            node = self._of(command.words[3 if command.words[0] == "EVAL" else 1])
            asyncio.get_running_loop().call_later(_AGAIN, node.send, command)
        else:
            if word == "CLUSTERDOWN":
                self._changed.set()
            return False
        return True
