"""A seed stands for one schedule, and all seeds together for everything that may happen."""

from __future__ import annotations

import pytest

from tests.faults.faults import KINDS, MOST, TARGETS, Fault, schedule

SECONDS = 120.0
SEEDS = range(1, 21)
SCHEDULES = {seed: schedule(seed, SECONDS) for seed in SEEDS}


def test_a_seed_always_stands_for_the_same_schedule():
    assert schedule(1, SECONDS) == schedule(1, SECONDS)
    assert schedule(1, SECONDS) != schedule(2, SECONDS)
    # Of this Python and of any other: a failure has to be told by its seed.
    assert [fault.line for fault in schedule(1, 9)] == [
        "   0.0 s  worker-1 killed for 1.0 s",
        "   1.0 s  gateway-1 reloaded",
        "   2.5 s  broker memory alarm for 4.0 s",
    ]


@pytest.mark.parametrize("faults", SCHEDULES.values(), ids=SCHEDULES)
def test_no_server_suffers_two_faults_at_a_time_and_all_is_over_in_time(faults):
    assert faults == sorted(faults, key=lambda fault: fault.at)
    assert all(fault.at >= 0 and fault.end <= SECONDS + 0.1 for fault in faults)
    for target in TARGETS:
        own = [fault for fault in faults if fault.target == target]
        assert all(one.end <= next.at for one, next in zip(own, own[1:], strict=False))
    assert all(at_once(faults, fault) <= MOST for fault in faults)


def test_faults_overlap():
    counts = {seed: [at_once(faults, f) for f in faults] for seed, faults in SCHEDULES.items()}

    assert all(max(each) >= 2 for each in counts.values())
    assert {1, 2, 3} == {count for each in counts.values() for count in each}


def test_everything_happens_to_every_server():
    happened = {(f.target, f.kind) for faults in SCHEDULES.values() for f in faults}
    assert happened == {
        (target, kind) for target in TARGETS for kind in KINDS[target.partition("-")[0]]
    }


@pytest.mark.parametrize("seconds", [0.5, 3, 20])
def test_a_short_schedule_is_not_empty(seconds):
    for seed in SEEDS:
        assert schedule(seed, seconds)


def at_once(faults: list[Fault], one: Fault) -> int:
    """Count those under way when `one` begins, itself included."""
    return sum(fault.at <= one.at <= fault.end for fault in faults)
