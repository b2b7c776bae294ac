"""Faults: which ones a seed draws, and how each is done and put right.

A further fault is a line in `KINDS` and a coroutine below: it does the fault, waits, and puts
everything right again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from math import inf
from random import Random
from typing import TYPE_CHECKING

from pika import spec

from gateway.failpoints import LATE as LATE_STEPS
from tests.simulation.loop import Party
from tests.simulation.network import Conditions
from tests.simulation.records import Injected
from tests.simulation.scenes import CLAIMED, CONFIRMING, RESULT

if TYPE_CHECKING:
    from tests.simulation.world import World

MOST = 3  # faults at once
PAUSE = 9.0  # seconds without a fault, at most

LEADER = "leader lost"  # of quorum queues, if there are any

#: What may happen to which kind of process or link, for how many seconds, and how often.
KINDS: dict[str, dict[str, tuple[float, float, float]]] = {
    "broker": {
        "killed": (0.0, 4.0, 3),
        "frozen": (1.0, 9.0, 2),
        "connections closed": (0.0, 0.0, 2),
        "channels closed": (0.0, 0.0, 1),
        "alarm": (1.0, 8.0, 2),
        LEADER: (0.5, 8.0, 3),
    },
    "redis": {
        "killed": (0.0, 4.0, 2),
        "killed, losing a second": (0.0, 4.0, 1),
        "frozen": (1.0, 9.0, 2),
        "clients cut": (0.0, 0.0, 1),
        "subscribers cut": (0.0, 0.0, 2),
        "read-only": (1.0, 6.0, 1),
        "promoted": (0.1, 2.0, 1),
        "failed over": (0.0, 0.0, 1),
        "out of memory": (1.0, 6.0, 1),
    },
    "link": {
        "stalled": (0.5, 6.0, 3),
        "reset": (0.0, 0.0, 3),
        "black hole": (2.0, 25.0, 2),
        "forgotten": (0.0, 0.0, 2),
        "slow": (2.0, 10.0, 2),
    },
    "gateway": {
        "killed": (0.2, 4.0, 2),
        "child killed": (0.0, 0.0, 2),
        "killed at": (0.0, 3.0, 3),
        "frozen": (1.0, 9.0, 2),
        "drained": (0.5, 3.0, 1),
        "reloaded": (0.0, 0.0, 2),
    },
    "worker": {
        "killed": (0.0, 4.0, 2),
        "frozen": (1.0, 9.0, 2),
        "dies": (0.0, 3.0, 3),
    },
    "clock": {"jumps": (3.0, 20.0, 1)},
}
WEIGHTS = {"broker": 4, "redis": 4, "link": 4, "gateway": 4, "worker": 3, "clock": 1}
STEPS = ("claimed", "published", "confirmed")  # of a gateway
WORKER_STEPS = ("begun", "ran", "stored")


@dataclass(frozen=True)
class Fault:
    """What happens to a target; `at` and `length` are seconds, `at` from the beginning of all."""

    at: float
    target: str
    kind: str
    length: float
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.at:6.2f} s  {self.target} {self.kind} {self.detail} for {self.length:.2f} s"


def draw(rng: Random, gateways: int, seconds: float, quorum: bool) -> list[Fault]:
    """Draw the faults of `seconds`: groups of one to three different targets.

    `quorum`: the queues are quorum queues.
    """
    faults: list[Fault] = []
    at = rng.uniform(1, 6)
    while at < seconds:
        group: list[Fault] = []
        for _ in range(rng.randint(1, MOST)):
            begins = at if not group else at + rng.uniform(0, max(2.0, group[0].length))
            fault = _fault(rng, gateways, begins, quorum)
            if all(fault.target != other.target for other in group):
                group.append(fault)
        group = [
            replace(fault, length=min(fault.length, seconds - fault.at))
            for fault in group
            if fault.at < seconds
        ]
        faults += group
        at = max((fault.at + fault.length for fault in group), default=at) + rng.uniform(0, PAUSE)
    return sorted(faults, key=lambda fault: fault.at)


def reloads(rng: Random, gateways: int, seconds: float) -> list[Fault]:
    """Draw that gateways are reloaded again and again, or stopped; only the first one for long."""
    times = sorted(rng.uniform(0, seconds) for _ in range(12))
    found = []
    for at in times:
        number, kind = rng.randint(1, gateways), rng.choice(["reloaded", "reloaded", "drained"])
        found.append(Fault(at, f"gateway{number}", kind, 25.0 if number == 1 else 1.0))
    return found


def swallowed(rng: Random, gateways: int, seconds: float) -> list[Fault]:
    """Draw, for every fourth seed, that a firewall forgets half of the connections of a link."""
    if rng.random() > 0.25:
        return []
    link = f"gateway{rng.randint(1, gateways)}>{rng.choice(['broker', 'redis'])}"
    return [Fault(round(rng.uniform(0, seconds), 2), link, "swallowed", 0.0)]


def killed_late(rng: Random, gateways: int, seconds: float) -> list[Fault]:
    """Draw up to two moments from which on a gateway is killed at a step of a late answer."""
    return [
        Fault(
            round(rng.uniform(0, seconds), 2), f"gateway{rng.randint(1, gateways)}", "killed at",
            8.0, rng.choice(LATE_STEPS),
        )
        for _ in range(rng.randint(0, 2))
    ]  # fmt: skip


def at_step(rng: Random, step: str, gateway: str) -> list[Fault]:
    """Return what happens at a step of a scene, if it is no death."""
    seconds = {CLAIMED: rng.uniform(4.4, 4.9), CONFIRMING: rng.uniform(1.5, 8)}.get(step, 0.0)
    if step == CLAIMED:  # as with a machine that is suspended, whose connections come back later
        return [
            Fault(0.0, f"{gateway}>broker", "black hole", seconds + 4),
            Fault(0.0, gateway, "frozen", seconds),
        ]
    if step == CONFIRMING:
        return [Fault(0.0, f"{gateway}>redis", "black hole", seconds)]
    return [Fault(0.0, "redis", "subscribers cut", 0.0)] if step == RESULT else []


def _fault(rng: Random, gateways: int, at: float, quorum: bool) -> Fault:
    family = rng.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]
    kinds = {kind: KINDS[family][kind] for kind in KINDS[family] if kind != LEADER or quorum}
    kind = rng.choices(list(kinds), [weight for *_, weight in kinds.values()])[0]
    least, most, _ = kinds[kind]
    gateway, worker = f"gateway{rng.randint(1, gateways)}", f"worker{rng.randint(1, 2)}"
    detail = ""
    if family == "link":
        # A broker gives messages to a lost worker for two heartbeats more.
        client = rng.choice([gateway, gateway, gateway if kind == "forgotten" else worker])
        target = f"{client}>{rng.choice(['broker', 'redis'])}"
    elif family == "clock":
        target = rng.choice([gateway, worker, "redis", "broker"])
        detail = f"{rng.choice([-1, 1]) * rng.choice([0.5, 3, 30, 600])}"
        if target == "redis":  # a longer jump than the window of identities ends these
            detail = f"{max(-30.0, min(30.0, float(detail)))}"
    else:
        target = {"gateway": gateway, "worker": worker}.get(family, family)
    if kind == "killed at":
        detail = rng.choice(STEPS)
    if kind == "dies":
        detail = rng.choice(WORKER_STEPS)
    return Fault(round(at, 2), target, kind, round(rng.uniform(least, most), 2), detail)


async def inject(world: World, faults: list[Fault]) -> None:
    """Do all of them, and return when the last is put right."""
    began = asyncio.get_running_loop().time()
    busy: dict[str, asyncio.Lock] = {}
    await asyncio.gather(*(_suffer(world, began, fault, busy) for fault in faults))


async def _suffer(world: World, start: float, fault: Fault, busy: dict[str, asyncio.Lock]) -> None:
    loop = asyncio.get_running_loop()
    await asyncio.sleep(start + fault.at - loop.time())
    async with busy.setdefault(fault.target, asyncio.Lock()):
        began = loop.time()
        world.trace("fault", f"{fault.target} {fault.kind} {fault.detail}")
        injected = Injected(fault.kind, fault.target, began, inf, fault.detail)
        world.evidence.injected.append(injected)
        await _do(world, fault)
        injected.ended = loop.time()
        world.trace("fault", f"{fault.target} {fault.kind} is over")


async def _do(world: World, fault: Fault) -> None:
    name = fault.target
    if ">" in name:
        await _LINK[fault.kind](world, fault)
    elif fault.kind == "jumps":
        await _jump(world, fault)
    elif name.startswith("gateway"):
        await _GATEWAY[fault.kind](world, fault)
    elif name.startswith("worker"):
        await _WORKER[fault.kind](world, fault)
    else:
        await {"broker": _BROKER, "redis": _REDIS}[name][fault.kind](world, fault)


# Servers --------------------------------------------------------------------------------------


async def _frozen(world: World, party: Party, seconds: float) -> None:
    world.loop.freeze(party)
    await asyncio.sleep(seconds)
    world.loop.thaw(party)


async def _kill_broker(world: World, fault: Fault) -> None:
    world.broker_down(lose_unsynced=True)
    await asyncio.sleep(fault.length)
    world.broker_up()


async def _close_connections(world: World, fault: Fault) -> None:
    world.broker.close_connections()


async def _close_channels(world: World, fault: Fault) -> None:
    world.broker.close_channels()


async def _consumer_timeout(world: World, fault: Fault) -> None:
    """A task takes longer than the broker waits for its acknowledgement."""
    for peer in list(world.broker.peers):
        for channel in list(peer.channels.values()):
            if channel.unacked and not channel.closing:
                text = f"delivery acknowledgement on channel {channel.number} timed out"
                channel.refuse(406, f"PRECONDITION_FAILED - {text}", spec.Channel.Close)


async def _alarm(world: World, fault: Fault) -> None:
    world.broker.alarm(True)
    await asyncio.sleep(fault.length)
    world.broker.alarm(False)


async def _lose_leader(world: World, fault: Fault) -> None:
    world.broker.leader(False)
    await asyncio.sleep(fault.length)
    world.broker.leader(True)


async def _kill_redis(world: World, fault: Fault) -> None:
    world.redis_down(lose="losing" in fault.kind)
    await asyncio.sleep(fault.length)
    world.redis_up()


async def _read_only(world: World, fault: Fault) -> None:
    """The primary becomes a replica, and then a primary again."""
    world.redis.become_replica()
    await asyncio.sleep(fault.length)
    world.redis.promote()


async def _promote(world: World, fault: Fault) -> None:
    """Another primary takes its place, which lacks the last writes."""
    world.redis.kill_clients("normal")
    world.redis.kill_clients("pubsub")
    world.redis.promote(lost_seconds=min(fault.length, 1.0))
    await asyncio.sleep(0)


async def _fail_over(world: World, fault: Fault) -> None:
    """Another primary takes its place; who is connected to the old one has to leave it."""
    world.redis_fails_over()


async def _flush_scripts(world: World, fault: Fault) -> None:
    world.redis.scripts.clear()


async def _memory(world: World, fault: Fault) -> None:
    world.redis.out_of_memory(True)
    await asyncio.sleep(fault.length)
    world.redis.out_of_memory(False)


def _kill_clients(kind: str) -> _Inject:
    async def cut(world: World, fault: Fault) -> None:
        world.redis.kill_clients(kind)

    return cut


# Links ----------------------------------------------------------------------------------------


def _link(fault: Fault) -> tuple[str, str]:
    client, _, server = fault.target.partition(">")
    return client, server


async def _hold(world: World, fault: Fault) -> None:
    conditions = replace(world.network.default, held=True)
    world.network.change(*_link(fault), conditions)
    await asyncio.sleep(fault.length)
    world.network.restore(*_link(fault))


async def _reset(world: World, fault: Fault) -> None:
    world.network.reset(*_link(fault))


async def _forget(world: World, fault: Fault) -> None:
    world.network.forget(*_link(fault))


async def _swallow(world: World, fault: Fault) -> None:
    world.network.swallow(*_link(fault), share=0.5)


async def _slow(world: World, fault: Fault) -> None:
    conditions = Conditions(0.03, 0.25, 0.1, 0.1, rate=125_000)
    world.network.change(*_link(fault), conditions)
    await asyncio.sleep(fault.length)
    world.network.restore(*_link(fault))


# Gateways and workers -------------------------------------------------------------------------


async def _kill_gateway(world: World, fault: Fault) -> None:
    gateway = world.gateways[fault.target]
    gateway.kill()
    await asyncio.sleep(fault.length)
    gateway.start()
    await _until_serving(world, fault)


async def _kill_child(world: World, fault: Fault) -> None:
    world.gateways[fault.target].kill_child()
    await asyncio.sleep(1.2)
    await _until_serving(world, fault)


async def _kill_at(world: World, fault: Fault) -> None:
    world.failpoints[fault.target] = fault.detail
    await asyncio.sleep(fault.length)
    world.failpoints.pop(fault.target, None)


async def _freeze_gateway(world: World, fault: Fault) -> None:
    gateway = world.gateways[fault.target]
    parties = [gateway.party, *(child.party for child in gateway.children if child.alive)]
    for party in parties:
        world.loop.freeze(party)
    await asyncio.sleep(fault.length)
    for party in parties:
        world.loop.thaw(party)


async def _drain(world: World, fault: Fault) -> None:
    gateway = world.gateways[fault.target]
    gateway.stop()
    await asyncio.sleep(fault.length)
    while any(child.alive for child in gateway.children):
        await asyncio.sleep(0.1)
    gateway.start()
    await _until_serving(world, fault)


async def _reload(world: World, fault: Fault) -> None:
    gateway = world.gateways[fault.target]
    if gateway.running and gateway.child.alive:
        gateway.reload()
    await asyncio.sleep(0.5)


async def _until_serving(world: World, fault: Fault) -> None:
    """Wait for 5 s at most: what the gateway needs may be away for longer."""
    for _ in range(50):
        if world.gateways[fault.target].serving:
            return
        await asyncio.sleep(0.1)


async def _kill_worker(world: World, fault: Fault) -> None:
    worker = world.workers[fault.target]
    worker.kill()
    await asyncio.sleep(fault.length)
    worker.start()


async def _end_worker(world: World, fault: Fault) -> None:
    """Let a worker end its task, and start it again."""
    worker = world.workers[fault.target]
    while not worker.ended:
        worker.tell_to_end()
        await asyncio.sleep(0.1)
    await asyncio.sleep(fault.length)
    worker.start()


async def _die(world: World, fault: Fault) -> None:
    worker = world.workers[fault.target]
    worker.dies_at = fault.detail
    await asyncio.sleep(fault.length)
    worker.dies_at = ""


async def _jump(world: World, fault: Fault) -> None:
    """Set the clock of a process, and set it right again."""
    _skew(world, fault.target, float(fault.detail))
    await asyncio.sleep(fault.length)
    _skew(world, fault.target, 0.0)


def _skew(world: World, name: str, seconds: float) -> None:
    if name in world.gateways:
        gateway = world.gateways[name]
        gateway.skew = seconds
        for child in gateway.children:
            child.party.skew = seconds
    elif name in world.workers:
        world.workers[name].party.skew = seconds
    else:
        getattr(world, name).skew = seconds


_Inject = Callable[["World", Fault], Awaitable[None]]

_BROKER: dict[str, _Inject] = {
    "killed": _kill_broker,
    "frozen": lambda world, fault: _frozen(world, world.broker_party, fault.length),
    "connections closed": _close_connections,
    "channels closed": _close_channels,
    "consumer timeout": _consumer_timeout,
    "alarm": _alarm,
    LEADER: _lose_leader,
}
_REDIS: dict[str, _Inject] = {
    "killed": _kill_redis,
    "killed, losing a second": _kill_redis,
    "frozen": lambda world, fault: _frozen(world, world.redis_party, fault.length),
    "clients cut": _kill_clients("normal"),
    "subscribers cut": _kill_clients("pubsub"),
    "read-only": _read_only,
    "promoted": _promote,
    "failed over": _fail_over,
    "scripts flushed": _flush_scripts,
    "out of memory": _memory,
}
_LINK: dict[str, _Inject] = {
    "stalled": _hold,
    "black hole": _hold,
    "reset": _reset,
    "forgotten": _forget,
    "swallowed": _swallow,
    "slow": _slow,
}
_GATEWAY: dict[str, _Inject] = {
    "killed": _kill_gateway,
    "child killed": _kill_child,
    "killed at": _kill_at,
    "frozen": _freeze_gateway,
    "drained": _drain,
    "reloaded": _reload,
}
_WORKER: dict[str, _Inject] = {
    "killed": _kill_worker,
    "frozen": lambda world, fault: _frozen(world, world.workers[fault.target].party, fault.length),
    "dies": _die,
    "told to end": _end_worker,
}
