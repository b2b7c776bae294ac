"""A late answer is sent once, or it is told that it was not, in whatever order things happen."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random

import pytest

from gateway.late.record import (
    ANSWERED,
    DROPPED,
    ENDED,
    FAILED,
    LEASE,
    LOOK,
    NOT_TAKEN,
    REFUSED,
    SENDING,
    TAKEN,
    UNCERTAIN,
    UNKNOWN,
    WAITING,
    Record,
    Terms,
    Verdict,
)

SEEDS = 1_500


def new(**some: object) -> Record:
    values = {
        "task_id": "t", "delivery_id": "d", "route": "/r", "key": "k", "values": {"json:/a": 1},
        "traceparent": "", "due": LOOK, "expires": 900.0,
    }  # fmt: skip
    return Record(**{**values, **some})


def test_what_another_version_has_written_is_read():
    newer = {**json.loads(new().dump()), "of_another_version": 1}
    assert Record.load(json.dumps(newer)) == new()


@dataclass
class World:
    """A store, a sender, and processes of gateways, which `random` lets act in any order.

    A process is a generator that stops before each of its steps; killed, it is not continued.
    """

    random: Random
    terms: Terms
    record: Record = field(default_factory=new)
    version: int = 1
    now: float = 0.0
    has_result: bool = False
    taken: list[str] = field(default_factory=list)
    requests: int = 0
    processes: list[Iterator[None]] = field(default_factory=list)

    def swap(self, record: Record, version: int) -> bool:
        if version != self.version:
            return False
        self.record, self.version = Record.load(record.dump()), version + 1
        return True

    def look(self) -> Iterator[None]:
        """Do what a process does that looks at the record."""
        record, version, now = self.record, self.version, self.now
        yield
        if (changed := record.looked_at(self.terms, now)) is not None:
            self.swap(changed, version)
        elif record.ready(now) and (record.message is not None or self.has_result):
            record = record.begin("answer", now)
            if not self.swap(record, version):
                return
            yield
            self.requests += 1
            kind = self.random.choice([TAKEN, TAKEN, NOT_TAKEN, REFUSED, UNKNOWN])
            if kind == TAKEN or (kind == UNKNOWN and self.random.random() < 0.5):
                self.taken.append(record.message or "")
            seconds = self.random.uniform(0, LEASE / 2)
            yield
            verdict = Verdict(kind, "because", self.random.choice([0, 0, 30]))
            self.swap(record.after(verdict, self.terms, now + seconds), version + 1)

    def act(self) -> None:
        choice = self.random.random()
        if choice < 0.1:
            self.has_result = True
        elif choice < 0.3:
            self.now += self.random.expovariate(0.1)
        elif choice < 0.5:
            self.processes.append(self.look())
        elif self.processes:
            process = self.random.choice(self.processes)
            if choice < 0.55 or next(process, self) is self:  # killed, or at its end
                self.processes.remove(process)

    def to_the_end(self) -> None:
        """Let one process look again and again until the record has ended; others are killed."""
        self.processes.clear()
        while self.record.state != ENDED:
            self.now += LOOK
            for _ in self.look():
                pass
            assert self.now < 10_000


@pytest.mark.parametrize("replaces", [False, True])
def test_whatever_happens_it_is_sent_once_or_told_otherwise(replaces):
    ends = set()
    for seed in range(SEEDS):
        random = Random(seed)
        world = World(random, Terms(tries=random.choice([1, 2, 5]), replaces=replaces))

        for _ in range(random.randrange(60)):
            world.act()
        world.to_the_end()

        ends.add(world.record.end)
        assert world.requests <= world.terms.tries
        if not replaces:
            assert len(world.taken) <= 1, seed
        if world.record.end == ANSWERED:
            assert world.taken, seed
        if world.record.end == FAILED:
            assert not world.taken, seed
        assert world.record.reason or world.record.end == ANSWERED, seed
    assert ends == {ANSWERED, FAILED, UNCERTAIN}


@pytest.mark.parametrize(("replaces", "expected"), [(True, WAITING), (False, ENDED)])
def test_who_is_killed_while_sending_leaves_a_doubt(replaces, expected):
    sending = new().begin("m", 10.0)

    assert sending.looked_at(Terms(5, replaces), 10.0 + LEASE - 0.1) is None
    after = sending.looked_at(Terms(5, replaces), 10.0 + LEASE)

    assert after.state == expected
    assert after.end == ("" if replaces else UNCERTAIN)
    assert after.taken


def test_the_pauses_grow_and_a_senders_own_pause_counts():
    record, terms, dues = new(), Terms(5, replaces=False), []

    for after in (0.0, 0.0, 100.0):
        record = record.begin("m", 0.0).after(Verdict(NOT_TAKEN, "429", after), terms, 0.0)
        dues.append(record.due)

    assert dues == [1.0, 2.0, 100.0]
    assert not record.ready(99.0)
    assert record.ready(100.0)


def test_no_try_comes_after_the_senders_window():
    begun = new(expires=50.0).begin("m", 40.0)

    after = begun.after(Verdict(NOT_TAKEN, "503", 15.0), Terms(5, replaces=True), 41.0)

    assert (after.state, after.end) == (ENDED, FAILED)
    assert "takes no answer any more" in after.reason


def test_a_task_that_takes_too_long_is_told():
    over = new(expires=50.0).looked_at(Terms(5, replaces=False), 50.0)

    assert (over.end, over.reason) == (
        FAILED, "the task has not ended while the sender takes late answers",
    )  # fmt: skip


def test_what_has_ended_keeps_no_data_and_is_the_same_after_a_round_trip():
    ended = new(message="secret").ended(DROPPED)

    assert (ended.message, ended.values, ended.taken) == (None, {}, False)
    for record in (ended, new(), new().begin("größe", 1.5)):
        assert Record.load(record.dump()) == record
    assert new().begin("m", 0.0).state == SENDING
