"""Persons who look into the journal and replay what they find, as `gateway replay` does.

Each time it is a process of its own, which may be killed. Two persons often choose the same.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from functools import partial
from random import Random
from typing import TYPE_CHECKING

from gateway.errors import GatewayError, NotConfirmed, RequestError
from gateway.journal.entry import Entry
from gateway.journal.replay import Publish, Replay, Replayer, publishing
from gateway.journal.store import JournalStore
from tests.simulation.loop import DEAD, Party
from tests.simulation.records import Published, Replayed

if TYPE_CHECKING:
    from tests.simulation.world import World

VISITS = 4  # of each person
NEWEST = (2, 12)  # deliveries among which they choose two
KILLED = 0.25  # the share of visits in which the process is killed


class Persons:
    """Runs `number` persons for `seconds`."""

    def __init__(self, world: World, number: int, seconds: float):
        self.world = world
        self._random = Random(f"persons {world.strategy} {world.seed}")
        self._visits = [self._random.uniform(0, seconds) for _ in range(VISITS * number)]
        self._running: list[tuple[Party, asyncio.Task[None]]] = []

    async def run(self) -> None:
        """Begin each visit at its time, and return when all have ended."""
        rng, loop = self._random, self.world.loop
        began = loop.time()
        for number, at in enumerate(sorted(self._visits)):
            # Some come together.
            at = began + (round(at / 8) * 8 + rng.random() * 0.02 if rng.random() < 0.6 else at)
            await asyncio.sleep(at - loop.time())
            party = Party(f"person{number}")
            visit = self._visit(Random(rng.random()), party)
            self._running.append((party, loop.start(party, visit)))
            if not self.world.plan.calm and rng.random() < KILLED:
                self.world.later(rng.uniform(0.05, 0.15), loop.kill, party)
        while any(party.state != DEAD and not task.done() for party, task in self._running):
            await asyncio.sleep(0.1)

    async def _visit(self, rng: Random, party: Party) -> None:
        """Replay two of the newest deliveries, or one and an edited one."""
        config = self.world.config
        try:
            async with JournalStore.opened(config) as store, publishing(config) as publish:
                replayer = Replayer(store, partial(self._publish, party, publish))
                newest = await _newest(store, rng.choice(NEWEST))
                for entry in rng.sample(newest, min(2, len(newest))):
                    began = self.world.loop.time()
                    self.world.trace(party.name, f"replays {entry.id} ({entry.task_id})")
                    if entry.queue and rng.random() < 0.15:
                        whole = await store.get(entry.id)
                        told = await replayer.run_edited(whole, whole.call) if whole else None
                    else:
                        told = await replayer.run(entry, again=rng.random() < 0.4)
                    if told is not None:
                        self._note(party.name, began, told)
        except GatewayError as exc:
            self.world.trace(party.name, f"cannot go on: {exc}")

    async def _publish(self, party: Party, publish: Publish, entry: Entry, task_id: str) -> None:
        now, published = self.world.loop.time(), self.world.evidence.published
        attempt = entry.arguments()[0][1]["x-try"]
        one = Published(task_id, entry.id, entry.task_id, attempt, now, party)
        one.beside = any(o.is_under_way() for o in published if o.task_id == task_id)
        published.append(one)
        try:
            await publish(entry, task_id)
            one.taken = True
        except NotConfirmed:
            raise
        except RequestError:
            one.taken = False
            raise
        finally:
            one.ended = self.world.loop.time()

    def _note(self, name: str, began: float, replay: Replay) -> None:
        world = self.world
        world.trace(name, f"is told of {replay.delivery_id}: {replay.task_id} {replay.problem}")
        world.evidence.replays.append(
            Replayed(replay.delivery_id, replay.task_id, replay.problem, began, world.loop.time())
        )


async def _newest(store: JournalStore, most: int) -> list[Entry]:
    found: list[Entry] = []
    async with aclosing(store.entries(calls=False)) as entries:
        async for entry in entries:
            found.append(entry)
            if len(found) == most:
                break
    return found
