"""How much may be under way, and how fast one source may send."""

from __future__ import annotations

import pytest

from gateway.config.settings import Config
from gateway.errors import Full, TooMany
from gateway.relay.limits import Limits, SourceLimits
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
