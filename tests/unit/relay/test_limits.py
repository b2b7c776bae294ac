"""How much may be under way, how fast a source may send, and how what is overdue is ended."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from time import monotonic

import pytest

from gateway.config.settings import Config
from gateway.errors import Full, TooMany
from gateway.relay import limits as module
from gateway.relay.limits import TICK, Deadlines, Limits, SourceLimits
from gateway.sources.base import Options


class Clock:
    now = 1_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("gateway.relay.limits.monotonic", clock)
    return clock


def of_source(**settings: float) -> SourceLimits:
    return SourceLimits(Options(scheme="github", secrets="secret", **settings))


def pause(limits: SourceLimits) -> int:
    """See that the next one is refused, and return after how many seconds it may come."""
    with pytest.raises(TooMany) as refused:
        limits.admit()
    return refused.value.retry_after


def test_a_process_takes_so_many_and_so_many_bytes():
    limits = Limits(Config(max_in_flight=2, max_in_flight_bytes=10))
    limits.admit(10)
    limits.in_flight, limits.bytes = 1, 4
    limits.admit(6)
    with pytest.raises(Full):
        limits.admit(7)
    limits.in_flight = 2
    with pytest.raises(Full):
        limits.admit(0)


def test_a_second_s_worth_comes_at_once_and_then_at_the_rate(clock):
    limits = of_source(rate=5)
    for _ in range(5):
        limits.admit()
    assert pause(limits) == 1
    clock.now += 0.2
    limits.admit()
    assert pause(limits) == 1
    # What was not used is not saved for more than a second.
    clock.now += 3_600
    for _ in range(5):
        limits.admit()
    assert pause(limits) == 1


def test_a_rate_below_one_says_when_the_next_may_come(clock):
    limits = of_source(rate=0.1)
    limits.admit()
    assert pause(limits) == 10
    clock.now += 9.5
    assert pause(limits) == 1
    clock.now += 0.5
    limits.admit()


def test_a_source_has_so_many_under_way():
    limits = of_source(max_in_flight=1)
    limits.admit()
    limits.in_flight += 1
    assert pause(limits) == 1
    limits.in_flight -= 1
    limits.admit()


def test_one_that_is_refused_spends_nothing(clock):
    limits = of_source(max_in_flight=1, rate=1)
    limits.in_flight = 1
    assert pause(limits) == 1
    limits.in_flight = 0
    limits.admit()


def test_without_settings_there_is_no_limit():
    limits = SourceLimits(None)
    limits.in_flight = 1_000_000
    for _ in range(1_000):
        limits.admit()


# Deadlines ----------------------------------------------------------------------------------------


@dataclass(eq=False)
class Entry:
    deadline: float
    ended: asyncio.Future[float] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )

    def expire(self) -> None:
        self.ended.set_result(monotonic())  # raises, should it be called twice


@pytest.fixture
def deadlines():
    return Deadlines()


def after(seconds: float) -> Entry:
    return Entry(monotonic() + seconds)


async def test_each_entry_ends_after_its_deadline_and_in_their_order(deadlines):
    entries = [after(seconds) for seconds in (0.3, 0.0, 0.15, -5)]
    for entry in entries:
        deadlines.add(entry)

    ends = await asyncio.gather(*(entry.ended for entry in entries))

    pairs = sorted(zip((entry.deadline for entry in entries), ends, strict=True))
    assert all(deadline <= end for deadline, end in pairs)
    assert [end for _, end in pairs] == sorted(ends)


async def test_what_was_removed_never_ends(deadlines):
    removed, stays = after(0), after(2 * TICK)
    deadlines.add(removed)
    deadlines.add(stays)
    deadlines.remove(removed)
    deadlines.remove(removed)
    deadlines.remove(after(9))  # nobody knows it: nothing happens

    await stays.ended
    assert not removed.ended.done()


async def test_entries_may_add_and_remove_others_while_they_end(deadlines):
    neighbours = [after(0) for _ in range(2)]

    class Ending(Entry):
        def expire(self):
            for entry in neighbours:  # of the same tick, perhaps ended already
                deadlines.remove(entry)
            deadlines.add(successor)
            super().expire()

    first, successor = Ending(neighbours[0].deadline), after(0)
    for entry in (*neighbours, first):
        deadlines.add(entry)

    await first.ended
    await successor.ended


async def test_one_timer_is_armed_whatever_is_added_while_others_end(deadlines, monkeypatch):
    loop, armed = asyncio.get_running_loop(), []
    call_later = loop.call_later

    def arm(*args):
        armed.append(timer := call_later(*args))
        return timer

    class Ending(Entry):
        def expire(self):
            deadlines.add(overdue)  # of an earlier tick than the one that is swept
            super().expire()

    overdue, first, last = after(-5), Ending(monotonic()), after(9)
    deadlines.add(last)
    deadlines.add(first)
    monkeypatch.setattr(loop, "call_later", arm)

    await first.ended
    await overdue.ended
    await asyncio.sleep(0)

    assert [timer.cancelled() for timer in armed].count(False) == len(armed)
    assert len(armed) == 2  # for what is overdue, and for the last
    deadlines.remove(last)


async def test_sweep_rests_while_nothing_waits_and_wakes_again(deadlines):
    for _ in range(2):
        entry = after(0)
        deadlines.add(entry)
        await entry.ended
        await asyncio.sleep(0)
        assert deadlines._timer is None


async def test_an_entry_that_fails_does_not_end_the_others_wait(deadlines):
    class Failing(Entry):
        def expire(self):
            raise ZeroDivisionError

    told = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))
    failing, other = Failing(monotonic()), after(3 * TICK)
    deadlines.add(failing)
    deadlines.add(other)

    await other.ended
    assert isinstance(told[0]["exception"], ZeroDivisionError)


@pytest.mark.parametrize("began", [0.0, 0.3, 0.7, 0.99])
@pytest.mark.parametrize("wait", [0.0, 0.01, 0.5, 0.98, 1.0, 7.3])
def test_no_deadline_is_noticed_more_than_a_tick_late(deadlines, monkeypatch, began, wait):
    now, timers, ended = (1_000 + began) * TICK, [], []

    class Clock:
        def call_later(self, seconds, callback):
            timers.append((now + seconds, callback))

    class Ending:
        deadline = now + wait * TICK

        def expire(self):
            ended.append(now)

    monkeypatch.setattr(module, "monotonic", lambda: now)
    monkeypatch.setattr(module.asyncio, "get_running_loop", Clock)
    deadlines.add(Ending())
    while timers:
        now, sweep = timers.pop()
        sweep()

    (end,) = ended
    assert Ending.deadline <= end <= Ending.deadline + TICK + 0.002001
