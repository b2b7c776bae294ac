"""What processes hold, what they leave behind, and what the servers and the journal have."""

from __future__ import annotations

import gc
import json
from collections import Counter
from typing import TYPE_CHECKING, Any

from appserver.queues import DEAD_LETTER_EXCHANGE
from gateway.delivery import Request
from gateway.journal.store import JournalStore

if TYPE_CHECKING:
    from tests.simulation.gateways import Child
    from tests.simulation.world import World


def held(world: World) -> list[str]:
    """Say what the gateways hold though no request is under way."""
    found = []
    for gateway in world.gateways.values():
        for child in gateway.children:
            if child.alive:
                holds = {what: n for what, n in _holds(world, child).items() if n}
                if holds:
                    found.append(f"{gateway.name} holds {holds}")
        if gateway.running and not gateway.serving:
            found.append(f"{gateway.name} does not serve: {gateway.child.health}")
    return found


def _holds(world: World, child: Child) -> dict[str, Any]:
    context = child.relay.context
    holds = child.process.held()
    assert context.idempotency is not None
    # A task that was lost has no result, and is listened for until its claim has expired.
    unattended = context.idempotency.unattended.awaited
    holds["unattended tasks"] = sum(
        world.redis_has(f"celery-task-meta-{task}") for task in unattended
    )
    holds["subscriptions"] -= len(unattended)
    return holds | {"requests counted": context.metrics.get("gateway_in_flight")}


def uncollected() -> list[str]:
    """Say how many requests are in memory though all have ended: cycles of references keep them.

    Only where nothing was killed, and while the garbage collector has not run.
    """
    kept = sum(type(each) is Request for each in gc.get_objects())
    return [f"{kept} requests are kept in memory"] if kept else []


def stopped(child: Child) -> list[str]:
    """Say what a process has left though it was told to stop."""
    name = child.gateway.name
    if not child.ended:
        return [f"{name} did not stop"]
    found = []
    if child.task.done() and not child.task.cancelled() and child.task.exception() is not None:
        found.append(f"{name} stopped with {child.task.exception()!r}")
    pending = sorted(_name(task) for task in child.party.living_tasks() if not task.done())
    if pending:
        found.append(f"{name} has left tasks: {dict(Counter(pending))}")
    if child.party.ends:
        peers = sorted(end.peer.party.name for end in child.party.ends)
        found.append(f"{name} has left connections: {peers}")
    return found


def _name(task: Any) -> str:
    coroutine = task.get_coro()
    return str(getattr(coroutine, "__qualname__", coroutine))


def dead_letters(world: World) -> set[tuple[str, str]]:
    """Return the dead letters: the delivery and the task's name of each."""
    queue = world.broker.queues.get(DEAD_LETTER_EXCHANGE)
    found = set()
    for message in () if queue is None else queue.ready:
        (_, _, content), _, _ = json.loads(message.body)
        found.add((content.split(" ")[0], message.properties.headers["task"]))
    return found


async def inspect(world: World) -> dict[str, Any]:
    """Return what the journal has: its entries, and the sizes that it says."""
    async with JournalStore.opened(world.config) as store:
        entries = [entry async for entry in store.entries(calls=True)]
        size = await store.trim(100)
        groups = await store.groups()
    return {
        "entries": entries,
        "size": size,
        "groups": groups,
        "uncounted": len(world.redis.get(b"gateway:/::{journal}:failing") or ()),
        "bytes": world.stream_bytes("gateway:/::{journal}:deliveries"),
    }
