"""Gateways: a parent that owns the listening socket, and the real child that serves on it."""

from __future__ import annotations

import asyncio
import json
import signal
from typing import TYPE_CHECKING, Any

from gateway.config import loading
from gateway.config.settings import Config
from gateway.process import child as product
from tests.simulation import histories
from tests.simulation.loop import DEAD, Party
from tests.simulation.network import Listener, pair
from tests.simulation.senders import (
    DEADLINES,
    FALLBACK,
    HASTY,
    IDENTIFIED,
    LATE,
    TRIES,
    TRY_AFTER,
)

if TYPE_CHECKING:
    from tests.simulation.world import World

GRACE = 10.0  # seconds
START_TIMEOUT = 10.0  # seconds that a new child has until it serves
WINDOW = 120.0  # seconds for which deliveries are recognized
_ANSWERS = {
    "/plain": "wait",
    "/plain-accept": "accept",
    "/later": "wait-then-accept",
    "/also": "accept",
    HASTY: "wait-then-accept",
    LATE: "wait-then-accept",
}


def configuration(
    strategy: str, queue: dict[str, Any], late: dict[str, Any] | None = None, **settings: Any
) -> Config:
    """Return the configuration that all gateways of a simulation have.

    `queue` has the arguments of all queues; without `late` no route has any late answers.
    """
    arguments = dict(queue)
    kind = {"queue_type": arguments.pop("x-queue-type", "classic"), "queue_arguments": arguments}
    routes = []
    for path, deadline in DEADLINES.items():
        route: dict[str, Any] = {
            "path": path,
            "answer": _ANSWERS.get(path, path[1:]),
            "deadline": deadline,
            "idempotency": "header:X-Delivery" if path in (*IDENTIFIED, HASTY, LATE) else "none",
            "task": "simulated.nonce",
            "queue": "main",
            **kind,
        }
        if path == "/also":
            route["also"] = [{"task": "simulated.further", "queue": "further", **kind}]
        if path == HASTY:
            route |= {"tries": TRIES, "retry_after": TRY_AFTER, "fallback": FALLBACK}
        if path == LATE:
            route |= {"fallback": FALLBACK, "late": late}
        if path != LATE or late is not None:
            routes.append(route)
    values = {
        "strategy": strategy,
        "broker_url": "amqp://guest:guest@broker:5672//",
        "result_backend": "redis://redis:6379/0",
        "result_expires": 300,
        "idempotency_window": WINDOW,
        "secret_key": "of the simulation only",
        "public_url": "http://gateway",
        "journal": 10_000,
        "grace": GRACE,
        "routes": routes,
        **settings,
    }
    return loading.load(values, {})


class Child:
    """A serving process: the real `gateway.process.child.Child`."""

    def __init__(self, gateway: Gateway):
        self.gateway = gateway
        self.world = world = gateway.world
        self.party = Party(gateway.name)
        self.party.skew = gateway.skew
        self.ended = False
        self.health: dict[str, str] | None = None
        ours, theirs = pair(world.network, gateway.party, self.party)
        self.listener = gateway.listener.for_child()
        self.task = world.loop.start(self.party, self._run(theirs))
        self.asking = world.loop.start(gateway.party, self._ask(ours))

    async def _run(self, control: Any) -> None:
        child = product.Child(self.world.config, [self.listener], None)  # type: ignore[list-item]
        self.process, self.relay = child, child._relay
        histories.note(self)
        child._relay.context.failpoint.__class__ = _Failpoint
        child._relay.context.failpoint.child = self
        await child.run(control)
        self.ended = True
        self.listener.close()
        self.world.child_ended(self)

    async def _ask(self, sock: Any) -> None:
        """Ask for the child's health, as its parent does."""
        reader, writer = await asyncio.open_connection(sock=sock)
        number = 0
        try:
            while True:
                number += 1
                writer.write(b"%d\n" % number)
                told = 0
                while told != number and (line := await reader.readline()):
                    told, health = json.loads(line)
                if told != number:
                    break
                self.health = health
                await asyncio.sleep(2 if self.health and not any(self.health.values()) else 0.2)
        except OSError:
            pass
        writer.close()

    @property
    def alive(self) -> bool:
        return self.party.state != DEAD and not self.ended

    def terminate(self) -> None:
        """Tell it to drain and to end."""
        handler = self.party.signals.get(signal.SIGTERM)
        if handler is not None:
            self.world.loop.soon_in(self.party, handler)

    def kill(self) -> None:
        self.listener.listener.readers.pop(self.party, None)
        self.listener.close()
        self.world.loop.kill(self.party)


class _Failpoint(product.Failpoint):
    """Kills a process at a step, where the simulation wants that."""

    child: Child

    def reach(self, name: str) -> None:
        self.child.world.reached(self.child, name)


class Gateway:
    """A gateway's parent, whose child is replaced when it has ended."""

    def __init__(self, world: World, name: str):
        self.world, self.name = world, name
        self.skew = 0.0
        self.children: list[Child] = []
        self.running = False

    def start(self) -> None:
        """Start parent and child."""
        self.party = Party(self.name)
        self.listener = Listener(self.world.network, self.party, (self.name, 8000))
        self.running = True
        self.start_child()

    def start_child(self) -> Child:
        child = Child(self)
        self.children.append(child)
        return child

    @property
    def child(self) -> Child:
        """The child that was started last."""
        return self.children[-1]

    @property
    def serving(self) -> bool:
        child = self.child
        return (
            self.running
            and child.alive
            and child.health is not None
            and not any(child.health.values())
        )

    def kill(self) -> None:
        """Kill parent and children."""
        self.running = False
        for child in self.children:
            if child.alive:
                child.kill()
        self.world.loop.kill(self.party)
        self.listener.close()

    def kill_child(self, child: Child | None = None) -> None:
        """Kill a child only, else the last; the parent starts another one soon for the last."""
        child = child or self.child
        if child.alive:
            child.kill()
            if self.running:
                self.world.later(self.world.random.uniform(0.2, 1.0), self._replace)

    def _replace(self) -> None:
        if self.running and not self.child.alive:
            self.start_child()

    def reload(self) -> None:
        """Start a new child, and let the old one drain when that serves."""
        old = self.child
        new = self.start_child()
        self.world.loop.start(self.party, self._take_over(old, new))

    async def _take_over(self, old: Child, new: Child) -> None:
        end = self.world.loop.time() + START_TIMEOUT
        while new.alive and (new.health is None or any(new.health.values())):
            if self.world.loop.time() > end and old.alive:  # the old one stays
                self.children.remove(new)
                self.children.insert(0, new)
                old, new = new, old
                break
            await asyncio.sleep(0.1)
        old.terminate()

    def stop(self) -> None:
        """Let the children drain, and accept no more."""
        self.running = False
        for child in self.children:
            if child.alive:
                child.terminate()
        self.listener.close()
