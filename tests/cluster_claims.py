"""Measure claims on a Redis Cluster of 1, 3 and 6 masters, and while its slots move.

``python -m tests.cluster_claims`` starts each cluster, and takes claims as a gateway's process
does: each delivery is taken, confirmed and answered, and every fourth one is tried again. What a
server's core could take follows from the CPU time of its commands, as two cores cannot load six
servers. Exit code 1: a delivery would have run twice.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
from collections import deque
from itertools import count
from time import monotonic
from uuid import uuid4

import redis

from gateway.answer import Answer
from gateway.claims.store import Claims
from gateway.config.settings import Config
from tests.support.redis_kinds import Nodes
from tests.support.stack import Server, Stack
from tests.support.waiting import eventually

MASTERS = (1, 3, 6)
AT_ONCE = 32  # deliveries
SLOTS = 40  # that are moved from one master to the next one, and back
ANSWER = Answer(200, "text/plain", b"taken")

log = logging.getLogger("cluster claims")


class Load:
    """Deliveries that are taken until `ended`, and what later tries have found."""

    def __init__(self, claims: Claims):
        self._claims, self._numbers = claims, count()
        self._known: deque[tuple[str, str]] = deque()
        self.taken = self.again = self.twice = 0
        self.ended = False

    async def run(self) -> None:
        await asyncio.gather(*(self._deliver() for _ in range(AT_ONCE)))
        await eventually(lambda: not self._claims.redis.pending)

    async def _deliver(self) -> None:
        while not self.ended:
            number = next(self._numbers)
            claim = await self._claims.take(f"delivery-{number}", b"body", str(uuid4()))
            self._claims.confirm(claim)
            self._claims.finish(claim, ANSWER)
            self.taken += 1
            self._known.append((f"delivery-{number}", claim.task_id))
            if number % 4 == 0:
                identity, task = self._known.popleft()
                found = await self._claims.take(identity, b"body", str(uuid4()))
                self.again += 1
                self.twice += found.ours or found.task_id != task


def used(server: Server) -> tuple[int, float]:
    """Return a server's scripts so far, each of which is a claim's command, and its CPU seconds."""
    with redis.Redis.from_url(server.url) as client:
        cpu, calls = client.info("cpu"), client.info("commandstats")
    return calls.get("cmdstat_eval", {}).get("calls", 0) + calls.get("cmdstat_evalsha", {}).get(
        "calls", 0
    ), cpu["used_cpu_user"] + cpu["used_cpu_sys"]


async def measure(nodes: Nodes, seconds: float) -> tuple[str, int]:
    """Return a row of the table, and how many deliveries would have run twice."""
    claims = Claims(Config(state_url=nodes.masters[0].url))
    await claims.start()
    await eventually(lambda: len(claims.redis.nodes) == len(nodes.masters))
    before, began = [used(node) for node in nodes.masters], monotonic()
    plain = Load(claims)
    asyncio.get_running_loop().call_later(seconds, setattr, plain, "ended", True)
    await plain.run()
    took = monotonic() - began
    after = [used(node) for node in nodes.masters]
    calls = [b[0] - a[0] for a, b in zip(before, after, strict=True)]
    cpu = sum(b[1] - a[1] for a, b in zip(before, after, strict=True))
    moving = Load(claims) if len(nodes.masters) > 1 else None
    if moving is not None:
        await asyncio.gather(moving.run(), asyncio.to_thread(move, nodes, moving))
    await claims.stop()
    loads = [plain, *([moving] if moving else [])]
    row = (
        f"| {len(nodes.masters)} | {plain.taken / took:,.0f} | {sum(calls) / took:,.0f} "
        f"| {1e6 * cpu / sum(calls):.1f} us | {sum(calls) / cpu:,.0f} "
        f"| {max(calls) / sum(calls):.0%} "
        + (f"| {moving.taken:,} | {moving.again:,} | {moving.twice} |" if moving else "| | | |")
    )
    return row, sum(load.twice for load in loads)


def move(nodes: Nodes, load: Load) -> None:
    """Move slots to the next master and back; the load ends then."""
    first, second = nodes.masters[:2]
    try:
        for source, target in ((first, second), (second, first)):
            for slot in range(SLOTS):
                nodes.move(slot, source, target)
    finally:
        load.ended = True


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.cluster_claims", description=__doc__)
    parser.add_argument("--seconds", type=float, default=5.0, help="of load on each cluster (5)")
    seconds, twice = parser.parse_args().seconds, 0
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
    logging.getLogger("gateway").setLevel(logging.WARNING)
    log.info(
        "| masters | deliveries/s | commands/s | Redis CPU a command | commands/s a core "
        "| busiest server | taken while slots move | tried again | run twice |\n"
        "|---|---|---|---|---|---|---|---|---|"
    )
    with Stack() as stack:
        for masters in MASTERS:
            nodes = Nodes(stack, masters)
            row, more = asyncio.run(measure(nodes, seconds))
            nodes.stop()
            twice += more
            log.info(row)
    return int(twice > 0)


if __name__ == "__main__":
    sys.exit(main())
